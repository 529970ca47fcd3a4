"""Processors: what they offer, and what they refuse."""

from __future__ import annotations

import pytest

from headrace.recovery.frontiers.frontier import EVERYTHING, NOTHING, Frontier
from headrace.recovery.frontiers.processors import (
    BEGINNING,
    Checkpoint,
    Checkpointed,
    Constraint,
    Reason,
    Stateless,
    trimmed,
)
from headrace.recovery.frontiers.transformers import Enter, Same

TWO, THREE = Frontier.before(2), Frontier.before(3)


def reason(rejected: Checkpoint, constraint: Constraint, limit: Frontier) -> Reason:
    return Reason("p", rejected, constraint, "e", "q", rejected.frontier, limit)


def test_checkpoints_are_in_order() -> None:
    with pytest.raises(ValueError, match="BEGINNING is always one"):
        Checkpointed([])
    with pytest.raises(ValueError, match=r"\[times before 3\] is not within \[times before 2\]"):
        Checkpointed([Checkpoint(THREE), Checkpoint(TWO)])
    apart = [Checkpoint(Frontier.sequences({edge: 1})) for edge in ("a", "b")]
    with pytest.raises(ValueError, match="is not within"):
        Checkpointed(apart)


def test_what_is_fixed_grows_with_the_frontier() -> None:
    falling = [Checkpoint(TWO, 1, fixed={"e": THREE}), Checkpoint(THREE, 2, fixed={"e": TWO})]
    with pytest.raises(ValueError, match="less is fixed on e at 2 than before, at 1"):
        Checkpointed(falling)


def test_a_checkpoint_states_or_implies_the_rest() -> None:
    plain, running = Checkpoint(TWO), Checkpoint(EVERYTHING)
    assert plain.delivered_on("d") == TWO
    processor = Checkpointed([plain, running])
    assert [processor.fixed("e", one) for one in (plain, running)] == [NOTHING, EVERYTHING]
    assert processor.discarded("e", running) == EVERYTHING
    entering = Checkpointed([plain], {"e": Enter()})
    assert entering.fixed("e", plain) == TWO
    assert entering.discarded("e", plain) == Frontier.before(1, 1)
    stated = Checkpoint(TWO, fixed={"e": THREE}, discarded={"e": NOTHING})
    assert Checkpointed([stated]).fixed("e", stated) == THREE
    assert Checkpointed([stated]).discarded("e", stated) == NOTHING


def test_a_projection_of_any_frontier_is_that_of_the_highest_checkpoint_within() -> None:
    low, high = Checkpoint(TWO, fixed={"e": TWO}), Checkpoint(THREE, fixed={"e": THREE})
    processor = Checkpointed([BEGINNING, low, high])
    found = [processor.fixed_at("e", Frontier.before(epoch)) for epoch in (1, 2, 3, 4)]
    assert found == [NOTHING, TWO, THREE, THREE]
    assert Checkpointed([low], {"e": Same()}).fixed_at("e", Frontier.before(1)) != TWO


def test_a_checkpointed_processor_goes_down_step_by_step() -> None:
    low, high = Checkpoint(TWO), Checkpoint(THREE)
    processor = Checkpointed([low, high])
    assert processor.lower(reason(high, Constraint.DELIVERED, NOTHING)) is low
    assert processor.lower(reason(low, Constraint.DELIVERED, NOTHING)) is None
    with pytest.raises(ValueError, match="is no checkpoint of p"):
        processor.lower(reason(BEGINNING, Constraint.DELIVERED, NOTHING))


def test_a_stateless_processor_goes_just_far_enough() -> None:
    processor = Stateless({"e": Enter()}, complete=THREE, notified=True)
    top = processor.highest()
    assert (top.frontier, top.notified) == (THREE, THREE)
    delivered = processor.lower(reason(top, Constraint.DELIVERED, TWO))
    discarded = processor.lower(reason(top, Constraint.DISCARDED, Frontier.before(1, 5)))
    assert delivered is not None
    assert discarded is not None
    assert (delivered.frontier, discarded.frontier) == (TWO, TWO)
    assert processor.discarded("e", top) == Frontier.before(2, 1)
    assert Stateless({"e": Same()}, logged=frozenset("e")).discarded("e", top) == NOTHING


def test_a_trimmed_log_is_discarded() -> None:
    once = trimmed(BEGINNING, "e", TWO)
    assert once.discarded == {"e": TWO}
    assert trimmed(once, "e", Frontier.before(1)).discarded == {"e": TWO}


def test_reasons_are_sentences() -> None:
    at = Checkpoint(THREE, "checkpoint 8")
    assert str(reason(at, Constraint.NOTIFIED, TWO)) == (
        "p was notified of times before 3 at checkpoint 8, but q goes back to where times before 2"
        " was over"
    )
    assert str(Checkpoint(TWO)) == "[times before 2]"
