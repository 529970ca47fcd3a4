"""Fault profiles vary, stop when they say, and crash where they say."""

from __future__ import annotations

import random

from headrace.engine.simulation.campaign.faults import (
    CrashPoint,
    FaultProfile,
    Faults,
    draw_profile,
)
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.scheduler import Scheduler


def test_every_kind_of_fault_is_on_in_some_profiles_and_off_in_others() -> None:
    profiles = [draw_profile(random.Random(seed)) for seed in range(100)]
    for name in ("worker_crashes", "half_open", "zombies", "storage_rejects", "torn_writes"):
        assert {getattr(profile, name) > 0 for profile in profiles} == {True, False}, name
    assert all(profile.until_ns > 0 for profile in profiles)


def test_a_process_dies_at_the_named_occurrence_of_its_crash_point() -> None:
    point = CrashPoint("Deploy", after=True, occurrence=2)
    faults = Faults(FaultProfile(until_ns=1, crash_points=(point,)), Scheduler(0), Coverage())
    died = []
    for _ in range(3):
        faults.reached("Deploy")
        died.append((faults.crashes("Deploy", after=False), faults.crashes("Deploy", after=True)))
    assert died == [(False, False), (False, True), (False, False)]
    assert faults.coverage.counts["crash after Deploy"] == 1


def test_nothing_happens_after_faults_have_stopped() -> None:
    scheduler = Scheduler(0)
    faults = Faults(FaultProfile(until_ns=10), scheduler, Coverage())
    faults.fill_storage(100)
    assert faults.happens(1.0)
    assert faults.storage_is_full
    scheduler.after(10, lambda: None)
    scheduler.step()
    assert not faults.happens(1.0)
    assert not faults.storage_is_full


def test_coverage_names_what_is_missing() -> None:
    coverage = Coverage()
    coverage.count("seen")
    assert coverage.missing(["seen", "unseen"]) == ["unseen"]
