"""The HTTP surface, without a socket."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from headrace.engine.observation.observed import Event
from headrace.engine.ui import app
from headrace.engine.ui.app import make_app
from headrace.engine.ui.board import Board
from headrace.engine.ui.guard import TOKEN_HEADER
from headrace.engine.ui.orders import BODY_BYTES_MAX, Desk

from .made import FACTS, START_MS, checkpoint, look
from .test_orders import Ordered

STATIC = Path(app.__file__).parent / "static"
HEADERS = {TOKEN_HEADER: "t0ken", "content-type": "application/json"}


def shown() -> Board:
    board = Board(FACTS)
    board.show(look(1), [Event(1, START_MS, "worker_lost", "worker 1 was killed")])
    board.detail(checkpoint(1))
    return board


def client(board: Board, job: Ordered | None = None) -> TestClient:
    desk = None if job is None else Desk(job)
    made = make_app(board, metrics=lambda: b"# HELP headrace_", desk=desk, token="t0ken")
    return TestClient(made, base_url="http://127.0.0.1:4323")


def test_a_job_is_told_as_json() -> None:
    asking = client(shown())
    assert asking.get("/api/job").json()["tasks"][1]["operators"][0]["built_at"] == "job.py:4"
    assert asking.get("/api/look").json()["edges"][0]["queued_bytes"] == 3 << 20
    assert asking.get("/api/explain").json()["task"] == "score -> out"
    assert asking.get("/api/history").json()["points"][0]["busy"] == [90, 90]
    assert asking.get("/healthz").json() == {"job": "shop", "ended": False}
    assert asking.get("/metrics").text.startswith("# HELP headrace_")


def test_checkpoints_are_told_with_their_parts_by_number() -> None:
    asking = client(shown())
    (listed,) = asking.get("/api/checkpoints").json()
    assert listed["subtasks"] == []
    assert asking.get("/api/checkpoints/1").json()["subtasks"][0]["async_ms"] == 30.0
    missing = asking.get("/api/checkpoints/99")
    assert missing.status_code == 404
    assert missing.json() == {"error": "checkpoint 99 is not among the last ones"}
    assert asking.get("/api/checkpoints/x").status_code == 404


def test_before_the_first_look_there_is_nothing_to_tell() -> None:
    asking = client(Board(FACTS))
    assert asking.get("/api/look").json() is None
    assert asking.get("/api/explain").json() is None
    assert asking.get("/api/checkpoints").json() == []


def heard(asking: TestClient, **headers: str) -> tuple[str, dict[str, Any]]:
    """(id, message) of the only message of a stream that ends."""
    text = asking.get("/api/events", headers=headers).text
    ((number, data),) = re.findall(r"^id: (.*)\ndata: (.*)$", text, re.MULTILINE)
    return number, json.loads(data)


def test_a_client_that_reconnects_gets_what_it_missed() -> None:
    board = shown()
    board.end()
    number, first = heard(client(board))
    assert first["reset"]
    board.show(look(2), [Event(2, START_MS, "running", "attempt 2 runs")])
    _, second = heard(client(board), **{"last-event-id": number})
    assert not second["reset"]
    assert [event["number"] for event in second["events"]] == [2]
    assert len(second["points"]) == 1


def test_orders_need_the_token_and_answer_with_a_sentence() -> None:
    job = Ordered()
    asking = client(shown(), job)
    assert asking.post("/api/stop", json={}).status_code == 403
    assert asking.post("/api/stop", json={}, headers=HEADERS).json() == {"stopping": True}
    refused = asking.post("/api/rescale", json={"parallelism": 9}, headers=HEADERS)
    assert (refused.status_code, refused.json()) == (409, {"error": "there is no room"})
    assert asking.post("/api/rescale", json={}, headers=HEADERS).status_code == 400
    long = b" " * (BODY_BYTES_MAX + 1)
    assert asking.post("/api/stop", content=long, headers=HEADERS).status_code == 413
    assert asking.get("/api/stop").status_code == 405
    assert job.asked == [("stop",)]


def test_a_recorded_job_takes_no_orders() -> None:
    assert client(shown()).post("/api/stop", json={}, headers=HEADERS).status_code == 403


@pytest.mark.parametrize("path", ["/page.css", "/page.js", "/", "/icon.svg"])
def test_the_files_of_the_page_are_served(path: str) -> None:
    answer = client(shown()).get(path)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/app.py", "/../app.py", "/static/page.js", "/%2e%2e/app.py", "/page.js/", "/x"]
)
def test_no_other_file_is_served(path: str) -> None:
    assert client(shown()).get(path, follow_redirects=False).status_code in (307, 404)


def test_the_page_is_small_asks_no_other_host_and_takes_no_text_for_html() -> None:
    files = {path.name: path.read_text() for path in STATIC.iterdir()}
    assert sum(map(len, files.values())) <= 200_000
    for name, text in files.items():
        addresses = re.findall(r"https?://[^\s\"']*", text)
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, name
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in text, f"{name}: {way}"
        assert not re.search(r"<[^>]*\s(?:style|on\w+)=", text), f"{name}: the policy forbids it"
        assert max(map(len, text.splitlines())) <= 100, name
