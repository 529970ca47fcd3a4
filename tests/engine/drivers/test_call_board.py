"""Calls under way, as a worker's companion reads them."""

from __future__ import annotations

import os
import threading

from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.messages import Call
from headrace.engine.drivers.call_board import CallBoard, CallUnderWay


def test_calls_are_there_while_they_are_under_way() -> None:
    board = CallBoard()
    first, second = board.recorder(0, SubtaskId(1, 0)), board.recorder(1, SubtaskId(2, 3))
    assert board.under_way() == []
    me = threading.get_native_id()
    first(4)
    second(0)
    calls = [CallUnderWay(me, Call(1, 0, 4)), CallUnderWay(me, Call(2, 3, 0))]
    assert board.under_way() == calls
    first(None)
    assert board.under_way() == calls[1:]


def test_a_fork_reads_what_its_parent_writes() -> None:
    board = CallBoard()
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(ready, 1)
        os._exit(7 if [held.call for held in board.under_way()] == [Call(1, 0, 4)] else 1)
    board.recorder(0, SubtaskId(1, 0))(4)
    os.write(go, b"g")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(ready)
    os.close(go)


def test_subtasks_beyond_the_limit_go_without() -> None:
    board = CallBoard()
    board.recorder(1 << 20, SubtaskId(0, 0))(1)
    assert board.under_way() == []
