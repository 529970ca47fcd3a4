"""What is worth another try after a failed call, and what is not."""

from __future__ import annotations

import pytest

from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.drivers.failed_calls import open_failed
from headrace.engine.storage.snapshots import CorruptState
from headrace.engine.worker import worker_events as w
from headrace.recovery.store import StoreUncertain


def test_storage_that_does_not_answer_is_worth_another_try_and_the_users_mistake_is_not() -> None:
    silent = open_failed(3, SubtaskId(1, 0), StoreUncertain("job/x", "no answer"))
    assert isinstance(silent, w.WorkFailed)
    assert not silent.fatal
    assert "the checkpoint could not be read" in silent.reason
    damaged = open_failed(3, SubtaskId(1, 0), CorruptState("cut short"))
    assert damaged == w.AttemptLoadFailed(3, "cut short")
    refused = open_failed(3, SubtaskId(1, 0), UserError("no such column"))
    assert refused == w.WorkFailed(3, SubtaskId(1, 0), "no such column", "", fatal=True)


@pytest.mark.parametrize(
    "error",
    [UserCodeError("score", "ValueError: 7", "Traceback"), ValueError("7"), SystemExit("7")],
)
def test_an_exception_of_user_code_at_the_start_is_worth_another_try(error: BaseException) -> None:
    event = open_failed(3, SubtaskId(1, 0), error)
    assert isinstance(event, w.WorkFailed)
    assert not event.fatal
    assert "7" in event.reason
    assert event.details
