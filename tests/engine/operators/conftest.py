"""Tests of operators with keyed state run over the heap, and again over a third backend in its
place.

RocksDB has tests of its own beside these.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.engine.operators import backends

from ..state.sorted_dict import SortedBackend

_STATEFUL = {
    "test_aggregate",
    "test_as_of_join",
    "test_co_process",
    "test_connect",
    "test_expiring_aggregate",
    "test_join",
    "test_process",
    "test_session_join",
    "test_timed_process",
    "test_window",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in _STATEFUL:
        metafunc.parametrize("in_memory", ["heap", "third"], indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def in_memory(request: pytest.FixtureRequest) -> Iterator[str]:
    """Put the third backend in the place of the heap; yields which of them is there."""
    kind = getattr(request, "param", "heap")
    with pytest.MonkeyPatch.context() as patch:
        if kind == "third":
            patch.setattr(backends, "HeapBackend", SortedBackend)
        yield kind
