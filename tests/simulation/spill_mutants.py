"""Bugs in the spilling of blocked channels; the simulator must find each.

As in `mutants.py`, a mutant is a function that patches the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.channels.gate import InputChannel
from headrace.channels.spilled import RunFile, Spilled
from headrace.engine.storage import snapshots, spill_files
from headrace.inflight.spill import DeleteRun, Spill, WriteRun

from .mutants import Mutant

MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    """Enter a mutant under its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def a_spilled_run_is_missing_in_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    whole = InputChannel.captured

    def captured(self: InputChannel, end: int) -> Any:
        return tuple(item for item in whole(self, end) if not isinstance(item, Spilled))

    patch.setattr(InputChannel, "captured", captured)


@mutant
def a_checkpoint_holds_another_run(patch: pytest.MonkeyPatch) -> None:
    """The first copied run stands for all of its channel."""
    write = snapshots._write_records

    def first(segment: Any, path: str, records: Sequence[Any], *others: Any) -> Any:
        files = [item.file for item in records if isinstance(item, Spilled)]
        same = [
            replace(item, file=files[0], start=0)
            if isinstance(item, Spilled) and item.start + item.rows <= files[0].rows
            else item
            for item in records
        ]
        return write(segment, path, same, *others)

    patch.setattr(snapshots, "_write_records", first)


@mutant
def a_spilled_run_is_out_of_order(patch: pytest.MonkeyPatch) -> None:
    whole = spill_files.encoded

    def encoded(order: WriteRun) -> Any:
        return whole(replace(order, buffers=order.buffers[::-1]))

    patch.setattr(spill_files, "encoded", encoded)


@mutant
def the_tail_goes_before_the_run(patch: pytest.MonkeyPatch) -> None:
    """Records that came later are handed out while the run is being read."""
    spill = InputChannel.spill

    def passing(self: InputChannel, file: RunFile, first: int, end: int) -> None:
        spill(self, file, first, end)
        if len(self.queue) > 1:
            self.queue.rotate(1)

    patch.setattr(InputChannel, "spill", passing)


@mutant
def a_spilled_run_is_deleted_before_the_checkpoint_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Spill, "hold", lambda *arguments: None)


@mutant
def a_spilled_run_is_deleted_before_it_is_read(patch: pytest.MonkeyPatch) -> None:
    def deletions(self: Spill) -> list[DeleteRun]:
        return [DeleteRun(run.file) for run in self._runs.values()]

    patch.setattr(Spill, "_deletions", deletions)


@mutant
def credit_is_granted_while_memory_is_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Spill, "memory_bytes", property(lambda self: 0))


@mutant
def a_failed_write_loses_its_records(patch: pytest.MonkeyPatch) -> None:
    whole = Spill.unwritten

    def unwritten(self: Spill, number: int, reason: str, now_ns: int) -> None:
        order = self._writing
        assert order is not None, "nothing was ordered"
        whole(self, number, reason, now_ns)
        channel = self.gate.channels[order.channel]
        kept = [item for item in channel.queue if item not in order.buffers]
        lost_bytes = sum(item.size_bytes for item in channel.queue if item in order.buffers)
        channel.queue.clear()
        channel.queue.extend(kept)
        channel.queued_bytes -= lost_bytes

    patch.setattr(Spill, "unwritten", unwritten)
