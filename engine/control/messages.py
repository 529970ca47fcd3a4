"""What is said between a command and the process that runs a job: closed schemas, MessagePack, no
code.

A connection carries one request and its answer. Until the answer is there, `Working` comes every
second, so that whoever waits can tell a long rescale from a process that hangs.
"""

from __future__ import annotations

import msgspec

from ..contract.messages import decoded, encoded

#: Longest body either way.
MESSAGE_BYTES_MAX = 64 * 1024


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, array_like=True):
    pass


# --- requests -------------------------------------------------------------------------------------


class Rescale(_Message, frozen=True):
    """Go on at another parallelism."""

    parallelism: int


class Stop(_Message, frozen=True):
    """Take a last checkpoint and end. `now`: end at once; what no checkpoint covers is not
    committed. `drain`: end the input before.

    `savepoint`: the directory of the savepoint with which to end instead; `mode` as of
    `JobHandle.savepoint`.
    """

    now: bool
    drain: bool = False
    savepoint: str | None = None
    mode: str | None = None


class Savepoint(_Message, frozen=True):
    """Take a savepoint; the job goes on. `path` and `mode` as of `JobHandle.savepoint`."""

    path: str | None
    mode: str | None


# --- answers --------------------------------------------------------------------------------------


class Working(_Message, frozen=True):
    """The request is being carried out."""


class RescaleDone(_Message, frozen=True):
    """The job runs at `parallelism`, from checkpoint `checkpoint`; times as in `Rescaled`."""

    parallelism: int
    checkpoint: int
    stop_ns: int
    duration_ns: int
    standstill_ns: int


class StopDone(_Message, frozen=True):
    """The job has ended; its newest checkpoint, or None. `finished`: all that it had read was
    worked on to its end.

    `savepoint`: path of the one with which it ended.
    """

    checkpoint: int | None
    finished: bool = False
    savepoint: str | None = None


class SavepointDone(_Message, frozen=True):
    """The savepoint is complete and lies at `path`."""

    path: str


class Refused(_Message, frozen=True):
    """It was not done, or did not work; `exit_code` as of the exception."""

    reason: str
    exit_code: int


Request = Rescale | Stop | Savepoint
Done = RescaleDone | StopDone | SavepointDone
Answer = Working | RescaleDone | StopDone | SavepointDone | Refused

_request = msgspec.msgpack.Decoder(Request)
_answer = msgspec.msgpack.Decoder(Answer)


def decode_request(body: bytes) -> Request:
    """Decode a request. Raises: as `engine/contract/messages.py`, `decoded`."""
    request: Request = decoded(_request, body)
    return request


def decode_answer(body: bytes) -> Answer:
    """Decode an answer. Raises: as `engine/contract/messages.py`, `decoded`."""
    answer: Answer = decoded(_answer, body)
    return answer


def encode(message: Request | Answer) -> bytes:
    """The message as MessagePack; see `engine/contract/messages.py`, `encoded`."""
    return encoded(message)
