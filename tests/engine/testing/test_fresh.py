"""Each load of a program has classes, functions and globals of its own."""

from __future__ import annotations

import sys
import threading

import cloudpickle
import pyarrow as pa
import pytest
from cloudpickle.cloudpickle import list_registry_pickle_by_value

from headrace.engine.contract.errors import UserError
from headrace.engine.testing import fresh
from headrace.engine.testing.fresh import Program

count = 0
lock = threading.Lock()
large = b"x"


class Counter:
    of_class: list[int] = []  # noqa: RUF012  # on purpose

    def up(self) -> tuple[int, int]:
        global count
        count += 1
        self.of_class.append(1)
        return count, len(self.of_class)


def locked() -> int:
    global count
    with lock:
        count += 1
    return count


def sized() -> int:
    global count
    count += len(large)
    return count


def test_loads_share_nothing_and_leave_the_original_alone() -> None:
    program = Program(Counter, what="it")
    one, other = program.load()(), program.load()()
    assert [one.up(), one.up(), other.up()] == [(1, 1), (2, 2), (1, 1)]
    assert (count, Counter.of_class) == (0, [])


def test_a_registered_module_stays_registered() -> None:
    module = sys.modules[Counter.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        Program(Counter, what="it")
        assert module.__name__ in list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_what_is_of_one_load_belongs_together() -> None:
    one, other = Program((Counter, Counter()), what="it").load()
    assert isinstance(other, one)
    assert one is not Counter


def test_columns_are_not_copied() -> None:
    column = pa.array(range(1000))
    loaded = Program(column, what="it").load()
    assert loaded == column
    assert loaded.buffers()[1].address == column.buffers()[1].address


def test_a_module_with_a_lock_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "count", 0)
    program = Program(locked, what="it")
    assert [program.load()(), program.load()()] == [1, 2]


def test_a_large_module_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "count", 0)
    monkeypatch.setitem(globals(), "large", b"x" * 1000)
    monkeypatch.setattr(fresh, "_BY_VALUE_BYTES_MAX", 500)
    program = Program(sized, what="it")
    assert [program.load()(), program.load()()] == [1000, 2000]


def test_what_no_worker_could_get_is_refused() -> None:
    here = threading.Lock()

    def held() -> object:
        return here

    with pytest.raises(UserError, match="it cannot be pickled, as for a worker"):
        Program(held, what="it")
