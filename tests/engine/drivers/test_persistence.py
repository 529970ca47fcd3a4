"""What an attempt has to store: frozen state meets its cuts, once, and not before the in-flight
writer says what it may name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.operators import (
    DatabaseFiles,
    DatabaseSnapshot,
    StateKind,
    StateSnapshot,
)
from headrace.engine.drivers.persistence import CheckpointStored, CheckpointWrite, Persistence
from headrace.engine.storage.snapshots import Written
from headrace.engine.worker.subtask_events import Cut
from headrace.engine.worker.worker_events import PersistCheckpoint
from headrace.inflight.confirmed import Confirmed
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.writer import AdHoc, Floors, Piece
from headrace.recovery.handles import SharedFile

ONE, TWO = SubtaskId(0, 0), SubtaskId(1, 0)


def cut(subtask: SubtaskId, checkpoint: int) -> Cut:
    return Cut(subtask, checkpoint, False, (), (), (), (), (), 0, 0)


def persist(checkpoint: int) -> PersistCheckpoint:
    return PersistCheckpoint(3, checkpoint, (cut(ONE, checkpoint), cut(TWO, checkpoint)))


def frozen(persistence: Persistence, checkpoint: int) -> None:
    persistence.freeze(checkpoint, ONE, (), 5)
    persistence.freeze(checkpoint, TWO, (), 7)


def totals(release: Callable[[], None] = lambda: None) -> DatabaseSnapshot:
    """A frozen database without files."""
    return DatabaseSnapshot("totals", range(8), [], {}, lambda: DatabaseFiles("", [], []), release)


class Busy(AdHoc):
    """A piece of its log is under way until `idle`."""

    idle = False

    def index(self, checkpoint: int) -> Confirmed | None:
        return Confirmed() if self.idle else None

    def next_piece(self, floors: Floors) -> Piece | None:
        piece, self.piece = self.piece, None
        return piece

    piece: Piece | None = None


def numbers(persistence: Persistence) -> list[int]:
    return [order.checkpoint for order in persistence.ready(dict)]


def test_frozen_state_meets_its_cuts_once() -> None:
    persistence = Persistence(AdHoc())
    frozen(persistence, 7)
    assert numbers(persistence) == []
    persistence.persist(persist(7))
    (order,) = persistence.ready(dict)
    assert isinstance(order, CheckpointWrite)
    assert (order.epoch, order.checkpoint, order.sync_ns) == (3, 7, {ONE: 5, TWO: 7})
    assert order.snapshots == {ONE: (), TWO: ()}
    assert numbers(persistence) == []


def test_checkpoints_wait_in_order_for_the_piece_under_way() -> None:
    writer = Busy()
    persistence = Persistence(writer)
    for checkpoint in (7, 8):
        frozen(persistence, checkpoint)
        persistence.persist(persist(checkpoint))
    assert numbers(persistence) == []
    writer.idle, writer.piece = True, Piece(9, 0, ())
    assert numbers(persistence) == [7, 8, 9]


def test_a_given_up_checkpoint_waits_no_longer() -> None:
    writer = Busy()
    persistence = Persistence(writer)
    frozen(persistence, 7)
    persistence.persist(persist(7))
    persistence.given_up(7)
    writer.idle = True
    assert numbers(persistence) == []


def test_what_was_stored_is_told_to_the_writer() -> None:
    seen: list[tuple[int, Sequence[ChannelStateHandle]]] = []

    class Noting(AdHoc):
        def stored(self, checkpoint: int, data: Sequence[ChannelStateHandle]) -> None:
            seen.append((checkpoint, data))

        def log(self, channel: ChannelId, buffer: Buffer) -> None:
            raise AssertionError("nothing was queued")

    handle = ChannelStateHandle(0, 0, 0, "input", 0, [], ended=True)
    shared = SharedFile("1.sst", "shared/1", 3, "0" * 16)
    written = Written({}, {ONE: [handle], TWO: []}, files={"totals": {"1.sst": shared}})
    persistence = Persistence(Noting())
    persistence.stored(CheckpointStored(CheckpointWrite(7), written, 0))
    assert seen == [(7, [handle])]
    persistence.confirmed(7)
    assert persistence.files.base(totals()) == {"1.sst": shared}


def test_nothing_is_built_upon_a_savepoint() -> None:
    writer = AdHoc()
    persistence = Persistence(writer)
    frozen(persistence, 7)
    persistence.persist(replace(persist(7), savepoint=""))
    (order,) = persistence.ready(dict)
    assert isinstance(order, CheckpointWrite)
    handle = ChannelStateHandle(0, 0, 0, "input", 0, [], ended=True)
    shared = SharedFile("1.sst", "shared/1", 3, "0" * 16)
    written = Written({}, {ONE: [handle]}, files={"totals": {"1.sst": shared}})
    persistence.stored(CheckpointStored(order, written, 0))
    persistence.confirmed(7)
    assert persistence.files.base(totals()) == {}
    assert writer.newest is None


def test_what_a_given_up_checkpoint_froze_is_released_once() -> None:
    released: list[str] = []
    persistence = Persistence(AdHoc())
    persistence.freeze(7, ONE, [("totals", totals(lambda: released.append("totals")))], 0)
    persistence.given_up(7)
    persistence.given_up(7)
    assert released == ["totals"]


def offsets(at: int) -> StateSnapshot:
    return StateSnapshot(f"offsets {at}", StateKind.LIST, lambda: pa.table({"at": [at]}))


def hearing(persistence: Persistence, checkpoint: int) -> None:
    """Freeze a source's state, and that of an operator behind it in the chain."""
    states = [("in", offsets(checkpoint)), ("count", offsets(0))]
    persistence.freeze(checkpoint, ONE, states, 5, hears="in")
    persistence.freeze(checkpoint, TWO, (), 7)


def test_a_source_hears_its_own_states_of_the_complete_checkpoint() -> None:
    persistence = Persistence(AdHoc())
    for checkpoint in (1, 2):
        hearing(persistence, checkpoint)
    persistence.confirmed(1)
    assert [state.name for state in persistence.heard(1, ONE)] == ["offsets 1"]
    persistence.confirmed(2)
    assert [state.name for state in persistence.heard(2, ONE)] == ["offsets 2"]


def test_states_to_be_heard_go_with_their_checkpoint() -> None:
    """Given up, subsumed, or a savepoint of which nobody hears."""
    persistence = Persistence(AdHoc())
    for checkpoint in (1, 2, 3, 4):
        hearing(persistence, checkpoint)
    persistence.persist(replace(persist(1), savepoint=""))
    persistence.given_up(2)
    persistence.confirmed(4)
    assert set(persistence._heard) == {4}
