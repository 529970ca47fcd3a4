"""`Stream.logged`: what it takes and refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError
from headrace.engine.plan.graph import Role


def rows() -> Stream:
    return batches([pa.record_batch({"n": [1]})], name="rows")


def test_a_logged_stream_has_the_same_records() -> None:
    logged = rows().logged(name="log")
    assert logged.schema == rows().schema
    (edge,) = logged.inputs
    assert (edge.node.role, edge.node.name) == (Role.LOG, "log")


def test_a_name_is_required() -> None:
    with pytest.raises(UserError, match="logged needs name="):
        rows().logged()


def test_an_unknown_way_of_reading_is_refused() -> None:
    with pytest.raises(UserError, match="there is no read='comitted'; did you mean 'committed'"):
        rows().logged(name="log", read="comitted")  # type: ignore[arg-type]
