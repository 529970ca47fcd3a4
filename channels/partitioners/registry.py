"""All partitioners by wire name: every module of this folder is imported and registers its kind."""

from __future__ import annotations

import importlib
import pkgutil

from . import __path__
from .partitioner import KINDS, Partitioner

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_module.name}", __package__)


class UnknownPartitioner(Exception):
    """Checkpoint metadata names a partitioner that this version does not have."""


def partitioner_named(name: str) -> type[Partitioner]:
    """Return the class of a wire name. Raises: UnknownPartitioner."""
    try:
        return KINDS[name]
    except KeyError:
        raise UnknownPartitioner(name) from None


def wire_names() -> list[str]:
    """All wire names, sorted."""
    return sorted(KINDS)
