"""Imported first in `rustload.torch`: raises with advice if torch is missing, broken or too old."""

from rustload._frameworks.adapters import import_framework

import_framework("torch")
