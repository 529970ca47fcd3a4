"""Control messages: every one comes back equal, and nothing else is understood."""

from __future__ import annotations

import msgspec
import pytest

from headrace.engine.contract import messages as m
from headrace.recovery.handles import SharedFile, StateHandle
from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot, TransactionRecord

HANDLE = StateHandle("totals", "sums", "keyed", "chk-7/worker-0-e1.segment", 8, 99, "0" * 16, 3)
SNAPSHOT = SubtaskSnapshot(
    task=1,
    index=0,
    finished=False,
    states=[HANDLE],
    received=[ChannelPosition(0, 0, 0, 12, ended=True)],
    sent=[ChannelPosition(1, 0, 1, 1 << 40, ended=False)],
    start_delay_ns=5,
)
ADDRESS = m.PeerAddress(1, "::1", 65535, [1, 2])

TO_COORDINATOR: list[m.ToCoordinator | m.FetchedAhead] = [
    m.Register(1, 2, "host", 4711, 99),
    m.Deployed(1),
    m.DeployFailed(1, "damaged"),
    m.Acknowledge(1, 7, [SNAPSHOT], [TransactionRecord("out", "t", {"rows": 1, "file": "x"})]),
    m.Decline(1, 7, "full"),
    m.AttemptFailed(1, "lost", "Traceback", fatal=False),
    m.TaskFinished(1, 2, 3),
    m.LoopProbed(1, 4, at_rest=True, sent=1 << 40, consumed=1 << 40),
    m.Heartbeat(1, [m.SubtaskNumbers(0, 1, 2, 3, 4, 5, 6, 7, 8)]),
    m.FetchedAhead(1 << 40),
    m.Pulse(1, 2, [m.Call(0, 1, 2)]),
]
TO_WORKER: list[m.ToWorker | m.FetchAhead] = [
    m.Deploy(2, [ADDRESS], 7, "orders", "file:///ckpt", [SNAPSHOT]),
    m.Start(2),
    m.BeginWave(2, 1),
    m.Drain(2),
    m.ProbeLoop(2, 4, [1, 5]),
    m.EndLoop(2, 3),
    m.Abandon(2),
    m.Trigger(2, 8, "aligned", 1 << 62),
    m.Completed(2, 8),
    m.Cancelled(2, 8),
    m.Shutdown("over"),
    m.FetchAhead([SharedFile("7.sst", "shared/7-w0-e1-0", 9, "0" * 16)]),
]


def name_of(message: object) -> str:
    return type(message).__name__


def test_every_message_is_tried_here() -> None:
    told = {*m.ToCoordinator.__args__, m.FetchedAhead}
    assert {type(message) for message in TO_COORDINATOR} == told
    assert {type(message) for message in TO_WORKER} == {*m.ToWorker.__args__, m.FetchAhead}


@pytest.mark.parametrize("message", TO_COORDINATOR, ids=name_of)
def test_what_a_worker_says_comes_back_equal(message: m.ToCoordinator | m.FetchedAhead) -> None:
    assert m.decode_for_coordinator(m.encode(message)) == message


@pytest.mark.parametrize("message", TO_WORKER, ids=name_of)
def test_what_the_coordinator_says_comes_back_equal(message: m.ToWorker | m.FetchAhead) -> None:
    assert m.decode_for_worker(m.encode(message)) == message


@pytest.mark.parametrize("message", TO_COORDINATOR, ids=name_of)
def test_a_worker_does_not_take_what_is_meant_for_the_coordinator(
    message: m.ToCoordinator | m.FetchedAhead,
) -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_for_worker(m.encode(message))


@pytest.mark.parametrize("message", TO_WORKER, ids=name_of)
def test_the_coordinator_does_not_take_what_is_meant_for_workers(
    message: m.ToWorker | m.FetchAhead,
) -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_for_coordinator(m.encode(message))


@pytest.mark.parametrize(
    "data",
    [
        ["Nonsense", 1],
        ["Deployed"],
        ["Deployed", 1, 2],
        ["Deployed", "1"],
        ["Deployed", 1.5],
        ["Deployed", None],
        ["Decline", 1, 7, b"bytes"],
        ["Heartbeat", 1, [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "", 13]]],
        {"type": "Deployed", "epoch": 1},
        [],
        7,
    ],
)
def test_unknown_tags_fields_and_types_are_refused(data: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_for_coordinator(msgspec.msgpack.encode(data))


def test_a_reason_with_lone_surrogates_is_told_escaped() -> None:
    failed = m.AttemptFailed(1, "no file a\udcff", "at \ud800", fatal=True)
    told = m.decode_for_coordinator(m.encode(failed))
    assert told == m.AttemptFailed(1, "no file a\\udcff", "at \\ud800", fatal=True)
    declined = m.decode_for_coordinator(m.encode(m.Decline(1, 2, "\udc80")))
    assert declined == m.Decline(1, 2, "\\udc80")


@pytest.mark.parametrize("data", [["Decline", 1, 7, "text"], ["text", 1]])
def test_text_that_is_not_utf8_is_refused(data: object) -> None:
    body = msgspec.msgpack.encode(data).replace(b"text", b"\xff\xfe\xfd\xfc")
    for decode in (m.decode_for_coordinator, m.decode_for_worker):
        with pytest.raises(msgspec.DecodeError):
            decode(body)


@pytest.mark.parametrize("message", [*TO_COORDINATOR, *TO_WORKER], ids=name_of)
def test_an_unfinished_message_is_refused(message: m.ToCoordinator | m.ToWorker) -> None:
    data = m.encode(message)
    for end in range(len(data)):
        for decode in (m.decode_for_coordinator, m.decode_for_worker):
            with pytest.raises(msgspec.DecodeError):
                decode(data[:end])
