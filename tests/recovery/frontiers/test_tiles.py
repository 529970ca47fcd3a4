"""The engine's tile check is the constraints of a rollback, for the choice "everybody at n".

Each persisted run is a processor of its own, a queue: at n it has taken in the records up to the
run's end, and handed out those up to its first. So a channel is a chain of processors,

    sender -> last run -> ... -> first run -> receiver,

and of each neighbouring pair DELIVERED says "no more was taken in than was handed out", DISCARDED
"no less".
"""

from __future__ import annotations

import random
from itertools import pairwise

from headrace.recovery.frontiers.fixed_point import Dataflow, Edge, choose
from headrace.recovery.frontiers.frontier import Frontier
from headrace.recovery.frontiers.processors import BEGINNING, Checkpoint, Checkpointed, Processor
from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot
from headrace.recovery.tiles import Run, check_tiles

Channel = tuple[int, int, int]
#: {channel: (position of the receiver, of the sender, runs)}
Cut = dict[Channel, tuple[int, int, list[tuple[int, int]]]]


def random_cut(rng: random.Random) -> Cut:
    cut: Cut = {}
    for producer in range(rng.randint(1, 2)):
        for consumer in range(rng.randint(1, 2)):
            cut[0, producer, consumer] = random_channel(rng)
    return cut


def random_channel(rng: random.Random) -> tuple[int, int, list[tuple[int, int]]]:
    """Mostly whole, so that whole cuts are met; else off by a record or two."""
    received = rng.randint(0, 4)
    bounds = [received]
    for _ in range(rng.randint(0, 3)):
        bounds.append(bounds[-1] + rng.randint(1, 3))
    runs = list(pairwise(bounds))
    sent = bounds[-1]
    if rng.random() < 0.25:
        received += rng.choice((-1, 1)) if received else 1
    if rng.random() < 0.25:
        sent = max(0, sent + rng.choice((-2, -1, 1, 2)))
    if runs and rng.random() < 0.25:
        first, end = runs.pop(rng.randrange(len(runs)))
        moved = (max(0, first + rng.choice((-1, 0, 1))), end + rng.choice((0, 1)))
        # The tile check refuses empty runs; an empty queue harms nobody.
        runs += [moved] * rng.randint(0, 2) * (moved[0] < moved[1])
    rng.shuffle(runs)
    return received, sent, runs


def by_tiles(cut: Cut) -> bool:
    subtasks = {
        (task, at): SubtaskSnapshot(task, at, False, [], [], []) for task in (0, 1) for at in (0, 1)
    }
    runs: list[Run] = []
    for channel, (received, sent, persisted) in cut.items():
        _, producer, consumer = channel
        subtasks[1, consumer].received.append(ChannelPosition(*channel, received, False))
        subtasks[0, producer].sent.append(ChannelPosition(*channel, sent, False))
        runs += [(channel, first, end) for first, end in persisted]
    return check_tiles(list(subtasks.values()), runs) == []


def by_constraints(cut: Cut) -> bool:
    """Tell whether everybody may be at n."""
    edges: list[Edge] = []
    read: dict[str, dict[str, int]] = {}
    sent_at: dict[str, dict[str, int]] = {}
    for channel, (received, sent, persisted) in cut.items():
        before = f"sender {channel[1]}"
        handed_out = sent
        ends = [*sorted(persisted, reverse=True), (received, received)]
        for at, (first, taken_in) in enumerate(ends):
            last = at == len(ends) - 1
            after = f"receiver {channel[2]}" if last else f"run {at} of {channel}"
            edge = f"{channel}/{at}"
            edges.append(Edge(edge, before, after))
            sent_at.setdefault(before, {})[edge] = handed_out
            read.setdefault(after, {})[edge] = taken_in
            before, handed_out = after, first
    processors: dict[str, Processor] = {
        name: Checkpointed([BEGINNING, at_n(read.get(name, {}), sent_at.get(name, {}))])
        for name in read.keys() | sent_at.keys()
    }
    choice = choose(Dataflow(edges), processors)
    return all(one.label == "n" for one in choice.checkpoints.values())


def at_n(read: dict[str, int], sent: dict[str, int]) -> Checkpoint:
    # A source's own times come from elsewhere.
    frontier = Frontier.sequences({**read, "own": 1})
    fixed = {edge: Frontier.sequences({edge: count}) for edge, count in sent.items()}
    return Checkpoint(frontier, "n", fixed=fixed)


def test_a_cut_tiles_exactly_when_everybody_may_be_at_n() -> None:
    rng = random.Random(3)
    whole = 0
    for _ in range(3000):
        cut = random_cut(rng)
        whole += by_tiles(cut)
        assert by_tiles(cut) == by_constraints(cut), cut
    assert 500 < whole < 2500
