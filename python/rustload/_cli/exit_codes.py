"""The exit codes of the command line; 0 means success."""

from __future__ import annotations

GATE_FAILED = 1
"""A scan found a file that does not pass the policy; without a policy, one that is not inert. Or a tensor has numbers that `stats
--fail-on` names."""
USAGE = 2
"""Wrong usage."""
READ_FAILED = 3
"""Something could not be read, or the output could not be written."""
VERIFY_FAILED = 4
"""A new file that was read back differs from what was written."""
INTERRUPTED = 130
"""Interrupted by Ctrl-C (128 + SIGINT)."""
BROKEN_PIPE = 141
"""The reader of stdout closed the pipe (128 + SIGPIPE)."""
