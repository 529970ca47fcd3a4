"""The tile check: does a checkpoint account for every record of every channel?

A cut leaves channel `c` with its receiver at position r and its sender at s. The records between,
`[r, s)`, must have been persisted: exactly once, without gap and without overlap. Then receiver,
persisted runs and sender tile the channel, and a restore can lose or double nothing. A checkpoint
that does not tile is not completed.

The check is cheap, one pass over numbers that the subtasks report anyway, and would have caught
most known bugs of unaligned checkpoints (FLINK-18139, FLINK-20645, FLINK-21104).

At-least-once checkpoints are exempt, since their receivers may be ahead of the senders. A channel
that neither end reports escapes the check; the coordinator compares with the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headrace.channels.buffer import ChannelId

from .metadata import ChannelPosition, SubtaskSnapshot

#: A persisted run of in-flight records of one channel: (edge, producer, consumer), first position,
#: position after the last.
Run = tuple[tuple[int, int, int], int, int]


def check_tiles(
    subtasks: Sequence[SubtaskSnapshot],
    ranges: Iterable[Run] = (),
    ends: Collection[tuple[int, int, int]] = (),
) -> list[str]:
    """Return the faults as sentences, sorted by channel; an empty list means that the cut is whole.

    Args:
        subtasks: all subtasks of the checkpoint.
        ranges: runs of records that were persisted as in flight, in any order.
        ends: channels whose end of input was in flight: sent, and not yet received.
    """
    receivers: dict[ChannelId, list[ChannelPosition]] = {}
    senders: dict[ChannelId, list[ChannelPosition]] = {}
    runs: dict[ChannelId, list[tuple[int, int]]] = {}
    problems: list[str] = []
    for subtask in subtasks:
        problems += _misplaced(subtask)
        for position in subtask.received:
            receivers.setdefault(_channel(position), []).append(position)
        for position in subtask.sent:
            senders.setdefault(_channel(position), []).append(position)
    for channel, first, end in ranges:
        runs.setdefault(ChannelId(*channel), []).append((first, end))
    in_flight_ends = {ChannelId(*channel) for channel in ends}
    for channel in sorted(receivers.keys() | senders.keys() | runs.keys() | in_flight_ends):
        received, sent = receivers.get(channel, []), senders.get(channel, [])
        wrong = _wrong_count("receiver", received) + _wrong_count("sender", sent)
        if not wrong:
            wrong = _gaps(received[0].position, sent[0].position, runs.get(channel, []))
            wrong += _wrong_end(received[0], sent[0], channel in in_flight_ends)
        problems += [f"channel {channel}: {problem}" for problem in wrong]
    return problems


def _channel(position: ChannelPosition) -> ChannelId:
    return ChannelId(position.edge, position.producer, position.consumer)


def _misplaced(subtask: SubtaskSnapshot) -> list[str]:
    who = f"reported by subtask {subtask.index} of task {subtask.task}, which is not its"
    return [
        f"channel {_channel(position)}: {who} receiver"
        for position in subtask.received
        if position.consumer != subtask.index
    ] + [
        f"channel {_channel(position)}: {who} sender"
        for position in subtask.sent
        if position.producer != subtask.index
    ]


def _wrong_count(end: str, reports: list[ChannelPosition]) -> list[str]:
    if len(reports) == 1:
        return []
    return [f"{len(reports)} reports of its {end}, expected one"]


def _gaps(received: int, sent: int, runs: list[tuple[int, int]]) -> list[str]:
    """Say where the runs fail to tile `[received, sent)`."""
    if received > sent:
        return [f"the receiver is at {received}, but the sender has only sent up to {sent}"]
    problems: list[str] = []
    covered = received
    for first, end in sorted(runs):
        if first >= end:
            problems.append(f"the persisted run [{first}, {end}) is empty")
            continue
        gap_end = min(first, sent)
        if gap_end > covered:
            problems.append(f"records [{covered}, {gap_end}) are in flight but not persisted")
        elif first < covered:
            limit = min(end, covered)
            problems.append(f"records [{first}, {limit}) are persisted but already accounted for")
        covered = max(covered, end)
    if covered < sent:
        problems.append(f"records [{covered}, {sent}) are in flight but not persisted")
    elif covered > sent:
        problems.append(f"records [{sent}, {covered}) are persisted but were never sent")
    return problems


def _wrong_end(received: ChannelPosition, sent: ChannelPosition, is_in_flight: bool) -> list[str]:
    at = f"(receiver at {received.position}, sender at {sent.position})"
    if received.ended and not sent.ended:
        return [f"the receiver saw the end of input, but the sender has not ended {at}"]
    if received.ended and received.position < sent.position:
        return [f"the receiver saw the end of input before the last record {at}"]
    waiting = sent.ended and not received.ended
    if waiting and not is_in_flight:
        return [f"the sender has ended, but the receiver did not see the end of input {at}"]
    if is_in_flight and not waiting:
        return [f"the end of input is persisted as in flight, but is not {at}"]
    return []
