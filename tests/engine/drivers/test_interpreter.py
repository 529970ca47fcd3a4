"""A worker's process is not stopped by one thread of it for long."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from headrace.engine.drivers import interpreter

#: By which a user names Arrow's allocator.
VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"


@pytest.mark.parametrize(("before", "after"), [(0.005, 0.0005), (0.0001, 0.0001)])
def test_hand_overs_are_made_quicker_never_slower(before: float, after: float) -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        interpreter.hand_over_soon()
        assert sys.getswitchinterval() == pytest.approx(after, rel=0.05)
    finally:
        sys.setswitchinterval(usual)


def test_what_has_been_loaded_is_not_collected_again() -> None:
    gc.collect()
    looked_at = len(gc.get_objects())
    try:
        interpreter.freeze_loaded()
        assert len(gc.get_objects()) < looked_at / 10
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("thread", "frozen"), [("run()", True), ("t = Thread(target=run); t.start(); t.join()", False)]
)
def test_a_worker_spares_its_own_process_and_no_other(thread: str, frozen: bool) -> None:
    program = f"""
import gc
from threading import Thread

import pyarrow as pa

from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.drivers import worker_process

class Refused(Exception):
    pass

def refuse(program, plan):
    raise Refused

worker_process.cloudpickle.loads = lambda _: None
worker_process.worker_settings = refuse

def run():
    try:
        worker_process.run_worker(WorkerProgram("job", ("", 0), b"", b"", 1), Incarnation(0, 0), "")
    except Refused:
        pass

usual = pa.default_memory_pool().backend_name
{thread}
assert (gc.get_freeze_count() > 0) is {frozen}
assert (pa.default_memory_pool().backend_name != usual) is {frozen}
"""
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    command = [sys.executable, "-P", "-c", program]
    subprocess.run(command, check=True, timeout=300, env=environment)


@pytest.mark.parametrize(("chosen", "used"), [({}, "jemalloc"), ({VARIABLE: "system"}, "system")])
def test_arrow_keeps_freed_memory_unless_the_user_chose_an_allocator(
    chosen: dict[str, str], used: str
) -> None:
    program = """
import pyarrow as pa
from headrace.engine.drivers.interpreter import keep_freed_memory

keep_freed_memory()
print(pa.array([1]).take(pa.array([0])).sum(), pa.default_memory_pool().backend_name)
"""
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE} | chosen
    command = [sys.executable, "-P", "-c", program]
    ran = subprocess.run(
        command, check=True, timeout=300, env=environment, capture_output=True, text=True
    )
    assert ran.stdout.split() == ["1", used]
