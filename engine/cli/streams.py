"""Standard streams that are closed, full, or without a reader.

Talk that standard error does not take is lost, and the job goes on. Results that standard output
does not take end the command.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


class OutputLost(Exception):
    """Standard output does not take a result; `reason` is the system's."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


def open_missing() -> None:
    """Give /dev/null to closed standard streams, before sockets get their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # open to the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # open to the end


def say(text: str) -> None:
    """Print a line to standard error."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        unwritable(sys.stderr)


def give(text: str, *, at_once: bool = False) -> None:
    """Print a line to standard output. Raises: OutputLost."""
    try:
        print(text, flush=at_once)
    except OSError as reason:
        raise OutputLost(reason) from reason


def unwritable(stream: TextIO) -> OSError | None:
    """Flush a stream; return the reason when that fails. The stream is /dev/null from then on, or
    Python would complain when it flushes at exit.
    """
    try:
        stream.flush()
    except OSError as reason:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
        return reason
    return None
