"""The longest duration of an unaligned checkpoint: hops, storage and the work of sinks, but no
other user code.

A barrier that overtakes needs one message from each task to the next; a sink lets its running write
end, and then flushes. Queues and slow operators must not matter. The bound is exact to the
nanosecond when no fault stretches the delays.
"""

from __future__ import annotations

from headrace.channels.events import CheckpointMode

from ...contract.execution import ExecutionPlan
from ..scheduler import MILLISECOND_NS
from .environment import Settings
from .faults import FaultProfile, no_faults

#: A slow task's work takes so many times as long.
SLOWNESS = 8


def duration_max_ns(plan: ExecutionPlan, settings: Settings, profile: FaultProfile) -> int | None:
    """Return the longest time from trigger to the last acknowledgement; None: unbounded."""
    if settings.mode is not CheckpointMode.UNALIGNED or profile != no_faults():
        return None
    if settings.concurrent > 1 or settings.savepoints:
        return None  # its metadata may wait for those of older ones
    if settings.databases:
        # A database writes all its merged and flushed files, in sequence.
        return None
    slow = any(task.is_sink and task.index in settings.slow_tasks for task in plan.tasks)
    write_ns = settings.work_ns[1] * (SLOWNESS if slow else 1)
    # Trigger, a hop from each task to the next, acknowledgement; each may queue behind another
    # event of the same time.
    hops_ns = (len(plan.tasks) + 1) * (profile.network_delay_ns + MILLISECOND_NS // 10)
    # A piece of the in-flight log that is being written is waited for.
    storage_ns = (4 if settings.limits.logs else 2) * profile.storage_delay_ns
    return hops_ns + 2 * write_ns + storage_ns
