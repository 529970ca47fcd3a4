"""Bugs in loops; the simulator must find each. As in `mutants.py`, a mutant patches the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.channels.alignment import Alignment, AlignmentOutcome
from headrace.channels.buffer import ChannelId
from headrace.channels.events import Barrier, CheckpointMode
from headrace.channels.gate import Gate, InputChannel
from headrace.engine.worker.cuts import Capture, Cuts

from .mutants import Mutant

MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    """Enter a mutant under its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def back_edges_are_not_captured(patch: pytest.MonkeyPatch) -> None:
    whole = Cuts._capture_inputs

    def entries_alone(
        self: Cuts, capture: Capture, channels: Mapping[ChannelId, InputChannel]
    ) -> None:
        if channels is not self._feedback:
            whole(self, capture, channels)

    patch.setattr(Cuts, "_capture_inputs", entries_alone)


@mutant
def capture_of_back_edges_ends_at_the_cut(patch: pytest.MonkeyPatch) -> None:
    whole = Capture.barrier_is_missing

    def at_once(self: Capture, channel: InputChannel) -> None:
        whole(self, channel)
        if channel.feedback and self.barrier.mode is CheckpointMode.ALIGNED:
            self.pending.discard(channel.channel)

    def late(self: Capture, channel: InputChannel, now_ns: int) -> None:
        self.pending.discard(channel.channel)

    patch.setattr(Capture, "barrier_is_missing", at_once)
    patch.setattr(Capture, "barrier_arrived", late)


@mutant
def alignment_waits_for_back_edges(patch: pytest.MonkeyPatch) -> None:
    whole = Alignment.__init__

    def waiting(self: Alignment, channels: Any, feedback: Any = ()) -> None:
        whole(self, channels)

    patch.setattr(Alignment, "__init__", waiting)


@mutant
def early_back_edges_are_not_blocked(patch: pytest.MonkeyPatch) -> None:
    whole = Alignment.barrier

    def unblocked(
        self: Alignment, channel: ChannelId, barrier: Barrier, now_ns: int
    ) -> AlignmentOutcome:
        outcome = whole(self, channel, barrier, now_ns)
        return outcome if channel in self._awaited else replace(outcome, block=None)

    patch.setattr(Alignment, "barrier", unblocked)


@mutant
def aligned_cuts_forget_what_back_edges_have_left_to_replay(patch: pytest.MonkeyPatch) -> None:
    whole = Cuts.take

    def forgetting(self: Cuts, capture: Capture, **given: Any) -> None:
        if capture.barrier.mode is not CheckpointMode.UNALIGNED:
            given["replay"] = ()
        whole(self, capture, **given)

    patch.setattr(Cuts, "take", forgetting)


@mutant
def entries_are_always_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "admits", True)


@mutant
def back_edges_give_credit_for_committed_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputChannel, "accepted", lambda self: None)
