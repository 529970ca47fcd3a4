"""A worker's process is not stopped by one thread of it for long."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from headrace.engine.drivers import interpreter


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

{thread}
assert (gc.get_freeze_count() > 0) is {frozen}
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
