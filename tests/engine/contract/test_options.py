"""Options: defaults in integers, and every wrong value refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.option import groups_of, options_of
from headrace.engine.contract.options import (
    GROUPS,
    Autoscale,
    Checkpoints,
    Network,
    Restart,
    RunOptions,
    State,
    Stated,
    Workers,
)

SECOND = 10**9


def test_defaults_read_as_integers() -> None:
    checkpoints = Checkpoints("/data")
    assert checkpoints.interval_ns == 10 * SECOND
    assert checkpoints.timeout_ns == 600 * SECOND
    assert checkpoints.min_pause_ns == 0
    assert checkpoints.alignment_timeout_ns == SECOND
    assert Checkpoints("/data", mode="unaligned").alignment_timeout_ns is None
    assert Checkpoints("/data", alignment_timeout=None).alignment_timeout_ns is None
    assert checkpoints.barrier_mode is CheckpointMode.ALIGNED
    assert (Network().buffer_bytes, Network().window_bytes) == (2**20, 2**22)
    assert (Network().heartbeat_ns, Network().heartbeat_timeout_ns) == (SECOND, 10 * SECOND)
    assert (Restart().backoff_ns, Restart().max_backoff_ns) == (SECOND // 50, 60 * SECOND)
    assert Workers().start_timeout_ns == 60 * SECOND


def test_checkpoints_only_on_request_have_no_interval() -> None:
    assert Checkpoints("/data", interval=None).interval_ns is None


def test_every_mode_is_one_of_the_barrier() -> None:
    modes = [Checkpoints("/d", mode=m).barrier_mode for m in ("unaligned", "at_least_once")]
    assert modes == [CheckpointMode.UNALIGNED, CheckpointMode.AT_LEAST_ONCE]


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (
            Checkpoints,
            {"directory": "/d", "intervall": "1s"},
            "Checkpoints has no option 'intervall'; did you mean 'interval'?",
        ),
        (
            Checkpoints,
            {"directory": ""},
            "checkpoints.directory='' is not a place; write a path or a URL",
        ),
        (
            Checkpoints,
            {"directory": "/d", "mode": "unalligned"},
            "checkpoints.mode='unalligned' is unknown; did you mean 'unaligned'?",
        ),
        (
            Checkpoints,
            {"directory": "/d", "interval": 0},
            "checkpoints.interval is zero; it must be more",
        ),
        (
            Checkpoints,
            {"directory": "/d", "max_concurrent": 0},
            "checkpoints.max_concurrent=0 is not a whole number of at least 1",
        ),
        (
            Checkpoints,
            {"directory": "/d", "retain": 0},
            "checkpoints.retain=0 is not a whole number of at least 1",
        ),
        (
            Checkpoints,
            {"directory": "/d", "mode": "unaligned", "spill_blocked": True},
            (
                "checkpoints.spill_blocked has no meaning with mode='unaligned': no channel is "
                "blocked; leave it out, or use mode='aligned'"
            ),
        ),
        (
            Checkpoints,
            {"directory": "/d", "mode": "unaligned", "alignment_timeout": "2s"},
            (
                "checkpoints.alignment_timeout has no meaning with mode='unaligned'; "
                "leave it out, or use mode='aligned'"
            ),
        ),
        (
            Checkpoints,
            {"directory": "/d", "mode": "unaligned", "inflight": "continuos"},
            "checkpoints.inflight='continuos' is unknown; did you mean 'continuous'?",
        ),
        (
            Checkpoints,
            {"directory": "/d", "inflight": "continuous", "alignment_timeout": None},
            (
                "checkpoints.inflight='continuous' has no meaning with mode='aligned': no barrier"
                " overtakes a record; "
                "leave it out, use mode='unaligned', or set alignment_timeout"
            ),
        ),
        (
            Network,
            {"window": "1KiB"},
            (
                "network.window='1KiB' is smaller than network.buffer='1MiB'; "
                "make the window at least one buffer"
            ),
        ),
        (
            Network,
            {"heartbeat": "10s"},
            (
                "network.heartbeat_timeout='10s' is not longer than network.heartbeat='10s'; "
                "allow for several heartbeats"
            ),
        ),
        (
            Restart,
            {"attempts": True},
            "restart.attempts=True is not a whole number of at least 0",
        ),
        (
            Restart,
            {"backoff": "2m"},
            "restart.max_backoff='1m' is shorter than restart.backoff='2m'; swap them",
        ),
        (Workers, {"start_timeout": "0s"}, "workers.start_timeout is zero; it must be more"),
        (
            Autoscale,
            {"most": 1, "least": 2},
            "autoscale.most=1 is not a whole number of at least 2",
        ),
        (Autoscale, {"after": 0}, "autoscale.after is zero; it must be more"),
        (State, {"backend": "rocks"}, "state.backend='rocks' is unknown; did you mean 'rocksdb'?"),
        (State, {"directory": "s3://x"}, "state.directory='s3://x' is not a local folder"),
        (State, {"write_buffer": 0}, "state.write_buffer is zero; it must be more"),
        (State, {"block_cache": 0}, "state.block_cache is zero; it must be more"),
        (
            RunOptions,
            {"runner": "thread"},
            "runner='thread' is unknown; did you mean 'threads'?",
        ),
        (
            RunOptions,
            {"runner": "threads", "master": "local[2]"},
            "master= has no meaning with runner='threads'; leave it out, or use runner='spark'",
        ),
        (
            RunOptions,
            {"master": "local[2]", "spark": object()},
            "master= and spark= exclude each other; a session has its master already",
        ),
        (
            RunOptions,
            {"allow_unclaimed_state": "yes"},
            "allow_unclaimed_state='yes' is neither True nor False",
        ),
        (
            RunOptions,
            {"renamed": "old"},
            "renamed='old' does not map old names to new ones, old=new",
        ),
        (
            RunOptions,
            {"renamed": {"a": "b", "b": "c"}},
            (
                "renamed={'a': 'b', 'b': 'c'}: every old name needs a new one of its own, and no"
                " name"
                " can be both old and new"
            ),
        ),
        (
            RunOptions,
            {"renamed": "a=c,b=c"},
            (
                "renamed='a=c,b=c': every old name needs a new one of its own, and no name can be"
                " both"
                " old and new"
            ),
        ),
        (
            RunOptions,
            {"parallelism": 0},
            "parallelism=0 is not a whole number of at least 1",
        ),
        (
            RunOptions,
            {"state": "rocksdb"},
            "state='rocksdb' is not a hr.State(...)",
        ),
        (
            RunOptions,
            {"restart": None},
            "restart=None is not a hr.Restart(...)",
        ),
    ],
)
def test_a_wrong_option_is_refused(
    make: Callable[..., object], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        make(**options)
    assert str(caught.value) == sentence


def test_every_group_is_public_and_a_job_can_state_it() -> None:
    assert {name: getattr(hr, group.__name__) for name, group in GROUPS.items()} == GROUPS
    alone = {"parallelism", "restore", "fresh", "ui"}
    assert Stated.__annotations__.keys() - alone == GROUPS.keys()


def test_every_field_is_an_option_or_a_group() -> None:
    groups: list[Any] = [RunOptions, *GROUPS.values()]
    for group in groups:
        names = {field.name for field in fields(group)}
        # What is known of a region's settings is known of `Region`.
        of_regions = {"regions"} if group is RunOptions else set()
        assert names == options_of(group).keys() | groups_of(group).keys() | of_regions, group


def test_options_are_values() -> None:
    assert RunOptions() == RunOptions()
    assert hash(Checkpoints("/d")) == hash(Checkpoints("/d"))


def test_a_log_needs_barriers_that_overtake() -> None:
    timeout = Checkpoints("/d", alignment_timeout="0s", inflight="continuous")
    assert timeout.inflight == "continuous"
    assert Checkpoints("/d", mode="unaligned", inflight="continuous").inflight == "continuous"
