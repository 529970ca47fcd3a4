"""Two networks for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .network_nodes import COORDINATOR, WORKER, Node, node


@pytest.fixture
def server() -> Iterator[Node]:
    with node(COORDINATOR) as running:
        yield running


@pytest.fixture
def client() -> Iterator[Node]:
    with node(WORKER) as running:
        yield running
