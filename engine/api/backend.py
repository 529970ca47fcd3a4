"""The place of an operator's state, from its own `state=`."""

from __future__ import annotations

from ..contract.errors import UserError
from ..contract.operators import StateBackend
from ..contract.options import State


def stated_backend(state: State | None, *, kind: str) -> StateBackend | None:
    """Turn an operator's `state=` into its backend; None: the job's holds. Raises: UserError."""
    if state is None:
        return None
    if not isinstance(state, State):
        raise UserError(f"{kind}: state={state!r} is not a hr.State(...)")
    if state.directory is not None:
        raise UserError(
            f"{kind}: state.directory={state.directory!r} belongs to the job: give it hr.Job(...,"
            " state=hr.State(directory=...))"
        )
    return StateBackend(
        state.backend,
        state.write_buffer_bytes,
        state.block_cache_bytes,
        cache_bytes=state.cache_bytes,
    )
