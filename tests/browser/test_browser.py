"""The page in a real chromium, over real jobs with planted trouble."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.process import Unavailable, wait_for

from . import programs
from .chromium import WAIT_S, Chromium
from .programs import Run

pytestmark = pytest.mark.browser

Start = Callable[..., Run]


@pytest.fixture(scope="module")
def window() -> Iterator[Chromium]:
    """A browser for all tests."""
    try:
        browser = Chromium()
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield browser
    browser.close()


@pytest.fixture
def chromium(window: Chromium) -> Iterator[Chromium]:
    """A browser that must not complain of anything."""
    window.complaints()
    yield window
    # Jobs end, and some are killed: that connections break is what the page has to live with.
    complaints = [each for each in window.complaints() if "net::ERR_" not in each]
    window.show("about:blank")
    assert not complaints


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start jobs, which end with the test."""
    begun: list[Run] = []

    def run(program: str, port: int = 0) -> Run:
        begun.append(Run(tmp_path, program, port=port))
        return begun[-1]

    yield run
    for each in begun:
        each.kill()


def test_the_slow_task_is_named_within_three_seconds(chromium: Chromium, start: Start) -> None:
    run = start(programs.SLOW)
    # The first numbers of workers are there.
    chromium.show(run.link)
    chromium.await_text("#standing", "chk-")
    began_s = time.monotonic()
    chromium.show(run.link)
    # An operator's name is text, whatever it looks like.
    chromium.await_text("#sentence", "score <b>x")
    took_s = time.monotonic() - began_s
    print(f"named after {took_s:.1f} s: {chromium.text('#sentence')}")
    assert took_s <= 3
    assert chromium.text("#task h2") == "score <b>x", "the culprit is selected"
    assert chromium.run("return document.querySelectorAll('main b > b, #sentence b').length") == 0
    assert "token" not in chromium.run("return location.href"), "nor in the history of the browser"
    assert not chromium.run("return document.getElementById('orders-open').hidden")


def test_the_hot_subtask_of_four_is_shown(chromium: Chromium, start: Start) -> None:
    chromium.show(start(programs.SKEWED).link)
    chromium.await_text(".node.culprit .badge", "hot #")
    hot = chromium.text(".node.culprit .badge").removeprefix("hot ")
    assert chromium.text("#task tr.hot th") == hot
    assert chromium.run("return document.querySelectorAll('#task tbody tr').length") == 4
    chromium.await_text("#sentence", hot)


def test_a_failed_checkpoint_is_shown_with_its_reason(chromium: Chromium, start: Start) -> None:
    chromium.show(start(programs.FAILING).link)
    chromium.await_text("#checkpoints .failed .cross", "✕")
    chromium.click("#checkpoints .failed")
    chromium.await_text("#checkpoint .reason", "failed: ")
    reason = chromium.text("#checkpoint .reason").partition("failed: ")[2]
    print(reason)
    assert "no reason" not in reason
    chromium.await_text("#events .checkpoint_failed", "checkpoint failed")


def test_a_checkpoint_shows_its_parts_by_subtask(chromium: Chromium, start: Start) -> None:
    chromium.show(start(programs.SLOW).link)
    wait_for(lambda: chromium.run(COMPLETED) >= 3, "three checkpoints")
    chromium.press("c", "ENTER")
    chromium.await_text("#checkpoint .gantts", "score <b>x #1")
    chromium.press("ESCAPE")
    wait_for(lambda: chromium.run(HIDDEN), "Esc to close it", WAIT_S)


HIDDEN = "return document.getElementById('checkpoint').hidden"


COMPLETED = "return document.querySelectorAll('#checkpoints .completed').length"


def test_the_page_survives_a_restart_of_the_job(chromium: Chromium, start: Start) -> None:
    chromium.show(start(programs.RESTARTING).link)
    chromium.await_text("#standing", "attempt 1")
    chromium.await_text("#events", "the model <i>is</i> gone")
    chromium.await_text("#standing", "1 restart")
    chromium.await_text("#phase", "running")
    chromium.await_text("#link", "live")


def test_the_page_reconnects_to_the_next_process_of_the_job(
    chromium: Chromium, start: Start, tmp_path: Path
) -> None:
    run = start(programs.SLOW)
    chromium.show(run.link)
    wait_for((tmp_path / "ck" / "shop" / "history").exists, "a recording")
    first_point = "return (await (await fetch('/api/history')).json()).points[0].at_ms"
    before = chromium.run(first_point)
    run.kill()
    chromium.await_text("#banner", "does not answer")
    start(programs.SLOW, port=run.port)
    chromium.await_text("#link", "live")
    chromium.await_text("#events", "from chk-")
    assert chromium.text("#banner") == ""
    assert chromium.run(first_point) == before, "time lines go on from the recording"


def test_an_order_from_the_page_reaches_the_job(chromium: Chromium, start: Start) -> None:
    run = start(programs.SLOW)
    chromium.show(run.link)
    chromium.await_text("#phase", "running")
    chromium.click("#orders-open")
    chromium.run("document.querySelector('#orders form').requestSubmit()")
    chromium.await_text("#toast", "is complete.")
    chromium.run("[...document.querySelectorAll('#orders form')].at(-1).requestSubmit()")
    chromium.await_text("#banner", "The job has ended")


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_the_window_in_light_and_dark(
    chromium: Chromium, start: Start, width: int, colours: str
) -> None:
    chromium.show(start(programs.SLOW).link, width=width, colours=colours)
    chromium.await_text("#sentence", "score")
    assert chromium.run("return document.documentElement.scrollWidth") <= width
    ground = chromium.run("return getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (lightness > 600) == (colours == "light"), ground
