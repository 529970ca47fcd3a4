"""How long does the coordinator need for one checkpoint, from the first acknowledgement to the
order to commit?

Unit: milliseconds a checkpoint, one thread, by the number of slots (a worker each); two tasks that
exchange records, hence slots squared channels that are checked to tile. Storage answers at once.
Its own time must stay far below the interval of checkpoints. Run: `pytest bench/test_coordinator.py
--benchmark-only`. On 2 virtual cores with other work beside, expect a third of noise.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.contract import messages as m
from headrace.engine.contract.execution import EdgePlan, ExecutionPlan, OperatorPlan, TaskPlan
from headrace.engine.contract.operators import Operator, SourceReader
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.coordinator import Coordinator
from headrace.engine.coordinator.rules import CheckpointRules, CoordinatorRules, RestartRules
from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot

FOREVER_NS = 10**18
ROUNDS = 30
RULES = CoordinatorRules(
    mode=CheckpointMode.ALIGNED,
    checkpoints=CheckpointRules(None, 0, FOREVER_NS, 0, 1, 1),
    restarts=RestartRules(0, 1, 1),
    heartbeat_timeout_ns=FOREVER_NS,
    register_timeout_ns=FOREVER_NS,
)


def never_source() -> SourceReader:
    raise AssertionError("nothing is opened here")


def never_operator() -> Operator:
    raise AssertionError("nothing is opened here")


def plan_of(slots: int) -> ExecutionPlan:
    source = (OperatorPlan("numbers", source=never_source),)
    operator = (OperatorPlan("totals", operator=never_operator),)
    edge = EdgePlan(0, "numbers->totals/0", 0, 1, 0, Rebalance(), pa.schema([("x", pa.int64())]))
    tasks = (
        TaskPlan(0, "numbers", source, slots, (), (0,)),
        TaskPlan(1, "totals", operator, slots, (0,), ()),
    )
    return ExecutionPlan("job", tasks, (edge,), 128)


def running(slots: int) -> Coordinator:
    """A coordinator whose workers run."""
    machine = Coordinator(
        plan_of(slots),
        [[slot] for slot in range(slots)],
        RULES,
        restore=None,
        checkpoint_next=1,
        assign=lambda metadata: [],
    )
    machine.start(0)
    machine.step(d.EpochClaimed(1), 0)
    machine.step(d.SinksRecovered(1), 0)
    for worker in range(slots):
        register = m.Register(worker, 0, "host", 1, 1)
        machine.step(d.MessageReceived(worker, register), 0)
    for worker in range(slots):
        machine.step(d.MessageReceived(worker, m.Deployed(1)), 0)
    return machine


def snapshots(slot: int, slots: int) -> list[SubtaskSnapshot]:
    sent = [ChannelPosition(0, slot, consumer, 5, ended=False) for consumer in range(slots)]
    received = [ChannelPosition(0, producer, slot, 5, ended=False) for producer in range(slots)]
    return [
        SubtaskSnapshot(0, slot, False, [], [], sent),
        SubtaskSnapshot(1, slot, False, [], received, []),
    ]


@pytest.mark.parametrize("slots", [2, 16, 64])
def test_one_checkpoint(benchmark: BenchmarkFixture, slots: int) -> None:
    machine = running(slots)
    parts = [snapshots(slot, slots) for slot in range(slots)]
    number = 0

    def trigger() -> None:
        nonlocal number
        number += 1
        machine.step(d.CheckpointRequested(number), 0)

    def complete() -> bool:
        for worker, part in enumerate(parts):
            acknowledge = m.Acknowledge(1, number, part, [])
            machine.step(d.MessageReceived(worker, acknowledge), 0)
        effects = machine.step(d.MetadataWritten(number), 0)
        machine.step(d.TransactionsCommitted(number), 0)
        return any(isinstance(effect, d.CommitTransactions) for effect in effects)

    pedantic: Callable[..., bool] = benchmark.pedantic
    assert pedantic(complete, setup=trigger, rounds=ROUNDS)
