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


def test_wrong_settings_are_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match="Region has no option 'intervall'; did you mean"):
        Region("fast", intervall="1s")  # type: ignore[call-arg]
    with pytest.raises(
        UserError, match=r"region\.mode='alined' is unknown; did you mean 'aligned'"
    ):
        Region("fast", mode="alined")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"region\.interval is zero"):
        Region("fast", interval="0s")
