"""Control messages: closed schemas."""

from __future__ import annotations

import msgspec
import pytest

from headrace.engine.control import messages as m


@pytest.mark.parametrize("request_", [m.Rescale(4), m.Stop(now=True), m.Savepoint(None, "aligned")])
def test_requests_come_back_equal(request_: m.Request) -> None:
    assert m.decode_request(m.encode(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        m.Working(),
        m.RescaleDone(4, 7, 1, 2, 1),
        m.StopDone(None),
        m.SavepointDone("/a/sav-1"),
        m.Refused("no", 2),
    ],
)
def test_answers_come_back_equal(answer: m.Answer) -> None:
    assert m.decode_answer(m.encode(answer)) == answer


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgspec.msgpack.encode(["Reboot"]), b"\x91\xa4\xff\xfe\xfd\xfc"]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        m.decode_request(body)


def test_answers_are_no_requests() -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_request(m.encode(m.StopDone(1)))


def test_a_reason_with_lone_surrogates_is_told_escaped() -> None:
    told = m.decode_answer(m.encode(m.Refused("no file a\udcff", 1)))
    assert told == m.Refused("no file a\\udcff", 1)
