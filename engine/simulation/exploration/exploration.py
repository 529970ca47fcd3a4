"""Exhaustive exploration of a small scope: every interleaving of events, each state once.

    python -m headrace.engine.simulation.exploration [SCOPE ...]

The next event in a state of the world is any of: the head of a queue is delivered; a piece of work,
a write or a read ends; storage or the sinks answer; a process's clock comes to its next deadline; a
process dies. States at equal distance from the beginning are explored together, so the first
violation comes with a shortest trace.

Sound reductions, which drop only differences that no process and no check can see:

- The clocks of processes are independent, and move by their own timers only. Real time allows fewer
  orders.
- A storage call takes effect with its answer. In between only a death of the caller could tell the
  difference, and then every number of calls done is tried.
- The coordinator hears of a finished subtask at once, in the step that put the message at the head
  of its queue, unless the subtask is the last: the coordinator then only adds the subtask to a set,
  which commutes with every other message, and which the successor of a failed attempt makes anew
  (an ample set of one).
- When the job has ended for the coordinator, workers are idle, no process can die any more and the
  last messages of dead processes have been heard, workers hear their remaining messages before
  storage and sinks answer for the last time: the coordinator sends no more messages and ignores
  messages, and workers that only listen touch neither files nor the sinks' system. Their messages
  depend on each other alone, and all orders of these are tried (a persistent set).
- Of a dead worker's messages all, some or none still arrive. A dead driver takes its workers with
  it, at once: they could reach no process.
- A channel whose credit exceeds all existing records is open from the start, without a message.
  Scopes with little credit have all credit messages.
- Messages of an attempt to a worker that has abandoned the attempt are dropped: its driver has
  closed the connection.
- Unordered contents of pieces of work, files, acknowledgements and messages are sorted; counters
  and times that only metrics show are forgotten, and so is which barrier came last.

Out of scope: heartbeats and their absence, connections that break while both ends live, storage
that fails, workers that outlive their driver; the seeded campaigns have all four. States are told
apart by 64 bits of hash; in an exploration of a hundred thousand states the odds that two are
confused are two in ten million.

Checked: the machines' own assertions after every step; of every complete checkpoint that each
record is in exactly one place; in every state without a next event that the job has ended and the
sink shows every record once. A state without a next event in which the job has not ended is a
deadlock.

Sources: ample and persistent sets (Godefroid 1996); a step is made once for each state of its
process, the idea of local model checking (Guerraoui and Yabandeh, NSDI 2011), here without giving
up any check of the whole.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from headrace.channels.events import CheckpointMode

from ..watch import Violation
from .small_scope import Scope
from .small_world import Row, SmallWorld

EXIT_FOUND = 3


@dataclass(slots=True)
class Found:
    """The findings of an exploration.

    Attributes:
        interleavings: ways through the scope from beginning to end; ways that run into a state met
            on a shorter way do not count.
        trace: the events on the way to the violation.
    """

    states: int = 0
    transitions: int = 0
    endings: int = 0
    interleavings: int = 0
    steps: int = 0
    depth: int = 0
    in_flight: int = 0
    elapsed_s: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)


def explore(scope: Scope, *, states_max: int | None = None, traced: bool = False) -> Found:
    """Explore the whole scope, or until `states_max` states or the first violation, with its
    trace.
    """
    found = _search(scope, states_max, traced=traced)
    return _search(scope, states_max, traced=True) if found.violation and not traced else found


def _search(scope: Scope, states_max: int | None, *, traced: bool) -> Found:
    began_s, found = time.monotonic(), Found()
    world = SmallWorld(scope)
    start = world.start()
    #: {state: number of ways to the state}, at equal distance from the beginning.
    level: dict[Row, int] = {start: 1}
    seen = {hash(start)}
    came: dict[Row, tuple[Row, Hashable]] = {}
    row = start
    try:
        while level and (states_max is None or found.states < states_max):
            found.states += len(level)
            found.depth += 1
            following: dict[Row, int] = {}
            for row, ways in level.items():
                moved = False
                for label, then in world.successors(row):
                    moved = True
                    found.transitions += 1
                    known = following.get(then)
                    if known is not None:
                        following[then] = known + ways
                        continue
                    key = hash(then)
                    if key in seen:
                        continue
                    seen.add(key)
                    following[then] = ways
                    if traced:
                        came[then] = row, label
                if not moved:
                    world.check_end(row)
                    found.endings += 1
                    found.interleavings += ways
            level = following
    except (Violation, AssertionError) as broken:
        found.violation = str(broken) or repr(broken)
        found.trace = _way(came, row) if traced else []
    found.steps, found.in_flight = world.steps, world.in_flight
    found.elapsed_s = time.monotonic() - began_s
    return found


def _way(came: dict[Row, tuple[Row, Hashable]], row: Row) -> list[str]:
    trace: list[str] = []
    while row in came:
        row, label = came[row]
        trace.append(str(label))
    return trace[::-1]


ALIGNED, UNALIGNED = CheckpointMode.ALIGNED, CheckpointMode.UNALIGNED
WORKERS, DRIVER = (0, 1), (2,)
#: {name: scope} that `make explore` explores, each to its end; scopes with a name in "short..." are
#: part of the tests.
SCOPES: dict[str, Scope] = {
    "short-aligned": Scope(ALIGNED, rows=(1, 0)),
    "short-unaligned": Scope(UNALIGNED, rows=(0, 0)),
    "short-worker-dies": Scope(ALIGNED, rows=(0, 0), periodic=0, crashes=1, victims=(1,)),
    "short-driver-dies": Scope(ALIGNED, rows=(0, 0), periodic=0, crashes=1, victims=DRIVER),
    "aligned": Scope(ALIGNED, rows=(3, 3)),
    "unaligned": Scope(UNALIGNED, rows=(1, 1)),
    "turns": Scope(ALIGNED, turns=True, rows=(1, 0)),
    "expires": Scope(ALIGNED, rows=(0, 0), expiries=1),
    "worker-dies": Scope(ALIGNED, rows=(0, 0), crashes=1, victims=WORKERS),
    "unaligned-worker-dies": Scope(UNALIGNED, rows=(0, 0), crashes=1, victims=WORKERS),
    "driver-dies": Scope(ALIGNED, rows=(0, 1), crashes=1, victims=DRIVER),
}


def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace-explore", description=__doc__.split("\n")[0])
    parser.add_argument("scopes", nargs="*", help=f"of {', '.join(SCOPES)}; none: all of them")
    parser.add_argument("--states", type=int, help="stop at so many states, before the end")
    arguments = parser.parse_args()
    if unknown := set(arguments.scopes) - SCOPES.keys():
        parser.error(f"unknown scope {min(unknown)!r}; there are {', '.join(SCOPES)}")
    violations = 0
    for name in arguments.scopes or SCOPES:
        found = explore(SCOPES[name], states_max=arguments.states)
        print(f"{name}: {describe(found)}", flush=True)
        violations += bool(found.violation)
    return EXIT_FOUND if violations else 0


def describe(found: Found) -> str:
    """In words."""
    summary = (
        f"{found.states:,} states, {found.transitions:,} transitions, {found.interleavings:.1e}"
        " interleavings"
        f" of up to {found.depth - 1} events, {found.steps:,} steps of machines,"
        f" {found.in_flight:,} records in flight, {found.elapsed_s:.1f} s:"
        f" {found.violation or 'no violation'}"
    )
    return "\n    ".join([summary, *found.trace])
