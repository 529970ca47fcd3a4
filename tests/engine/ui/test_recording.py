"""Recordings: what comes back, and what a reader does not believe."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.observation.observed import Event
from headrace.engine.ui.board import Board
from headrace.engine.ui.recording import BYTES_MAX, Unreadable, decode, encode

from .made import FACTS, START_MS, checkpoint, look


def recorded() -> bytes:
    board = Board(FACTS)
    for second in range(30):
        board.show(look(second), [Event(second + 1, START_MS, "warning", "<b>")])
    board.detail(checkpoint(1))
    return encode(board)


RECORDED = recorded()


def test_a_recording_gives_back_what_the_board_showed() -> None:
    recording = decode(RECORDED)
    assert recording.facts == FACTS
    assert recording.look == look(29)
    assert len(recording.points) == 30
    assert [event.number for event in recording.events] == list(range(1, 31))
    assert recording.checkpoints == [checkpoint(1)]


def test_the_parts_of_many_wide_checkpoints_are_limited() -> None:
    board = Board(FACTS)
    parts = checkpoint(1).subtasks * 500
    for number in range(1, 61):
        board.detail(checkpoint(number, subtasks=parts))
    kept = [c.checkpoint for c in decode(encode(board)).checkpoints]
    assert kept == list(range(53, 61)), "the newest ones"


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"{}", b'{"headrace-history": 2}', b"[" * 100_000, b"0" * (BYTES_MAX + 1)],
    ids=["empty", "binary", "no version", "another version", "deep", "large"],
)
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(data)


def look_with(change: dict[str, object]) -> bytes:
    """The recording, with something else in its look."""
    lines = RECORDED.splitlines()
    assert lines[2].startswith(b'["look"')
    lines[2] = json.dumps(["look", json.loads(lines[2])[1] | change]).encode()
    return b"\n".join(lines)


@pytest.mark.parametrize(
    "change",
    [
        {"at_ms": "yesterday"},
        {"tasks": []},
        {"edges": [msgspec.to_builtins(look().edges[0]) | {"consumer": 7}]},
        {"phase": "x" * 100_000},
    ],
    ids=["another type", "no tasks for the edges", "an edge to nowhere", "a long text"],
)
def test_a_look_that_does_not_fit_is_left_out(change: dict[str, object]) -> None:
    recording = decode(look_with(change))
    assert recording.look is None
    assert recording.facts == FACTS
    assert decode(look_with({})).look is not None


def test_unknown_lines_are_passed_over() -> None:
    data = RECORDED + b'\n["novelty",{"a":1}]\nnot json\n["event"]\n["point",null]\n'
    assert decode(data) == decode(RECORDED)


@given(st.binary(max_size=200), st.integers(0, 5000))
def test_damage_is_refused_or_left_out_and_raises_nothing_else(damage: bytes, place: int) -> None:
    data = RECORDED[:place] + damage + RECORDED[place + len(damage) :]
    try:
        decode(data)
    except Unreadable:
        assert place <= len(b'{"headrace-history":1}')
