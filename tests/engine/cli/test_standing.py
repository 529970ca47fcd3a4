from __future__ import annotations

from headrace.engine.cli.standing import counted, last_checkpoint, summary

from .looks import BUSY, COMPLETE, observed


def test_counts_agree_with_their_noun() -> None:
    assert [counted(n, "restart") for n in (0, 1, 2)] == ["0 restarts", "1 restart", "2 restarts"]


def test_the_newest_checkpoint_is_told_or_that_there_is_none() -> None:
    assert last_checkpoint(observed()) == "no checkpoint yet"
    assert last_checkpoint(observed(notices=(COMPLETE,))) == "chk-7: 38 ms, 0 B"


def test_the_line_ends_with_the_sentence_that_every_other_look_shows() -> None:
    observation = observed(BUSY, notices=(COMPLETE,))
    assert summary(observation).endswith(f"chk-7: 38 ms, 0 B. {observation.finding.sentence}")
