"""What holds a job back, in one sentence: a pure function of the latest observations.

The task that holds back the others is busy and not backpressured itself, while those before it are.
The rest of the sentence says since when, whether it gets worse, and what would help. Where no task
is busy and records wait all the same, windows are too small for the way between two tasks, or
nothing moves at all. Late checkpoints come last: they delay output, and no record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..contract.numbers import seconds, size
from .facts import Facts
from .observed import (
    Cause,
    EdgeObserved,
    Finding,
    Observation,
    SubtaskObserved,
    TaskObserved,
    Trend,
)

#: A subtask that is busy for less of its time holds nobody back.
_BUSY: Final = 0.5
#: A task that was backpressured for less of its time was not held back.
_HELD_BACK: Final = 0.2
#: An operator with so much of its chain's time leaves none for the source in it.
_CROWDED: Final = 0.7
#: A subtask is hot that is busier than the others by so much of its time.
_HOTTER: Final = 0.4
#: The GIL is kept for so much of the time that others starve.
_GIL: Final = 0.2
#: Storage is slow from here on.
_STORAGE_MS: Final = 400.0
#: Producers wait, and consumers have nothing to do, for so much of their time.
_WAITING: Final = 0.5
#: So long nothing moves in a job that stands still.
_STILL_MS: Final = 30_000
#: The trend goes by observations of so long, and is told from so many bytes a second on.
_TREND_MS: Final = 10_000
_TREND_LEAST_MS: Final = 3_000
_TREND_BYTES: Final = 16 * 1024
#: A finding that was gone for less has not begun anew.
_GAP_MS: Final = 5_000
#: Where sources wait for nearly all of their time, nobody knows how fast they could be.
_UNKNOWN: Final = 0.95
#: A checkpoint under way for so long is told with whom it waits for.
_LATE_MS: Final = 5_000


def explain(now: Observation, before: Sequence[Observation], facts: Facts | None = None) -> Finding:
    """Explain the present.

    Args:
        before: earlier observations of the same plan with their findings, oldest first.
        facts: beside the observation.
    """
    facts = Facts() if facts is None else facts
    if now.phase in ("preparing", "deploying"):
        return _deploying(now, facts)
    if now.phase in ("closing", "ended"):
        return Finding("ok", "none", "The job has ended, or is about to.")
    if now.phase == "restarting":
        return Finding("wrong", "restarting", f"The job restarts after {_failure(now)}.")
    finding = (
        _gil(now, facts)
        or _bottleneck(now, before, facts, severity="wrong")
        or _small_window(now, facts)
        or _standstill(now, before)
        or _slow_storage(facts)
        or _bottleneck(now, before, facts, severity="note")
        or Finding("ok", "none", "Nothing holds the job back.")
    )
    return _with_checkpoints(_since(finding, now, before), now, facts)


def _deploying(now: Observation, facts: Facts) -> Finding:
    loads = [(name, share) for shares in facts.operators.values() for name, share in shares.items()]
    if not loads:
        return Finding("ok", "deploying", "Operators open and state is loaded.")
    name, _ = max(loads, key=lambda load: load[1])
    return Finding("ok", "deploying", f"Operators open and state is loaded; {name} still opens.")


def _failure(now: Observation) -> str:
    return "a failure" if now.restarts < 2 else f"failure {now.restarts}"


# --- causes ---------------------------------------------------------------------------------------


def _gil(now: Observation, facts: Facts) -> Finding | None:
    """A call keeps the GIL, so nothing else in its process runs."""
    share, index = max(((s, i) for i, s in facts.gil.items()), default=(0.0, -1))
    if share < _GIL:
        return None
    task = now.tasks[index]
    sentence = (
        f"{_operator(task, facts)} ({_subtasks(task)}) keeps the GIL for {_percent(share)} of the"
        " time, and nothing else in its process runs meanwhile. isolate=True runs its function in a"
        " process of its own."
    )
    return Finding("wrong", "gil", sentence, task.name)


def _bottleneck(
    now: Observation, before: Sequence[Observation], facts: Facts, *, severity: str
) -> Finding | None:
    """A task is busy; "wrong" if it holds back others."""
    task = slowest(now)
    if task is None:
        return None
    cause = _cause(task, facts)
    holds = is_held_back(task, now) or _crowds_out(task, facts)
    if severity == "wrong" and not holds:
        return None
    trend, bytes_per_s = _trend(task, now, before)
    parallelism = keeping_up(task, now) if holds and cause != "skew" else None
    since_ms = since(cause, task.name, now, before)
    sentence = " ".join(
        part
        for part in (
            _head(task, now, facts, cause, since_ms, holds=holds),
            _waiting(task, now) if holds else "",
            _getting(trend, bytes_per_s),
            _remedy(task, cause, parallelism),
        )
        if part
    )
    return Finding(
        "wrong" if holds else "note", cause, sentence, task.name, since_ms, trend, parallelism
    )


def _cause(task: TaskObserved, facts: Facts) -> Cause:
    if is_skewed(task):
        return "skew"
    main = _operator(task, facts)
    if main in facts.sources:
        return "slow_source"
    return "slow_sink" if main in facts.sinks else "slow_function"


def _small_window(now: Observation, facts: Facts) -> Finding | None:
    """Producers wait for credit while their consumers have nothing to do."""
    for edge in now.edges:
        producer, consumer = now.tasks[edge.producer], now.tasks[edge.consumer]
        if _starves(producer, consumer):
            sentence = (
                f"{consumer.operators[0]} waits for records for {_percent(consumer.idle)} of the"
                f" time, while {producer.operators[-1]} waits for room towards it: the windows"
                f" ({size(_window(edge, facts))} a channel) are too small for the way between"
                " them. A larger network.window would help."
            )
            return Finding("wrong", "small_window", sentence, consumer.name)
    return None


def _standstill(now: Observation, before: Sequence[Observation]) -> Finding | None:
    """Records wait, and for half a minute nobody has worked."""
    since_ms = now.at_ms
    for earlier in reversed(before):
        if earlier.attempt != now.attempt or _moved(earlier) != _moved(now):
            break
        since_ms = earlier.at_ms
    waiting = sum(edge.queued_bytes for edge in now.edges)
    stuck = [task for task in now.tasks if task.backpressured >= _WAITING]
    if now.at_ms - since_ms < _STILL_MS or not waiting or not stuck:
        return None
    if any(s.busy >= _BUSY for task in now.tasks for s in task.subtasks):
        return None
    sentence = (
        f"No record has moved for {_duration(now.at_ms - since_ms)}, while {size(waiting)} wait"
        f" and {stuck[-1].name} has no room for its results. Stop the job with an unaligned"
        " savepoint, and start it from there with a larger network.window."
    )
    return Finding("wrong", "standstill", sentence, stuck[-1].name, since_ms)


def _slow_storage(facts: Facts) -> Finding | None:
    """A checkpoint waits for its directory for longer than for anything else."""
    wait = facts.storage
    if wait is None or wait.waited_ms < _STORAGE_MS or wait.waited_ms < wait.took_ms / 2:
        return None
    busy = wait.every_ms is not None and wait.waited_ms >= wait.every_ms / 2
    sentence = (
        f"Storage is slow: chk-{wait.checkpoint} waited {seconds(int(wait.waited_ms * 1e6))} of"
        f" {seconds(int(wait.took_ms * 1e6))} for the checkpoint directory. Sinks commit only when"
        " checkpoints complete."
    )
    return Finding("wrong" if busy else "note", "slow_storage", sentence)


# --- who is slow ----------------------------------------------------------------------------------


def slowest(now: Observation) -> TaskObserved | None:
    """Return the task that no other holds back and whose hottest subtask is busiest; None: no
    subtask is busy. Of equals the one nearest to the sinks, which holds back the others.
    """
    found = [
        task
        for task in now.tasks
        if (hot := hottest(task)) is not None
        and hot.busy >= _BUSY
        and hot.busy > 2 * hot.backpressured
    ]
    held = [task for task in found if is_held_back(task, now)]
    return max(held or found, key=lambda task: (round(_heat(task), 1), task.index), default=None)


def hottest(task: TaskObserved) -> SubtaskObserved | None:
    """Return the busiest subtask."""
    return max(task.subtasks, key=lambda subtask: subtask.busy, default=None)


def _heat(task: TaskObserved) -> float:
    hot = hottest(task)
    return 0.0 if hot is None else hot.busy


def is_held_back(task: TaskObserved, now: Observation) -> bool:
    """Whether a task before this one waits for room."""
    before = [now.tasks[edge.producer] for edge in now.edges if edge.consumer == task.index]
    waits = [subtask.backpressured for each in before for subtask in each.subtasks]
    return max(waits, default=0.0) >= _HELD_BACK


def _crowds_out(task: TaskObserved, facts: Facts) -> bool:
    """Whether the source of the task's own chain has no time left to read."""
    name = _operator(task, facts)
    share = facts.operators.get(task.index, {}).get(name, 0.0)
    return task.kind == "source" and name not in facts.sources and share >= _CROWDED


def is_skewed(task: TaskObserved) -> bool:
    """Whether one subtask works while the others have time left."""
    hot = hottest(task)
    if hot is None or len(task.subtasks) < 2:
        return False
    others = [s for s in task.subtasks if s.subtask != hot.subtask]
    rest = sum(s.busy for s in others) / len(others)
    return hot.busy - rest >= _HOTTER


def keeping_up(task: TaskObserved, now: Observation) -> int | None:
    """Return how many subtasks would keep up with the sources; None: nobody knows.

    The rate that the sources would have if they never waited, over the rate of a subtask that is
    busy all of its time.

    Source: Kalavri et al. 2018, "Three steps is all you need" (DS2), true rates.
    """
    sources = [each for each in now.tasks if each.index in _sources_of(task, now)]
    waits = max((source.backpressured for source in sources), default=0.0)
    spent = sum(subtask.busy for subtask in task.subtasks)
    if waits >= _UNKNOWN or not spent or not task.in_per_s:
        return None
    wanted_per_s = task.in_per_s / (1.0 - waits)
    needed = math.ceil(wanted_per_s / (task.in_per_s / spent))
    return max(needed, task.parallelism + 1)


def _sources_of(task: TaskObserved, now: Observation) -> set[int]:
    """Indexes of the source tasks whose records reach the task."""
    reached, ahead = {task.index}, [task.index]
    while ahead:
        place = ahead.pop()
        for edge in now.edges:
            if edge.consumer == place and edge.producer not in reached:
                reached.add(edge.producer)
                ahead.append(edge.producer)
    return {index for index in reached if now.tasks[index].kind == "source"}


def _starves(producer: TaskObserved, consumer: TaskObserved) -> bool:
    waits = max((s.backpressured for s in producer.subtasks), default=0.0) >= _WAITING
    idle = min((s.idle for s in consumer.subtasks), default=0.0) >= _WAITING
    return waits and idle and consumer.in_per_s > 0


def _window(edge: EdgeObserved, facts: Facts) -> int:
    return edge.window_bytes if facts.window_max_bytes is None else facts.window_max_bytes


def _moved(observation: Observation) -> list[tuple[int, int]]:
    return [(s.rows_in, s.rows_out) for task in observation.tasks for s in task.subtasks]


# --- since when, and where it goes ----------------------------------------------------------------


def since(cause: Cause, task: str | None, now: Observation, before: Sequence[Observation]) -> int:
    """Return when the finding was first made, gaps of a moment included."""
    for earlier in reversed(before):
        if now.at_ms - earlier.at_ms > _GAP_MS:
            break
        finding = earlier.finding
        if (finding.cause, finding.task) == (cause, task) and finding.since_ms is not None:
            return finding.since_ms
    return now.at_ms


def _since(finding: Finding, now: Observation, before: Sequence[Observation]) -> Finding:
    if finding.since_ms is not None or finding.cause == "none":
        return finding
    began_ms = since(finding.cause, finding.task, now, before)
    return replace(finding, since_ms=began_ms)


def waiting_before(task: int, observation: Observation) -> int:
    """Return the bytes that wait on the way to a task."""
    return sum(edge.queued_bytes for edge in observation.edges if edge.consumer == task)


def _trend(
    task: TaskObserved, now: Observation, before: Sequence[Observation]
) -> tuple[Trend | None, float]:
    """Return where the bytes that wait are going, and by how many a second."""
    recent = [
        (earlier.at_ms, waiting_before(task.index, earlier))
        for earlier in before
        if earlier.attempt == now.attempt and now.at_ms - earlier.at_ms <= _TREND_MS
    ]
    if not recent or now.at_ms - recent[0][0] < _TREND_LEAST_MS:
        return None, 0.0
    last = (now.at_ms, waiting_before(task.index, now))
    # Both halves must agree: a queue that has just filled up is no trend.
    half = recent[len(recent) // 2]
    slopes = [_slope(recent[0], half), _slope(half, last)]
    least = max(_TREND_BYTES, last[1] / 50)
    if min(slopes) >= least:
        return "worse", _slope(recent[0], last)
    if max(slopes) <= -least:
        return "recovering", _slope(recent[0], last)
    return "steady", 0.0


def _slope(then: tuple[int, int], now: tuple[int, int]) -> float:
    """Bytes a second between two (milliseconds, bytes)."""
    return (now[1] - then[1]) / max(1e-3, (now[0] - then[0]) / 1e3)


# --- words ----------------------------------------------------------------------------------------


def _head(
    task: TaskObserved,
    now: Observation,
    facts: Facts,
    cause: Cause,
    since_ms: int,
    *,
    holds: bool,
) -> str:
    """`score (2 subtasks, 96 % busy; #1 100 %, #0 92 %) holds back orders for 3 min.`"""
    name = _operator(task, facts)
    shares = sorted(task.subtasks, key=lambda s: (-s.busy, s.subtask))
    parts = f"{_subtasks(task)}, {_percent(task.busy)} busy"
    if len(shares) > 1:
        ends = (shares[0], shares[-1])
        parts += "; " + ", ".join(f"#{s.subtask} {_percent(s.busy)}" for s in ends)
    sources = sorted(_sources_of(task, now))
    held = " and ".join(now.tasks[index].operators[0] for index in sources[:2])
    lasted_ms = now.at_ms - since_ms
    lasted = f" for {_duration(lasted_ms)}" if lasted_ms >= _TREND_LEAST_MS else ""
    if holds:
        return f"{name} ({parts}) holds back {held if len(sources) < 3 else 'its sources'}{lasted}."
    if cause == "slow_source":
        return f"{name} ({parts}) gives records as fast as it can; nothing behind it waits."
    return f"{name} ({parts}) is the busiest operator{lasted}, and keeps up."


def _waiting(task: TaskObserved, now: Observation) -> str:
    waiting = waiting_before(task.index, now)
    return f"{size(waiting)} wait." if waiting else ""


def _getting(trend: Trend | None, bytes_per_s: float) -> str:
    amount = f"{size(int(abs(bytes_per_s)))}/s"
    match trend:
        case "worse":
            return f"Getting worse: +{amount}."
        case "recovering":
            return f"Recovering: -{amount}."
        case _:
            return ""


def _remedy(task: TaskObserved, cause: Cause, parallelism: int | None) -> str:
    if cause == "skew":
        hot = hottest(task)
        assert hot is not None, "a skewed task has a hot subtask"
        share = hot.in_per_s / task.in_per_s if task.in_per_s else 0.0
        gets = f"#{hot.subtask} gets {_percent(share)} of the records: " if share else ""
        return f"{gets}a few keys have most of them, and more subtasks would not help."
    if parallelism is None:
        return ""
    return f"{parallelism} subtasks would keep up."


def _with_checkpoints(finding: Finding, now: Observation, facts: Facts) -> Finding:
    """Add what sinks that do not commit, and late and failed checkpoints, have to say."""
    ended = [c for c in now.checkpoints if c.outcome != "running"]
    words = _uncommitted(now)
    severity = "wrong" if words else finding.severity
    running = next((c for c in now.checkpoints if c.outcome == "running"), None)
    if facts.awaited and running is not None and now.at_ms - running.started_ms >= _LATE_MS:
        words.append(f"{facts.awaited}.")
    if ended and ended[-1].outcome == "failed":
        words.append(f"chk-{ended[-1].checkpoint} failed: {ended[-1].reason}.")
        twice = len(ended) > 1 and ended[-2].outcome == "failed"
        severity = "wrong" if twice or severity == "wrong" else "note"
    if not words:
        return finding
    kept = [] if finding.severity == "ok" else [finding.sentence]
    return replace(finding, severity=severity, sentence=" ".join([*kept, *words]))


def _uncommitted(now: Observation) -> list[str]:
    """Name the sinks that have not committed a checkpoint that was complete long ago."""
    complete = [
        c.checkpoint
        for c in now.checkpoints
        if c.outcome == "completed"
        and now.at_ms - c.started_ms - (c.duration_ms or 0.0) >= _LATE_MS
    ]
    if not complete:
        return []
    return [
        f"{sink.name} has not committed chk-{complete[-1]}: {sink.open_transactions} transactions"
        " wait for the system behind it."
        for sink in now.sinks
        if sink.open_transactions and (sink.last_commit_checkpoint or 0) < complete[-1]
    ]


def _operator(task: TaskObserved, facts: Facts) -> str:
    """The operator of the chain with most of the time; without times the most likely one."""
    shares: Mapping[str, float] = facts.operators.get(task.index, {})
    if shares:
        return max(shares, key=lambda name: shares[name])
    middle = [name for name in task.operators if name not in facts.sources | facts.sinks]
    return middle[0] if middle else task.operators[-1]


def _subtasks(task: TaskObserved) -> str:
    return "1 subtask" if task.parallelism == 1 else f"{task.parallelism} subtasks"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _duration(ms: int) -> str:
    for unit, length_ms in (("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * length_ms:
            return f"{ms // length_ms} {unit}"
    return f"{ms // 1000} s"
