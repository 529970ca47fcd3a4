"""Bugs put back into the engine on purpose, each of which the simulation must find.

A mutant is a function that patches the machines. Most are bugs that other systems had
(docs/design.md names them) or that ours had while it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace.channels.alignment import Alignment
from headrace.channels.buffer import ChannelId
from headrace.channels.connection_room import ConnectionRoom
from headrace.channels.credit import Credit
from headrace.channels.events import Barrier, Watermark
from headrace.channels.gate import Gate, InputChannel
from headrace.channels.outbox import Outbox
from headrace.channels.subpartition import Overtaken, QueuedEvent, Subpartition
from headrace.channels.wire import EventFrame, Frame
from headrace.engine.contract.operators import OperatorContext
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.checkpoints import Checkpoints
from headrace.engine.coordinator.coordinator import Coordinator
from headrace.engine.coordinator.pending import PendingCheckpoint
from headrace.engine.coordinator.retention import Retention
from headrace.engine.coordinator.transactions import Transactions
from headrace.engine.drivers.persistence import CheckpointWrite, Persistence, persistence_of
from headrace.engine.operators.chain import Chain
from headrace.engine.operators.split_times import SplitTimes
from headrace.engine.operators.timed_process import TimedProcessOperator
from headrace.engine.simulation.campaign import worker_process
from headrace.engine.simulation.campaign.checkpoint_files import Prepare, SimulatedCheckpointFiles
from headrace.engine.simulation.campaign.log_files import SimulatedLogFiles
from headrace.engine.simulation.campaign.storage import PutCatcher, answer_call
from headrace.engine.simulation.scheduler import MILLISECOND_NS
from headrace.engine.state.timers import TIMERS, TimerQueue
from headrace.engine.storage.log_files import PieceWritten
from headrace.engine.storage.snapshots import write_piece
from headrace.engine.worker import cuts
from headrace.engine.worker.cuts import Cuts
from headrace.engine.worker.subtask import Subtask
from headrace.engine.worker.subtask_events import CheckpointCancelled
from headrace.engine.worker.worker import Worker
from headrace.inflight.log import Continuous
from headrace.inflight.replay import Replay
from headrace.inflight.writer import Piece
from headrace.recovery import assignment
from headrace.recovery.registry import Deletable

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Mutant] = {}
#: How a violation begins that a mutant's own code is at fault for, because the engine's has
#: changed.
SLIPS = ("TypeError", "AttributeError", "NameError")


def mutant(function: Mutant) -> Mutant:
    """Enter a mutant under its name."""
    MUTANTS[function.__name__] = function
    return function


# --- barriers -------------------------------------------------------------------------------------


@mutant
def channel_is_not_blocked_after_its_barrier(patch: pytest.MonkeyPatch) -> None:
    whole = Alignment.barrier

    def barrier(self: Alignment, *arguments: Any) -> Any:
        return replace(whole(self, *arguments), block=None)

    patch.setattr(Alignment, "barrier", barrier)


@mutant
def barrier_passes_data_of_its_channel_in_the_connection(patch: pytest.MonkeyPatch) -> None:
    put = Outbox.put

    def first(self: Outbox, frame: Frame) -> None:
        if isinstance(frame, EventFrame):
            self._frames += 1
            self._first.append(frame)
        else:
            put(self, frame)

    patch.setattr(Outbox, "put", first)


@mutant
def room_in_a_connection_returns_to_one_channel_alone(patch: pytest.MonkeyPatch) -> None:
    next_turn = ConnectionRoom.next_turn

    def only_one(self: ConnectionRoom) -> ChannelId | None:
        if self._turn is not None:
            self._turn = None
            return None
        return next_turn(self)

    patch.setattr(ConnectionRoom, "next_turn", only_one)
    patch.setattr(ConnectionRoom, "check", lambda self: None)


@mutant
def barrier_is_sent_after_new_data(patch: pytest.MonkeyPatch) -> None:
    append_event, append, take = Subpartition.append_event, Subpartition.append, Subpartition.take
    late: dict[int, list[Barrier]] = {}

    def flush(self: Subpartition) -> None:
        for event in late.pop(id(self), []):
            append_event(self, event)

    def lagging_event(self: Subpartition, event: Any) -> None:
        if isinstance(event, Barrier):
            late.setdefault(id(self), []).append(event)
        else:
            flush(self)
            append_event(self, event)

    def lagging_append(self: Subpartition, *arguments: Any) -> None:
        append(self, *arguments)
        flush(self)

    asked: Counter[int] = Counter()

    def lagging_take(self: Subpartition, *limits: Any) -> Any:
        item = take(self, *limits)
        asked[id(self)] += 1
        # Not for ever: data may never come.
        if item is None and late.get(id(self)) and asked[id(self)] % 20 == 0:
            flush(self)
            return take(self, *limits)
        return item

    patch.setattr(Subpartition, "append_event", lagging_event)
    patch.setattr(Subpartition, "append", lagging_append)
    patch.setattr(Subpartition, "take", lagging_take)


@mutant
def snapshot_includes_the_running_work(patch: pytest.MonkeyPatch) -> None:
    whole = Chain.snapshot

    def snapshot(self: Chain) -> Any:
        self.commit()
        return whole(self)

    patch.setattr(Chain, "snapshot", snapshot)


@mutant
def source_offset_is_committed_before_its_output(patch: pytest.MonkeyPatch) -> None:
    whole = Chain.poll

    def poll(self: Chain, rows_max: int, now_ns: int) -> Any:
        polled = whole(self, rows_max, now_ns)
        self.commit()
        return polled

    patch.setattr(Chain, "poll", poll)


# --- event time -----------------------------------------------------------------------------------


@mutant
def one_watermark_for_all_splits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SplitTimes, "opened", lambda self, splits: None)
    patch.setattr(SplitTimes, "polled", lambda self, split, splits, now_ns, empty: None)


@mutant
def watermark_passes_queued_records(patch: pytest.MonkeyPatch) -> None:
    append_event = Subpartition.append_event

    def hasty(self: Subpartition, event: Any) -> None:
        if isinstance(event, Watermark):
            self._queue.appendleft(QueuedEvent(self.sent, event))
        else:
            append_event(self, event)

    patch.setattr(Subpartition, "append_event", hasty)


@mutant
def watermark_overtakes_restored_data(patch: pytest.MonkeyPatch) -> None:
    next_event = Gate.next_event

    def hasty(self: Gate) -> Any:
        for channel in self.channels.values():
            head = channel.queue[0] if channel.queue else None
            if isinstance(head, QueuedEvent) and isinstance(head.event, Watermark):
                channel.queue.popleft()
                return channel, head.event
        return next_event(self)

    patch.setattr(Gate, "next_event", hasty)


@mutant
def cut_names_watermarks_that_were_not_reached(patch: pytest.MonkeyPatch) -> None:
    received = cuts._received

    def ahead(channel: InputChannel) -> Any:
        newest = max((time for _, time in channel.queued_watermarks), default=channel.watermark_ns)
        return msgspec.structs.replace(received(channel), watermark=newest)

    patch.setattr(cuts, "_received", ahead)


@mutant
def timers_are_lost_at_the_cut(patch: pytest.MonkeyPatch) -> None:
    snapshot = TimedProcessOperator.snapshot

    def forgetful(self: TimedProcessOperator) -> Any:
        return [state for state in snapshot(self) if state.name != TIMERS]

    patch.setattr(TimedProcessOperator, "snapshot", forgetful)


@mutant
def timers_are_gone_before_what_they_fired_is_committed(patch: pytest.MonkeyPatch) -> None:
    pop = TimerQueue.pop

    def hasty(self: TimerQueue, watermark_ns: int) -> Any:
        due = pop(self, watermark_ns)
        self.commit()
        return due

    patch.setattr(TimerQueue, "pop", hasty)


@mutant
def ended_channel_holds_nothing_while_its_records_are_replayed(patch: pytest.MonkeyPatch) -> None:
    def still_open(self: Gate) -> Any:
        return [channel for channel in self.channels.values() if not channel.ended]

    patch.setattr(Gate, "_open", still_open)


# --- in-flight data -------------------------------------------------------------------------------


@mutant
def what_arrives_before_its_barrier_is_not_captured(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cuts, "buffer_arrived", lambda self, channel, buffer: None)


@mutant
def what_is_not_captured_passes_the_tile_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cuts, "buffer_arrived", lambda self, channel, buffer: None)
    patch.setattr(Checkpoints, "_untiled", lambda self, pending: [])


@mutant
def overtaken_output_is_not_persisted(patch: pytest.MonkeyPatch) -> None:
    whole = Subpartition.overtake

    def overtake(self: Subpartition, barrier: Barrier) -> Overtaken:
        return replace(whole(self, barrier), buffers=())

    patch.setattr(Subpartition, "overtake", overtake)
    patch.setattr(Checkpoints, "_untiled", lambda self, pending: [])


@mutant
def input_of_the_running_work_is_not_captured(patch: pytest.MonkeyPatch) -> None:
    whole = InputChannel.captured

    def captured(self: InputChannel, end: int) -> Any:
        given, self.given = self.given, None
        try:
            return whole(self, end)
        finally:
            self.given = given

    patch.setattr(InputChannel, "captured", captured)
    patch.setattr(Checkpoints, "_untiled", lambda self, pending: [])


@mutant
def new_data_overtakes_replayed_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replay, "pending_ports", property(lambda self: frozenset()))


@mutant
def checkpoint_during_recovery_forgets_what_is_left_to_replay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replay, "remaining", lambda self: [])


@mutant
def referenced_files_are_deleted(patch: pytest.MonkeyPatch) -> None:
    whole = Retention._deletable

    def deletable(self: Retention) -> Deletable:
        return replace(whole(self), keep=frozenset())

    patch.setattr(Retention, "_deletable", deletable)


# --- the in-flight log ----------------------------------------------------------------------------


@mutant
def log_is_named_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    def write(self: SimulatedLogFiles, epoch: int, piece: Any) -> None:
        catcher, env = PutCatcher(), self._env
        handles = write_piece(catcher, env.plan.job, self._number, epoch, piece)  # type: ignore[arg-type]  # only `put`
        env.scheduler.after(0, lambda: self._deliver(PieceWritten(epoch, piece, handles)))
        env.scheduler.after(20 * MILLISECOND_NS, lambda: put(self, catcher.puts[0]))

    def put(self: SimulatedLogFiles, call: Any) -> None:
        answer_call(self._env.faults, self._env.storage, call)

    patch.setattr(SimulatedLogFiles, "write", write)


@mutant
def log_is_trimmed_although_a_checkpoint_names_it(patch: pytest.MonkeyPatch) -> None:
    whole = Continuous.trim

    def trim(self: Continuous, floors: Any) -> Any:
        older = {n: dict(p) for n, p in self._pieces.items() if n != self._following}
        over = whole(self, floors)
        for checkpoint, pieces in older.items():
            over += [
                Piece(checkpoint, number, ())
                for number, handles in pieces.items()
                if all(h.end <= floors[h.edge, h.producer, h.consumer] for h in handles)
            ]
        return over

    patch.setattr(Continuous, "trim", trim)


@mutant
def log_of_the_attempt_before_is_named(patch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Persistence] = {}

    def of(limits: Any, *further: Any) -> Persistence:
        fresh = persistence_of(limits, *further)
        if limits.logs and (older := kept.get(id(limits))) is not None:
            fresh.inflight = older.inflight
        kept[id(limits)] = fresh
        return fresh

    patch.setattr(worker_process, "persistence_of", of)


# --- savepoints -----------------------------------------------------------------------------------


@mutant
def savepoint_does_not_wait_for_the_commit_of_its_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoints, "_held", lambda self: [])


# --- durability and commits -----------------------------------------------------------------------


@mutant
def worker_acknowledges_before_its_file_is_durable(patch: pytest.MonkeyPatch) -> None:
    def write(self: SimulatedCheckpointFiles, order: CheckpointWrite, prepare: Prepare) -> None:
        puts, done = prepare()
        after = self._env.scheduler.after
        after(0, lambda: self.put((), done))
        after(done.async_ns, lambda: late(self, puts))

    def late(self: SimulatedCheckpointFiles, puts: Any) -> None:
        for put in puts if self._process.alive else ():
            answer_call(self._env.faults, self._env.storage, put)

    patch.setattr(SimulatedCheckpointFiles, "write", write)


@mutant
def checkpoint_is_announced_before_its_metadata_is_durable(patch: pytest.MonkeyPatch) -> None:
    ready, written = Checkpoints.write_ready, Checkpoints.written

    def announce(self: Checkpoints, now_ns: int) -> Any:
        effects = ready(self, now_ns)
        if self._writing is None:
            return effects
        return effects + written(self, self._writing[0].number, now_ns, running=True)

    def ignored(self: Checkpoints, *arguments: Any, **named: Any) -> Any:
        return []

    patch.setattr(Checkpoints, "write_ready", announce)
    patch.setattr(Checkpoints, "written", ignored)
    patch.setattr(Checkpoints, "discarded", ignored)


@mutant
def transactions_are_committed_before_the_metadata(patch: pytest.MonkeyPatch) -> None:
    whole = Checkpoints.write_ready

    def write_ready(self: Checkpoints, now_ns: int) -> Any:
        effects = whole(self, now_ns)
        for place, effect in enumerate(effects):
            if isinstance(effect, d.WriteMetadata):
                number, transactions = effect.metadata.checkpoint, effect.metadata.transactions
                effects.insert(place, d.CommitTransactions(number, tuple(transactions)))
                break
        return effects

    patch.setattr(Checkpoints, "write_ready", write_ready)


@mutant
def commit_that_failed_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    whole = Transactions.failed

    def failed(self: Transactions, checkpoint: int | None, now_ns: int) -> int | None:
        if checkpoint is None:
            return whole(self, checkpoint, now_ns)
        self.committed(checkpoint)
        return 0

    patch.setattr(Transactions, "failed", failed)


@mutant
def commit_is_forgotten_on_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "uncommitted", property(lambda self: ()))


@mutant
def unconfirmed_transactions_are_not_carried_over(patch: pytest.MonkeyPatch) -> None:
    def carry_over(self: Transactions, checkpoint: int, transactions: Any) -> list[Any]:
        fresh = [t for t in transactions if t.id not in self._uncommitted]
        return [msgspec.structs.replace(t, checkpoint=checkpoint) for t in fresh]

    patch.setattr(Transactions, "carry_over", carry_over)


@mutant
def stamps_are_overwritten_when_transactions_are_carried_over(patch: pytest.MonkeyPatch) -> None:
    whole = Transactions.carry_over

    def carry_over(self: Transactions, checkpoint: int, transactions: Any) -> list[Any]:
        named = whole(self, checkpoint, transactions)
        return [msgspec.structs.replace(t, checkpoint=checkpoint) for t in named]

    patch.setattr(Transactions, "carry_over", carry_over)


@mutant
def sinks_of_a_job_share_a_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OperatorContext, "run", property(lambda self: self.owner))


@mutant
def late_savepoint_stamps_transactions(patch: pytest.MonkeyPatch) -> None:
    """A savepoint that is acknowledged after a newer checkpoint was complete commits by itself."""
    commit = Transactions.commit

    def hasty(self: Transactions, metadata: Any) -> Any:
        self._stamped = 0
        return commit(self, metadata)

    patch.setattr(Transactions, "commit", hasty)
    patch.setattr(PendingCheckpoint, "commits", property(lambda self: True))
    saved = Checkpoints._saved

    def committed(self: Checkpoints, pending: PendingCheckpoint, metadata: Any) -> Any:
        effects = saved(self, pending, metadata)
        own = pending.final or not metadata.transactions
        return effects if own else [*effects, *self._transactions.commit(metadata)]

    patch.setattr(Checkpoints, "_saved", committed)


@mutant
def transactions_of_a_cancelled_checkpoint_are_lost(patch: pytest.MonkeyPatch) -> None:
    whole = Subtask.take

    def take(self: Subtask, event: Any, now_ns: int) -> Any:
        if isinstance(event, CheckpointCancelled):
            lost = self._precommits._covered.get(event.checkpoint)
            self._precommits._open = [t for t in self._precommits._open if t[0] != lost]
        return whole(self, event, now_ns)

    patch.setattr(Subtask, "take", take)


@mutant
def what_earlier_drivers_left_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retention, "_adopt", lambda self, earlier: None)


@mutant
def restart_chooses_its_checkpoint_while_metadata_is_written(patch: pytest.MonkeyPatch) -> None:
    leave, deploy = Coordinator._leave_attempt, Coordinator._deploy
    chosen: dict[int, Any] = {}

    def choose(self: Coordinator, reason: str, **how: Any) -> Any:
        chosen[id(self)] = self._checkpoints.newest
        return leave(self, reason, **how)

    def deploy_chosen(self: Coordinator) -> Any:
        newest = self._checkpoints.newest
        self._checkpoints.newest = chosen.get(id(self), newest)
        effects = deploy(self)
        self._checkpoints.newest = newest
        return effects

    patch.setattr(Coordinator, "_leave_attempt", choose)
    patch.setattr(Coordinator, "_deploy", deploy_chosen)


@mutant
def cancelled_checkpoint_still_completes(patch: pytest.MonkeyPatch) -> None:
    whole = Checkpoints.give_up

    def give_up(self: Checkpoints, checkpoint: int, reason: str, now_ns: int) -> Any:
        pending = self._pending.get(checkpoint)
        effects = whole(self, checkpoint, reason, now_ns)
        if pending is not None:
            pending.created_ns = now_ns
            self._pending[checkpoint] = pending
        return effects

    patch.setattr(Checkpoints, "give_up", give_up)


# --- fencing and recovery -------------------------------------------------------------------------


@mutant
def worker_does_not_compare_epochs(patch: pytest.MonkeyPatch) -> None:
    whole = Worker.step

    def step(self: Worker, event: Any, now_ns: int) -> Any:
        if hasattr(event, "epoch"):
            event = replace(event, epoch=self._epoch)
        return whole(self, event, now_ns)

    patch.setattr(Worker, "step", step)


@mutant
def older_incarnation_is_accepted(patch: pytest.MonkeyPatch) -> None:
    whole = Coordinator._register

    def register(self: Coordinator, connection: int, message: Any) -> Any:
        workers = self._workers
        if workers.of(connection) is None and not workers.admits(message):
            member = workers._members.pop(message.worker, None)
            if member is not None:
                del workers._connections[member.connection]
            workers._newest.pop(message.worker, None)
        return whole(self, connection, message)

    patch.setattr(Coordinator, "_register", register)


@mutant
def finished_is_not_restored(patch: pytest.MonkeyPatch) -> None:
    def finished(metadata: Any, info: Any, *, moved: bool) -> list[bool]:
        return [False] * int(info.parallelism)

    patch.setattr(assignment, "_finished", finished)


@mutant
def credit_is_returned_twice(patch: pytest.MonkeyPatch) -> None:
    whole = Credit.consumed

    def consumed(self: Credit, size_bytes: int) -> int:
        whole(self, size_bytes)
        self.limit_bytes += size_bytes
        return self.limit_bytes

    patch.setattr(Credit, "consumed", consumed)
