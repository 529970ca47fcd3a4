"""An option: a dataclass field whose metadata says all that is known of it.

Groups of options are frozen dataclasses (`options.py`). What a field's metadata says is read by
the check when a group is made, by the layers over the code (`session/settings.py`), by the command
line and by the test that compares the table in docs/cli.md. So a new option is one field.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from .errors import UserError
from .suggestion import did_you_mean
from .units import duration_ns, size_bytes

#: (name for errors, value as the user wrote it) to what the engine counts in. Raises: UserError.
Reader = Callable[[str, Any], Any]
#: What `dataclasses.field(metadata=...)` takes.
Metadata = Mapping[str, object]

_KEY = "headrace"
_Group = TypeVar("_Group")


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its name, type and default.

    Attributes:
        help: its meaning, as a phrase.
        read: checks a value, and converts it where the engine counts in another unit.
        usual: the default in words, where it depends on where the job runs.
        short: further names on the command line.
        words: the words that it takes; empty: any text, or none.
        is_list: the command line may repeat it.
        is_in_code_only: no text can state it.
    """

    help: str
    read: Reader
    usual: str | None = None
    short: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_list: bool = False
    is_in_code_only: bool = False


def duration(help: str, *, zero: bool = True, short: str = "") -> Metadata:
    """A duration, which the engine counts in nanoseconds; `zero` tells whether it may be none."""
    return _metadata(help, functools.partial(_amount, duration_ns, zero), short=short)


def size(help: str) -> Metadata:
    """A size, which the engine counts in bytes; never zero."""
    return _metadata(help, functools.partial(_amount, size_bytes, False))


def count(help: str, *, least: int, short: str = "", usual: str | None = None) -> Metadata:
    """A whole number of at least `least`."""
    return _metadata(help, functools.partial(_count, least), short=short, usual=usual)


def choice(help: str, words: tuple[str, ...], *, short: str = "") -> Metadata:
    """One of `words`."""
    return _metadata(help, functools.partial(_choice, words), short=short, words=words)


def flag(help: str) -> Metadata:
    """True or False."""
    return _metadata(help, _flag)


def value(
    help: str,
    read: Reader | None = None,
    *,
    short: str = "",
    usual: str | None = None,
    words: tuple[str, ...] = (),
    is_list: bool = False,
    is_in_code_only: bool = False,
) -> Metadata:
    """Anything else; `read` checks it."""
    return _metadata(
        help,
        read or _unchecked,
        short=short,
        usual=usual,
        words=words,
        is_list=is_list,
        is_in_code_only=is_in_code_only,
    )


def _metadata(help: str, read: Reader, *, short: str = "", **more: Any) -> Metadata:
    return {_KEY: Option(help, read, short=(short,) if short else (), **more)}


def options_of(group: Any) -> dict[str, Option]:
    """The options of a group by name, without those that are groups themselves."""
    return {
        name: option
        for name, metadata in _fields(group).items()
        if (option := cast("Option | None", metadata.get(_KEY))) is not None
    }


def groups_of(cls: Any) -> dict[str, type]:
    """The groups that options consist of, by name: fields whose type is made by `group`."""
    return {
        name: member
        for name, types in types_of(cls).items()
        for member in types
        if isinstance(member, type) and hasattr(member, "option_group")
    }


@functools.cache
def types_of(group: Any) -> dict[str, frozenset[object]]:
    """The types that each option is declared to take."""
    # Spark's own type is known to type checkers only.
    hints = get_type_hints(group, localns={"SparkSession": object})
    return {name: frozenset(get_args(hint) or (hint,)) for name, hint in hints.items()}


@functools.cache
def _fields(group: Any) -> dict[str, Mapping[Any, Any]]:
    return {field.name: field.metadata for field in fields(group)}


def group(name: str) -> Callable[[type[_Group]], type[_Group]]:
    """Make a dataclass a group of options: `name` stands before an option's own, "checkpoints".

    An unknown keyword is answered with a suggestion, and the docstring lists the options. The class
    calls `check` from `__post_init__`, before any check of its own.
    """

    def decorate(cls: type[_Group]) -> type[_Group]:
        # Seen as Any: assigning `__init__` is the purpose of a decorator, and mypy refuses it.
        subject = cast(Any, cls)
        subject.option_group = name
        subject.__doc__ = f"{cls.__doc__}\n{_attributes(cls)}"
        make: Callable[..., None] = subject.__init__
        names = list(_fields(subject))

        @functools.wraps(make)
        def __init__(self: object, *args: object, **stated: object) -> None:
            for option in stated:
                if option not in names:
                    hint = did_you_mean(option, names)
                    raise UserError(f"{cls.__name__} has no option {option!r}; {hint}")
            make(self, *args, **stated)

        subject.__init__ = __init__
        return cls

    return decorate


def check(group: object) -> None:
    """Check each option of a group by itself. Raises: UserError."""
    for name in options_of(type(group)):
        read_option(group, name)


def read_option(group: object, name: str) -> Any:
    """What the engine counts with: nanoseconds, bytes, or the value itself; None stays None."""
    cls: Any = type(group)
    stated = getattr(group, name)
    if stated is None and NoneType in types_of(cls)[name]:
        return None
    prefix = cls.option_group
    return options_of(cls)[name].read(f"{prefix}.{name}" if prefix else name, stated)


class Counted:
    """A property that reads an option in the engine's unit: `timeout_ns = Counted("timeout")`."""

    def __init__(self, option: str) -> None:
        self._option = option

    def __get__(self, group: object, cls: type) -> int:
        found: int = read_option(group, self._option)
        return found


class CountedOrNone:
    """The same of an option that may be None."""

    def __init__(self, option: str) -> None:
        self._option = option

    def __get__(self, group: object, cls: type) -> int | None:
        found: int | None = read_option(group, self._option)
        return found


def _attributes(cls: Any) -> str:
    """Google's heading for a docstring, with a line or more for each option."""
    lines = ["", "    Attributes:"]
    for name, option in options_of(cls).items():
        lines += textwrap.wrap(
            f"{name}: {option.help}.",
            width=100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
        )
    return "\n".join([*lines, "    "])


def _amount(read: Callable[..., int], zero: bool, name: str, value: Any) -> int:
    amount = read(value, option=name)
    if amount == 0 and not zero:
        raise UserError(f"{name} is zero; it must be more")
    return amount


def _count(least: int, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name}={value!r} is not a whole number of at least {least}")
    return value


def _choice(words: tuple[str, ...], name: str, value: object) -> object:
    if value not in words:
        raise UserError(f"{name}={value!r} is unknown; {did_you_mean(str(value), words)}")
    return value


def _flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise UserError(f"{name}={value!r} is neither True nor False")
    return value


def _unchecked(name: str, value: object) -> object:
    return value
