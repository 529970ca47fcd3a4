"""Orders: decoded strictly, one at a time, except to stop at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.engine.contract.errors import HeadraceError, UserError
from headrace.engine.contract.outcomes import Rescaled
from headrace.engine.ui.orders import Desk


class Ordered:
    """A job that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.goes_on = threading.Event()
        self.began = threading.Event()

    def checkpoint(self) -> int:
        self.began.set()
        assert self.goes_on.wait(30)
        return 7

    def savepoint(self, path: str | None = None, mode: str | None = None) -> str:
        self.asked.append(("savepoint", path, mode))
        return f"{path or 'own'}/job/sav-7"

    def rescale(self, parallelism: int) -> Rescaled:
        if parallelism > 4:
            raise HeadraceError("there is no room")
        return Rescaled(parallelism, 7, 1, 2, 3_000_000)

    def stop(self) -> None:
        self.asked.append(("stop",))

    def drain(self) -> None:
        self.asked.append(("drain",))

    def cancel(self) -> None:
        self.asked.append(("cancel",))

    def stop_with_savepoint(
        self, path: str | None = None, mode: str | None = None, *, drain: bool = False
    ) -> str:
        self.asked.append(("stop_with_savepoint", path, drain))
        return f"{path}/job/sav-8"


@pytest.mark.parametrize(
    ("kind", "body", "outcome", "asked"),
    [
        ("savepoint", b"", {"savepoint": "own/job/sav-7"}, ("savepoint", None, None)),
        (
            "savepoint",
            b'{"path": "d", "mode": "aligned"}',
            {"savepoint": "d/job/sav-7"},
            ("savepoint", "d", "aligned"),
        ),
        ("stop", b"{}", {"stopping": True}, ("stop",)),
        ("stop", b'{"drain": true}', {"stopping": True}, ("drain",)),
        ("stop", b'{"now": true}', {"stopping": True}, ("cancel",)),
        (
            "stop",
            b'{"savepoint": "d", "drain": true}',
            {"stopping": True, "savepoint": "d/job/sav-8"},
            ("stop_with_savepoint", "d", True),
        ),
    ],
)
def test_an_order_reaches_the_job(
    kind: str, body: bytes, outcome: dict[str, Any], asked: tuple[Any, ...]
) -> None:
    job = Ordered()
    assert Desk(job).take(kind, body) == outcome
    assert job.asked == [asked]


def test_a_rescale_answers_with_the_time_that_the_job_stood_still() -> None:
    done = Desk(Ordered()).take("rescale", b'{"parallelism": 4}')
    assert done == {"parallelism": 4, "checkpoint": 7, "standstill_ms": 3.0}
    with pytest.raises(HeadraceError, match="no room"):
        Desk(Ordered()).take("rescale", b'{"parallelism": 5}')


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"parallelism": "4"}', b'{"paralelism": 4}', b"\xff", b"[" * 20_000],
    ids=["half", "a list", "a text", "a misspelling", "binary", "deep"],
)
def test_a_body_that_does_not_fit_is_the_users_mistake(body: bytes) -> None:
    with pytest.raises(UserError, match="rescale: "):
        Desk(Ordered()).take("rescale", body)


def test_a_second_order_is_refused_except_to_stop_at_once() -> None:
    job = Ordered()
    desk = Desk(job)
    outcome: list[dict[str, Any]] = []
    first = threading.Thread(target=lambda: outcome.append(desk.take("checkpoint", b"{}")))
    first.start()
    assert job.began.wait(30)
    with pytest.raises(HeadraceError, match="another order"):
        desk.take("stop", b"{}")
    desk.take("stop", b'{"now": true}')
    job.goes_on.set()
    first.join()
    assert outcome == [{"checkpoint": 7}]
    desk.take("stop", b"{}")
    assert job.asked == [("cancel",), ("stop",)]
