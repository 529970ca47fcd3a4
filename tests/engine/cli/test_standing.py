from __future__ import annotations

from headrace.engine.cli.standing import summary

from .looks import BUSY, COMPLETE, observed


def test_the_line_ends_with_the_sentence_that_every_other_look_shows() -> None:
    observation = observed(BUSY, notices=(COMPLETE,))
    assert summary(observation).endswith(f"chk-7: 38 ms, 0 B. {observation.finding.sentence}")
