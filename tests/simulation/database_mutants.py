"""Bugs in how databases are stored, shared, let go and restored, each of which the simulator must
find.

As in `mutants.py`, a mutant is a function that patches the engine.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from headrace.engine.contract.operators import DatabaseSnapshot
from headrace.engine.coordinator.full_checkpoints import FullCheckpoints
from headrace.engine.coordinator.retention import Retention
from headrace.engine.drivers.persistence import Persistence
from headrace.engine.simulation.campaign import worker_process
from headrace.engine.simulation.campaign.checkpoint_files import CaughtFiles
from headrace.engine.simulation.campaign.log_structured import LogDatabase
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.state.rocks.database import RocksDatabase
from headrace.engine.storage.databases import SharedFiles, StoredFiles
from headrace.engine.worker.worker_events import PersistCheckpoint
from headrace.recovery.handles import SharedFile
from headrace.recovery.registry import Deletable, SharedStateRegistry

from .mutants import Mutant

MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    """Enter a mutant under its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def registry_counts_only_the_newest_checkpoint(patch: pytest.MonkeyPatch) -> None:
    complete = SharedStateRegistry.complete

    def forgetful(self: SharedStateRegistry, checkpoint: int, files: frozenset[str]) -> None:
        complete(self, checkpoint, files)
        for older in self._complete:
            if older != checkpoint:
                self._complete[older] = frozenset()

    patch.setattr(SharedStateRegistry, "complete", forgetful)


@mutant
def no_checkpoint_is_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FullCheckpoints, "is_due", property(lambda self: False))


@mutant
def workers_overhear_that_a_checkpoint_is_full(patch: pytest.MonkeyPatch) -> None:
    whole = Persistence.persist

    def persist(self: Persistence, order: PersistCheckpoint) -> None:
        whole(self, replace(order, full=False))

    patch.setattr(Persistence, "persist", persist)


class _Reusing(CaughtFiles):
    """Takes what the attempt before stored under the same names for the same files."""

    def __init__(self, job: str, coverage: Coverage, older: StoredFiles) -> None:
        super().__init__(job, coverage)
        self._older = older

    def base(self, snapshot: DatabaseSnapshot) -> SharedFiles:
        before = [files.get(snapshot.database, {}) for files in self._older._stored.values()]
        own = super().base(snapshot)
        return {name: file for files in (*before, own) for name, file in files.items()}

    def unconfirmed(self, database: str, name: str) -> SharedFile | None:
        own = super().unconfirmed(database, name)
        return own or self._older.unconfirmed(database, name)


@mutant
def files_of_the_attempt_before_are_known_by_their_names(patch: pytest.MonkeyPatch) -> None:
    """SPARK-43404."""
    kept: dict[int, CaughtFiles] = {}

    def of(job: str, coverage: Coverage) -> CaughtFiles:
        # The coverage of a run is an object of its own.
        older = kept.get(id(coverage), StoredFiles())
        fresh = kept[id(coverage)] = _Reusing(job, coverage, older)
        return fresh

    patch.setattr(worker_process, "CaughtFiles", of)


@mutant
def a_checkpoint_that_is_given_up_takes_shared_files_along(patch: pytest.MonkeyPatch) -> None:
    given_up, sweep = Retention.given_up, Retention._deletable
    doomed: dict[int, set[str]] = {}

    def give_up(self: Retention, checkpoint: int) -> None:
        given_up(self, checkpoint)
        for newest in self._retained[-1:]:
            named = self._registry._complete[newest]
            shared = {path for path in named if path.startswith("shared/")}
            doomed.setdefault(id(self), set()).update(shared)

    def sweeping(self: Retention) -> Deletable:
        found = sweep(self)
        return replace(found, files=(*found.files, *sorted(doomed.pop(id(self), ()))))

    patch.setattr(Retention, "given_up", give_up)
    patch.setattr(Retention, "_deletable", sweeping)


@mutant
def a_merged_file_takes_the_name_of_one_that_it_replaces(patch: pytest.MonkeyPatch) -> None:
    compact = LogDatabase.compact

    def renamed(self: LogDatabase, begin: int, end: int) -> None:
        name, before = self.names[begin], len(self.names)
        compact(self, begin, end)
        if len(self.names) == before - (end - begin) + 1:
            merged, self.names[begin] = self.names[begin], name
            self._tables[name] = self._tables.pop(merged)
            os.rename(os.path.join(self.folder, merged), os.path.join(self.folder, name))

    patch.setattr(LogDatabase, "compact", renamed)


@mutant
def files_of_a_snapshot_hold_what_was_written_after_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksDatabase, "_limit", lambda self: self._committed)


@mutant
def one_of_several_databases_is_restored(patch: pytest.MonkeyPatch) -> None:
    whole = RocksDatabase.restore

    def restore(self: RocksDatabase, databases: Any) -> None:
        whole(self, databases[:1])

    patch.setattr(RocksDatabase, "restore", restore)
