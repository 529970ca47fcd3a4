"""An option is one field: its metadata gives check, unit, suggestion and docstring."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.option import (
    Counted,
    CountedOrNone,
    Option,
    check,
    choice,
    count,
    duration,
    flag,
    group,
    groups_of,
    options_of,
    size,
    types_of,
    value,
)


@group("kitchen")
@dataclass(frozen=True, slots=True)
class Kitchen:
    """Where tea is made."""

    kettle: str | int = field(default="1KiB", metadata=size("how much water boils at once"))
    steep: str | None = field(default="3m", metadata=duration("how long", zero=False, short="-s"))
    rest: str = field(default="0s", metadata=duration("before it is poured"))
    cups: int = field(default=2, metadata=count("for so many", least=1, usual="as they come"))
    leaf: str = field(default="green", metadata=choice("which", ("green", "black")))
    milk: bool = field(default=False, metadata=flag("with milk"))
    guest: object = field(default=None, metadata=value("anybody", is_in_code_only=True))

    def __post_init__(self) -> None:
        check(self)

    kettle_bytes = Counted("kettle")
    steep_ns = CountedOrNone("steep")
    rest_ns = Counted("rest")


@group("")
@dataclass(frozen=True, slots=True)
class House:
    """Rooms."""

    number: int = field(default=1, metadata=count("in its street", least=1))
    kitchen: Kitchen | None = None

    def __post_init__(self) -> None:
        check(self)


def test_options_are_read_in_the_engines_units() -> None:
    assert (Kitchen().kettle_bytes, Kitchen().steep_ns, Kitchen().rest_ns) == (1024, 180 * 10**9, 0)
    assert Kitchen(steep=None).steep_ns is None


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"kettle": "a lot"}, "kitchen.kettle='a lot' is not a size"),
        ({"kettle": 0}, "kitchen.kettle is zero; it must be more"),
        ({"steep": "0s"}, "kitchen.steep is zero; it must be more"),
        ({"rest": None}, "kitchen.rest=None is not a duration"),
        ({"cups": 0}, "kitchen.cups=0 is not a whole number of at least 1"),
        ({"cups": None}, "kitchen.cups=None is not a whole number of at least 1"),
        ({"cups": True}, "kitchen.cups=True is not a whole number of at least 1"),
        ({"leaf": "greeen"}, "kitchen.leaf='greeen' is unknown; did you mean 'green'?"),
        ({"milk": "yes"}, "kitchen.milk='yes' is neither True nor False"),
        ({"kettel": 1}, "Kitchen has no option 'kettel'; did you mean 'kettle'?"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_name(
    stated: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        Kitchen(**stated)
    assert str(caught.value).startswith(sentence)


def test_options_without_a_group_have_their_bare_name() -> None:
    with pytest.raises(UserError, match=r"^number=0 is not a whole number"):
        House(number=0)


def test_metadata_tells_all_that_other_layers_ask() -> None:
    options = options_of(Kitchen)
    assert list(options) == ["kettle", "steep", "rest", "cups", "leaf", "milk", "guest"]
    assert options["steep"].short == ("-s",)
    assert options["cups"].usual == "as they come"
    assert options["guest"].is_in_code_only
    assert types_of(Kitchen)["steep"] == {str, type(None)}


def test_a_group_is_told_by_its_type() -> None:
    assert groups_of(House) == {"kitchen": Kitchen}
    assert list(options_of(House)) == ["number"]
    assert all(isinstance(option, Option) for option in options_of(House).values())


def test_the_docstring_lists_the_options_within_a_hundred_columns() -> None:
    said = Kitchen.__doc__ or ""
    assert said.startswith("Where tea is made.\n\n    Attributes:\n")
    assert "        kettle: how much water boils at once.\n" in said
    assert all(len(line) <= 100 for line in said.splitlines())


def test_groups_are_values_that_travel() -> None:
    kitchen = Kitchen(steep=None, cups=3)
    assert pickle.loads(pickle.dumps(kitchen)) == kitchen
    assert hash(kitchen) == hash(Kitchen(steep=None, cups=3))
