"""Settings of a region over those of its job."""

from __future__ import annotations

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.options import Checkpoints, RunOptions
from headrace.engine.contract.region import Region


def test_what_a_region_states_replaces_the_jobs_options() -> None:
    job = RunOptions(checkpoints=Checkpoints("dir", interval="10s"), parallelism=2)
    own = Region("fast", interval="1s", mode="unaligned", parallelism=5).options(job)
    assert own.checkpoints is not None
    assert (own.checkpoints.interval, own.checkpoints.mode) == ("1s", "unaligned")
    assert (own.checkpoints.directory, own.parallelism) == ("dir", 5)
    assert Region("same").options(job) == job


@pytest.mark.parametrize(
    ("region", "interval", "batch_ns"),
    [
        (Region("r"), "10s", None),
        (Region("r", policy="eager"), "20ms", None),
        (Region("r", policy="eager", interval="5ms"), "5ms", None),
        (Region("r", policy="ephemeral"), "100ms", None),
        (Region("r", policy="batch"), None, 10_000_000_000),
        (Region("r", policy="batch", interval="1m"), None, 60_000_000_000),
    ],
)
def test_a_policy_states_the_interval_unless_the_region_does(
    region: Region, interval: str | None, batch_ns: int | None
) -> None:
    own = region.options(RunOptions(checkpoints=Checkpoints("dir", interval="10s")))
    assert own.checkpoints is not None
    assert (own.checkpoints.interval, region.batch_every_ns) == (interval, batch_ns)


def test_a_region_keeps_as_many_checkpoints_as_it_states() -> None:
    own = Region("r", retain=7).options(RunOptions(checkpoints=Checkpoints("dir")))
    assert own.checkpoints is not None
    assert own.checkpoints.retain == 7


def test_wrong_settings_are_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match="Region has no option 'intervall'; did you mean"):
        Region("fast", intervall="1s")  # type: ignore[call-arg]
    with pytest.raises(
        UserError, match=r"region\.mode='alined' is unknown; did you mean 'aligned'"
    ):
        Region("fast", mode="alined")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"region\.policy='lasy' is unknown; did you mean 'lazy'"):
        Region("fast", policy="lasy")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"region\.interval is zero"):
        Region("fast", interval="0s")
