"""A full disk is told once for each task, and again after it was well."""

from __future__ import annotations

from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.drivers.unspilled import Unspilled


def numbers(subtask: int, unspilled: str) -> SubtaskNumbers:
    return SubtaskNumbers(0, subtask, 0, 0, 0, 0, 0, 0, 0, unspilled=unspilled)


def test_each_trouble_is_told_once() -> None:
    subject = Unspilled()
    assert subject.notices([numbers(0, ""), numbers(1, "")]) == []
    assert subject.notices([numbers(0, ""), numbers(1, "disk full")]) == ["disk full"]
    assert subject.notices([numbers(0, "disk full"), numbers(1, "disk full")]) == []
    assert subject.notices([numbers(0, ""), numbers(1, "")]) == []
    assert subject.notices([numbers(0, "disk full"), numbers(1, "")]) == ["disk full"]
