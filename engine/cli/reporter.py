"""The voice of a run: lines, a live table, or JSON objects.

Talk goes to standard error and results to standard output, so that a pipe gets results only. With
`--json` everything is a result: one object per line, `event` first. Later versions only add keys.

Source: clig.dev, "Output"; no-color.org.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from ..contract.places import redacted
from ..observation.observed import Observation
from .standing import progress_fields, summary
from .streams import give, say

_LINE_EVERY_NS = 10_000_000_000
_OBJECT_EVERY_NS = 1_000_000_000


class Reporter(Protocol):
    """Gets the events of a run, and shows them in its way."""

    def event(self, event: str, text: str | None, **fields: Any) -> None:
        """Show an event.

        `text` is the line for people (None: no line), `fields` are for machines.
        """
        ...

    def look(self, observation: Observation, now_ns: int) -> None:
        """The job stands like this now; called several times a second."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def open_reporter(*, as_json: bool) -> Reporter:
    """Choose: JSON if asked for, a table on a terminal that may show one, lines otherwise."""
    if as_json:
        return JsonReporter()
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        from .live import LiveReporter

        return LiveReporter()
    return LineReporter()


class JsonReporter:
    """Every event as an object on standard output, and how things stand once a second."""

    def __init__(self) -> None:
        self._next_ns: int | None = None

    def event(self, event: str, text: str | None, **fields: Any) -> None:
        """See `Reporter`."""
        shown = {k: redacted(v) if isinstance(v, str) else v for k, v in fields.items()}
        print_object({"event": event, **shown})

    def look(self, observation: Observation, now_ns: int) -> None:
        """See `Reporter`."""
        if self._next_ns is None:
            self._next_ns = now_ns + _OBJECT_EVERY_NS
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _OBJECT_EVERY_NS
            print_object({"event": "progress", **progress_fields(observation)})

    def close(self) -> None:
        """See `Reporter`."""


class LineReporter:
    """Every event as a line on standard error, and how things stand every ten seconds."""

    def __init__(self) -> None:
        self._began_ns: int | None = None
        self._next_ns = 0

    def event(self, event: str, text: str | None, **fields: Any) -> None:
        """See `Reporter`."""
        if text is not None:
            say(redacted(text))

    def look(self, observation: Observation, now_ns: int) -> None:
        """See `Reporter`."""
        if self._began_ns is None:
            self._began_ns, self._next_ns = now_ns, now_ns + _LINE_EVERY_NS
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _LINE_EVERY_NS
            elapsed = (now_ns - self._began_ns) // 1_000_000_000
            say(f"{elapsed} s: {summary(observation)}")

    def close(self) -> None:
        """See `Reporter`."""


def print_object(fields: Mapping[str, Any]) -> None:
    """Print one JSON object as a line of standard output; values unknown to JSON become text."""
    give(json.dumps(fields, default=str, ensure_ascii=False), at_once=True)
