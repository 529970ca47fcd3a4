"""A simulated driver process: the coordinator machine, its storage thread, its sink thread and its launcher, in virtual time.

It does with effects what `drivers/coordinator_driver.py` does, with the same functions on storage and sinks, each of which runs call by
call (see `storage.py`), so that the process can die between any two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from headrace.recovery import assignment, catalog
from headrace.recovery.elsewhere import Elsewhere
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import StoreError

from ...contract import messages as m
from ...contract.errors import StorageUnreachable, UserError
from ...contract.launcher import slots_of_worker
from ...coordinator import coordinator_events as d
from ...coordinator.coordinator import Coordinator
from ...coordinator.earlier_runs import EarlierRuns, find_earlier_runs
from ...coordinator.rules import CheckpointRules, CoordinatorRules, RestartRules
from ...drivers import claiming
from ...drivers.coordinator_performer import (
    Sinks,
    claim_epoch,
    delete_files,
    find_checkpoint,
    recover_sinks,
    withdraw_checkpoints,
    write_metadata,
)
from ...drivers.restore import Restore, new_tasks, resolve
from ..scheduler import MILLISECOND_NS, SECOND_NS
from ..sink import SystemCommitter
from .claims import check_unread, seen_as
from .environment import Environment, Process, Settings, shown
from .redistribution import check_redistribution
from .storage import Replay, ReplayStore, Stepper

#: URL of the job's checkpoint directory; all others are folders in the same storage.
OWN = "memory://its-own"
#: Longer than any run: a job gives up for want of progress only in tests of that.
_RESTARTS_MAX = 10_000


class CoordinatorProcess(Process):
    """One run of the job's driver program.

    Args:
        launch: starts an incarnation of a worker of this coordinator.
        ended: called once, when it is dead or the job has ended.
        saved: called with the request and the number of each savepoint that is complete.

    Attributes:
        result: how the job ended, if it has.
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
        super().__init__(env, f"coordinator {generation}", lambda: ended(self))
        self.generation = generation
        self.address = (f"coordinator-{generation}", 1)
        self.result: d.JobEnded | None = None
        #: It has done everything to the end, and was not killed.
        self.has_left = False
        self._launch = launch
        self._saved = saved
        #: None until an epoch is claimed and a checkpoint chosen.
        self.machine: Coordinator | None = None
        #: Checkpoints that it has completed.
        self.completed = 0
        #: Every epoch that was its own.
        self.epochs: set[int] = set()
        self._storage = Stepper(self, env.faults, env.storage, "store call", self._end_when_done)
        self._sinking = Stepper(self, env.faults, _Outside(env), "sink call", self._end_when_done)
        self._sink_replay = Replay()
        self._sinks = Sinks(
            {name: SystemCommitter(name, self._call_sink) for name in _sink_names(env)}
        )
        self._incarnations: dict[int, int] = {}
        #: Told of every checkpoint that completes.
        self.on_checkpoint: Callable[[int], None] = lambda number: None
        #: The latest messages of workers, as they came.
        self.heard: deque[bytes] = deque(maxlen=40)
        env.network.listen(self.address, self)

    def start(self) -> None:
        """Claim an epoch, choose the newest checkpoint, launch the workers and begin; as `session.start_job` does."""
        self._storage.submit(lambda replay: _prepare(_Sleeper(replay), self.env), self._prepared)

    def _prepared(self, prepared: _Prepared | None) -> None:
        if prepared is None:
            self.die(host=False, why="cannot reach its storage")
            return
        restore = prepared.restore
        self.machine = _machine(self.env, prepared)
        self.env.coverage.count("older checkpoints adopted", len(prepared.earlier.older))
        self.env.coverage.count("abandoned checkpoints adopted", len(prepared.earlier.abandoned))
        found = 0 if restore.metadata is None else restore.metadata.checkpoint
        self.env.storage.audit.inherited(found, self.env.plan.job)
        self.env.orphans.begins(self.machine, [m.checkpoint for m in prepared.earlier.others])
        if restore.metadata is not None:
            self._count_rescale(restore.metadata)
        for worker in range(self.env.settings.workers):
            self._launch(self, worker, 0)
        self._perform_all(self.machine.start(self.clock_ns()))
        self._wake_later()

    def _count_rescale(self, metadata: CheckpointMetadata) -> None:
        env = self.env
        if [t.parallelism for t in metadata.tasks] == [t.parallelism for t in env.plan.tasks]:
            return
        env.coverage.count("rescaled restores")
        assigned = assignment.assign(metadata, new_tasks(env.plan), env.plan.max_parallelism)
        store = seen_as(env.storage, metadata.job, env.plan.job)
        check_redistribution(metadata, env.plan, assigned, store, env.coverage)

    def post(self, event: d.CoordinatorEvent) -> None:
        """Something has happened."""
        if not self.alive or self.result is not None or self.machine is None:
            return
        if self.paused:
            self.when_awake(lambda: self.post(event))
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

    def next_deadline_ns(self) -> int | None:
        """See `Process`."""
        if self.result is not None or self.machine is None:
            return None
        return self.machine.next_deadline_ns()

    def wake(self) -> None:
        """See `Process`."""
        self.post(d.TimePassed())

    # --- the network --------------------------------------------------------------------------------------------

    def connected(self, connection: int, greeting: Any) -> None:
        """See `Endpoint`."""

    def received(self, connection: int, message: Any) -> None:
        """See `Endpoint`."""
        self.heard.append(message)
        self.post(d.MessageReceived(connection, m.decode_for_coordinator(message)))

    def disconnected(self, connection: int, reason: str) -> None:
        """See `Endpoint`."""
        self.post(d.ConnectionLost(connection, reason))

    # --- effects ------------------------------------------------------------------------------------------------

    def _perform_all(self, effects: list[d.CoordinatorEffect]) -> None:
        for effect in effects:
            point = _point_of(effect)
            if self.reached(point):
                return
            assert self.machine is not None, "nothing else has effects"
            self.env.orphans.ordered(self.machine, effect)
            self._perform(effect)
            if self.passed(point):
                return

    def _perform(self, effect: d.CoordinatorEffect) -> None:
        env = self.env
        match effect:
            case d.SendMessage(connection, message):
                env.network.send(connection, self, m.encode(message))
            case d.CloseConnection(connection):
                env.network.close(connection, self)
            case d.ClaimEpoch(above):
                self._store(partial(claim_epoch, job=env.plan.job, above=above))
            case d.WriteMetadata(metadata, last=last):
                self._store(partial(_write, metadata=metadata, last=last))
            case d.FindCheckpoint(below):
                self._store(partial(find_checkpoint, job=env.plan.job, below=below))
            case d.WithdrawCheckpoints(numbers, patient):
                self._store(
                    partial(_withdraw, job=env.plan.job, checkpoints=numbers, patient=patient)
                )
            case d.DeleteFiles(what, patient):
                self._store(partial(_delete, job=env.plan.job, what=what, patient=patient))
            case d.ReleaseClaim(place, patient):
                self._store(partial(_release, job=env.plan.job, place=place, patient=patient))
            case d.RecoverSinks(epoch, records):
                self._sink(
                    lambda: recover_sinks(
                        ReplayStore(self._sink_replay), env.plan.job, self._sinks, epoch, records
                    )
                )
            case d.CommitTransactions(checkpoint, records):
                self._sink(lambda: self._sinks.commit(checkpoint, records))
            case d.ReplaceWorker(worker):
                number = self._incarnations.get(worker, 0) + 1
                self._incarnations[worker] = number
                delay_ns = env.scheduler.rng.randint(1, 30) * MILLISECOND_NS
                env.scheduler.after(delay_ns, lambda: self._replace(worker, number))
            case d.RequestAnswered():
                if effect.checkpoint is not None:
                    self._saved(effect.request, effect.checkpoint)
            case d.Notice():
                self._notice(effect)
            case d.JobEnded():
                self.result = effect
                self._end_when_done()
            case _:
                assert_never(effect)

    def _replace(self, worker: int, number: int) -> None:
        if self.alive and self.result is None:
            self._launch(self, worker, number)

    def _store(self, function: Callable[[Any], Any]) -> None:
        def answered(result: Any) -> None:
            for event in result if isinstance(result, list) else [result] if result else []:
                self.post(event)

        self._storage.submit(lambda replay: function(_Sleeper(replay)), answered)

    def _sink(self, function: Callable[[], d.CoordinatorEvent]) -> None:
        def run(replay: Replay) -> d.CoordinatorEvent:
            self._sink_replay = replay
            return function()

        self._sinking.submit(run, self.post)

    def _call_sink(self, method: str, *arguments: Any) -> Any:
        return self._sink_replay.call(method, *arguments)

    def _notice(self, notice: d.Notice) -> None:
        self.env.scheduler.trace(f"{self.name}: {notice.kind.value}: {notice.text}")
        match notice.kind:
            case d.NoticeKind.CHECKPOINT:
                assert notice.checkpoint is not None, "a complete checkpoint has metadata"
                self.env.watch.completed(notice.checkpoint, self.env.storage)
                self.env.coverage.count("checkpoints completed")
                self.completed += 1
                self.on_checkpoint(notice.checkpoint.checkpoint)
            case d.NoticeKind.CHECKPOINT_FAILED:
                self.env.coverage.count("checkpoints given up")
                check_unread(notice.text)
            case d.NoticeKind.ATTEMPT_FAILED:
                self.env.coverage.count("restarts")
                self.env.watch.attempt_failed(notice.text)
                check_unread(notice.text)

    def _end_when_done(self) -> None:
        """The job has ended; the process does once storage and sinks have nothing left to do."""
        if self.result is None or not (self._storage.idle and self._sinking.idle) or not self.alive:
            return
        self.has_left = True
        self.die(host=False, why=f"ended: {self.result.outcome.value} {self.result.reason}")


class _Outside:
    """What the sink thread talks to: the sinks' system, and storage to look for a newer epoch."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def __getattr__(self, method: str) -> Any:
        return getattr(self._env.storage if method == "list" else self._env.sinks, method)


class _Sleeper(ReplayStore):
    """A store that also lets virtual time pass."""

    def sleep(self, seconds: float) -> None:
        """Pause the function."""
        self._replay.call("sleep", seconds)


def _write(store: _Sleeper, metadata: CheckpointMetadata, last: bool) -> Any:
    return write_metadata(store, metadata, sleep=store.sleep, last=last)


def _release(store: _Sleeper, job: str, place: Elsewhere, patient: bool) -> Any:
    return claiming.release(
        store, job, OWN, place, lambda url: store, patient=patient, sleep=store.sleep
    )


def _withdraw(store: _Sleeper, **what: Any) -> Any:
    return withdraw_checkpoints(store, **what, sleep=store.sleep)


def _delete(store: _Sleeper, **what: Any) -> Any:
    return delete_files(store, **what, sleep=store.sleep)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a driver knows before it launches anything."""

    epoch: int
    restore: Restore
    earlier: EarlierRuns


def _prepare(store: _Sleeper, env: Environment) -> _Prepared | None:
    """The epoch first: from then on no older driver completes a checkpoint. None: storage cannot be reached."""
    try:
        job = env.plan.job
        if env.claim and not _staked(store, env):
            return None
        epoch = catalog.claim_epoch(store, job)
        restore = _latest(store, env)
        claiming.record(restore, store, job)
        earlier = find_earlier_runs(store, job, restore.own, restore.checkpoint_next, restore.place)
        return _Prepared(epoch, restore, earlier)
    except (StoreError, StorageUnreachable):
        return None


def _staked(store: _Sleeper, env: Environment) -> bool:
    """Claim what is to be claimed where it lies. False: its folder cannot be written now, and whoever starts the job tries again."""
    restore = _latest(store, env)
    try:
        claiming.stake(restore, store, env.plan.job, OWN, lambda url: store)
    except UserError as error:
        if "cannot be written" in str(error):
            return False
        raise
    return True


def _latest(store: _Sleeper, env: Environment) -> Restore:
    """What `restore="latest"` finds; without any complete checkpoint the job claims what it is to claim, or starts afresh."""
    job = env.plan.job
    try:
        return resolve(store, job, "latest", OWN, open_=lambda url: store)
    except UserError:
        claim = env.claim or None
        return resolve(store, job, claim, OWN, claim=True, open_=lambda url: store)


def _machine(env: Environment, prepared: _Prepared) -> Coordinator:
    settings, plan, restore = env.settings, env.plan, prepared.restore
    tasks = new_tasks(plan)

    def assign(metadata: CheckpointMetadata) -> list[SubtaskSnapshot]:
        return assignment.assign(metadata, tasks, plan.max_parallelism)

    slots = [
        list(slots_of_worker(worker, workers=settings.workers, slots=plan.slots))
        for worker in range(settings.workers)
    ]
    return Coordinator(
        plan,
        slots,
        _rules(settings),
        restore=restore.metadata,
        origin=restore.origin,
        claim=restore.claim,
        checkpoint_next=restore.checkpoint_next,
        assign=assign,
        epoch=prepared.epoch,
        earlier=prepared.earlier,
    )


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
    """The crash point that an effect is."""
    match effect:
        case d.SendMessage(_, message):
            return type(message).__name__
        case _:
            return type(effect).__name__
