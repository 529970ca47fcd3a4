"""What a client gets: first everything, then what is new, and everything again after a restart."""

from __future__ import annotations

import msgspec

from headrace.engine.observation.observed import Event
from headrace.engine.ui.board import CHECKPOINTS_MAX, Board, Cursor

from .made import FACTS, START_MS, checkpoint, look


def board_of(seconds: int) -> Board:
    board = Board(FACTS)
    for second in range(1, seconds + 1):
        board.show(look(second), [Event(second, START_MS, "warning", f"number {second}")])
    return board


def test_a_new_client_gets_all_points_and_events_and_the_latest_look() -> None:
    message, _ = board_of(3).news(Cursor())
    assert message.reset
    assert len(message.points) == 3
    assert [event.number for event in message.events] == [1, 2, 3]
    assert message.look is not None
    assert msgspec.json.decode(message.look)["at_ms"] == START_MS + 3000


def test_a_client_with_a_cursor_gets_what_is_new_however_long_it_was_away() -> None:
    board = board_of(3)
    _, cursor = board.news(Cursor())
    for second in (4, 5):
        board.show(look(second), [Event(second, START_MS, "warning", "")])
    message, after = board.news(Cursor.parse(str(cursor)))
    assert not message.reset
    assert [each.at_ms - START_MS for each in message.points] == [4000, 5000]
    assert [event.number for event in message.events] == [4, 5]
    assert board.news(after)[0].points == []


def test_a_cursor_of_another_process_of_the_job_begins_anew() -> None:
    _, cursor = board_of(9).news(Cursor())
    message, _ = board_of(2).news(cursor)
    assert message.reset
    assert len(message.points) == 2


def test_what_is_no_cursor_is_an_empty_one() -> None:
    for text in (None, "", "x", "12345678.1", "12345678.-1.2", "1" * 99, "\x00.1.1"):
        assert Cursor.parse(text) == Cursor()


def test_listeners_hear_of_each_change_until_they_leave() -> None:
    board = board_of(1)
    heard: list[bool] = []
    leave = board.listen(lambda: heard.append(board.has_ended))
    board.show(look(2))
    board.end()
    leave()
    board.show(look(3))
    assert heard == [False, True]
    assert board.news(Cursor())[0].ended


def test_the_parts_of_the_latest_checkpoints_are_kept() -> None:
    board = board_of(1)
    for number in range(5, 90):
        board.detail(checkpoint(number))
    assert len(board.detailed_checkpoints()) == CHECKPOINTS_MAX
    found = board.checkpoint(89)
    assert found is not None
    assert found.subtasks
    assert board.checkpoint(5) is None
    shown = board.checkpoint(1)
    assert shown is not None, "in the look, without its parts"
    assert not shown.subtasks


def test_a_recorded_look_adds_no_point() -> None:
    board = Board(FACTS, recorded=True)
    board.show(look(7))
    message, _ = board.news(Cursor())
    assert message.recorded
    assert message.ended
    assert message.points == []
