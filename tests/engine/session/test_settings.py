"""Layers of options: which wins, where each value came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.options import Checkpoints, Network, RunOptions
from headrace.engine.session.settings import find_settings_file, keys, layered


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    toml = tmp_path / "headrace.toml"
    toml.write_text("parallelism = 2\n[network]\nbuffer = '1KiB'\nwindow = '2KiB'\nheartbeat = 2\n")
    environ = {"HEADRACE_NETWORK_WINDOW": "3KiB", "HEADRACE_NETWORK_HEARTBEAT": "3", "PATH": "/bin"}
    stated = RunOptions(parallelism=1, network=Network(heartbeat_timeout="20s"))
    options, origins = layered(stated, {"network.heartbeat": "0.5"}, environ, toml)
    assert options.parallelism == 2
    assert options.network == Network(
        buffer="1KiB", window="3KiB", heartbeat=0.5, heartbeat_timeout="20s"
    )
    assert {key: origin for key, origin in origins.items() if origin != "code"} == {
        "parallelism": str(toml),
        "network.buffer": str(toml),
        "network.window": "HEADRACE_NETWORK_WINDOW",
        "network.heartbeat": "command line",
    }


def test_without_layers_the_code_stands() -> None:
    stated = RunOptions(parallelism=3, checkpoints=Checkpoints("/d", retain=2))
    options, origins = layered(stated, {}, {}, None)
    assert options == stated
    assert set(origins) == set(keys())
    assert set(origins.values()) == {"code"}


def test_checkpoints_can_be_turned_on_from_outside() -> None:
    options, _ = layered(
        RunOptions(), {"checkpoints.directory": "/d", "checkpoints.retain": "2"}, {}, None
    )
    assert options.checkpoints == Checkpoints("/d", retain=2)


def test_none_is_a_value() -> None:
    stated = RunOptions(checkpoints=Checkpoints("/d"))
    options, _ = layered(stated, {"checkpoints.interval": "none"}, {}, None)
    assert options.checkpoints == Checkpoints("/d", interval=None)


def test_none_is_a_word_where_an_option_has_it_among_its_own() -> None:
    stated = RunOptions(checkpoints=Checkpoints("/d", compression="lz4"))
    options, _ = layered(stated, {}, {"HEADRACE_CHECKPOINTS_COMPRESSION": "none"}, None)
    assert options.checkpoints == Checkpoints("/d", compression="none")


def test_text_becomes_what_the_option_is_declared_to_take() -> None:
    stated = RunOptions(checkpoints=Checkpoints("/d"))
    settings = {
        "restore": "7",
        "allow_unclaimed_state": "True",
        "checkpoints.directory": "2026",
        "checkpoints.max_concurrent": "3",
        "checkpoints.timeout": "1.5",
        "network.window": "4194304",
    }
    options, _ = layered(stated, settings, {}, None)
    assert options.restore == 7
    assert options.allow_unclaimed_state is True
    assert options.checkpoints == Checkpoints("2026", interval="10s", max_concurrent=3, timeout=1.5)
    assert options.network.window == 4194304


def test_new_names_of_operators_can_be_stated_outside() -> None:
    options, _ = layered(RunOptions(), {"renamed": "old=new, older=newer"}, {}, None)
    assert options.renames == {"old": "new", "older": "newer"}
    assert RunOptions(renamed={"old": "new"}).renames == {"old": "new"}
    assert RunOptions().renames == {}


def test_a_table_of_pyproject_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.headrace]\nparallelism = 5\n")
    found = find_settings_file(tmp_path)
    options, _ = layered(RunOptions(), {}, {}, found)
    assert options.parallelism == 5


def test_headrace_toml_hides_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.headrace]\nparallelism = 5\n")
    (tmp_path / "headrace.toml").write_text("")
    assert find_settings_file(tmp_path) == tmp_path / "headrace.toml"


def test_a_pyproject_without_our_table_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("this is [broken")
    assert find_settings_file(tmp_path) is None


@pytest.mark.parametrize(
    ("overrides", "environ", "sentence"),
    [
        (
            {"checkpoints.intervall": "1s"},
            {},
            (
                "command line: there is no option 'checkpoints.intervall'; did you mean"
                " 'checkpoints.interval'?"
            ),
        ),
        (
            {},
            {"HEADRACE_PARALELISM": "2"},
            (
                "the environment variable HEADRACE_PARALELISM sets no option; did you mean"
                " 'HEADRACE_PARALLELISM'?"
            ),
        ),
        ({"spark": "x"}, {}, "command line: 'spark' can only be set in code"),
        (
            {"parallelism": "many"},
            {},
            "command line: parallelism='many' is not a whole number",
        ),
        (
            {"allow_unclaimed_state": "si"},
            {},
            "command line: allow_unclaimed_state='si' is neither true nor false",
        ),
        (
            {},
            {"HEADRACE_CHECKPOINTS_INTERVAL": "1s"},
            (
                "HEADRACE_CHECKPOINTS_INTERVAL sets checkpoints.interval, but the job takes no"
                " checkpoints; "
                "set checkpoints.directory too"
            ),
        ),
        (
            {"network.buffer": "1 parsec"},
            {"HEADRACE_NETWORK_WINDOW": "4MiB"},
            (
                "network.buffer='1 parsec' is not a size; write '64MiB', '256KiB' or a number of"
                " bytes "
                "(set by HEADRACE_NETWORK_WINDOW, command line)"
            ),
        ),
    ],
)
def test_a_wrong_setting_is_refused(
    overrides: dict[str, str], environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        layered(RunOptions(), overrides, environ, None)
    assert str(caught.value) == sentence


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    toml = tmp_path / "headrace.toml"
    toml.write_text("parallelism = ")
    with pytest.raises(UserError, match=r"headrace\.toml: cannot be read"):
        layered(RunOptions(), {}, {}, toml)


def test_a_pyproject_that_is_no_text_is_passed_over_or_refused(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_bytes(b"name = '\xff'\n")
    assert find_settings_file(tmp_path) is None
    project.write_bytes(b"[tool.headrace]\nmaster = '\xff'\n")
    with pytest.raises(UserError, match=r"pyproject.toml: cannot be read"):
        layered(RunOptions(), {}, {}, find_settings_file(tmp_path))


def test_a_table_or_list_is_what_renamed_takes(tmp_path: Path) -> None:
    toml = tmp_path / "headrace.toml"
    toml.write_text("renamed = 1.5\n")
    with pytest.raises(UserError, match=r"renamed=1.5 does not map old names to new ones"):
        layered(RunOptions(), {}, {}, toml)
