"""Parameters of commands: `--json`, and an argument for every option of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..session.settings import options_by_key, types_of_key

Json = Annotated[
    bool,
    Parameter(
        name="--json", negative="", show_default=False, help="Print one JSON object per line."
    ),
]


def argument_names(key: str) -> tuple[str, ...]:
    """What is typed for an option: `--network.heartbeat-timeout`, and its short names."""
    return (f"--{key.replace('_', '-')}", *options_by_key()[key].short)


def settings_of(options: Any) -> dict[str, str]:
    """{key: text} of the arguments that were given."""
    found = {}
    for key in options_by_key():
        match getattr(options, _attribute(key)):
            case None | False:
                continue
            case True:
                found[key] = "true"
            case list() as texts:
                found[key] = ",".join(texts)
            case value:
                found[key] = str(value)
    return found


def spelled_out(words: Sequence[str]) -> list[str]:
    """Give options that may stand alone their value: `--fresh` is `--fresh=true`."""
    alone = {
        name
        for key in options_by_key()
        if {bool, str} <= types_of_key(key)
        for name in argument_names(key)
    }
    return [f"{word}=true" if word in alone else word for word in words]


def _attribute(key: str) -> str:
    return key.replace(".", "__")


def _argument(key: str) -> tuple[str, Any, Any]:
    """A field of the dataclass from which cyclopts makes the arguments."""
    option, types = options_by_key()[key], types_of_key(key)
    type_: Any = str
    if option.words:
        type_ = Literal[(*option.words, "true", "false") if bool in types else option.words]
    elif bool in types and str not in types:
        type_ = bool
    elif int in types and str not in types:
        type_ = int
    elif option.is_list:
        type_ = list[str]
    group = key.rpartition(".")[0]
    parameter = Parameter(
        name=argument_names(key),
        negative="",
        show_default=False,
        help=option.help.replace("`", ""),
        group=f"Options: {group}" if group else "Options",
    )
    return _attribute(key), Annotated[type_ | None, parameter], field(default=None)


def _arguments() -> type:
    made = make_dataclass("RunArguments", map(_argument, options_by_key()), kw_only=True)
    # There cyclopts looks for the class; else it takes no arguments from it.
    made.__module__ = __name__
    return made


if TYPE_CHECKING:
    RunArguments = Any
else:
    #: One argument for each key of `settings`; None: none is given.
    RunArguments = Annotated[_arguments() | None, Parameter(name="*")]
