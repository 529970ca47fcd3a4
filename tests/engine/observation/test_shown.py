from __future__ import annotations

from xml.etree import ElementTree

import msgspec

from headrace.engine.observation.shown import as_html, as_text, last_checkpoint, standing
from tests.engine.cli.looks import BUSY, COMPLETE, observed


def test_the_newest_checkpoint_is_told_or_that_there_is_none() -> None:
    assert last_checkpoint(observed()) == "no checkpoint yet"
    assert last_checkpoint(observed(notices=(COMPLETE,))) == "chk-7: 38 ms, 0 B"


def test_restarts_are_told_when_there_are_any() -> None:
    assert standing(observed()) == "running, attempt 1; no checkpoint yet"
    assert standing(observed(restarts=2)).endswith("; 2 restarts")


def test_the_text_has_the_sentence_and_a_row_for_each_task() -> None:
    observation = observed(BUSY, notices=(COMPLETE,))
    first, sentence, *rows = as_text(observation).splitlines()
    assert first == "job 'looked-at': running, attempt 1; chk-7: 38 ms, 0 B"
    assert sentence == observation.finding.sentence
    assert [row.split("  ")[0] for row in rows] == ["task", "numbers", "totals -> out"]
    assert rows[2].endswith("3.0")
    assert len({len(row) for row in rows}) == 1


def test_html_says_the_same_and_escapes_the_jobs_texts() -> None:
    observation = observed(BUSY)
    sentence = "<b>score</b> & s3://key:secret@host/x"
    finding = msgspec.structs.replace(observation.finding, sentence=sentence)
    element = ElementTree.fromstring(as_html(msgspec.structs.replace(observation, finding=finding)))
    text = "".join(element.itertext())
    assert "<b>score</b> & s3://" in text
    assert "secret" not in text
    rows = [[cell.text for cell in row] for row in element.iter("tr")]
    assert [row[0] for row in rows] == ["task", "numbers", "totals -> out"]
    assert rows[2][-1] == "3.0"
