"""The exit codes of the command line; 0 is that all is well."""

from __future__ import annotations

__all__ = ["FOUND", "NO_READER", "STOPPED", "UNREAD", "USAGE"]

FOUND = 1
"""A scan found something."""
USAGE = 2
"""Wrong usage."""
UNREAD = 3
"""Something could not be read, or the output not be written."""
STOPPED = 130
"""Stopped by Ctrl-C."""
NO_READER = 141
"""The reader of stdout went away."""
