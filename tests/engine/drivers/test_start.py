"""Restores that claim: what was another's is the job's own, goes when it is subsumed, and is
never forgotten.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine.contract.errors import StorageUnreachable
from headrace.engine.coordinator.earlier_runs import find_earlier_runs
from headrace.engine.drivers.checkpoint_directory import CheckpointDirectory
from headrace.engine.drivers.coordinator_performer import release_claim
from headrace.engine.drivers.restore import Restore, resolve
from headrace.engine.drivers.start import acquire_claim, prepare
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog, links
from headrace.recovery.layout import claimed_path, metadata_path
from headrace.recovery.links import CheckpointLink
from headrace.recovery.store import StoreRejected, StoreUncertain

from ..coordinator.driven_coordinator import a_checkpoint

WAIT_S = 120.0


class Two:
    """Two checkpoint directories: the job's own, and another's with a complete chk-9 of the
    same job.
    """

    def __init__(self, root: Path) -> None:
        self.own_directory, self.other_directory = str(root / "own"), str(root / "other")
        self.own, self.other = FsspecStore(self.own_directory), FsspecStore(self.other_directory)
        catalog.publish(self.other, a_checkpoint(9))
        self.path = f"{self.other_directory}/job/chk-9"

    def resolve(self, restore: str | int | None, *, claim: bool = True) -> Restore:
        return resolve(self.own, "job", restore, self.own_directory, claim=claim)

    def claim(self) -> Restore:
        """What a driver does until it launches something."""
        return prepare(self.directory(), lambda: self.resolve(self.path)).restore

    def directory(self, **how: Any) -> CheckpointDirectory:
        return CheckpointDirectory("job", self.own, self.own_directory, **how)

    def release(self, link: CheckpointLink | None) -> Any:
        assert link is not None
        return release_claim(self.directory(), link)


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


# --- until a driver launches something ------------------------------------------------------------


def test_what_is_claimed_takes_the_next_place_of_the_history(two: Two) -> None:
    catalog.publish(two.own, a_checkpoint(12))
    found = two.claim()
    assert found.claim == CheckpointLink(
        number=13,
        directory=two.other_directory,
        job="job",
        checkpoint=9,
        savepoint=False,
        claimed=True,
    )
    assert (found.origin, found.checkpoint_next) == (two.other_directory, 14)
    assert catalog.newest_epoch(two.other, "job") == 1, "its own driver completes nothing more"


def test_who_finds_nothing_newer_goes_on_from_what_was_claimed(two: Two) -> None:
    catalog.publish(two.own, a_checkpoint(3))
    link = two.claim().claim
    for claim in (False, True):
        found = two.resolve("latest", claim=claim)
        assert (found.metadata, found.origin) == (a_checkpoint(9), two.other_directory)
        assert found.claim == link
    catalog.publish(two.own, a_checkpoint(14))
    assert two.resolve("latest").metadata == a_checkpoint(14)
    earlier = find_earlier_runs(two.own, "job", a_checkpoint(14), 15)
    assert earlier.claims == (link,), "it is retained, and goes, like an older one"


def test_the_same_command_goes_on_with_the_same_claim(two: Two) -> None:
    first, again = two.claim(), two.claim()
    assert again.claim == first.claim
    assert links.numbers(two.own, "job") == [10]


def test_a_driver_that_died_before_it_noted_the_claim_is_followed_by_the_same_command(
    two: Two,
) -> None:
    acquire_claim(two.resolve(two.path), two.directory())
    assert links.numbers(two.own, "job") == []
    two.claim()
    assert links.numbers(two.own, "job") == [10]


def test_a_second_job_is_refused_and_told_who_has_it(two: Two, tmp_path: Path) -> None:
    two.claim()
    third = str(tmp_path / "third")
    store = FsspecStore(third)
    found = resolve(store, "job", two.path, third, claim=True)
    with pytest.raises(
        hr.UserError, match=f"job 'job' with its checkpoints in {two.own_directory}"
    ):
        acquire_claim(found, CheckpointDirectory("job", store, third))
    assert catalog.newest_epoch(store, "job") is None
    assert catalog.newest_epoch(two.other, "job") == 1, "the first is not superseded"


def test_the_other_job_is_not_started_from_what_was_claimed(two: Two) -> None:
    two.claim()
    for restore in ("latest", 9):
        with pytest.raises(hr.UserError, match="chk-9 cannot be restored: job 'job' with its"):
            resolve(two.other, "job", restore, two.other_directory)
    catalog.publish(two.other, a_checkpoint(10))
    assert resolve(two.other, "job", "latest", two.other_directory).metadata == a_checkpoint(10)
    earlier = find_earlier_runs(two.other, "job", a_checkpoint(10), 11)
    assert (earlier.older, earlier.others) == ((), (a_checkpoint(9),)), "nor deleted by it"


@pytest.mark.parametrize("restore", ["latest", 4])
def test_ones_own_is_claimed_already(two: Two, restore: str | int) -> None:
    catalog.publish(two.own, a_checkpoint(4))
    assert two.resolve(restore) == two.resolve(restore, claim=False)


def test_the_path_of_ones_own_makes_it_ones_own(two: Two) -> None:
    catalog.publish(two.own, a_checkpoint(4))
    path = f"{two.own_directory}/job/chk-4"
    assert two.resolve(path).own == a_checkpoint(4)
    assert two.resolve(path, claim=False).own is None


def test_a_claim_needs_a_directory_for_what_subsumes_it(two: Two) -> None:
    with pytest.raises(hr.UserError, match="claim needs a checkpoint directory"):
        resolve(None, "job", two.path, claim=True)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_done(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, create = two.resolve(two.path), FsspecStore.create

    def refusing(self: FsspecStore, path: str, data: bytes) -> None:
        if path.endswith("/claimed"):
            raise StoreRejected(path, "the file system is read-only")
        create(self, path, data)

    monkeypatch.setattr(FsspecStore, "create", refusing)
    with pytest.raises(hr.UserError, match=r"cannot be written \(.*read-only\); leave claim out"):
        acquire_claim(found, two.directory())
    assert catalog.newest_epoch(two.other, "job") is None


def test_what_its_own_job_subsumes_before_it_is_fenced_is_not_claimed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, claim_epoch = two.resolve(two.path), catalog.claim_epoch

    def late(store: Any, job: str) -> int:
        catalog.withdraw(two.other, "job", 9)
        return claim_epoch(store, job)

    monkeypatch.setattr(catalog, "claim_epoch", late)
    with pytest.raises(hr.UserError, match="was subsumed by its own job before it could be"):
        acquire_claim(found, two.directory())
    assert two.other.list("job/chk-") == []


def test_storage_that_does_not_answer_is_not_the_users_mistake(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = two.resolve(two.path)

    def silent(self: FsspecStore, path: str, data: bytes) -> None:
        raise StoreUncertain(path, "timed out")

    monkeypatch.setattr(FsspecStore, "create", silent)
    with pytest.raises(StorageUnreachable):
        acquire_claim(found, two.directory(open=lambda _: two.other))
    with pytest.raises(StorageUnreachable, match="an epoch of job 'job' could not be claimed"):
        prepare(two.directory(), lambda: two.resolve(None))


def test_a_claim_that_cannot_be_recorded_starts_nothing(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = FsspecStore.create

    def silent(self: FsspecStore, path: str, data: bytes) -> None:
        if "/elsewhere/" in path:
            raise StoreUncertain(path, "timed out")
        create(self, path, data)

    monkeypatch.setattr(FsspecStore, "create", silent)
    with pytest.raises(StorageUnreachable, match="the claim could not be noted"):
        two.claim()


def test_a_claim_that_is_of_another_history_is_kept_and_told(two: Two) -> None:
    catalog.publish(two.own, a_checkpoint(3))
    link = two.claim().claim
    earlier = find_earlier_runs(two.own, "job", a_checkpoint(3), 15)
    assert (earlier.claims, earlier.other_claims) == ((), (link,))
    assert earlier.warnings == (
        (
            f"{link} was claimed by an earlier run, whose history this one does not continue: it is"
            " kept"
        ),
    )


def test_what_was_claimed_and_is_gone_is_told(two: Two) -> None:
    two.claim()
    two.other.delete(metadata_path("job", 9))
    with pytest.raises(hr.UserError, match="it was claimed and is not there any more"):
        two.resolve("latest")
    catalog.publish(two.own, a_checkpoint(3))
    (warning,) = two.resolve("latest").warnings
    assert "it was claimed and is not there any more); chk-3 is used" in warning


def test_a_link_that_was_forged_claims_nothing(two: Two) -> None:
    link = two.claim().claim
    assert link is not None
    two.other.delete(claimed_path("job", 9, link.kind))
    catalog.publish(two.own, a_checkpoint(3))
    found = prepare(two.directory(), lambda: two.resolve("latest", claim=False)).restore
    assert found.metadata == a_checkpoint(3)
    assert "(no job has claimed it); chk-3 is used" in found.warnings[0]
    assert not two.other.list("job/chk-9/claimed")


# --- the release ----------------------------------------------------------------------------------


def test_what_is_released_is_gone_and_so_is_the_record(two: Two) -> None:
    link = two.claim().claim
    answer = two.release(link)
    assert (answer.left, answer.again) == ("", False)
    assert two.other.list("") == ["job/epochs/1"]
    assert links.numbers(two.own, "job") == []


def test_a_release_that_fails_is_to_be_tried_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = two.claim().claim
    with monkeypatch.context() as patched:

        def refusing(self: FsspecStore, path: str) -> None:
            if path == metadata_path("job", 9):
                raise StoreRejected(path, "not now")

        patched.setattr(FsspecStore, "delete", refusing)
        assert link is not None
        answer = release_claim(two.directory(open=lambda _: two.other), link)
    assert answer.again
    assert "not now" in answer.left
    assert links.numbers(two.own, "job") == [10], "the next driver knows it too"
    assert two.release(link).left == ""
    assert two.other.list("") == ["job/epochs/1"]


def test_what_cannot_be_told_from_others_stays_and_is_told_once(two: Two) -> None:
    link = two.claim().claim
    two.other.put(metadata_path("job", 8), b"rubbish")
    answer = two.release(link)
    assert not answer.again
    assert answer.left.startswith(f"{link}, which this job has claimed, stays and is nobody's: ")
    assert links.numbers(two.own, "job") == []


# --- running jobs ---------------------------------------------------------------------------------

ROWS = 16_000


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


def job_of(tmp_path: Path, rows: int | None = ROWS) -> hr.Job:
    source = hr.read.sequence(rows, keys=7, name="numbers", rate=8_000.0)
    counts = source.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
    return hr.Job(
        "job",
        counts.write.collect(name="counts out"),
        source.rebalance().write.json(str(tmp_path / "out"), name="files"),
        parallelism=2,
        max_parallelism=16,
    )


def options_of(directory: Path, backend: Any = "heap", retain: int = 1) -> dict[str, Any]:
    checkpoints = hr.Checkpoints(str(directory), interval="40ms", mode="unaligned", retain=retain)
    return {"runner": "threads", "checkpoints": checkpoints, "state": hr.State(backend)}


def seen(tmp_path: Path) -> Counter[int]:
    files = [path for path in (tmp_path / "out").glob("part-*") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["sequence"] for line in lines)


def files(directory: Path) -> list[str]:
    found = (str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    return sorted(path for path in found if "/epochs/" not in path and path != "job/owner")


@pytest.mark.parametrize(
    ("backend", "savepoint"), [("heap", False), ("rocksdb", False), ("heap", True)]
)
def test_a_job_goes_on_from_what_it_has_claimed_and_deletes_it(
    tmp_path: Path, backend: Any, savepoint: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    job = job_of(tmp_path)
    handle = job.start(**options_of(old, backend))
    handle.checkpoint()
    if savepoint:
        path = handle.stop_with_savepoint(str(tmp_path / "saved"))
        handle.wait(WAIT_S)
    else:
        handle.stop()
        path = f"{old}/job/chk-{handle.wait(WAIT_S).last_checkpoint}"
    result = job.run(**options_of(new, backend), restore=path, claim=True)
    assert seen(tmp_path) == Counter(range(ROWS))
    assert sum(result.collected["counts out"]["n"].to_pylist()) == ROWS
    if savepoint:
        assert files(tmp_path / "saved") == []
        assert catalog.complete_checkpoints(FsspecStore(str(old)), "job") != []
    else:
        assert files(old) == []
    assert not (new / "job" / "elsewhere").exists()


def test_what_others_there_name_is_whole_afterwards(tmp_path: Path) -> None:
    old = tmp_path / "old"
    job = job_of(tmp_path, None)
    handle = job.start(**options_of(old, "rocksdb", retain=3))
    wait_until("three are complete", lambda: handle.status().completed >= 3)
    handle.stop()
    newest = handle.wait(WAIT_S).last_checkpoint
    store = FsspecStore(str(old))
    before = catalog.complete_checkpoints(store, "job")
    assert len(before) == 3
    path = f"{old}/job/chk-{newest}"
    after = [number for number in before if number != newest]
    heir = job.start(**options_of(tmp_path / "new"), restore=path, claim=True)
    wait_until("it goes", lambda: catalog.complete_checkpoints(store, "job") == after)
    heir.stop()
    heir.wait(WAIT_S)
    assert catalog.complete_checkpoints(store, "job") == after
    assert [catalog.verify(store, "job", number) for number in after] == [[], []]


def test_a_job_that_is_alive_is_superseded(tmp_path: Path) -> None:
    old = tmp_path / "old"
    on_request = hr.Checkpoints(str(old), interval=None, mode="unaligned")
    living = job_of(tmp_path / "living", None).start("threads", checkpoints=on_request)
    path = f"{old}/job/chk-{living.checkpoint()}"
    heir = job_of(tmp_path / "heir", None).start(
        **options_of(tmp_path / "new"), restore=path, claim=True
    )
    with pytest.raises(hr.HeadraceError):
        living.checkpoint()
    with pytest.raises(hr.JobFailed, match="another coordinator of job 'job' runs"):
        living.wait(WAIT_S)
    heir.cancel()
    heir.wait(WAIT_S)


def test_a_driver_that_ended_before_its_first_checkpoint_is_followed_by_latest(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    job = job_of(tmp_path)
    handle = job.start(**options_of(old))
    handle.checkpoint()
    handle.stop()
    path = f"{old}/job/chk-{handle.wait(WAIT_S).last_checkpoint}"
    options = options_of(new)
    late = hr.Checkpoints(str(new), interval="1h", mode="unaligned")
    dead = job.start("threads", checkpoints=late, restore=path, claim=True)
    dead.cancel()
    dead.wait(WAIT_S)
    assert files(old) != []
    result = job.run(**options, restore="latest")
    assert seen(tmp_path) == Counter(range(ROWS))
    assert sum(result.collected["counts out"]["n"].to_pylist()) == ROWS
    assert files(old) == []


def test_what_is_claimed_and_damaged_fails_the_job_and_stays(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    job = job_of(tmp_path)
    handle = job.start(**options_of(old))
    handle.checkpoint()
    handle.stop()
    path = old / "job" / f"chk-{handle.wait(WAIT_S).last_checkpoint}"
    for segment in path.glob("*.segment"):
        data = bytearray(segment.read_bytes())
        data[100:] = bytes(len(data) - 100)
        segment.write_bytes(data)
    before = files(old)
    with pytest.raises(hr.JobFailed, match="cannot be restored"):
        job.run(**options_of(new), restore=str(path), claim=True)
    claimed = f"job/{path.name}/claimed"
    assert files(old) == sorted([*before, claimed]), "and who has it is known"


def test_a_claim_of_nothing_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(hr.UserError, match="claim has nothing to claim: give restore="):
        job_of(tmp_path).run(**options_of(tmp_path / "new"), claim=True)
