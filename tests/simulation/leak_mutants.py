"""Bugs that leave something behind, or take too much along; like those of `mutants.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.channels.credit import Budget, Credit
from headrace.channels.gate import Gate
from headrace.engine.coordinator.retention import Retention
from headrace.recovery.registry import Deletable, SharedStateRegistry

from .mutants import Mutant

MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    """Enter a mutant under its name."""
    MUTANTS[function.__name__] = function
    return function


# --- files ----------------------------------------------------------------------------------------


@mutant
def files_go_although_metadata_stays(patch: pytest.MonkeyPatch) -> None:
    whole = Retention.withdrawn

    def withdrawn(self: Retention, event: Any) -> Any:
        return whole(self, replace(event, gone=event.asked))

    patch.setattr(Retention, "withdrawn", withdrawn)


@mutant
def a_refused_deletion_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    whole = Retention.deleted

    def deleted(self: Retention, event: Any) -> None:
        whole(self, replace(event, left=Deletable()))

    patch.setattr(Retention, "deleted", deleted)


@mutant
def metadata_that_storage_kept_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    whole = SharedStateRegistry.withdrawn

    def withdrawn(self: SharedStateRegistry, asked: Any, gone: Any) -> None:
        whole(self, asked, gone)
        for number in set(asked) - set(gone):
            self.forget(number)

    patch.setattr(SharedStateRegistry, "withdrawn", withdrawn)


@mutant
def what_comes_late_is_not_looked_for_again(patch: pytest.MonkeyPatch) -> None:
    whole = SharedStateRegistry.withdrawn

    def withdrawn(self: SharedStateRegistry, asked: Any, gone: Any) -> None:
        whole(self, asked, gone)
        self._late = {}

    patch.setattr(SharedStateRegistry, "withdrawn", withdrawn)


@mutant
def the_job_ends_without_a_last_sweep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retention, "end", lambda self: [])


@mutant
def what_is_kept_for_others_is_kept_for_ever(patch: pytest.MonkeyPatch) -> None:
    whole = SharedStateRegistry.deletable

    def deletable(self: SharedStateRegistry) -> Deletable:
        what = whole(self)
        return Deletable(what.checkpoints, what.keep, (), what.savepoints)

    patch.setattr(SharedStateRegistry, "deletable", deletable)


# --- credit ---------------------------------------------------------------------------------------


@mutant
def what_is_left_to_replay_costs_no_credit(patch: pytest.MonkeyPatch) -> None:
    whole = Gate.open

    def open_all(self: Gate, *, held: bool = False) -> Any:
        return whole(self, held=True)

    patch.setattr(Gate, "open", open_all)


@mutant
def windows_do_not_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Budget, "free_bytes", 1 << 62)


@mutant
def credit_for_a_dropped_buffer_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    whole = Credit.consumed

    def consumed(self: Credit, size_bytes: int) -> int | None:
        limit = whole(self, size_bytes)
        if limit is None and self.consumed_bytes // size_bytes % 8 == 7:
            self.consumed_bytes -= size_bytes
        return limit

    patch.setattr(Credit, "consumed", consumed)
