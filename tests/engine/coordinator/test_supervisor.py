"""The supervisor: logs end with their writers, and are trimmed by what their readers need."""

from __future__ import annotations

import pytest

from headrace.engine.coordinator.coordinator_events import Outcome
from headrace.engine.coordinator.region_choice import RegionSpec
from headrace.engine.coordinator.supervisor import (
    CheckpointsKept,
    EndLog,
    RegionRestarted,
    RegionSettled,
    ReportFailover,
    StopRegion,
    Supervisor,
    TrimLog,
)


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor(
        {
            "first": RegionSpec(["a"], []),
            "second": RegionSpec(["b"], ["a"]),
            "third": RegionSpec([], ["a", "b"]),
        }
    )


def test_a_region_that_finished_ends_its_logs(supervisor: Supervisor) -> None:
    assert supervisor.step(RegionSettled("first", Outcome.FINISHED)) == [EndLog("a")]
    assert supervisor.step(RegionSettled("second", Outcome.FINISHED)) == [EndLog("b")]
    assert not supervisor.is_over
    assert supervisor.step(RegionSettled("third", Outcome.FINISHED)) == []
    assert supervisor.is_over
    assert supervisor.outcome is Outcome.FINISHED


def test_a_region_that_stopped_ends_no_log(supervisor: Supervisor) -> None:
    assert supervisor.step(RegionSettled("first", Outcome.STOPPED)) == []


def test_a_region_that_failed_stops_those_that_run(supervisor: Supervisor) -> None:
    supervisor.step(RegionSettled("first", Outcome.FINISHED))
    assert supervisor.step(RegionSettled("second", Outcome.FAILED)) == [StopRegion("third")]
    supervisor.step(RegionSettled("third", Outcome.STOPPED))
    assert supervisor.outcome is Outcome.FAILED


def test_a_log_is_trimmed_below_what_every_checkpoint_of_every_reader_needs(
    supervisor: Supervisor,
) -> None:
    assert supervisor.step(CheckpointsKept("second", [{"a": 7}, {"a": 9}])) == []
    kept = CheckpointsKept("third", [{"a": 8, "b": 3}, {"a": 12, "b": 4}])
    assert supervisor.step(kept) == [TrimLog("a", 7), TrimLog("b", 3)]
    assert supervisor.step(CheckpointsKept("second", [{"a": 9}])) == [TrimLog("a", 8)]


def test_the_low_watermark_never_goes_back(supervisor: Supervisor) -> None:
    supervisor.step(CheckpointsKept("second", [{"a": 7}]))
    supervisor.step(CheckpointsKept("third", [{"a": 7, "b": 2}]))
    assert supervisor.step(CheckpointsKept("third", [])) == []
    assert supervisor.step(CheckpointsKept("third", [{"a": 5, "b": 1}])) == []
    assert supervisor.describe() == (
        "ended {}\n"
        "a: trimmed 7, needed {'second': 7, 'third': 5}\n"
        "b: trimmed 2, needed {'third': 1}"
    )


def test_a_restart_is_reported_with_the_regions_that_went_on(supervisor: Supervisor) -> None:
    supervisor.step(RegionSettled("first", Outcome.FINISHED))
    assert supervisor.step(RegionRestarted("second", 7, 120, "worker 0 was lost")) == [
        ReportFailover(
            "region second went back to chk-7 and reads about 120 records once more, because"
            " worker 0 was lost; third went on"
        )
    ]
    supervisor.step(RegionSettled("third", Outcome.STOPPED))
    assert supervisor.step(RegionRestarted("second", 0, 0, "it died")) == [
        ReportFailover(
            "region second went back to its beginning and reads about 0 records once more, because"
            " it died"
        )
    ]
