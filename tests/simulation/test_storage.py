"""Calls to simulated storage: one at a time, each with its faults, crashes between any two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.simulation.campaign.faults import FaultProfile, Faults
from headrace.engine.simulation.campaign.storage import (
    Call,
    Replay,
    ReplayStore,
    SimulatedStorage,
    Stepper,
    answer_call,
    crash_during,
)
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.scheduler import Scheduler
from headrace.recovery.store import AlreadyExists, NotFound, StoreRejected, StoreUncertain


class Caller:
    """A process that dies at its `dies_at`-th call."""

    def __init__(self, dies_at: int = 0) -> None:
        self.alive = True
        self._left = dies_at

    def reached(self, point: str) -> bool:
        self._left -= 1
        self.alive = self.alive and self._left != 0
        return not self.alive

    def passed(self, point: str) -> bool:
        return not self.alive

    def when_awake(self, action: Callable[[], None]) -> None:
        action()


def faults(profile: FaultProfile | None = None) -> Faults:
    return Faults(profile or FaultProfile(), Scheduler(1), Coverage())


def run(world: Faults, caller: Caller, storage: SimulatedStorage, function: Any) -> list[Any]:
    results: list[Any] = []
    stepper = Stepper(caller, world, storage, "store call", lambda: results.append("rested"))
    stepper.submit(lambda replay: function(ReplayStore(replay)), results.append)
    while world.scheduler.step():
        pass
    return results


def copy(store: ReplayStore) -> bytes:
    store.put("b", store.get("a"))
    return store.get("b")


def test_a_function_runs_call_by_call_in_virtual_time() -> None:
    world, storage = faults(), SimulatedStorage()
    storage.put("a", b"data")
    assert run(world, Caller(), storage, copy) == [b"data", "rested"]
    assert world.scheduler.steps == 3
    assert world.scheduler.now_ns > 0


def test_a_caller_that_dies_makes_no_further_call() -> None:
    storage = SimulatedStorage()
    storage.put("a", b"data")
    assert run(faults(), Caller(dies_at=3), storage, copy) == []
    assert "b" in storage.objects
    storage.delete("b")
    assert run(faults(), Caller(dies_at=1), storage, copy) == []
    assert "b" not in storage.objects


def test_errors_of_the_storage_reach_the_function() -> None:
    def look(store: ReplayStore) -> str:
        try:
            store.get("missing")
        except NotFound:
            return "none"
        return "some"

    assert run(faults(), Caller(), SimulatedStorage(), look) == ["none", "rested"]


def test_functions_run_one_after_the_other() -> None:
    world, storage, order = faults(), SimulatedStorage(), list[str]()
    stepper = Stepper(Caller(), world, storage, "store call", lambda: order.append("rested"))

    def write(name: str) -> Any:
        def function(replay: Replay) -> str:
            ReplayStore(replay).put(name, b"")
            return name

        return function

    stepper.submit(write("first"), order.append)
    stepper.submit(write("second"), order.append)
    while world.scheduler.step():
        pass
    assert order == ["first", "second", "rested"]


def test_create_is_exclusive_and_get_refuses_to_read_beyond_the_end() -> None:
    storage = SimulatedStorage()
    storage.create("a", b"1234")
    with pytest.raises(AlreadyExists):
        storage.create("a", b"")
    assert storage.get("a", 1, 2) == b"23"
    with pytest.raises(StoreRejected):
        storage.get("a", 2, 3)


def test_a_rejected_write_leaves_nothing_and_an_uncertain_one_may() -> None:
    storage = SimulatedStorage()
    call = Call("put", ("a", b"x"))
    rejecting = faults(FaultProfile(until_ns=1, storage_rejects=1.0))
    assert isinstance(answer_call(rejecting, storage, call)[1], StoreRejected)
    assert storage.objects == {}
    uncertain = faults(FaultProfile(until_ns=1, storage_uncertain=1.0))
    outcomes = set()
    for _ in range(30):
        storage.objects.clear()
        assert isinstance(answer_call(uncertain, storage, call)[1], StoreUncertain)
        outcomes.add("a" in storage.objects)
    assert outcomes == {True, False}


def test_a_write_cut_off_by_a_crash_is_whole_or_half_or_absent() -> None:
    world, found = faults(FaultProfile(until_ns=1, torn_writes=0.4)), set()
    for _ in range(60):
        storage = SimulatedStorage()
        crash_during(world, storage, Call("create", ("a", b"1234")))
        found.add(storage.objects.get("a"))
    assert found == {b"1234", b"12", None}
