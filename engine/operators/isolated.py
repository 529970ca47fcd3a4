"""An operator without state in a process of its own: `isolate=True`.

The subtask's thread sends a batch, waits for the results without the GIL, and emits them; so a
function that holds the GIL of its process delays neither barriers nor neighbours. The process runs
the operator as a worker would: it alone has the user's function.

The operator reaches the process pickled, over a socket pair that only the worker and the process
hold. Batches go through shared memory, see `shared_batches.py`.
"""

from __future__ import annotations

import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa

from ..contract.errors import HeadraceError, UserCodeError
from ..contract.operators import HEAP, ChildProcess, ErrorOutput, Operator, OperatorContext
from .shared_batches import Gone, SharedBatches
from .stateless import StatelessOperator

#: To the process: the operator and its context; a batch; the input has ended.
_OPEN, _PROCESS, _FINISH = b"O", b"P", b"F"
#: From it: a result; dead letters; the last result; no more results; the user's code failed;
#: something else did.
_RESULT, _LETTERS, _LAST, _DONE, _USER_FAILED, _FAILED = b"R", b"E", b"L", b"D", b"U", b"X"

#: How long a process may take to close its operator, and one that broke off to be seen dead.
_END_S = 5.0


class IsolatedFailed(HeadraceError):
    """The process of an isolated operator failed otherwise than by its function's exception."""


class IsolatedOperator(StatelessOperator):
    """Runs the operator that `make` makes in a process of its own."""

    def __init__(self, make: Callable[..., Operator], *, operator: str) -> None:
        self._make = make
        self._operator = operator
        self._process: ChildProcess | None = None
        self._line: SharedBatches | None = None
        self._letters: list[pa.RecordBatch] = []

    def open(self, context: OperatorContext) -> None:
        """Start the process and open the operator there.

        Raises: UserCodeError as the operator's own `open`; IsolatedFailed, OSError.
        """
        import cloudpickle  # not at the top: only isolated operators need it

        assert context.processes is not None, "a driver offers processes"
        self._process = context.processes()
        self._line = SharedBatches(self._process.connection)
        there = replace(context, backend=HEAP, processes=None)
        program = cloudpickle.dumps((self._make, self._operator, there))
        self._told(lambda line: line.send(_OPEN, program))
        for _ in self._results():
            raise AssertionError("opening emits nothing")

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the operator's results. Raises: as its own `process`; IsolatedFailed."""
        self._told(lambda line: line.send_batch(_PROCESS, batch))
        yield from self._results()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit the operator's last records."""
        self._told(lambda line: line.send(_FINISH))
        yield from self._results()

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """Hand out the dead letters that came with the results."""
        taken, self._letters = self._letters, []
        return taken

    def close(self) -> None:
        """Let the process close its operator and end."""
        if self._process is None:
            return
        self._process.connection.shutdown(socket.SHUT_RDWR)
        self._process.ended(_END_S)
        self._process.close()
        self._process = None

    def _told(self, tell: Callable[[SharedBatches], None]) -> None:
        assert self._line is not None, "opened"
        try:
            tell(self._line)
        except Gone:
            raise self._ended() from None

    def _results(self) -> Iterator[pa.RecordBatch]:
        assert self._line is not None, "opened"
        while True:
            try:
                kind, content = self._line.receive()
            except Gone:
                raise self._ended() from None
            if kind == _DONE:
                return
            if kind in (_RESULT, _LAST):
                yield _as_batch(content)
                if kind == _LAST:
                    return
            elif kind == _LETTERS:
                self._letters.append(_as_batch(content))
            elif kind == _USER_FAILED:
                raise UserCodeError(*msgspec.msgpack.decode(content, type=tuple[str, str, str]))
            else:
                raise IsolatedFailed(f"operator {self._operator!r}: {str(content, 'utf-8')}")

    def _ended(self) -> IsolatedFailed:
        assert self._process is not None, "opened"
        how = _told_code(self._process.ended(_END_S))
        return IsolatedFailed(f"operator {self._operator!r}: its isolated process {how}")


def _as_batch(content: bytes | pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(content, bytes):
        with pa.ipc.open_stream(content) as reader:
            return reader.read_next_batch()
    return content


def _told_code(code: int | None) -> str:
    if code is None:
        return "broke off"
    if code >= 0:
        return f"ended with exit code {code} during a call"
    name = signal.Signals(-code).name
    memory = " (perhaps the machine ran out of memory)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{memory} during a call"


# --- in the process -------------------------------------------------------------------------------


def serve(
    connection: socket.socket, named: Callable[[OperatorContext], None] = lambda _: None
) -> None:
    """Be the process of an isolated operator, until the other end is closed.

    `named`: told whose process it is, before any of the user's code runs.
    """
    line = SharedBatches(connection)
    # User code must draw different numbers in each process; Python's own generator sees to that.
    np.random.seed()
    operator: Operator | None = None
    try:
        while True:
            operator = _serve_once(line, operator, named)
    except Gone:
        if operator is not None:
            operator.close()


def _serve_once(
    line: SharedBatches, operator: Operator | None, named: Callable[[OperatorContext], None]
) -> Operator | None:
    """Take a message and answer. Returns the operator, if there is one by now. Raises: Gone."""
    kind, content = line.receive()
    try:
        if kind == _OPEN:
            assert isinstance(content, bytes), "a program"
            operator = _opened(content, named)
            line.send(_DONE)
        else:
            assert operator is not None, "opened"
            _answer(line, _run(operator, kind, content), operator)
    except UserCodeError as error:
        told = (error.operator, error.message, error.user_traceback)
        line.send(_USER_FAILED, msgspec.msgpack.encode(told))
    except Gone:
        raise
    except Exception as error:
        traceback.print_exc()
        line.send(_FAILED, f"{type(error).__name__}: {error}".encode())
    return operator


def _answer(line: SharedBatches, results: Iterator[pa.RecordBatch], operator: Operator) -> None:
    last: pa.RecordBatch | None = None
    for result in results:
        if last is not None:
            line.send_batch(_RESULT, last)
        last = result
    # Only now is it known which records failed.
    for letters in operator.take_errors() if isinstance(operator, ErrorOutput) else ():
        line.send_batch(_LETTERS, letters)
    if last is None:
        line.send(_DONE)
    else:
        line.send_batch(_LAST, last)


def _opened(program: bytes, named: Callable[[OperatorContext], None]) -> Operator:
    # Pickle is right here: only the worker holds the other end of the connection.
    make, name, context = pickle.loads(program)
    named(context)
    operator: Operator = make(operator=name)
    operator.open(context)
    return operator


def _run(
    operator: Operator, kind: bytes, content: bytes | pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    if kind == _FINISH:
        yield from operator.finish()
    else:
        yield from operator.process(_as_batch(content), 0)
