"""Events of calls of operators that raised, as a worker's machine takes them."""

from __future__ import annotations

import traceback

from headrace.recovery.store import StoreError

from ..contract.errors import HeadraceError, UserCodeError, UserError
from ..contract.execution import SubtaskId
from ..contract.user_code import described
from ..storage.snapshots import CorruptState
from ..worker import worker_events as w


def work_failed(epoch: int, subtask: SubtaskId, error: BaseException) -> w.WorkFailed:
    """Return the event of a call of the operators that raised."""
    match error:
        case UserCodeError(story=story, user_traceback=trace):
            # A broken promise (a type, a schema) will be broken again; an exception may be a
            # passing trouble.
            return w.WorkFailed(epoch, subtask, story, trace, fatal=not trace)
        case HeadraceError():
            return w.WorkFailed(epoch, subtask, str(error), "", fatal=False)
        case _:
            trace = "".join(traceback.format_exception(error))
            return w.WorkFailed(epoch, subtask, described(error), trace, fatal=False)


def open_failed(
    epoch: int, subtask: SubtaskId, error: BaseException
) -> w.WorkFailed | w.AttemptLoadFailed:
    """Return the event of a chain that could not be opened or restored."""
    if isinstance(error, StoreError):
        # Storage that does not answer now tells nothing about the program or the checkpoint: try
        # again.
        reason = f"the checkpoint could not be read: {error}"
        return w.WorkFailed(epoch, subtask, reason, "", fatal=False)
    if isinstance(error, CorruptState):
        return w.AttemptLoadFailed(epoch, str(error))
    if isinstance(error, UserError):
        # State that does not fit the program, a missing folder: the next attempt finds the same.
        return w.WorkFailed(epoch, subtask, str(error), "", fatal=True)
    return work_failed(epoch, subtask, error)
