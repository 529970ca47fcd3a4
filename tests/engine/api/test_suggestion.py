"""Suggestions: the close word, or all of them."""

from __future__ import annotations

import pytest

from headrace.engine.api.suggestion import did_you_mean


@pytest.mark.parametrize(
    ("word", "choices", "clause"),
    [
        ("amout", ["id", "amount"], "did you mean 'amount'?"),
        ("zzz", ["id", "amount", "n"], "choose from 'id', 'amount' and 'n'"),
        ("zzz", ["id"], "choose from 'id'"),
        ("zzz", [], "there is none to choose from"),
    ],
)
def test_a_suggestion_names_the_close_word_or_all(
    word: str, choices: list[str], clause: str
) -> None:
    assert did_you_mean(word, choices) == clause
