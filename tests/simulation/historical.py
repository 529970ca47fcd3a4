"""Bugs that other systems had, put back into this engine: barriers, settings, files, fencing. Each
must be found, most of them by the simulation.

A bug is named after its report. The docstring says what it was there, and how it is planted here.
Where a mutant of `mutants.py` is that very bug, it is used. `docs/historical-bugs.md` lists them
all, with the seeds that it takes to find them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest
from msgspec import structs

from headrace.channels.alignment import Alignment, AlignmentOutcome
from headrace.channels.events import Barrier, CheckpointMode
from headrace.channels.gate import InputChannel
from headrace.engine.contract import messages as m
from headrace.engine.coordinator.retention import Retention
from headrace.engine.drivers import worker_performer as performer
from headrace.engine.simulation.campaign.worker_process import WorkerProcess
from headrace.engine.simulation.sink import SystemCommitter
from headrace.engine.storage import databases, snapshots
from headrace.engine.worker.cuts import Cuts
from headrace.inflight import segment
from headrace.inflight.writer import AdHoc
from headrace.recovery.layout import segment_path
from headrace.recovery.registry import Deletable

from ..engine.storage import test_databases_lifetime as lifetime
from .mutants import MUTANTS
from .planted import (
    Catalogue,
    by_campaign,
    flaky,
    haunted,
    impatient,
    nothing_was_in_flight,
    without_tile_check,
)

historical = Catalogue({})


# --- barriers and capture -------------------------------------------------------------------------


@historical("FLINK-17994", 2, impatient(CheckpointMode.ALIGNED))
def an_obsolete_trigger_runs_after_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    """Two threads triggered; a stale checkpoint's trigger ran after a newer one's.

    Here: barriers of settled and cancelled checkpoints count as if they were awaited.
    """
    whole = Alignment.barrier

    def barrier(self: Alignment, channel: Any, barrier: Barrier, now_ns: int) -> AlignmentOutcome:
        self._cancelled.discard(barrier.checkpoint)
        self._settled = min(self._settled, barrier.checkpoint - 1)
        return whole(self, channel, barrier, now_ns)

    patch.setattr(Alignment, "barrier", barrier)
    patch.setattr(Cuts, "cancelled", lambda self, checkpoint: self._forget(checkpoint))


@historical("FLINK-18139", 0)
def overtaken_buffers_of_the_second_gate_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Of a task with two inputs only the first one's in-flight data were persisted.

    Here: what is captured, at the cut or later, is empty unless it came in at port 0.
    """
    captured, arrived = InputChannel.captured, Cuts.buffer_arrived

    def captured_first(self: InputChannel, end: int) -> Any:
        return captured(self, end) if self.port == 0 else ()

    def arrived_first(self: Cuts, channel: Any, buffer: Any) -> None:
        if self._gate.channels[channel].port == 0:
            arrived(self, channel, buffer)

    patch.setattr(InputChannel, "captured", captured_first)
    patch.setattr(Cuts, "buffer_arrived", arrived_first)
    without_tile_check(patch)


@historical("FLINK-20645", 62, impatient(CheckpointMode.UNALIGNED))
def an_abort_drops_what_a_newer_checkpoint_captured(patch: pytest.MonkeyPatch) -> None:
    """Barriers in an unusual order made the persister drop buffers of a checkpoint that went on.

    Here: the end of one checkpoint empties what was captured so far for the others.
    """
    whole = Cuts.cancelled

    def cancelled(self: Cuts, checkpoint: int) -> None:
        whole(self, checkpoint)
        for capture in self._captures.values():
            for buffers in capture.inputs.values():
                buffers.clear()

    patch.setattr(Cuts, "cancelled", cancelled)
    without_tile_check(patch)


@historical("FLINK-21104", 26, impatient(CheckpointMode.UNALIGNED))
def an_obsolete_barrier_confuses_the_persister(patch: pytest.MonkeyPatch) -> None:
    """A late barrier of an older checkpoint ended the persisting of the channel for the newer one.

    Here: any late barrier closes the captures that wait for one on its channel.
    """
    whole = Cuts.arrived
    closed: WeakKeyDictionary[Cuts, set[tuple[int, Any]]] = WeakKeyDictionary()

    def arrived(self: Cuts, channel: Any, position: int, barrier: Barrier, now_ns: int) -> None:
        mine = closed.setdefault(self, set())
        if (barrier.checkpoint, channel.channel) in mine:
            return
        whole(self, channel, position, barrier, now_ns)
        for number, capture in self._captures.items():
            if number > barrier.checkpoint and channel.channel in capture.pending:
                capture.barrier_arrived(channel, now_ns)
                mine.add((number, channel.channel))

    patch.setattr(Cuts, "arrived", arrived)
    without_tile_check(patch)


@historical("Flink PR #13228", 22, by_campaign(faults=False, mode=CheckpointMode.UNALIGNED))
def in_flight_data_are_persisted_as_they_are_consumed(patch: pytest.MonkeyPatch) -> None:
    """The first version persisted buffers only when the task consumed them: unaligned was as slow
    as aligned.

    Here: a cut counts as complete only when all that it captured at the inputs has been worked on.
    """
    whole = Cuts.flush

    def flush(self: Cuts, now_ns: int, effects: Any) -> None:
        waiting = {
            number: capture
            for number, capture in self._captures.items()
            if any(
                buffer.end > self._gate.channels[channel].committed
                for channel, buffers in capture.inputs.items()
                for buffer in buffers
            )
        }
        for number in waiting:
            del self._captures[number]
        whole(self, now_ns, effects)
        self._captures.update(waiting)

    patch.setattr(Cuts, "flush", flush)


# --- settings -------------------------------------------------------------------------------------


@historical("FLINK-37870", 0, nothing_was_in_flight)
def unaligned_is_off_everywhere(patch: pytest.MonkeyPatch) -> None:
    """A set was built with a capacity instead of an element, and no edge was unaligned any more.

    Here: workers take every trigger of an unaligned checkpoint for an aligned one, and no age makes
    one unaligned.
    """
    whole = m.decode_for_worker

    def decode(data: bytes) -> Any:
        message = whole(data)
        if isinstance(message, m.Trigger) and message.mode == CheckpointMode.UNALIGNED.value:
            return structs.replace(message, mode=CheckpointMode.ALIGNED.value)
        return message

    patch.setattr(m, "decode_for_worker", decode)
    patch.setattr(Cuts, "_is_late", lambda self, barrier, now_ns: False)
    patch.setattr(Cuts, "next_deadline_ns", lambda self: None)


@historical("FLINK-36287", 1, by_campaign(mode=CheckpointMode.UNALIGNED))
def the_way_into_the_sink_is_cut_while_it_writes(patch: pytest.MonkeyPatch) -> None:
    """Between a sink's writer and its committer a checkpoint must stay aligned, and did not.

    Here: a cut does not wait for a running write.
    """
    whole = Cuts.__init__

    def init(self: Cuts, *arguments: Any, waits: bool, timeout_ns: Any) -> None:
        whole(self, *arguments, waits=False, timeout_ns=timeout_ns)

    patch.setattr(Cuts, "__init__", init)


# --- files ----------------------------------------------------------------------------------------


@historical("FLINK-26803", 0)
def each_channel_gets_a_file_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Unaligned checkpoints flooded storage with small files, one for each subtask and channel.

    Here: a worker stores each channel's in-flight data in a file of their own besides.
    """
    whole = snapshots.write_checkpoint

    def write(
        store: Any, job: str, checkpoint: int, worker: int, epoch: int, *rest: Any, **named: Any
    ) -> Any:
        written = whole(store, job, checkpoint, worker, epoch, *rest, **named)
        path = segment_path(job, checkpoint, worker, epoch)
        for number, _ in enumerate(h for hs in written.inflight.values() for h in hs):
            store.put(f"{path}-{number}", b"")
        return written

    patch.setattr(performer, "write_checkpoint", write)


@historical("SPARK-51717", 235, flaky)
def what_a_failed_upload_should_have_stored_is_named(patch: pytest.MonkeyPatch) -> None:
    """After the upload of a version had failed, the next version named files that had never come
    into being.

    Here: what is to be written counts as stored from then on, not once its checkpoint is complete.
    """
    whole = WorkerProcess._prepared

    def prepared(self: WorkerProcess, loaded: Any, order: Any) -> Any:
        found = whole(self, loaded, order)
        writer = loaded.persistence.inflight
        if isinstance(writer, AdHoc) and order.savepoint is None:
            handles = [
                handle for handles in found[1].written.inflight.values() for handle in handles
            ]
            writer.stored(order.checkpoint, handles)
            writer.given_up(order.checkpoint)
        return found

    patch.setattr(WorkerProcess, "_prepared", prepared)


@historical("FLIP-306, late abort", 5)
def a_late_abort_deletes_a_referenced_file(patch: pytest.MonkeyPatch) -> None:
    """The end of one checkpoint disposed of state that a complete one shared with it.

    Here: whoever gives a checkpoint up deletes the in-flight files of the newest complete one, to
    which it may have referred.
    """
    given_up, sweep = Retention.given_up, Retention._deletable
    doomed: WeakKeyDictionary[Retention, frozenset[str]] = WeakKeyDictionary()

    def give_up(self: Retention, checkpoint: int) -> None:
        given_up(self, checkpoint)
        for newest in self._retained[-1:]:
            doomed[self] = self._registry._complete[newest]

    def sweep_more(self: Retention) -> Deletable:
        found = sweep(self)
        return replace(found, files=(*found.files, *sorted(doomed.pop(self, frozenset()))))

    patch.setattr(Retention, "given_up", give_up)
    patch.setattr(Retention, "_deletable", sweep_more)


def a_flipped_bit(seed: int) -> str:
    """Flip each bit of a stored blob in turn; reading must fail."""
    table = pa.table({"id": [seed, seed + 1]})
    builder = segment.SegmentBuilder()
    blob = builder.append(*segment.table_to_ipc(table))
    data = b"".join(builder.parts())
    for bit in range(8 * blob.offset, 8 * (blob.offset + blob.length)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8

        def read(offset: int, length: int, damaged: bytearray = damaged) -> bytes:
            return bytes(damaged[offset : offset + length])

        try:
            segment.read_blob(read, blob)
        except segment.CorruptBlob:
            continue
        return f"bit {bit} is wrong, and nobody noticed"
    return ""


@historical("SPARK-51988", 0, a_flipped_bit)
def a_file_is_read_without_its_checksum(patch: pytest.MonkeyPatch) -> None:
    """An archive was read as a stream, without ever comparing its checksum.

    Here: whatever was read has the checksum that it should have.
    """

    class Anything(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = str.__hash__

    patch.setattr(segment, "checksum_of", lambda data: Anything("0" * 16))


def of_database_files(seed: int) -> str:
    """Files that several checkpoints of one database share, which lie in memory."""
    lifetime.FOLDERS.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(databases, "_content", lambda folder, name: lifetime.FOLDERS[folder][name])
        try:
            lifetime.run(seed)
        except AssertionError as broken:
            return str(broken) or "an assertion"
    return ""


@historical("SPARK-43404", 0, of_database_files)
def a_file_of_the_same_name_and_size_counts_as_the_same(patch: pytest.MonkeyPatch) -> None:
    """A retried task took a file for stored already, for another of its name and size was.

    Here: files are known by their names whatever attempt stored them.
    """
    lifetime.by_name(patch)


@historical("SPARK-55892", 32, of_database_files)
def a_file_that_a_late_checkpoint_names_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """Maintenance deleted a file that an upload still under way was about to refer to.

    Here: what no complete checkpoint names goes at once, whatever is under way that was triggered
    before.
    """
    lifetime.too_early(patch)


# --- fencing --------------------------------------------------------------------------------------


@historical("quix-streams #1131", 410, haunted)
def a_zombie_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A producer that had been given up went on writing beside its successor, for nothing fenced it
    off.

    Here: the coordinator lets whoever comes with a worker's number take that worker's place.
    """
    MUTANTS["older_incarnation_is_accepted"](patch)


@historical("KIP-664, hanging transactions", 1)
def transactions_of_the_dead_stay_open(patch: pytest.MonkeyPatch) -> None:
    """Transactions of a producer that was fenced off were never aborted, and blocked those who
    read.

    Here: a recovery commits what the checkpoint names and leaves everything else open.
    """
    patch.setattr(
        SystemCommitter,
        "recover",
        lambda self, checkpoint, committed, **_: self.commit(checkpoint, committed),
    )
