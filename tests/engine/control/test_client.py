"""The client: finds the job that is meant, and says what is wrong when there is none or it does not
answer.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headrace.engine.contract.errors import JobUnreachable, UserError
from headrace.engine.control import messages as m
from headrace.engine.control.client import ask, find
from headrace.engine.control.folder import publish

SECRET = bytes(32)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def test_a_job_is_found_by_its_name(folder: str) -> None:
    publish(Path(folder), "orders", "127.0.0.1", 4711, SECRET)
    publish(Path(folder), "payments", "127.0.0.1", 4712, SECRET)
    assert find("orders", address=folder).port == 4711
    assert find("payments", pid=os.getpid(), address=folder).port == 4712


def test_a_job_that_does_not_run_is_told_with_those_that_do(folder: str) -> None:
    publish(Path(folder), "orders", "127.0.0.1", 1, SECRET)
    with pytest.raises(UserError, match=r"no job 'payments' runs here; these run: orders \(proc"):
        ask("payments", m.Stop(now=False), address=folder)
    with pytest.raises(UserError, match="in process 1 runs here"):
        find("orders", pid=1, address=folder)


def test_of_several_jobs_of_a_name_one_must_be_named(folder: str) -> None:
    for port in (1, 2):
        publish(Path(folder), "orders", "127.0.0.1", port, SECRET)
    with pytest.raises(UserError, match="several jobs 'orders' run; name one of the processes"):
        find("orders", address=folder)


def test_a_process_that_does_not_answer_is_unreachable(folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    publish(Path(folder), "orders", "127.0.0.1", port, SECRET)
    with pytest.raises(JobUnreachable, match=r"job 'orders' .* cannot be reached: nobody answers"):
        ask("orders", m.Stop(now=False), address=folder)


def test_a_folder_of_others_is_the_users_mistake(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UserError, match="running jobs cannot be looked up"):
        find("orders", address=str(tmp_path))
