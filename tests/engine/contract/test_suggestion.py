"""Suggestions: the close word, or all of them."""

from __future__ import annotations

import pytest

from headrace.engine.contract.suggestion import did_you_mean, name_of_class


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


def test_a_class_proposes_its_name_in_small_letters() -> None:
    class LateOrders2Go: ...

    assert name_of_class(LateOrders2Go) == "late-orders2-go"
    assert name_of_class(type("Rules", (), {})) == "rules"
