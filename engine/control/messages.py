"""What is said between a command and the process that runs a job: closed schemas, MessagePack, no
code.

A connection carries one request and its answer. Until the answer is there, `Working` comes every
second, so that whoever waits can tell a long rescale from a process that hangs.
"""

from __future__ import annotations

import msgspec

from ..contract.messages import decoded, encoded
from ..observation.observed import Observation

#: Longest body either way: an observation of a job with thousands of subtasks.
MESSAGE_BYTES_MAX = 4 << 20
#: Longest reason of a refusal.
REASON_CHARS_MAX = 8192


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


class Look(_Message, frozen=True):
    """Look at the job; answered also while another request is carried out."""


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


class Looked(_Message, frozen=True):
    """The job as it is now."""

    observation: Observation


Request = Rescale | Stop | Savepoint | Look
Done = RescaleDone | StopDone | SavepointDone | Looked
Answer = Working | RescaleDone | StopDone | SavepointDone | Looked | Refused

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
