"""The seam's values: secrets stay out of texts, slots are spread without gap or overlap."""

import pickle
from datetime import timedelta

import pytest

from headrace.engine.contract.launcher import Incarnation, WorkerProgram, slots_of_worker
from headrace.engine.contract.options import Checkpoints, Network, State


def test_neither_secret_nor_plan_is_printed() -> None:
    program = WorkerProgram("orders", ("127.0.0.1", 1), b"hush", b"plan-bytes", 2)
    assert "hush" not in repr(program)
    assert "plan-bytes" not in repr(program)


def test_program_and_incarnation_survive_a_pickle() -> None:
    checkpoints = Checkpoints("/d", interval=None, alignment_timeout=timedelta(seconds=3))
    state = State(backend="rocksdb", directory="/s")
    address = ("127.0.0.1", 1)
    program = WorkerProgram(
        *("orders", address, b"hush", b"plan", 2), checkpoints, Network(window="8MiB"), state
    )
    assert pickle.loads(pickle.dumps(program)) == program
    assert pickle.loads(pickle.dumps(Incarnation(1, 2))) == Incarnation(1, 2)


@pytest.mark.parametrize("workers", range(1, 9))
def test_every_slot_has_one_worker_and_loads_differ_by_one_at_most(workers: int) -> None:
    for slots in range(workers, 20):
        ranges = [
            slots_of_worker(worker, workers=workers, slots=slots) for worker in range(workers)
        ]
        assert [slot for each in ranges for slot in each] == list(range(slots))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
