"""Settings of single regions, from a file and the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.engine.contract.options import RunOptions
from headrace.engine.session.settings import layered


def job(*regions: hr.Region) -> hr.Job:
    """Regions "numbers" and "log"."""
    rows = hr.read.sequence(10, keys=2, name="numbers").logged(name="log").key_by("key")
    totals = rows.aggregate(n=hr.count(), name="totals").write.collect(name="out")
    checkpoints = hr.Checkpoints("memory://keys", interval="10s")
    return hr.Job("job", totals, checkpoints=checkpoints, regions=list(regions))


def laid(
    made: hr.Job, settings: dict[str, str], toml: Path | None = None
) -> dict[str, tuple[object, object]]:
    """{region: (interval, parallelism)}."""
    options, _ = layered(replace(made.options, parallelism=2), settings, {}, toml)
    return {
        region.name: (region.options.checkpoints.interval, region.options.parallelism)
        for region in made._regions_plan(options).regions
        if region.options.checkpoints is not None
    }


def test_a_file_and_the_command_line_set_what_one_region_does(tmp_path: Path) -> None:
    toml = tmp_path / "headrace.toml"
    toml.write_text('[regions.log]\ninterval = "1s"\nparallelism = 3\n')
    assert laid(job(), {}) == {"numbers": ("10s", 2), "log": ("10s", 2)}
    assert laid(job(), {}, toml) == {"numbers": ("10s", 2), "log": ("1s", 3)}
    over = {"regions.log.interval": "2s", "regions.numbers.interval": "3s"}
    assert laid(job(), over, toml) == {"numbers": ("3s", 2), "log": ("2s", 3)}


def test_what_is_set_from_outside_wins_over_the_code_and_leaves_the_rest() -> None:
    made = job(hr.Region("totals", interval="5s", parallelism=4))
    assert laid(made, {"regions.totals.parallelism": "1"}) == {
        "numbers": ("10s", 2),
        "totals": ("5s", 1),
    }


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("regions.log.intervall", "1s", "a region has no setting 'intervall'.*'interval'"),
        ("regions.log.name", "x", "a region has no setting 'name'"),
        ("regions.interval", "1s", "'regions.interval' names no region"),
        ("regions.log.interval", "soon", r"soon.*\(set by command line\)"),
        ("regions.log.parallelism", "two", "is not a whole number"),
        ("regions.logs.interval", "1s", "region 'logs', which job 'job' does not have; did you"),
        ("regions.totals.interval", "1s", "region 'totals', which job 'job' does not have"),
    ],
)
def test_a_wrong_setting_is_refused(key: str, value: str, sentence: str) -> None:
    with pytest.raises(hr.UserError, match=sentence):
        laid(job(), {key: value})


def test_a_job_of_one_region_refuses_them() -> None:
    made = hr.Job("one", hr.read.sequence(3, keys=1, name="numbers").write.collect(name="out"))
    options, _ = layered(RunOptions(), {"regions.numbers.interval": "1s"}, {}, None)
    with pytest.raises(hr.UserError, match="settings of regions, and no edge of it is logged"):
        made.start_with(options)
