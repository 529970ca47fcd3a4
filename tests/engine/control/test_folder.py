"""Where running jobs are found: only the user's own, only those that live."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from headrace.engine.control.folder import (
    NotOurs,
    RunningFile,
    publish,
    run_folder,
    running,
    withdraw,
)

SECRET = bytes(range(32))


def test_what_was_published_is_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    path = publish(folder, "orders / eu", "127.0.0.1", 4711, SECRET)
    (said,) = running(folder)
    assert (said.job, said.pid, said.host, said.port) == (
        "orders / eu",
        os.getpid(),
        "127.0.0.1",
        4711,
    )
    assert said.key == SECRET
    withdraw(path)
    withdraw(path)
    assert running(folder) == []


def test_nobody_else_may_read_the_secret(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    path = publish(folder, "orders", "127.0.0.1", 1, SECRET)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(NotOurs, match="can be read by others; chmod 700"):
        publish(folder, "orders", "127.0.0.1", 1, SECRET)
    with pytest.raises(NotOurs):
        running(folder)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(NotOurs, match="is not a folder of this user"):
        running(tmp_path / "run")


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["given anew", "free"])
def test_the_file_of_a_process_that_is_gone_is_removed(tmp_path: Path, pid: int) -> None:
    """Also when the number was given to another process."""
    path = publish(tmp_path / "run", "orders", "127.0.0.1", 1, SECRET)
    said = msgspec.json.decode(path.read_bytes(), type=RunningFile)
    stale = msgspec.structs.replace(said, pid=pid, started="1")
    path.write_bytes(msgspec.json.encode(stale))
    assert running(tmp_path / "run") == []
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"job":1}', b"\xff" * 100])
def test_a_broken_file_is_passed_over(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "run"
    publish(folder, "orders", "127.0.0.1", 1, SECRET)
    (folder / "broken.json").write_bytes(content)
    assert [said.job for said in running(folder)] == ["orders"]


def test_the_folder_is_the_users_runtime_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert run_folder() == Path("/run/user/7/headrace")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert run_folder().name == f"headrace-{os.getuid()}"
    assert run_folder("/elsewhere") == Path("/elsewhere")


def test_a_folder_that_is_not_there_holds_no_jobs(tmp_path: Path) -> None:
    assert running(tmp_path / "none") == []
