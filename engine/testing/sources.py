"""Does a source keep its promises? Crashes between polls and amid them, and rescales."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from ..contract.connectors import Source
from ..contract.operators import (
    HearsCheckpoints,
    OperatorContext,
    Polled,
    ReadsSplits,
    RestoredState,
    SourceReader,
    SourceStatus,
    StateSnapshot,
)
from .elsewhere import copied, elsewhere
from .states import MAX_PARALLELISM, dealt, frozen
from .verdict import Broken, Findings, Row, Rows, expect, rows_of, step

OPERATOR = "in"

#: Rows asked for in one poll: few, so that crashes fall into the midst of splits.
_ROWS_MAX = 3
#: After a round of polls that brought nothing.
_PAUSE_S = 0.01
#: Polls before a crash.
_POLLS = (0, 1, 2, 3, 5, 8, 13)


def check_source(
    make_source: Callable[[], Source],
    rows: Rows | None = None,
    *,
    idle_s: float = 5.0,
) -> list[str]:
    """Run a source through crashes between polls and amid them, and through rescales.

    Args:
        make_source: makes the source; it must give the same rows each time.
        rows: that the source gives; None: the rows of a first, undisturbed reading.
        idle_s: a source without an end is read until it has given `rows`, or nothing for so long.

    Returns the names of the cases. Raises: NotConforming, with a sentence for each broken promise.
    """
    findings = Findings()
    kit = _Kit(make_source, None if rows is None else rows_of(rows), idle_s)
    for case in _CASES:
        with findings.case(case.__name__.strip("_").replace("_", " ")):
            case(kit)
    return findings.conclude()


class _Kit:
    """The source, and the rows that it must give."""

    def __init__(
        self, make_source: Callable[[], Source], wanted: list[Row] | None, idle_s: float
    ) -> None:
        self.make_source = make_source
        self.idle_s = idle_s
        self._wanted = wanted

    def readers(self, parallelism: int) -> Readers:
        """Make the readers of a first attempt."""
        return Readers(self.make_source(), parallelism, enough=self._enough, idle_s=self.idle_s)

    @property
    def wanted(self) -> list[Row]:
        """The rows of the source."""
        if self._wanted is None:
            self._wanted = self.readers(1).read()
        return self._wanted

    @property
    def _enough(self) -> int | None:
        return None if self._wanted is None else len(self._wanted)

    def expect(self, found: list[Row], after: str) -> None:
        """All rows have come, each as often as it must."""
        expect(lambda: found, self.wanted, after)


class Readers:
    """The readers of one attempt.

    Args:
        states: of all readers of the attempt before; None: the first attempt.
        enough: reading ends after so many rows, those `before` included, if the source has no end.
    """

    def __init__(
        self,
        source: Source,
        parallelism: int,
        states: Sequence[Sequence[RestoredState]] | None = None,
        *,
        enough: int | None = None,
        before: Sequence[Row] = (),
        idle_s: float = 5.0,
    ) -> None:
        self._source = source
        self._shipped = copied(source)
        with step("schema"):
            self._schema = self._shipped.schema
        self._enough, self._idle_s = enough, idle_s
        #: Rows of committed polls, those before the restart included.
        self.rows = list(before)
        self._checkpoint = 0
        self._ended = [False] * parallelism
        self.readers: list[SourceReader] = []
        for index in range(parallelism):
            self.readers.append(self._opened(index, parallelism, states))

    def _opened(
        self, index: int, parallelism: int, states: Sequence[Sequence[RestoredState]] | None
    ) -> SourceReader:
        context = OperatorContext("kit", OPERATOR, index, parallelism, MAX_PARALLELISM, 1)
        with step("reader()"):
            reader = self._shipped.reader()
        with step("open"):
            reader.open(context)
        if states is not None:
            with step("restore"):
                reader.restore(dealt(states, parallelism, index))
        return reader

    def poll(self, index: int) -> Polled:
        """Poll one reader, and commit nothing."""
        reader = self.readers[index]
        with step("poll"):
            polled = reader.poll(_ROWS_MAX)
        for batch in polled.batches:
            if not batch.schema.equals(self._schema):
                raise Broken(
                    f"poll gave records of ({_columns(batch.schema)}), and the source says"
                    f" ({_columns(self._schema)})"
                )
        if isinstance(reader, ReadsSplits):
            with step("open_splits"):
                if not all(reader.open_splits()):
                    raise Broken("open_splits names a split with an empty name")
        return polled

    def committed_poll(self, index: int) -> Polled:
        """Poll one reader and commit."""
        polled = self.poll(index)
        with step("commit"):
            self.readers[index].commit()
        self.rows += [row for batch in polled.batches for row in rows_of(batch.to_pylist())]
        self._ended[index] = polled.status is SourceStatus.END
        return polled

    def poll_some(self, polls: int) -> None:
        """Poll the readers in turn, as long as they have not ended."""
        for number in range(polls):
            index = number % len(self.readers)
            if not self._ended[index]:
                self.committed_poll(index)

    def read(self) -> list[Row]:
        """Read to the end and close; returns all rows, those before the restart included."""
        silent_since_s = time.monotonic()
        while not all(self._ended):
            if self._enough is not None and len(self.rows) >= self._enough and self._is_idle():
                break
            if time.monotonic() - silent_since_s > self._idle_s:
                break
            had = len(self.rows)
            self.poll_some(len(self.readers))
            if len(self.rows) > had:
                silent_since_s = time.monotonic()
            else:
                time.sleep(_PAUSE_S)
        self.close()
        return self.rows

    def _is_idle(self) -> bool:
        """One more look at each reader finds nothing."""
        had = len(self.rows)
        self.poll_some(len(self.readers))
        return len(self.rows) == had

    def freeze(self) -> list[list[RestoredState]]:
        """Freeze all readers, and tell those that hear that the checkpoint is complete."""
        self._checkpoint += 1
        with step("snapshot"):
            states = frozen(self.readers)
        for reader in self.readers:
            if isinstance(reader, HearsCheckpoints):
                with step("completed"):
                    reader.completed(self._checkpoint, _snapshots(reader))
                    reader.commit()
        return states

    def restarted(
        self, states: Sequence[Sequence[RestoredState]], before: list[Row], parallelism: int
    ) -> Readers:
        """Close these readers, and make those of the next attempt."""
        self.close()
        return Readers(
            self._source,
            parallelism,
            states,
            enough=self._enough,
            before=before,
            idle_s=self._idle_s,
        )

    def close(self) -> None:
        """Close all readers."""
        for reader in self.readers:
            with step("close"):
                reader.close()
        self.readers = []


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _snapshots(reader: SourceReader) -> list[StateSnapshot]:
    return list(reader.snapshot())


# --- the cases ------------------------------------------------------------------------------------


def _every_row_comes_once(kit: _Kit) -> None:
    for parallelism in (1, 2, 3):
        found = kit.readers(parallelism).read()
        kit.expect(found, f"an undisturbed reading at parallelism {parallelism}")


def _a_crash_between_two_polls(kit: _Kit) -> None:
    for polls in _POLLS:
        readers = kit.readers(2)
        readers.poll_some(polls)
        states, before = readers.freeze(), list(readers.rows)
        readers.poll_some(3)  # lost with the crash
        found = readers.restarted(states, before, 2).read()
        kit.expect(found, f"a restart from the state behind {polls} polls")


def _a_snapshot_amid_a_poll_is_the_state_before(kit: _Kit) -> None:
    for polls in _POLLS:
        readers = kit.readers(1)
        readers.poll_some(polls)
        if any(readers._ended):
            readers.close()
            return
        readers.poll(0)
        states, before = readers.freeze(), list(readers.rows)
        found = readers.restarted(states, before, 1).read()
        kit.expect(found, f"a restart from a snapshot before the commit of poll {polls + 1}")


def _a_snapshot_does_not_change_any_more(kit: _Kit) -> None:
    readers = kit.readers(1)
    readers.poll_some(2)
    with step("snapshot"):
        early = _snapshots(readers.readers[0])
        at_once = [state.table() for state in early]
    readers.poll_some(4)
    with step("the table of a snapshot"):
        later = [state.table() for state in early]
    readers.close()
    if at_once != later:
        raise Broken("the table of a snapshot looks at live state: it changed with later polls")


def _rescales_in_a_row(kit: _Kit) -> None:
    readers = kit.readers(2)
    for parallelism in (3, 1, 2):
        readers.poll_some(2 * len(readers.readers))
        states, before = readers.freeze(), list(readers.rows)
        readers = readers.restarted(states, before, parallelism)
    kit.expect(readers.read(), "rescales from 2 to 3, 1 and 2 readers")


def _a_restart_at_the_end_gives_nothing_more(kit: _Kit) -> None:
    readers = kit.readers(2)
    for _ in range(len(kit.wanted) + 4):
        readers.poll_some(2)
    states, before = readers.freeze(), list(readers.rows)
    kit.expect(readers.restarted(states, before, 3).read(), "a restart behind the last row")


def _another_process_goes_on(kit: _Kit) -> None:
    readers = kit.readers(2)
    readers.poll_some(4)
    states, before = readers.freeze(), list(readers.rows)
    readers.close()
    found = elsewhere(_read_on, kit.make_source(), states, before, len(kit.wanted), kit.idle_s)
    kit.expect(found, "a restart in another process")


def _read_on(
    source: Source,
    states: list[list[RestoredState]],
    before: list[Row],
    enough: int,
    idle_s: float,
) -> list[Row]:
    return Readers(source, 2, states, enough=enough, before=before, idle_s=idle_s).read()


_CASES = (
    _every_row_comes_once,
    _a_crash_between_two_polls,
    _a_snapshot_amid_a_poll_is_the_state_before,
    _a_snapshot_does_not_change_any_more,
    _rescales_in_a_row,
    _a_restart_at_the_end_gives_nothing_more,
    _another_process_goes_on,
)
