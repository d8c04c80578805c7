"""Imported before all of this room: says what to do where torch is missing, broken or too old."""

from rustload._frameworks.adapters import imported

imported("torch")
