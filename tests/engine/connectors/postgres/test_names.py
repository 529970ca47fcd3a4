"""Names on the server: within its limits, different, and readable again."""

from __future__ import annotations

import pytest

from headrace.engine.connectors.postgres.names import Names

LONG = "ä" * 200


@pytest.mark.parametrize("job", ["orders", "a/b c", LONG])
def test_names_keep_within_the_limits_of_the_server(job: str) -> None:
    writer = Names(job, LONG, "0123456789abcdef").writer(2**31, 32_767, "01234567")
    assert len(writer.transaction(10**9).encode()) < 200
    assert len(writer.table(2**24 - 1).encode()) < 64
    assert len(writer.session.encode()) < 64


def test_a_name_tells_its_epoch_to_its_owner_alone() -> None:
    names, other = Names("job", "out", "one"), Names("job", "out", "two")
    writer = names.writer(17, 3, "abc")
    for name in (writer.transaction(5), writer.table(5), writer.session):
        assert names.epoch_of(name) == 17
        assert other.epoch_of(name) == 0


def test_names_of_one_sink_are_no_beginnings_of_anothers() -> None:
    every = [
        Names("a", "b", "c"),
        Names("a", "bc", ""),
        Names("ab", "c", ""),
        Names("a/b", "c", ""),
    ]
    every += [Names(LONG + "1", "b", "c"), Names(LONG + "2", "b", "c")]
    for part in ("transactions", "tables"):
        beginnings = [getattr(names, part) for names in every]
        assert len(set(beginnings)) == len(every)
        assert not any(a != b and a.startswith(b) for a in beginnings for b in beginnings), (
            beginnings
        )
