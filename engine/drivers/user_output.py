"""Text that user code prints: to standard error, each line behind `[operator/subtask]`.

Standard output belongs to the user's program and to the results of `headrace run --json`. In a
process of threads both print to the same `sys.stdout`, so it is replaced while workers run: the
replacement sends a speaking thread's text to standard error, and all other text on as before.

A speaker is a context variable: tasks of an event loop and threads that are handed the context, as
those of `map_async`, speak under the same name.

Not here: threads that user code starts by itself, and output of C code. A worker process sends
those to standard error as a whole (`local/child.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, TextIO, cast

#: Names the speaker from the frame that prints.
NameOf = Callable[[FrameType], str]


class _Speaker:
    """Output of one or several threads: whole lines, with a name."""

    def __init__(self, name_of: NameOf) -> None:
        self._name_of = name_of
        #: {thread: (name, line without an end)}.
        self._lines: dict[int, tuple[str, str]] = {}

    def write(self, text: str, frame: FrameType) -> None:
        name, thread = self._name_of(frame), threading.get_ident()
        _, begun = self._lines.get(thread, ("", ""))
        *lines, rest = (begun + text).split("\n")
        self._lines[thread] = name, rest
        self._print(name, lines)

    def end(self) -> None:
        """Print last lines without an end."""
        for name, line in list(self._lines.values()):
            self._print(name, [line] if line else [])

    def _print(self, name: str, lines: Iterable[str]) -> None:
        told = "".join(f"[{name}] {line}\n" for line in lines)
        if told and sys.stderr is not None:
            with suppress(OSError):  # a full disk behind it is no failure of the user's code
                sys.stderr.write(told)


class _Output:
    """Stands in for `sys.stdout`."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        speaker = _speaker.get()
        if speaker is None:
            return self.behind.write(text)
        speaker.write(text, sys._getframe(1))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


class _Redirection:
    """`sys.stdout` as long as a worker of this process runs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._output: _Output | None = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1 and sys.stdout is not None:
                self._output = _Output(sys.stdout)
                sys.stdout = cast(TextIO, self._output)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            output = self._output
            # Somebody else may have replaced it in the meantime.
            if not self._users and output is not None and sys.stdout is cast(TextIO, output):
                sys.stdout = output.behind


_speaker: ContextVar[_Speaker | None] = ContextVar("speaker", default=None)
_redirection = _Redirection()


@contextmanager
def redirected() -> Iterator[None]:
    """Send the output of speaking threads to standard error."""
    _redirection.enter()
    try:
        yield
    finally:
        _redirection.leave()


@contextmanager
def speaking(name_of: NameOf) -> Iterator[None]:
    """Make this thread a speaker, and what runs in copies of its context."""
    speaker = _Speaker(name_of)
    token = _speaker.set(speaker)
    try:
        yield
    finally:
        _speaker.reset(token)
        speaker.end()
