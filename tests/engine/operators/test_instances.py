"""Instances of a user's class that the subtasks of a worker share."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from headrace.engine.operators.instances import SharedInstance, close_instance


class Model:
    """Counts its instances and their ends."""

    made = 0
    closed = 0

    def __init__(self) -> None:
        time.sleep(0.01)  # so that a second subtask would find none yet
        type(self).made += 1

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Model.made = Model.closed = 0


def test_it_is_made_by_the_first_and_closed_by_the_last() -> None:
    shared = pickle.loads(pickle.dumps(SharedInstance(Model)))
    first, second = shared.acquire(), shared.acquire()
    assert first is second
    shared.release()
    assert (Model.made, Model.closed) == (1, 0)
    shared.release()
    assert (Model.made, Model.closed) == (1, 1)
    assert shared.acquire() is not first, "the next attempt makes its own"


def test_subtasks_that_open_at_once_get_the_same_one() -> None:
    shared = SharedInstance(Model)
    threads = [threading.Thread(target=shared.acquire) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Model.made == 1


def test_a_constructor_that_raises_leaves_nothing_to_close() -> None:
    class Broken(Model):
        def __init__(self) -> None:
            super().__init__()
            if type(self).made == 1:
                raise RuntimeError("no model")

    shared = SharedInstance(Broken)
    with pytest.raises(RuntimeError, match="no model"):
        shared.acquire()
    assert isinstance(shared.acquire(), Broken), "the next one tries again"


def test_an_end_that_raises_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Ends:
        def close(self) -> None:
            raise RuntimeError("no end")

    close_instance(Ends())
    close_instance(object())
    assert "RuntimeError: no end" in capsys.readouterr().err
