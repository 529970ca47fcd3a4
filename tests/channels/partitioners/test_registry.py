"""Partitioners by wire name."""

from __future__ import annotations

import pkgutil

import pytest

import headrace.channels.partitioners as package
from headrace.channels.partitioners.registry import (
    UnknownPartitioner,
    partitioner_named,
    wire_names,
)


def test_wire_names_are_stable() -> None:
    """They stand in checkpoint metadata; a new kind adds its own."""
    assert wire_names() == [
        "broadcast",
        "custom",
        "forward",
        "hash",
        "range",
        "rebalance",
        "shuffle",
    ]


def test_every_module_of_the_folder_is_one_kind_or_serves_all() -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    kinds = {partitioner_named(name).__module__.rpartition(".")[2] for name in wire_names()}
    assert len(kinds) == len(wire_names())
    assert modules - kinds == {"partitioner", "registry", "slices"}


def test_a_name_of_another_version_is_no_partitioner() -> None:
    with pytest.raises(UnknownPartitioner, match="teleport"):
        partitioner_named("teleport")
