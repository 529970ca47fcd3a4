"""Threads of another process, as Linux tells of them: do they run, wait for the GIL, or stand?

A thread that waits for the GIL wakes up at every switch interval to ask for it, so its context
switches rise by hundreds a second. A thread that is stopped, or waits for a lock, makes none.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Context switches a second of a thread that waits for the GIL: 2,000 at our switch interval, 200
#: at Python's own, fewer while processors are scarce.
_WAITER_SWITCHES_PER_S = 40


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """A look at a thread.

    Attributes:
        state: R runs, S sleeps, D waits for a device, T or t is stopped, Z is dead.
        switches: times it gave up, or lost, a processor since its start.
    """

    state: str
    switches: int


def look_at(process: int, thread: int) -> ThreadLook | None:
    """Look at a thread; None: there is none, or Linux hides it."""
    try:
        with open(f"/proc/{process}/task/{thread}/status") as file:
            facts = dict(line.split(":", 1) for line in file)
        switches = (facts["voluntary_ctxt_switches"], facts["nonvoluntary_ctxt_switches"])
        return ThreadLook(facts["State"].split()[0], sum(map(int, switches)))
    except (OSError, KeyError, ValueError):
        return None


def has_moved(before: ThreadLook | None, now: ThreadLook | None) -> bool:
    """Whether the thread has run since the look before, and is free to run."""
    if before is None or now is None or now.state in "TtZX":
        return False
    return now.state == "R" or now.switches > before.switches


def waits_for_gil(before: ThreadLook | None, now: ThreadLook | None, elapsed_s: float) -> bool:
    """Whether the thread woke up as often as those do that ask for the GIL."""
    if before is None or now is None:
        return False
    return asks_for_gil(now.switches - before.switches, elapsed_s)


def asks_for_gil(switches: int, elapsed_s: float) -> bool:
    """Whether a thread with so many context switches has asked for the GIL all the time."""
    return switches > _WAITER_SWITCHES_PER_S * elapsed_s
