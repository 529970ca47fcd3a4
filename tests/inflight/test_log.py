"""The log: what is durable when a checkpoint asks is named, the rest is the checkpoint's, and
nothing of a given-up one ever comes back.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.inflight.confirmed import NamingLimits
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.log import Continuous, LogLimits
from headrace.inflight.writer import Piece

ROW_BYTES = 10
LEFT, RIGHT = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
LIMITS = LogLimits(
    piece_bytes=4 * ROW_BYTES, piece_bytes_max=8 * ROW_BYTES, backlog_bytes_max=16 * ROW_BYTES
)


def nobody_knows() -> None:
    """A cut is open, so older records are needed."""


def records(first: int, rows: int) -> Buffer:
    """They are their own positions."""
    return Buffer(
        first,
        rows,
        rows * ROW_BYTES,
        (pa.record_batch({"x": pa.array(range(first, first + rows))}),),
    )


def handles_of(piece: Piece) -> list[ChannelStateHandle]:
    """As if it had been written: its path says to which checkpoint it belongs."""
    found = []
    for channel, buffers in piece.runs:
        rows = sum(buffer.rows for buffer in buffers)
        path = f"chk-{piece.checkpoint}/log-{piece.number}"
        blob = BufferHandle(path, 16, 8, "0" * 16, rows, 0, rows)
        found.append(ChannelStateHandle(*channel, "output", buffers[0].first, [blob], ended=False))
    return found


def written(log: Continuous) -> Piece:
    """Write the piece that is due."""
    piece = log.next_piece(nobody_knows)
    assert piece is not None
    log.piece_written(piece, handles_of(piece))
    return piece


def asked(log: Continuous, checkpoint: int, *buffers: Buffer) -> list[tuple[str, int]]:
    """What a checkpoint makes of the left channel's records in flight: (path, or "" for what it
    writes itself, records).
    """
    index = log.index(checkpoint)
    assert index is not None
    return [
        (piece.path, piece.rows)
        if isinstance(piece, BufferHandle)
        else ("", sum(buffer.rows for buffer in piece))
        for piece in index.split(LEFT, buffers)
    ]


def running(limits: LogLimits = LIMITS) -> Continuous:
    """The first checkpoint of the attempt, 6, was taken."""
    log = Continuous(limits, NamingLimits(named_bytes_min=0))
    log.index(6)
    return log


def test_nothing_is_logged_before_a_checkpoint_says_which_is_next() -> None:
    log = Continuous(LIMITS, NamingLimits(named_bytes_min=0))
    log.log(LEFT, records(0, 8))
    assert log.next_piece(nobody_knows) is None
    assert asked(log, 6, records(0, 8)) == [("", 8)]


def test_a_checkpoint_names_what_is_durable_and_writes_the_rest() -> None:
    log = running()
    log.log(LEFT, records(0, 5))
    written(log)
    log.log(LEFT, records(5, 3))
    assert asked(log, 7, records(0, 8)) == [("chk-7/log-0", 5), ("", 3)]


def test_a_piece_waits_until_it_is_worth_a_file() -> None:
    log = running()
    log.log(LEFT, records(0, 3))
    assert log.next_piece(nobody_knows) is None
    log.log(RIGHT, records(0, 1))
    piece = log.next_piece(nobody_knows)
    assert piece is not None
    assert [(channel, run[0].first, run[-1].end) for channel, run in piece.runs] == [
        (LEFT, 0, 3),
        (RIGHT, 0, 1),
    ]


def test_pieces_are_written_one_at_a_time_and_a_checkpoint_waits_for_the_one_under_way() -> None:
    log = running()
    log.log(LEFT, records(0, 4))
    piece = log.next_piece(nobody_knows)
    assert piece is not None
    log.log(LEFT, records(4, 4))
    assert log.next_piece(nobody_knows) is None
    assert log.index(7) is None
    log.piece_written(piece, handles_of(piece))
    assert asked(log, 7, records(0, 8)) == [("chk-7/log-0", 4), ("", 4)]


def test_a_piece_that_could_not_be_written_is_the_checkpoints_to_write() -> None:
    log = running()
    log.log(LEFT, records(0, 4))
    piece = log.next_piece(nobody_knows)
    assert piece is not None
    log.piece_written(piece, ())
    assert asked(log, 7, records(0, 4)) == [("", 4)]


def test_what_exceeds_the_backlog_is_not_logged_and_does_not_join_its_neighbours() -> None:
    log = running(replace(LIMITS, pieces_max=4))
    log.log(LEFT, records(0, 4))
    under_way = log.next_piece(nobody_knows)
    assert under_way is not None
    for first in (4, 8, 12, 16, 20, 24):
        log.log(LEFT, records(first, 4))
    log.piece_written(under_way, handles_of(under_way))
    written(log)
    log.log(LEFT, records(28, 4))
    pieces = [written(log)]
    assert [(b[0].first, b[-1].end) for p in pieces for _, b in p.runs] == [(12, 20)]
    pieces.append(written(log))
    assert [(b[0].first, b[-1].end) for _, b in pieces[-1].runs] == [(28, 32)]


def test_pieces_of_a_given_up_checkpoint_are_never_named() -> None:
    log = running()
    log.log(LEFT, records(0, 4))
    written(log)
    assert asked(log, 8, records(0, 4)) == [("", 4)]


def test_pieces_of_a_complete_checkpoint_are_named_whether_it_needed_them_or_not() -> None:
    log = running()
    log.log(LEFT, records(0, 4))
    written(log)
    log.index(7)
    log.stored(7, [])
    assert asked(log, 8, records(0, 4)) == [("", 4)], "not complete yet"
    log.confirmed(7)
    assert asked(log, 9, records(0, 4)) == [("chk-7/log-0", 4)]
    log.confirmed(9)
    assert asked(log, 10, records(0, 4)) == [("", 4)], "9 named nothing of it, so it may be gone"


def test_what_a_complete_checkpoint_wrote_itself_is_named_too() -> None:
    log = running()
    own = BufferHandle("chk-7/own", 16, 8, "0" * 16, 4, 0, 4)
    log.index(7)
    log.stored(7, [ChannelStateHandle(*LEFT, "input", 0, [own], ended=False)])
    log.confirmed(7)
    assert asked(log, 8, records(0, 4)) == [("chk-7/own", 4)]


def test_what_was_worked_on_meanwhile_is_not_written() -> None:
    log = running()
    log.log(LEFT, records(0, 2))
    log.log(LEFT, records(2, 1))
    log.log(RIGHT, records(0, 1))
    assert log.next_piece(lambda: {LEFT: 2, RIGHT: 0}) is None
    log.log(LEFT, records(3, 2))
    piece = log.next_piece(lambda: {LEFT: 2, RIGHT: 0})
    assert piece is not None
    assert [(channel, run[0].first, run[-1].end) for channel, run in piece.runs] == [
        (LEFT, 2, 5),
        (RIGHT, 0, 1),
    ]


def test_a_checkpoint_has_few_pieces_and_the_next_one_has_as_many() -> None:
    log = running()
    for checkpoint in (7, 8):
        for first in range(0, 40, 4):
            log.log(LEFT, records(first, 4))
            piece = log.next_piece(nobody_knows)
            if piece is not None:
                log.piece_written(piece, handles_of(piece))
        named = [path for path, _ in asked(log, checkpoint, records(0, 40)) if path]
        assert named == [f"chk-{checkpoint}/log-{3 * (checkpoint - 7) + n}" for n in range(3)]


def test_pieces_go_when_all_their_records_are_worked_on() -> None:
    log = running()
    log.log(LEFT, records(0, 3))
    log.log(RIGHT, records(0, 1))
    written(log)
    assert log.trim({LEFT: 3, RIGHT: 0}) == []
    assert log.trim({LEFT: 2, RIGHT: 1}) == []
    assert log.trim({LEFT: 3, RIGHT: 1}) == [Piece(7, 0, ())]
    assert asked(log, 7, records(0, 3)) == [("", 3)]


def test_pieces_of_a_checkpoint_that_has_asked_are_its_own_to_keep() -> None:
    log = running()
    log.log(LEFT, records(0, 4))
    written(log)
    log.index(7)
    assert log.trim({LEFT: 4}) == []
    assert log.abandon() == []


def test_the_end_of_an_attempt_leaves_no_piece_that_nobody_names() -> None:
    log = running()
    log.log(LEFT, records(0, 4))
    written(log)
    assert log.abandon() == [Piece(7, 0, ())]
    assert log.abandon() == []


@given(st.data())
def test_a_checkpoint_names_only_durable_records_of_itself_or_of_a_complete_one(
    data: st.DataObject,
) -> None:
    """Against a model that knows what is durable: {path: the records in it}."""
    log, tail, checkpoint, complete = Continuous(LIMITS, NamingLimits(named_bytes_min=0)), 0, 0, 0
    durable: dict[str, tuple[int, int]] = {}
    under_way: Piece | None = None
    for _ in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(("log", "write", "settle", "ask", "skip", "complete")))
        if action == "log":
            rows = data.draw(st.integers(1, 6))
            log.log(LEFT, records(tail, rows))
            tail += rows
        elif action == "write":
            under_way = log.next_piece(nobody_knows) or under_way
        elif action == "settle" and under_way is not None:
            kept = handles_of(under_way) if data.draw(st.booleans()) else []
            durable |= {h.buffers[0].path: (h.first, h.end) for h in kept}
            log.piece_written(under_way, kept)
            under_way = None
        elif action == "skip":
            checkpoint += 1
        elif action == "complete" and checkpoint > complete:
            complete = checkpoint
            log.confirmed(complete)
        elif action == "ask" and under_way is None and tail:
            checkpoint += 1
            first = data.draw(st.integers(0, tail - 1))
            index = log.index(checkpoint)
            assert index is not None
            position = first
            for piece in index.split(LEFT, [records(first, tail - first)]):
                if isinstance(piece, BufferHandle):
                    begin, end = durable[piece.path]
                    assert begin + piece.start == position
                    assert position + piece.rows <= end
                    assert piece.path.startswith((f"chk-{checkpoint}/", f"chk-{complete}/"))
                    position += piece.rows
                else:
                    position += sum(buffer.rows for buffer in piece)
            assert position == tail
