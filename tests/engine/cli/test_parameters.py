"""Every option of a run is an argument of `headrace run`."""

from __future__ import annotations

from typing import Any

import pytest
from cyclopts import App

from headrace.engine.cli.parameters import RunArguments, argument_names, settings_of, spelled_out
from headrace.engine.session.settings import keys, options_by_key, types_of_key

from .conftest import Command


def given(*words: str) -> dict[str, str]:
    """What a command understands of these words."""
    found: dict[str, str] = {}
    app = App(result_action="return_value")

    @app.default
    def run(*, options: RunArguments = None) -> None:
        found.update(settings_of(options) if options else {})

    app(spelled_out(words), exit_on_error=False, print_error=False)
    return found


def value_of(key: str) -> tuple[list[str], str]:
    """Words behind the argument, and the setting's text."""
    types: frozenset[Any] = types_of_key(key)
    if bool in types:
        return [], "true"
    if words := options_by_key()[key].words:
        return [words[-1]], words[-1]
    return ["5"], "5"


@pytest.mark.parametrize("key", keys())
def test_every_option_is_an_argument_by_all_its_names(key: str) -> None:
    words, text = value_of(key)
    for name in argument_names(key):
        assert given(name, *words) == {key: text}


def test_an_argument_that_is_not_given_sets_nothing() -> None:
    assert given() == {}


def test_names_are_the_keys_with_dashes_and_no_two_options_share_one() -> None:
    assert argument_names("network.heartbeat_timeout") == ("--network.heartbeat-timeout",)
    assert argument_names("parallelism") == ("--parallelism", "-p")
    names = [name for key in options_by_key() for name in argument_names(key)]
    assert len(names) == len(set(names))


def test_a_list_is_given_piece_by_piece() -> None:
    assert given("--map", "a=b", "--renamed", "c=d") == {"renamed": "a=b,c=d"}


def test_a_program_that_has_imported_pydantic_changes_nothing() -> None:
    """The parser hands annotations to pydantic where that is loaded."""
    pytest.importorskip("pydantic")
    assert given() == {}
    assert given("--parallelism", "3") == {"parallelism": "3"}


def test_help_shows_the_words_that_an_option_takes_and_others_are_refused(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = headrace("run", "--help").out
    assert "[choices: spark, threads, processes]" in out
    assert "[choices: append, replace, true, false]" in " ".join(out.replace("│", "").split())
    refused = headrace("run", "job.py", "--mode", "sideways")
    assert refused.code == 2
    assert 'Choose from: "aligned", "unaligned", "at_least_once"' in refused.sentence
