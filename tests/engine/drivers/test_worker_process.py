"""The options of a program as its workers count them."""

from __future__ import annotations

from headrace.channels.credit import Debloat
from headrace.engine.contract.execution import ExecutionPlan, TaskPlan
from headrace.engine.contract.launcher import WorkerProgram
from headrace.engine.contract.operators import StateBackend
from headrace.engine.contract.options import Checkpoints, Network, State
from headrace.engine.drivers.worker_process import worker_settings

PLAN = ExecutionPlan("job", (TaskPlan(0, "source", (), 1, inputs=(), outputs=()),), (), 128)
BARE = WorkerProgram("job", ("127.0.0.1", 1), b"secret", b"plan", 2)


def program(checkpoints: Checkpoints | None, network: Network, state: State) -> WorkerProgram:
    return WorkerProgram(
        "job", ("127.0.0.1", 1), b"secret", b"plan", 2, checkpoints, network, state
    )


def test_a_program_without_options_runs_by_the_defaults() -> None:
    settings = worker_settings(BARE, PLAN)
    assert (settings.limits.buffer_bytes, settings.limits.window_bytes) == (1 << 20, 4 << 20)
    assert settings.limits.debloat == Debloat(10**9 // 2, floor_bytes=1 << 12)
    assert settings.limits.alignment_timeout_ns is None
    assert not settings.limits.logs
    assert not settings.limits.compresses
    assert settings.heartbeat_ns == 10**9
    assert settings.backend == StateBackend("heap", 64 << 20, 64 << 20)
    assert settings.state_directory is None


def test_every_option_that_concerns_workers_reaches_them() -> None:
    checkpoints = Checkpoints(
        "/d", alignment_timeout="0s", inflight="continuous", compression="lz4"
    )
    network = Network(buffer="1KiB", window="2KiB", debloat_target=0, heartbeat="2s")
    state = State("rocksdb", directory="/s", write_buffer=5, block_cache=6, cache=7)
    settings = worker_settings(program(checkpoints, network, state), PLAN)
    assert (settings.limits.buffer_bytes, settings.limits.window_bytes) == (1024, 2048)
    assert settings.limits.debloat is None
    assert settings.limits.alignment_timeout_ns == 0
    assert settings.limits.logs
    assert settings.limits.compresses
    assert settings.heartbeat_ns == 2 * 10**9
    assert settings.backend == StateBackend("rocksdb", 5, 6, cache_bytes=7)
    assert settings.state_directory == "/s"
