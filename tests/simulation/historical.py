"""Bugs that other systems had, put back into this engine: each must be found, most of them by the simulation.

A bug is named after its report. The docstring says what it was there, and how it is planted here. Where a mutant of `mutants.py` is that
very bug, it is used. `docs/historical-bugs.md` lists them all, with the seeds that it takes to find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.gate import InputChannel
from headrace.engine.coordination.checkpointing import Checkpointing
from headrace.engine.coordination.ledger import Ledger
from headrace.engine.coordination.roster import Roster
from headrace.engine.runtime import snapshots
from headrace.engine.runtime.cuts import Cuts
from headrace.engine.runtime.worker import Phase, Worker
from headrace.engine.simulation import chains, worker_process
from headrace.engine.simulation.sink import SystemCommitter
from headrace.engine.simulation.worker_process import WorkerProcess
from headrace.engine.simulation.world import simulate
from headrace.inflight import segment
from headrace.inflight.confirmed import Confirmed
from headrace.inflight.writer import AdHoc
from headrace.recovery import assignment
from headrace.recovery.layout import segment_path
from headrace.recovery.registry import Deletable, references

from .mutants import MUTANTS, Mutant

#: Says what is wrong in run number `seed`; empty: nothing.
Search = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Historical:
    """A bug of another system.

    Attributes:
        bug: its report.
        plant: puts it into the engine.
        search: looks for it; called with 0, 1, 2 and so on.
    """

    bug: str
    plant: Mutant
    search: Search


HISTORICAL: dict[str, Historical] = {}


def by_campaign(*, faults: bool = True, mode: CheckpointMode | None = None) -> Search:
    """Runs of the simulation."""

    def search(seed: int) -> str:
        return simulate(seed, faults=faults, mode=mode).violation

    return search


def historical(bug: str, search: Search | None = None) -> Callable[[Mutant], Mutant]:
    """Enter a bug."""

    def enter(plant: Mutant) -> Mutant:
        HISTORICAL[plant.__name__] = Historical(bug, plant, search or by_campaign())
        return plant

    return enter


def without_tile_check(patch: pytest.MonkeyPatch) -> None:
    """The coordinator's own check would find it first; the simulation must not need that."""
    patch.setattr(Checkpointing, "_untiled", lambda self, pending: [])


# --- barriers and capture ---------------------------------------------------------------------------------------------


@historical("FLINK-18139")
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


@historical("Flink PR #13228", by_campaign(faults=False, mode=CheckpointMode.UNALIGNED))
def in_flight_data_are_persisted_as_they_are_consumed(patch: pytest.MonkeyPatch) -> None:
    """The first version persisted buffers only when the task consumed them: unaligned was as slow as aligned.

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


# --- recovery ---------------------------------------------------------------------------------------------------------


@historical("FLINK-16536")
def new_data_overtake_restored_channel_state(patch: pytest.MonkeyPatch) -> None:
    """The requirement that new data of the producers must not overtake what is restored.

    Here: nothing holds them back.
    """
    MUTANTS["new_data_overtakes_replayed_data"](patch)


@historical("FLINK-38544")
def records_are_lost_while_recovery_rewires_channels(patch: pytest.MonkeyPatch) -> None:
    """Records that came while a recovered task was being connected anew were lost.

    Here: frames of peers that run already are dropped by a worker that does not run yet.
    """
    whole = Worker._frame

    def frame(self: Worker, frame: Any) -> Any:
        return whole(self, frame) if self.phase is Phase.RUNNING else []

    patch.setattr(Worker, "_frame", frame)


@historical("faust #74")
def state_is_recovered_once_and_never_again(patch: pytest.MonkeyPatch) -> None:
    """After a rebalance in the midst of a recovery a table counted as recovered though it was not.

    Here: a subtask's state is restored once; the next time it is left empty.
    """
    whole = chains.states_of
    seen: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()

    def states(env: Any, id: Any, snapshot: Any, *rest: Any) -> Any:
        found, done = whole(env, id, snapshot, *rest), seen.setdefault(env.scheduler, set())
        again = id in done and snapshot is not None
        if snapshot is not None:
            done.add(id)
        return {} if again else found

    patch.setattr(worker_process, "states_of", states)


@historical("bytewax #181")
def a_worker_that_never_spoke_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A worker that crashed before its first progress message vanished from the recovered cluster.

    Here: the cluster is complete when all that ever registered are there.
    """

    def complete(self: Roster) -> bool:
        return bool(self._members) and len(self._members) == len(self._newest)

    patch.setattr(Roster, "complete", property(complete))


# --- another parallelism ----------------------------------------------------------------------------------------------


@historical("FLINK-19533")
def restored_records_are_not_filtered(patch: pytest.MonkeyPatch) -> None:
    """What made virtual channels necessary: at another parallelism a channel's data belong to several consumers, each to some of it.

    Here: each consumer that may own some of the records takes them all.
    """
    patch.setattr(assignment, "_filtered", lambda handle, parallelism, subtask: handle)


# --- sinks ----------------------------------------------------------------------------------------------------


@historical("FLINK-36287", by_campaign(mode=CheckpointMode.UNALIGNED))
def the_way_into_the_sink_is_cut_while_it_writes(patch: pytest.MonkeyPatch) -> None:
    """Between a sink's writer and its committer a checkpoint must stay aligned, and did not.

    Here: a cut does not wait for a running write.
    """
    whole = Cuts.__init__

    def init(self: Cuts, *arguments: Any, waits: bool, timeout_ns: Any) -> None:
        whole(self, *arguments, waits=False, timeout_ns=timeout_ns)

    patch.setattr(Cuts, "__init__", init)


# --- files ------------------------------------------------------------------------------------------------------------


@historical("FLINK-26803")
def each_channel_gets_a_file_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Unaligned checkpoints flooded storage with small files, one for each subtask and channel.

    Here: a worker stores each channel's in-flight data in a file of their own besides.
    """
    whole = snapshots.write_checkpoint

    def write(store: Any, job: str, checkpoint: int, worker: int, epoch: int, *rest: Any) -> Any:
        written = whole(store, job, checkpoint, worker, epoch, *rest)
        path = segment_path(job, checkpoint, worker, epoch)
        for number, _ in enumerate(h for hs in written.inflight.values() for h in hs):
            store.put(f"{path}-{number}", b"")
        return written

    patch.setattr(worker_process, "write_checkpoint", write)


@historical("SPARK-51717", by_campaign(mode=CheckpointMode.UNALIGNED))
def what_a_failed_upload_should_have_stored_is_named(patch: pytest.MonkeyPatch) -> None:
    """After the upload of a version had failed, the next version named files that had never come into being.

    Here: what is to be written counts as stored from then on, not once its checkpoint is complete.
    """
    whole = WorkerProcess._prepared

    def prepared(self: WorkerProcess, order: Any) -> Any:
        found = whole(self, order)
        writer = self._attempt().persistence.inflight
        assert isinstance(writer, AdHoc), "the one that names what it stored"
        handles = [handle for handles in found[1].inflight.values() for handle in handles]
        writer._confirmed = Confirmed(handles)
        return found

    patch.setattr(WorkerProcess, "_prepared", prepared)


@historical("FLIP-306, late abort")
def a_late_abort_deletes_a_referenced_file(patch: pytest.MonkeyPatch) -> None:
    """The end of one checkpoint disposed of state that a complete one shared with it.

    Here: whoever gives a checkpoint up deletes the in-flight files of the newest complete one, to which it may have referred.
    """
    given_up, sweep = Ledger.given_up, Ledger.sweep
    doomed: WeakKeyDictionary[Ledger, frozenset[str]] = WeakKeyDictionary()

    def give_up(self: Ledger, checkpoint: int) -> None:
        given_up(self, checkpoint)
        if self.newest is not None:
            doomed[self] = references(self.newest)

    def sweep_more(self: Ledger) -> Deletable:
        found = sweep(self)
        return replace(found, files=(*found.files, *sorted(doomed.pop(self, frozenset()))))

    patch.setattr(Ledger, "given_up", give_up)
    patch.setattr(Ledger, "sweep", sweep_more)


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


@historical("SPARK-51988", a_flipped_bit)
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


# --- fencing ----------------------------------------------------------------------------------------------------------


@historical("KIP-664, hanging transactions")
def transactions_of_the_dead_stay_open(patch: pytest.MonkeyPatch) -> None:
    """Transactions of a producer that was fenced off were never aborted, and blocked those who read.

    Here: a recovery commits what the checkpoint names and leaves everything else open.
    """
    patch.setattr(SystemCommitter, "recover", lambda self, committed: self.commit(committed))
