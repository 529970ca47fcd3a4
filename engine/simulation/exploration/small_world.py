"""The world of a small scope: processes and queues as rows of numbers, and possible next events.

A process sees only itself and its input, so a process's step depends on the process's number and
the event alone. The step is made once, for all states of the world; the rest is arithmetic on rows.
`exploration.py` lists the reductions, and why they are sound.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from headrace.channels.events import CheckpointMode
from headrace.recovery.layout import store_path

from ...contract import messages as m
from ...coordinator import coordinator_events as d
from ...coordinator.rules import Phase
from ...worker import worker_events as w
from ..sink import TransactionStatus
from ..watch import Violation
from . import small_coordinator, small_worker
from .interning import States, Values
from .small_coordinator import Calls, CoordinatorState, Died, Files, System
from .small_cut import check_cut
from .small_scope import SOURCES, Contents, Scope
from .small_worker import Output, WorkerState

#: Places in a row: coordinator, workers, queues (towards worker, from worker, from worker to the
#: other), files, system, crashes left.
C, W, TO, FROM, PEER, FILES, SYSTEM, LEFT = 0, 1, 3, 5, 7, 9, 10, 11
Row = tuple[int, ...]
#: In a worker's place: its process is dead, or has stopped.
DEAD = -1
#: The victim that is the coordinator.
COORDINATOR = 2


class _Door(NamedTuple):
    """A coordinator's state: the events that can happen to it.

    In order: the clock may go on, the start is through, storage is to answer, sinks are to answer,
    the job has ended, all orders are answered too.
    """

    timer: bool
    begun: bool
    storing: bool
    sinking: bool
    deaf: bool
    ended: bool


class SmallWorld:
    """The processes of a small scope, and their queues.

    Attributes:
        steps: steps of a machine that were made; all others were looked up.
        in_flight: records in flight in completed checkpoints.
    """

    def __init__(self, scope: Scope, *, reduced: bool = True) -> None:
        """`reduced`: leave out commuting events (`exploration.py`); False: none, to compare."""
        self._reduced = reduced
        self.steps = 0
        self.in_flight = 0
        self._scope = scope
        self._plan = scope.plan()
        self._contents = Contents()
        constants = {"scope": scope, "plan": self._plan, "contents": self._contents}
        self._coordinators = States(constants)
        self._workers = States(constants)
        self._messages = Values()
        self._queues = Values()
        self._files = Values()
        self._systems = Values()
        #: {input of a process: (the process afterwards, effects on other processes)}
        self._made: dict[Hashable, tuple[int, tuple[Output, ...]]] = {}
        #: {process: what it can do by itself}
        self._menus: dict[int, tuple[bool, tuple[tuple[int, tuple[str, ...], str], ...], int]] = {}
        self._doors: dict[int, _Door] = {}
        self._quiet: dict[tuple[int, int], bool] = {}
        self._empty = self._queues.number(())

    # --- rows -------------------------------------------------------------------------------------

    def start(self) -> Row:
        """The job's program is started."""
        row = [0] * (LEFT + 1)
        row[FILES] = self._of_files({})
        row[SYSTEM] = self._of_system(System())
        row[LEFT] = self._scope.crashes
        self._start_driver(row, (0, 0))
        return self._settled(tuple(row))

    def successors(self, row: Row) -> Iterator[tuple[Hashable, Row]]:
        """Return all next events: (a name, the state afterwards)."""
        for label, then in self._moves(row):
            yield label, self._settled(then) if self._reduced else then

    def _moves(self, row: Row) -> Iterator[tuple[Hashable, Row]]:
        if self._door(row[C]).ended:
            return
        if self._reduced and self._is_farewell(row):
            moved = False
            for worker in self._living(row):
                for move in self._worker_moves(row, worker):
                    moved = True
                    yield move
            if moved:
                return
        yield from self._coordinator_moves(row)
        for worker in self._living(row):
            yield from self._worker_moves(row, worker)
        yield from self._arrivals_of_the_dead(row)
        if row[LEFT]:
            yield from self._deaths(row)

    def _living(self, row: Row) -> list[int]:
        return [worker for worker in range(SOURCES) if row[W + worker] != DEAD]

    def _is_farewell(self, row: Row) -> bool:
        """Return whether the coordinator has ended, no process can die, and workers are idle.

        See `exploration.py`.
        """
        return (
            self._door(row[C]).deaf
            and not row[LEFT]
            and not any(self._menu(row[W + worker])[1] for worker in self._living(row))
            and not any(self._may_be_lost(row, PEER + worker) for worker in range(SOURCES))
        )

    def check_end(self, row: Row) -> None:
        """Check a state without a next event. Raises Violation unless the job has ended well."""
        state: CoordinatorState = self._coordinators.state(row[C])
        if not state.ended:
            raise Violation(f"nothing happens any more: {state.begun.describe()}")
        system: System = self._systems.values[row[SYSTEM]]
        shown = sorted(system.of(TransactionStatus.COMMITTED), key=repr)
        if shown != self._scope.expected():
            raise Violation(f"the sink shows {shown}, not {self._scope.expected()}")
        if system.of(TransactionStatus.PREPARED):
            raise Violation("a transaction is open at the end")

    def outcome(self, row: Row) -> Hashable:
        """Return the content of storage and of the sinks' system, unordered."""
        system: System = self._systems.values[row[SYSTEM]]
        files: Files = self._files.values[row[FILES]]
        return tuple(sorted(files.items())), frozenset(system.transactions.items())

    # --- moves ------------------------------------------------------------------------------------

    def _settled(self, row: Row) -> Row:
        """Return the state after all messages that need not wait are heard."""
        while self._reduced and self._door(row[C]).begun and not self._door(row[C]).ended:
            eager = self._eager(row)
            if eager is None:
                break
            row = eager
        return row

    def _eager(self, row: Row) -> Row | None:
        """Return a message that need not wait: see the module docstring."""
        for worker in range(SOURCES):
            queue = self._queues.values[row[FROM + worker]]
            if queue and self._is_quiet(row[C], queue[0]):
                then = list(row)
                then[FROM + worker] = self._queues.number(queue[1:])
                return self._coordinator(then, ("hear", worker, queue[0]))
        return None

    def _is_quiet(self, coordinator: int, number: int) -> bool:
        """Return whether the message tells a subtask's end, and not the last one's."""
        key = coordinator, number
        quiet = self._quiet.get(key)
        if quiet is None:
            quiet, (_, message) = False, self._messages.values[number]
            if isinstance(message, m.TaskFinished):
                machine = self._coordinators.state(coordinator).begun
                ended = machine._finished | {(message.task, message.subtask)}
                total = sum(task.parallelism for task in self._plan.tasks)
                running = machine.phase is Phase.RUNNING and message.epoch == machine.epoch
                quiet = running and len(ended) < total
            self._quiet[key] = quiet
        return quiet

    def _coordinator_moves(self, row: Row) -> Iterator[tuple[Hashable, Row]]:
        door = self._door(row[C])
        for worker in range(SOURCES):
            queue = self._queues.values[row[FROM + worker]]
            if queue and door.begun:
                then = list(row)
                then[FROM + worker] = self._queues.number(queue[1:])
                event = ("hear", worker, queue[0])
                yield event, self._coordinator(then, event)
        if door.timer:
            yield ("coordinator", "time"), self._coordinator(list(row), ("time",))
        if door.storing:
            yield ("storage answers",), self._coordinator(list(row), ("store", row[FILES]))
        if door.sinking:
            yield ("sinks answer",), self._coordinator(list(row), ("sink", row[SYSTEM]))

    def _worker_moves(self, row: Row, worker: int) -> Iterator[tuple[Hashable, Row]]:
        for place in (TO + worker, PEER + 1 - worker):
            queue = self._queues.values[row[place]]
            if queue:
                then = list(row)
                then[place] = self._queues.number(queue[1:])
                event = ("hear", queue[0])
                yield (worker, self._messages.values[queue[0]]), self._worker(then, worker, event)
        timer, pending, _ = self._menu(row[W + worker])
        if timer:
            yield (worker, "time"), self._worker(list(row), worker, ("time",))
        for place, reads, name in pending:
            files = self._files.values[row[FILES]] if reads else {}
            missing = tuple(p for p in reads if store_path(self._plan.job, p) not in files)
            event_ = ("end", place, missing)
            yield (worker, name), self._worker(list(row), worker, event_)

    def _arrivals_of_the_dead(self, row: Row) -> Iterator[tuple[Hashable, Row]]:
        """Lose any number of a dead process's messages; its end is heard in any case."""
        for place in (*range(FROM, FROM + SOURCES), *range(PEER, PEER + SOURCES)):
            if self._may_be_lost(row, place):
                then = list(row)
                then[place] = self._queues.number(self._queues.values[row[place]][-1:])
                yield ("lost on the way", place), tuple(then)

    def _may_be_lost(self, row: Row, place: int) -> bool:
        queue = self._queues.values[row[place]]
        return len(queue) > 1 and bool(self._messages.values[queue[-1]][0] == "died")

    def _deaths(self, row: Row) -> Iterator[tuple[Hashable, Row]]:
        for victim in self._scope.victims:
            if victim == COORDINATOR:
                yield from self._coordinator_dies(row)
            elif row[W + victim] != DEAD:
                then = list(row)
                then[LEFT] -= 1
                self._gone(then, victim, "died")
                yield (victim, "dies"), tuple(then)

    def _coordinator_dies(self, row: Row) -> Iterator[tuple[Hashable, Row]]:
        """Kill the coordinator after every number of its calls; a supervisor restarts the
        program.
        """
        state: CoordinatorState = self._coordinators.state(row[C])
        if state.ended:
            return
        outcomes: set[tuple[int, int]] = set()
        for sinks_first in (False, True):
            allowed, died = 0, True
            while died:
                calls = Calls(
                    self._files.values[row[FILES]], self._systems.values[row[SYSTEM]], allowed
                )
                try:
                    state.partly(calls, sinks_first=sinks_first)
                    died = False
                except Died:
                    allowed += 1
                outcomes.add((self._of_files(calls.objects), self._of_system(calls.system)))
        for files, system in sorted(outcomes):
            then = list(row)
            then[FILES], then[SYSTEM], then[LEFT] = files, system, row[LEFT] - 1
            self._start_driver(then, (state.triggered, state.expired))
            yield ("coordinator", "dies", files, system), tuple(then)

    # --- steps of processes -----------------------------------------------------------------------

    def _coordinator(self, row: list[int], event: tuple[Any, ...]) -> Row:
        key = (COORDINATOR, row[C], event)
        made = self._made.get(key)
        if made is None:
            self.steps += 1
            state: CoordinatorState = self._coordinators.state(row[C])
            outputs = self._step_coordinator(state, event)
            small_coordinator.without_history(state)
            made = self._made[key] = self._coordinators.number(state), tuple(outputs)
        row[C], outputs_ = made
        for output in outputs_:
            self._from_coordinator(row, output)
        return tuple(row)

    def _step_coordinator(self, state: CoordinatorState, event: tuple[Any, ...]) -> list[Output]:
        match event:
            case ("time",):
                return state.pass_time()
            case ("hear", worker, number):
                kind, message = self._messages.values[number]
                if kind == "died":
                    return state.lost(worker)
                return state.post(d.MessageReceived(state.connection(worker), message))
            case ("store", number):
                calls = Calls(self._files.values[number], System())
                outputs = state.store(calls)
                return [Output("files", self._of_files(calls.objects)), *outputs]
            case ("sink", number):
                calls = Calls({}, self._systems.values[number])
                outputs = state.sink(calls)
                return [Output("system", self._of_system(calls.system)), *outputs]
            case _:
                raise AssertionError(event)

    def _worker(self, row: list[int], worker: int, event: tuple[Any, ...]) -> Row:
        key = (worker, row[W + worker], event)
        made = self._made.get(key)
        if made is None:
            self.steps += 1
            state: WorkerState = self._workers.state(row[W + worker])
            outputs = self._step_worker(state, 1 - worker, event)
            small_worker.without_history(state)
            made = self._made[key] = self._workers.number(state), tuple(outputs)
        row[W + worker], outputs_ = made
        for output in outputs_:
            self._from_worker(row, worker, output)
        return tuple(row)

    def _step_worker(self, state: WorkerState, other: int, event: tuple[Any, ...]) -> list[Output]:
        match event:
            case ("time",):
                return state.pass_time()
            case ("end", place, missing):
                return state.end(place, missing)
            case ("hear", number):
                match self._messages.values[number]:
                    case ("control", message):
                        return state.step(w.ControlReceived(message))
                    case ("frame", epoch, frame):
                        return state.step(w.FramesReceived(epoch, other, (frame,)))
                    case ("link", epoch):
                        if epoch >= state.machine._epoch:
                            state.link = epoch
                        return state.step(w.PeerConnected(epoch, other))
                    case ("died" | "closed", epoch):
                        if state.link == epoch:
                            state.link = 0
                        return state.step(w.PeerLost(epoch, other, "closed"))
        raise AssertionError(event)

    # --- what they do to others -------------------------------------------------------------------

    def _from_coordinator(self, row: list[int], output: Output) -> None:
        match output:
            case Output("files", number):
                row[FILES] = number
            case Output("system", number):
                row[SYSTEM] = number
            case Output("worker", (worker, message)):
                if row[W + worker] != DEAD:
                    self._push(row, TO + worker, ("control", m.encode(message)), message)
            case Output("launch", (worker, incarnation)):
                self._launch(row, worker, incarnation)
            case Output("complete", metadata):
                if self._scope.mode is not CheckpointMode.AT_LEAST_ONCE:
                    system = self._systems.values[row[SYSTEM]]
                    self.in_flight += check_cut(metadata, self._contents, system)
            case Output("violation", text):
                raise Violation(text)
            case _:
                raise AssertionError(output)

    def _from_worker(self, row: list[int], worker: int, output: Output) -> None:
        other = 1 - worker
        match output:
            case Output("coordinator", message):
                self._push(row, FROM + worker, ("control", m.encode(message)), message)
            case Output("peer", ("frame", epoch, frame)):
                if self._listens(row, other, epoch):
                    self._push(row, PEER + worker, ("frame", epoch, frame))
            case Output("link", epoch):
                if row[W + other] == DEAD:
                    self._push(row, PEER + other, ("closed", epoch))
                else:
                    self._push(row, PEER + worker, ("link", epoch))
                    self._push(row, PEER + other, ("link", epoch))
            case Output("unlink", epoch):
                if self._listens(row, other, epoch):
                    self._push(row, PEER + worker, ("closed", epoch))
                self._forget(row, PEER + other, epoch)
            case Output("put", path):
                files = self._files.values[row[FILES]]
                row[FILES] = self._of_files({**files, path: b""})
            case Output("prepare", (id, records)):
                system: System = self._systems.values[row[SYSTEM]]
                prepared = {**system.transactions, id: (TransactionStatus.PREPARED, records)}
                row[SYSTEM] = self._of_system(System(prepared))
            case Output("stopped"):
                self._gone(row, worker, "closed")
            case _:
                raise AssertionError(output)

    def _gone(self, row: list[int], worker: int, how: str) -> None:
        """Remove the process; its peers hear of the end after its messages."""
        other, link = 1 - worker, self._menu(row[W + worker])[2]
        row[W + worker] = DEAD
        row[TO + worker] = row[PEER + other] = self._empty
        self._push(row, FROM + worker, ("died", how))
        if link and self._listens(row, other, link):
            self._push(row, PEER + worker, (how, link))

    def _listens(self, row: list[int], worker: int, epoch: int) -> bool:
        """The worker's end of that epoch's connection is open, or opens when the worker hears of
        it.
        """
        if row[W + worker] == DEAD:
            return False
        coming = self._queues.values[row[PEER + 1 - worker]]
        return self._menu(row[W + worker])[2] == epoch or any(
            self._messages.values[number] == ("link", epoch) for number in coming
        )

    def _forget(self, row: list[int], place: int, epoch: int) -> None:
        queue = self._queues.values[row[place]]
        left = tuple(n for n in queue if self._messages.values[n][1] != epoch)
        row[place] = self._queues.number(left)

    def _push(self, row: list[int], place: int, key: Hashable, message: Any = None) -> None:
        value = None if message is None else ("control", message)
        number = self._messages.number(key, value)
        row[place] = self._queues.number((*self._queues.values[row[place]], number))

    def _start_driver(self, row: list[int], used: tuple[int, int]) -> None:
        """A user starts the job's program; workers register while its driver talks to storage.

        `used`: of the scope.
        """
        triggered, expired = used
        state = CoordinatorState(self._scope, self._plan, triggered=triggered, expired=expired)
        row[C] = self._coordinators.number(state)
        for worker in range(SOURCES):
            self._launch(row, worker, 0)

    def _launch(self, row: list[int], worker: int, incarnation: int) -> None:
        state = WorkerState.begin(self._scope, self._plan, self._contents, worker)
        small_worker.without_history(state)
        row[W + worker] = self._workers.number(state)
        row[TO + worker] = row[FROM + worker] = row[PEER + worker] = self._empty
        row[PEER + 1 - worker] = self._empty
        register = m.Register(worker, incarnation, f"worker-{worker}", 1, 0)
        self._push(row, FROM + worker, ("control", m.encode(register)), register)

    # --- what a process can do by itself ----------------------------------------------------------

    def _door(self, number: int) -> _Door:
        door = self._doors.get(number)
        if door is None:
            state: CoordinatorState = self._coordinators.state(number)
            door = self._doors[number] = _Door(
                state.timer_due(),
                state.machine is not None,
                state.stores,
                bool(state.sinking),
                state.deaf,
                state.ended,
            )
        return door

    def _menu(self, number: int) -> tuple[bool, tuple[tuple[int, tuple[str, ...], str], ...], int]:
        """Return a worker's possible events.

        The clock may go on; (place, files to read, name) of pending work; epoch of its open
        connection.
        """
        menu = self._menus.get(number)
        if menu is None:
            state: WorkerState = self._workers.state(number)
            pending = tuple((i, p.reads(), p.name()) for i, p in enumerate(state.pending))
            menu = self._menus[number] = state.timer_due(), pending, state.link
        return menu

    def _of_files(self, files: Files) -> int:
        return self._files.number(tuple(sorted(files.items())), files)

    def _of_system(self, system: System) -> int:
        return self._systems.number(tuple(system.transactions.items()), system)
