"""What speaking threads print goes to standard error, by line and name; nothing else changes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from headrace.engine.drivers.user_output import redirected, speaking


def in_a_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_only_speaking_threads_are_redirected(capsys: pytest.CaptureFixture[str]) -> None:
    def speak() -> None:
        with speaking(lambda _: "speak"):
            print("one", "two")
            print("three\nfour", end="")
            sys.stdout.writelines(["!", "\n", "rest"])
            sys.stdout.flush()

    with redirected():
        in_a_thread(speak)
        print("mine")
        in_a_thread(lambda: print("another's"))
    out, err = capsys.readouterr()
    assert out == "mine\nanother's\n"
    assert err == "[speak] one two\n[speak] three\n[speak] four!\n[speak] rest\n"


def test_standard_output_is_given_back_by_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with redirected():
        with redirected():
            assert sys.stdout is not before
            assert sys.stdout.encoding == before.encoding
        assert sys.stdout is not before
    assert sys.stdout is before


def test_somebody_elses_output_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with redirected():
        monkeypatch.setattr(sys, "stdout", sys.stderr)
    assert sys.stdout is sys.stderr
