"""A checkpoint in the words of a program whose operators have other names now.

State and in-flight records are found again by operator names and by edge keys, which are made of them. So a renamed operator is found when the
checkpoint is read as if it had always borne its new name. The files stay as they are. A sink that has transactions keeps its name: the outside
system knows them by it.

Source: Flink's operator uids. Deviation: there a uid cannot be changed once state bears it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from .metadata import CheckpointMetadata, SubtaskSnapshot


class NoSuchName(Exception):
    """A renaming that does not fit the checkpoint; the message says why."""


def renamed(metadata: CheckpointMetadata, names: Mapping[str, str]) -> CheckpointMetadata:
    """The checkpoint with other operator names; transactions stay those of the sinks that began them.

    Args:
        names: {old: new}. An old name that the checkpoint does not have is passed over if it has the new one: it was written under that.

    Raises: NoSuchName: it has neither, or both.
    """
    there = {name for task in metadata.tasks for name in task.operators}
    for old, new in names.items():
        if old in there and new in there:
            raise NoSuchName(f"has both an operator {old!r} and an operator {new!r}")
        if old not in there and new not in there:
            known = ", ".join(sorted(there))
            raise NoSuchName(f"has no operator {old!r}; it has {known}")
    return replace(
        metadata,
        tasks=[
            replace(
                task,
                operators=[names.get(name, name) for name in task.operators],
                stateful=[names.get(name, name) for name in task.stateful],
            )
            for task in metadata.tasks
        ],
        edges=[replace(edge, key=_key(edge.key, names)) for edge in metadata.edges],
        subtasks=[_snapshot(snapshot, names) for snapshot in metadata.subtasks],
    )


def _key(key: str, names: Mapping[str, str]) -> str:
    """An edge's key, `producer->consumer/port`, where the producer may be followed by ` (output)`."""
    left, arrow, right = key.partition("->")
    producer, space, output = left.partition(" ")
    consumer, slash, port = right.rpartition("/")
    producer, consumer = names.get(producer, producer), names.get(consumer, consumer)
    return f"{producer}{space}{output}{arrow}{consumer}{slash}{port}"


def _snapshot(snapshot: SubtaskSnapshot, names: Mapping[str, str]) -> SubtaskSnapshot:
    return replace(
        snapshot,
        states=[replace(s, operator=names.get(s.operator, s.operator)) for s in snapshot.states],
        databases=[
            replace(d, operator=names.get(d.operator, d.operator)) for d in snapshot.databases
        ],
    )
