"""Calls of operators under way in a worker, in memory that the worker's companion can read.

The worker's threads write a record before each call of an operator, without system calls. The
companion reads while a call holds the worker's GIL. No lock: a torn record names no operator of the
plan, or a wrong one in a notice.

    record   4 bytes thread, as the kernel numbers it
             4 bytes task, 4 bytes subtask
             4 bytes operator, its place in the task; -1: no call
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..contract.execution import SubtaskId
from ..contract.messages import Call

_RECORD = struct.Struct("=iiii")
_RECORDS_MAX = 1024
_NO_CALL = -1


@dataclass(frozen=True, slots=True)
class CallUnderWay:
    """A call and its thread."""

    thread: int
    call: Call


class CallBoard:
    """One record a subtask; subtasks beyond the limit go without. Shared with forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _RECORD.size * _RECORDS_MAX)

    def recorder(self, index: int, subtask: SubtaskId) -> Callable[[int | None], None]:
        """Return what notes that subtask number `index` of the worker calls an operator, by its
        place in the task; None: calls no more.
        """
        if index >= _RECORDS_MAX:
            return lambda _: None
        memory, offset = self._memory, _RECORD.size * index
        task, number = subtask

        def record(operator: int | None) -> None:
            at = _NO_CALL if operator is None else operator
            _RECORD.pack_into(memory, offset, threading.get_native_id(), task, number, at)

        return record

    def under_way(self) -> list[CallUnderWay]:
        """Calls now. A record never written has thread 0."""
        return [
            CallUnderWay(thread, Call(task, subtask, operator))
            for thread, task, subtask, operator in _RECORD.iter_unpack(self._memory)
            if thread and operator != _NO_CALL
        ]
