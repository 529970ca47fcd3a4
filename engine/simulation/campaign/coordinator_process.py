"""A simulated driver process: coordinator, storage and sink threads and launcher, in virtual time.

Effects are performed as in `drivers/coordinator_driver.py`, by the same functions on storage and
sinks. Each function runs call by call (see `storage.py`), so the process can die between any two.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.recovery import assignment
from headrace.recovery.handles import SharedFile
from headrace.recovery.layout import metadata_path
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.waves import first_wave

from ...contract import messages as m
from ...contract.errors import StorageUnreachable, UserError
from ...contract.execution import ExecutionPlan
from ...coordinator import coordinator_events as d
from ...coordinator.coordinator import Assign, Coordinator
from ...coordinator.rules import CheckpointRules, CoordinatorRules, RestartRules
from ...drivers.checkpoint_directory import CheckpointDirectory
from ...drivers.coordinator_performer import (
    CoordinatorPerformer,
    SinkEffect,
    Sinks,
    StorageEffect,
    perform_on_sinks,
    perform_on_storage,
)
from ...drivers.early_workers import EarlyWorkers, StateFetched
from ...drivers.restore import Restore, new_tasks, resolve
from ...drivers.start import Start, prepare
from ..scheduler import MILLISECOND_NS, SECOND_NS
from ..sink import SystemCommitter
from .claims import check_unread, seen_as
from .environment import Environment, Process, Settings, shown
from .full_checkpoints import FullCheckpoints
from .redistribution import check_redistribution, is_repartitioned, is_rescaled
from .storage import Replay, ReplayStore, Stepper

#: URL of the job's checkpoint directory; all others are folders in the same storage.
OWN = "memory://its-own"
#: Longer than any run: a job gives up for want of progress only in tests of that.
_RESTARTS_MAX = 10_000


class CoordinatorProcess(Process, CoordinatorPerformer):
    """One run of the job's driver program.

    Args:
        launch: starts an incarnation of a worker of this coordinator.
        ended: called once, at the process's death or the job's end.
        saved: called with the request and the number of each complete savepoint.

    Attributes:
        result: the job's end, if reached.
    """

    def __init__(
        self,
        env: Environment,
        generation: int,
        *,
        launch: Callable[[CoordinatorProcess, int, int], None],
        ended: Callable[[CoordinatorProcess], None],
        saved: Callable[[int, int], None],
    ) -> None:
        Process.__init__(self, env, f"coordinator {generation}", lambda: ended(self))
        self.generation = generation
        self.address = (f"coordinator-{generation}", 1)
        self.result: d.JobEnded | None = None
        #: It has done everything to the end, and was not killed.
        self.has_left = False
        self._launch = launch
        self._saved = saved
        #: None until an epoch is claimed and a checkpoint chosen.
        self.machine: Coordinator | None = None
        #: Its workers, before there is a machine.
        self.early = EarlyWorkers(env.settings.workers)
        self._launched = False
        #: Checkpoints that it has completed, and the newest of them.
        self.completed = 0
        self.newest: CheckpointMetadata | None = None
        self._full = FullCheckpoints(env.settings, env.coverage)
        #: Every epoch that was its own.
        self.epochs: set[int] = set()
        self._storage = Stepper(self, env.faults, env.storage, "store call", self._end_when_done)
        self._sinking = Stepper(self, env.faults, _Outside(env), "sink call", self._end_when_done)
        self._incarnations: dict[int, int] = {}
        #: Told of every checkpoint that completes.
        self.on_checkpoint: Callable[[int], None] = lambda number: None
        #: Told that this process is to freeze.
        self.on_freeze: Callable[[CoordinatorProcess], None] = lambda process: None
        #: Told that an early worker has said something, or ended.
        self.on_early: Callable[[], None] = lambda: None
        #: The latest messages of workers, as they came.
        self.heard: deque[bytes] = deque(maxlen=40)
        env.network.listen(self.address, self)

    def launch(self) -> None:
        """Start the workers, unless already started."""
        if not self._launched:
            self._launched = True
            for worker in range(self.env.settings.workers):
                self._launch(self, worker, 0)

    def fetch_ahead(self, files: Mapping[int, Sequence[SharedFile]]) -> None:
        """Have early workers fetch files, by worker."""
        for connection, order in self.early.fetch(files):
            self.env.network.send(connection, self, m.encode(order))

    def start(self, restore: int = 0) -> None:
        """Take the steps of a start on storage, then launch the workers and begin.

        `restore`: number of a checkpoint; 0: the newest.
        """
        claim = self.env.claim
        self._storage.submit(
            lambda replay: _prepare(_directory(self.env, replay), restore, claim), self._begin
        )

    def _begin(self, start: Start | None) -> None:
        if start is None:
            self.die(host=False, why="cannot reach its storage")
            return
        env, restore, earlier = self.env, start.restore, start.earlier
        self.machine = start.coordinator(
            env.plan, env.settings.workers, _rules(env.settings), _assign(env.plan)
        )
        env.coverage.count("older checkpoints adopted", len(earlier.older))
        env.coverage.count("abandoned checkpoints adopted", len(earlier.abandoned))
        found = 0 if restore.metadata is None else restore.metadata.checkpoint
        env.storage.audit.inherited(found, env.plan.job)
        self._full.started(restore.metadata)
        env.orphans.begins(self.machine, [m.checkpoint for m in earlier.others])
        if restore.metadata is not None:
            self._count_rescale(restore.metadata)
        self.launch()
        self._perform_all(self.machine.start(self.clock_ns()))
        for event in self.early.events:
            self.post(event)
        self._wake_later()

    def _count_rescale(self, metadata: CheckpointMetadata) -> None:
        env = self.env
        rescaled = is_rescaled(metadata, env.plan)
        repartitioned = is_repartitioned(metadata, env.plan)
        env.coverage.count("restores amid the waves of a replay", first_wave(metadata.subtasks) > 0)
        if not rescaled and not repartitioned:
            return
        env.coverage.count("rescaled restores", rescaled)
        env.coverage.count("restores by other partitioners", repartitioned)
        assigned = assignment.assign(metadata, new_tasks(env.plan), env.plan.max_parallelism)
        env.coverage.count("replays in waves", first_wave(assigned) > 0)
        store = seen_as(env.storage, metadata.job, env.plan.job)
        check_redistribution(metadata, env.plan, assigned, store, env.coverage)

    def post(self, event: d.CoordinatorEvent) -> None:
        """Something has happened."""
        if not self.alive or self.result is not None:
            return
        if self.paused:
            self.when_awake(lambda: self.post(event))
            return
        if self.machine is None:
            self._hear_early(event)
            return
        fenced, phase = self.machine.fenced, self.machine.phase
        self.epochs.add(self.machine.epoch)
        effects = self.machine.step(event, self.clock_ns())
        names = " ".join(shown(effect) for effect in effects)
        self.env.scheduler.trace(f"{self.name}: {shown(event)} -> {names}")
        self.machine.check()
        self.env.orphans.told(self.machine, event, phase)
        fenced = self.machine.fenced - fenced
        self.env.coverage.count("messages fenced by the coordinator", fenced)
        self._perform_all(effects)
        self._wake_later()

    def _hear_early(self, event: d.CoordinatorEvent | StateFetched) -> None:
        if self._launched:
            self._perform_all(self.early.take(event))
            self.on_early()

    def next_deadline_ns(self) -> int | None:
        """See `Process`."""
        if self.result is not None or self.machine is None:
            return None
        return self.machine.next_deadline_ns()

    def wake(self) -> None:
        """See `Process`."""
        self.post(d.TimePassed())

    # --- the network -----------------------------------------------------------------------------

    def connected(self, connection: int, greeting: Any) -> None:
        """See `Endpoint`."""

    def received(self, connection: int, message: Any) -> None:
        """See `Endpoint`."""
        said = m.decode_for_coordinator(message)
        if not isinstance(said, m.FetchedAhead):
            self.heard.append(message)
            self.post(d.MessageReceived(connection, said))
        elif self.alive and self.machine is None:
            self.when_awake(lambda: self._hear_early(StateFetched(connection, said.fetched_bytes)))

    def disconnected(self, connection: int, reason: str) -> None:
        """See `Endpoint`."""
        self.post(d.ConnectionLost(connection, reason))

    # --- effects ---------------------------------------------------------------------------------

    def freeze(self) -> None:
        """See `Process`."""
        self.on_freeze(self)

    def _perform_all(self, effects: list[d.CoordinatorEffect]) -> None:
        for position, effect in enumerate(effects):
            if self.paused:
                self.when_awake(functools.partial(self._perform_all, effects[position:]))
                return
            point = _point_of(effect)
            if self.reached(point):
                return
            if self.paused:
                self.when_awake(functools.partial(self._perform_rest, effects[position:], point))
                return
            if self._perform_one(effect, point):
                return

    def _perform_rest(self, effects: list[d.CoordinatorEffect], point: str) -> None:
        """Go on with the effect before which the process froze."""
        if not self._perform_one(effects[0], point):
            self._perform_all(effects[1:])

    def _perform_one(self, effect: d.CoordinatorEffect, point: str) -> bool:
        """True: the process has died."""
        if self.machine is not None:
            self.env.orphans.ordered(self.machine, effect)
        self._perform(effect)
        return self.passed(point)

    def _send(self, connection: int, message: m.ToWorker) -> None:
        self.env.network.send(connection, self, m.encode(message))

    def _close_connection(self, connection: int) -> None:
        self.env.network.close(connection, self)

    def _store(self, effect: StorageEffect) -> None:
        def answered(events: list[d.CoordinatorEvent]) -> None:
            for event in events:
                self.post(event)

        def run(replay: Replay) -> list[d.CoordinatorEvent]:
            return perform_on_storage(effect, _directory(self.env, replay))

        self._storage.submit(run, answered)

    def _sink(self, effect: SinkEffect) -> None:
        def run(replay: Replay) -> d.CoordinatorEvent:
            committers = {
                name: SystemCommitter(name, replay.call, has_tokens=self.env.sinks.has_tokens)
                for name in _sink_names(self.env)
            }
            return perform_on_sinks(effect, Sinks(committers), _directory(self.env, replay))

        self._sinking.submit(run, self.post)

    def _replace(self, worker: int) -> None:
        number = self._incarnations.get(worker, 0) + 1
        self._incarnations[worker] = number
        scheduler = self.env.scheduler
        delay_ns = scheduler.rng.randint(1, 30) * MILLISECOND_NS
        scheduler.after(delay_ns, lambda: self._relaunch(worker, number))

    def _relaunch(self, worker: int, number: int) -> None:
        if self.alive and self.result is None:
            self._launch(self, worker, number)

    def _answer(self, answer: d.RequestAnswered) -> None:
        if answer.checkpoint is not None:
            self._saved(answer.request, answer.checkpoint)

    def _end(self, ended: d.JobEnded) -> None:
        self.result = ended
        self._end_when_done()

    def _notice(self, notice: d.Notice) -> None:
        self.env.scheduler.trace(f"{self.name}: {notice.kind.value}: {notice.text}")
        match notice.kind:
            case d.NoticeKind.CHECKPOINT:
                assert notice.checkpoint is not None, "a complete checkpoint has metadata"
                number = notice.checkpoint.checkpoint
                # A formerly frozen driver may report a checkpoint that a newer driver's checkpoint
                # has subsumed.
                if metadata_path(notice.checkpoint.job, number) in self.env.storage.objects:
                    self.env.watch.completed(notice.checkpoint, self.env.storage)
                self._full.completed(notice.checkpoint)
                self.env.coverage.count("checkpoints completed")
                self.completed += 1
                self.newest = notice.checkpoint
                self.on_checkpoint(number)
            case d.NoticeKind.CHECKPOINT_FAILED:
                self.env.coverage.count("checkpoints given up")
                check_unread(notice.text)
            case d.NoticeKind.ATTEMPT_FAILED:
                self.env.coverage.count("restarts")
                self.env.watch.attempt_failed(notice.text)
                check_unread(notice.text)

    def _end_when_done(self) -> None:
        """The job has ended; the process ends as soon as storage and sinks are idle."""
        if self.result is None or not (self._storage.idle and self._sinking.idle) or not self.alive:
            return
        self.has_left = True
        self.die(host=False, why=f"ended: {self.result.outcome.value} {self.result.reason}")


class _Outside:
    """The sink thread's partners: the sinks' system, and storage for the epoch's start."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def __getattr__(self, method: str) -> Any:
        stored = method in ("list", "create", "tear")
        return getattr(self._env.storage if stored else self._env.sinks, method)


def _directory(env: Environment, replay: Replay) -> CheckpointDirectory:
    """The job's directory; its calls go through `replay`. Other directories share the storage."""
    store = ReplayStore(replay)
    return CheckpointDirectory(env.plan.job, store, OWN, lambda url: store, store.sleep)


def _prepare(directory: CheckpointDirectory, restore: int, claim: str) -> Start | None:
    """Take the steps of the start. None: storage does not answer, and the job is started again."""
    try:
        return prepare(directory, lambda: _found(directory, restore, claim))
    except StorageUnreachable:
        return None
    except UserError as error:
        # A rival may have subsumed the checkpoint of a rescale.
        if restore or "cannot be written" in str(error):
            return None
        raise


def _found(directory: CheckpointDirectory, restore: int, claim: str) -> Restore:
    """Find the checkpoint of this number; 0: "latest".

    Without any checkpoint the job claims `claim`, if given, or starts afresh.
    """
    store, job = directory.store, directory.job
    if restore:
        return resolve(store, job, restore, OWN, open_=directory.open)
    try:
        return resolve(store, job, "latest", OWN, open_=directory.open)
    except UserError:
        return resolve(store, job, claim or None, OWN, claim=True, open_=directory.open)


def _assign(plan: ExecutionPlan) -> Assign:
    tasks = new_tasks(plan)
    return lambda metadata: assignment.assign(metadata, tasks, plan.max_parallelism)


def _rules(settings: Settings) -> CoordinatorRules:
    return CoordinatorRules(
        mode=settings.mode,
        checkpoints=CheckpointRules(
            interval_ns=settings.checkpoint_interval_ns,
            min_pause_ns=0,
            timeout_ns=settings.checkpoint_timeout_ns,
            tolerable_failures=settings.tolerable_failures,
            retain=settings.retain,
            concurrent=settings.concurrent,
            full_every=settings.full_every,
        ),
        restarts=RestartRules(_RESTARTS_MAX, 2 * MILLISECOND_NS, 20 * MILLISECOND_NS),
        heartbeat_timeout_ns=settings.heartbeat_timeout_ns,
        register_timeout_ns=10 * SECOND_NS,
    )


def _sink_names(env: Environment) -> list[str]:
    return [
        operator.name
        for task in env.plan.tasks
        for operator in task.operators
        if operator.sink is not None
    ]


def _point_of(effect: d.CoordinatorEffect) -> str:
    """Return the crash point of an effect."""
    match effect:
        case d.SendMessage(_, message):
            return type(message).__name__
        case _:
            return type(effect).__name__
