"""Errors: picklable, with an exit code each."""

from __future__ import annotations

import pickle

import pytest

from headrace.engine.contract.errors import (
    HeadraceError,
    JobFailed,
    StorageUnreachable,
    UserCodeError,
    UserError,
)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (JobFailed("it broke"), 1),
        (UserCodeError("score", "it raised", "Traceback"), 1),
        (UserError("no column 'a'"), 2),
        (StorageUnreachable("s3 is down"), 4),
    ],
)
def test_every_error_ends_the_command_line_with_its_own_code(
    error: HeadraceError, exit_code: int
) -> None:
    assert error.exit_code == exit_code


def test_an_error_of_user_code_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(UserCodeError("score", "it raised", "Traceback: x\n")))
    assert (error.operator, error.message) == ("score", "it raised")
    assert str(error) == "operator 'score': it raised\nTraceback: x"


def test_an_error_of_user_code_without_traceback_is_one_line() -> None:
    assert (
        str(UserCodeError("score", "it returned a list")) == "operator 'score': it returned a list"
    )


@pytest.mark.parametrize("kind", [UserError, StorageUnreachable, JobFailed])
def test_no_error_tells_the_credentials_of_a_url(kind: type[HeadraceError]) -> None:
    error = kind("sftp://ann:secret@host/dir is down")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "sftp://***@host/dir is down"
