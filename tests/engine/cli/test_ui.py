"""`headrace run --ui` and `headrace ui`."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import pytest

from headrace.engine.ui.page import RecordedPage

from .conftest import Command, Write

TOTALS = 'job = job_of(orders.key_by("customer").aggregate(n=hr.count(), emit="final", name="t"))'
RUN = ("run", "program.py", "--runner", "threads", "--checkpoint-dir", "ck", "--ui=127.0.0.1:0")


def test_a_run_prints_its_page_and_leaves_a_history_that_ui_shows(
    headrace: Command, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(TOTALS)
    ended = headrace(*RUN)
    assert ended.code == 0
    assert re.search(r"^  page: http://127\.0\.0\.1:\d+/#token=[\w-]{32}$", ended.err, re.MULTILINE)
    told: list[dict[str, Any]] = []

    def wait(page: RecordedPage) -> None:
        with urllib.request.urlopen(page.link + "api/job", timeout=30) as answer:
            told.append(json.load(answer))

    monkeypatch.setattr(RecordedPage, "wait", wait)
    shown = headrace("ui", "ck", "--port", "0")
    assert shown.code == 0
    assert shown.sentence.startswith("the page of job orders is http://127.0.0.1:")
    assert told[0]["job"] == "orders"
    (printed,) = headrace("ui", "ck", "--port", "0", "--job", "orders", "--json").objects
    assert (printed["event"], printed["job"]) == ("page", "orders")


def test_json_tells_the_page_as_an_event(headrace: Command, program: Write) -> None:
    program(TOTALS)
    pages = [found for found in headrace(*RUN, "--json").objects if found["event"] == "page"]
    assert pages[0]["link"].startswith("http://127.0.0.1:")


def test_what_ui_cannot_show_is_told(headrace: Command) -> None:
    ended = headrace("ui", "nowhere")
    assert (ended.code, ended.sentence[:46]) == (
        2,
        "nowhere holds no history of a page: run the jo",
    )
    ended = headrace("ui", "nowhere", "--job", "shop")
    assert (ended.code, ended.sentence[:34]) == (2, "job 'shop' in nowhere has no histo")
