"""A checkpoint in terms of a program with other operator names.

Operator names, and edge keys made of operator names, find state and in-flight records. So the
metadata is read as if a renamed operator had always borne the new name, and the files stay as they
are. Transactions go to the sink under its new name; their run, by which the outside system knows
what is committed, stays.

Source: Flink's operator uids. Deviation: there a uid cannot be changed once state bears it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from .metadata import CheckpointMetadata, SubtaskSnapshot


class NoSuchName(Exception):
    """A renaming that does not fit the checkpoint; the message says why."""


def renamed(metadata: CheckpointMetadata, names: Mapping[str, str]) -> CheckpointMetadata:
    """Return the checkpoint with other operator names.

    Args:
        names: {old: new}. A pair is passed over if only the new name is in the checkpoint: an
            earlier run renamed the operator.

    Raises: NoSuchName: the checkpoint has neither name, or both.
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
        transactions=[replace(t, sink=names.get(t.sink, t.sink)) for t in metadata.transactions],
    )


def _key(key: str, names: Mapping[str, str]) -> str:
    """Rename an edge's key, `producer->consumer/port`; ` (output)` may follow the producer."""
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
