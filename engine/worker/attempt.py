"""An attempt at a worker: the subtask machines and the routing between them.

A buffer for a subtask of the same worker is handed over unchanged, in the same step; other buffers
leave as frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from headrace.channels.buffer import ChannelId
from headrace.channels.connection_room import ConnectionRoom
from headrace.channels.credit import Budget
from headrace.channels.events import Barrier
from headrace.channels.wire import BufferFrame, CreditFrame, EventFrame

from ..contract import messages as m
from ..contract.execution import ExecutionPlan, SubtaskId
from .checkpoints import Checkpoints
from .subtask import Subtask
from .subtask_events import (
    BufferArrived,
    CheckpointTriggered,
    CommitWork,
    CreditGranted,
    CutTaken,
    DeadlineReached,
    DeclineCheckpoint,
    DiskExceeded,
    EndLoop,
    EventArrived,
    GrantCredit,
    LogBuffer,
    ReadBuffer,
    RoomReturned,
    RunWork,
    SendBuffer,
    SendEvent,
    SubtaskEffect,
    SubtaskEvent,
    SubtaskFinished,
    TakeSnapshot,
    UseDisk,
)
from .subtask_spec import SubtaskSpec
from .worker_events import CheckpointPersisted, DataFrame, PersistCheckpoint, SendFrame

#: No subtask tells when its operators were open.
NOT_TOLD: Final[Mapping[SubtaskId, int]] = {}

AttemptEffect = (
    RunWork
    | CommitWork
    | LogBuffer
    | TakeSnapshot
    | ReadBuffer
    | UseDisk
    | DiskExceeded
    | DeclineCheckpoint
    | SubtaskFinished
    | SendFrame
    | PersistCheckpoint
)


@dataclass(slots=True)
class Attempt:
    """The subtasks of a worker in an epoch.

    Attributes:
        workers: {slot: worker that holds it}.
        logs: see `Limits`.
    """

    epoch: int
    me: int
    plan: ExecutionPlan
    workers: Mapping[int, int]
    logs: bool = False
    subtasks: dict[SubtaskId, Subtask] = field(default_factory=dict)
    _checkpoints: Checkpoints = field(init=False)
    #: {other worker: room in the connection to it}; empty: without limit.
    _rooms: dict[int, ConnectionRoom] = field(default_factory=dict)
    #: {subtask that wants to be woken: when}; brought up to date after each of its steps.
    _deadlines: dict[SubtaskId, int] = field(default_factory=dict)
    #: Subtasks that have been stepped and not checked since.
    _unchecked: dict[SubtaskId, Subtask] = field(default_factory=dict)

    def build(
        self,
        specs: Sequence[SubtaskSpec],
        now_ns: int,
        opened_ns: Mapping[SubtaskId, int] = NOT_TOLD,
    ) -> None:
        """Make the machines, once.

        Args:
            now_ns: their operators began to open.
            opened_ns: {subtask: when its operators were open}, as far as known.
        """
        assert not self.subtasks, "built twice"
        room = specs[0].limits.connection if specs else None
        if room is not None:
            others = sorted(set(self.workers.values()) - {self.me})
            self._rooms = {worker: ConnectionRoom(room) for worker in others}
        channels = sum(len(ends) for spec in specs for ends in (*spec.inputs, *spec.outputs))
        limits = [spec.limits.budget_bytes for spec in specs]
        budget = Budget(min(limits, default=0), channels)
        self.subtasks = {
            spec.id: Subtask(
                spec,
                now_ns,
                budget,
                opened_ns=opened_ns.get(spec.id),
                rooms=self._rooms_of(spec),
            )
            for spec in specs
        }
        self._checkpoints = Checkpoints(self.epoch, self.plan, len(specs))

    def start(self, now_ns: int) -> list[AttemptEffect]:
        """Let every subtask begin."""
        effects: list[AttemptEffect] = []
        for id, subtask in self.subtasks.items():
            events: deque[tuple[SubtaskId, SubtaskEvent]] = deque()
            self._perform(subtask.start(now_ns), events, effects)
            self._stepped(id, subtask)
            self._route(events, effects, now_ns)
        return effects

    def frames(self, frames: Iterable[DataFrame], now_ns: int) -> list[AttemptEffect]:
        """Frames came from a peer; an unknown channel breaks the protocol."""
        effects: list[AttemptEffect] = []
        events: deque[tuple[SubtaskId, SubtaskEvent]] = deque()
        for frame in frames:
            channel = frame.channel
            assert 0 <= channel.edge < len(self.plan.edges), f"frame for unknown channel {channel}"
            match frame:
                case BufferFrame():
                    if self.logs:  # what is local was logged by its producer
                        effects.append(LogBuffer(channel, frame.buffer))
                    arrived = BufferArrived(channel, frame.buffer)
                    events.append((self._consumer(channel), arrived))
                case EventFrame():
                    event = EventArrived(channel, frame.position, frame.event)
                    events.append((self._consumer(channel), event))
                case CreditFrame():
                    granted = CreditGranted(channel, frame.limit_bytes)
                    events.append((self._producer(channel), granted))
                case _:
                    assert_never(frame)
        self._route(events, effects, now_ns)
        return effects

    def taken(self, worker: int, size_bytes: int, now_ns: int, *, dry: bool) -> list[AttemptEffect]:
        """The socket towards a worker took data, see `PeerTook`."""
        room = self._rooms.get(worker)
        if room is None:
            return []
        room.taken(size_bytes, now_ns, dry=dry)
        effects: list[AttemptEffect] = []
        while (channel := room.next_turn()) is not None:
            effects += self.step(self._producer(channel), RoomReturned(), now_ns)
        return effects

    def step(self, id: SubtaskId, event: SubtaskEvent, now_ns: int) -> list[AttemptEffect]:
        """Give `event` to subtask `id`, and consequences to the others of this worker."""
        effects: list[AttemptEffect] = []
        self._route(deque([(id, event)]), effects, now_ns)
        return effects

    def step_all(self, event: SubtaskEvent, now_ns: int, *, sources: bool) -> list[AttemptEffect]:
        """Give `event` to every subtask, or to the sources only."""
        effects: list[AttemptEffect] = []
        for id in self.subtasks:
            if not sources or self.plan.tasks[id.task].is_source:
                effects += self.step(id, event, now_ns)
        return effects

    def deadline_ns(self) -> int | None:
        """The earliest time at which a subtask wants to be woken."""
        return min(self._deadlines.values(), default=None)

    def wake(self, now_ns: int) -> list[AttemptEffect]:
        """Wake every subtask whose deadline has passed."""
        effects: list[AttemptEffect] = []
        for id in self.subtasks:
            deadline_ns = self._deadlines.get(id)
            if deadline_ns is not None and deadline_ns <= now_ns:
                effects += self.step(id, DeadlineReached(), now_ns)
        return effects

    def check(self) -> None:
        """Assert every invariant of the subtasks stepped since the last check."""
        for subtask in self._unchecked.values():
            subtask.check()
        self._unchecked.clear()
        for room in self._rooms.values():
            room.check()

    def floors(self) -> dict[ChannelId, int] | None:
        """Return positions before which records are worked on, or with another worker.

        None: a cut still needs older records.
        """
        floors: dict[ChannelId, int] = {}
        for subtask in self.subtasks.values():
            positions = subtask.positions()
            if self._checkpoints.is_cutting or positions is None:
                return None
            committed, sent = positions
            floors |= committed
            floors |= {c: at for c, at in sent.items() if self._consumer(c) not in self.subtasks}
        return floors

    def trigger(
        self, barrier: Barrier, savepoint: str | None, now_ns: int, *, full: bool = False
    ) -> list[AttemptEffect]:
        """Begin a checkpoint at the sources. `savepoint`, `full`: see `PersistCheckpoint`."""
        effects = self.step_all(CheckpointTriggered(barrier), now_ns, sources=True)
        return [*effects, *self._checkpoints.triggered(barrier.checkpoint, savepoint, full=full)]

    def counts(self, edges: Collection[int]) -> tuple[int, int] | None:
        """See `Subtask.counts`, of all subtasks on the cycle; None: one of them is not at rest."""
        tasks = {self.plan.edges[edge].producer for edge in edges}
        sent = consumed = 0
        for id, subtask in self.subtasks.items():
            if id.task in tasks:
                counts = subtask.counts(edges)
                if counts is None:
                    return None
                sent, consumed = sent + counts[0], consumed + counts[1]
        return sent, consumed

    def end_loop(self, task: int, now_ns: int) -> list[AttemptEffect]:
        """The loop whose head is `task` has ended."""
        effects: list[AttemptEffect] = []
        for id in self.subtasks:
            if id.task == task:
                effects += self.step(id, EndLoop(), now_ns)
        return effects

    def persisted(self, event: CheckpointPersisted, now_ns: int) -> m.Acknowledge | None:
        """The worker's part is durable. None: the checkpoint was given up."""
        return self._checkpoints.persisted(event, now_ns)

    def give_up(self, checkpoint: int) -> None:
        """Forget the cuts of a checkpoint."""
        self._checkpoints.given_up(checkpoint)

    def _route(
        self,
        events: deque[tuple[SubtaskId, SubtaskEvent]],
        effects: list[AttemptEffect],
        now_ns: int,
    ) -> None:
        """Work off `events`, first in first out: no subtask is entered while it is in a step.

        A subtask goes on when it has taken all that is there, so that records that came in several
        buffers become one piece of work.
        """
        took: dict[SubtaskId, Subtask] = {}
        while events or took:
            if events:
                id, event = events.popleft()
                assert id in self.subtasks, f"worker {self.me} does not hold subtask {id}"
                took[id] = subtask = self.subtasks[id]
                self._perform(subtask.take(event, now_ns), events, effects)
            else:
                id = next(iter(took))
                subtask = took.pop(id)
                self._perform(subtask.advance(), events, effects)
                self._stepped(id, subtask)

    def _stepped(self, id: SubtaskId, subtask: Subtask) -> None:
        self._unchecked[id] = subtask
        deadline_ns = subtask.next_deadline_ns()
        if deadline_ns is None:
            self._deadlines.pop(id, None)
        else:
            self._deadlines[id] = deadline_ns

    def _perform(
        self,
        begun: Iterable[SubtaskEffect],
        events: deque[tuple[SubtaskId, SubtaskEvent]],
        effects: list[AttemptEffect],
    ) -> None:
        for effect in begun:
            self._perform_one(effect, events, effects)

    def _perform_one(
        self,
        effect: SubtaskEffect,
        events: deque[tuple[SubtaskId, SubtaskEvent]],
        effects: list[AttemptEffect],
    ) -> None:
        match effect:
            case SendBuffer(channel, buffer):
                consumer = self._consumer(channel)
                if consumer in self.subtasks:
                    events.append((consumer, BufferArrived(channel, buffer)))
                else:
                    effects.append(self._send(consumer, BufferFrame(channel, buffer)))
            case SendEvent(channel, position, event):
                consumer = self._consumer(channel)
                if consumer in self.subtasks:
                    events.append((consumer, EventArrived(channel, position, event)))
                else:
                    effects.append(self._send(consumer, EventFrame(channel, position, event)))
            case GrantCredit(channel, limit_bytes):
                producer = self._producer(channel)
                if producer in self.subtasks:
                    events.append((producer, CreditGranted(channel, limit_bytes)))
                else:
                    effects.append(self._send(producer, CreditFrame(channel, limit_bytes)))
            case CutTaken(cut):
                effects += self._checkpoints.cut(cut)
            case _:
                effects.append(effect)

    def _rooms_of(self, spec: SubtaskSpec) -> dict[ChannelId, ConnectionRoom]:
        channels = [channel for edge in spec.outputs for channel in edge]
        workers = {channel: self.workers[channel.consumer] for channel in channels}
        return {c: self._rooms[worker] for c, worker in workers.items() if worker in self._rooms}

    def _send(self, to: SubtaskId, frame: DataFrame) -> SendFrame:
        return SendFrame(self.epoch, self.workers[to.subtask], frame)

    def _consumer(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self.plan.edges[channel.edge].consumer, channel.consumer)

    def _producer(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self.plan.edges[channel.edge].producer, channel.producer)
