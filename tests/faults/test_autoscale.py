"""A job on worker processes that rescales itself: up while it cannot keep pace, to its bound; down
when it idles; never to and fro; exactly once.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace as hr
from headrace.bench.audit import AuditedJob
from headrace.engine.coordinator.coordinator_events import NoticeKind

from .conftest import WAIT_S, assert_prefix, wait_for

pytestmark = pytest.mark.slow

#: What the source makes is the work of six subtasks, as long as a record costs something.
RATE_PER_S = 200.0
PAUSE_S = 0.03
MOST = 4


def orders(handle: hr.JobHandle) -> list[tuple[int, int]]:
    """(from, to) of each rescale that worked."""
    texts = [n.text for _, n in handle.status().notices if n.kind is NoticeKind.RESCALED]
    found = [re.match(r"rescaled from (\d+) to (\d+) ", text) for text in texts]
    return [(int(match[1]), int(match[2])) for match in found if match is not None]


def checkpoints_more(handle: hr.JobHandle, count: int) -> None:
    """Wait until the job has completed so many: the time in which it must not be rescaled."""
    done = handle.status().completed
    wait_for(lambda: handle.status().completed >= done + count, "checkpoints")


@pytest.mark.usefixtures("only_long")
def test_a_job_goes_up_to_its_bound_under_load_and_back_when_it_idles(tmp_path: Path) -> None:
    audited = AuditedJob(
        tmp_path,
        int(RATE_PER_S * 600),
        RATE_PER_S,
        parallelism=1,
        interval="2s",
        partitions=12,
        pause_s=PAUSE_S,
    )
    checkpoints = hr.Checkpoints(str(audited.checkpoints), audited.interval, "unaligned")
    autoscale = hr.Autoscale(most=MOST, after="1s", idle_after="1s", pause="0.5s")
    network = hr.Network(buffer="512B", window="4KiB", heartbeat="0.2s")
    handle = audited.build(checkpoints=checkpoints, autoscale=autoscale, network=network).start(
        "processes"
    )
    try:
        wait_for(lambda: len(orders(handle)) >= 2, "two rescales up")
        checkpoints_more(handle, 2)
        assert orders(handle) == [(1, 2), (2, MOST)]
        audited.ease()
        wait_for(lambda: len(orders(handle)) >= 4, "two rescales down")
        checkpoints_more(handle, 2)
        assert orders(handle) == [(1, 2), (2, MOST), (MOST, 2), (2, 1)]
        handle.stop()
        assert handle.wait(WAIT_S).restarts == 0
    finally:
        handle.cancel()
    assert_prefix(audited)
