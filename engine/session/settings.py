"""Options from outside the program, laid over those in code.

From weak to strong: code, headrace.toml (or `[tool.headrace]` of pyproject.toml), HEADRACE_*
environment variables, explicit overrides of the command line. An operator of a job can thus fix it
without its code. (In Flink the code wins, and operators cannot.) Each key's origin is returned, so
that a tool can print the layer of each value.

A key is a field of `RunOptions` ("parallelism") or one of its groups ("checkpoints.interval"); its
variable is HEADRACE_PARALLELISM or HEADRACE_CHECKPOINTS_INTERVAL. A region's settings are keys too,
"regions.NAME.interval", except of the environment, whose variables cannot spell every name. Unknown
keys are refused in every layer, with a suggestion.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from ..contract.errors import UserError
from ..contract.option import Option, options_of, types_of
from ..contract.options import GROUPS, RunOptions
from ..contract.region import Region
from ..contract.suggestion import did_you_mean
from .region_keys import check_key, is_of_region, parts_of, types_of_region_key

PREFIX = "HEADRACE_"
#: Where a key has its code's or the default value.
CODE = "code"

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class _Setting:
    """One key set by one layer; `origin` is how errors and tools name the place."""

    key: str
    value: object
    origin: str


def options_by_key() -> dict[str, Option]:
    """All options that text can state, by key, in the order of their declaration."""
    found = dict(options_of(RunOptions))
    for group, class_ in GROUPS.items():
        found |= {f"{group}.{name}": option for name, option in options_of(class_).items()}
    return {key: option for key, option in found.items() if not option.is_in_code_only}


def keys() -> tuple[str, ...]:
    """All keys that can be set from outside, in a fixed order."""
    return tuple(options_by_key())


def types_of_key(key: str) -> frozenset[object]:
    """The types that the option of a key is declared to take."""
    if is_of_region(key):
        return types_of_region_key(key)
    members, name = _place(key)
    return types_of(members)[name]


def values_of(options: RunOptions) -> dict[str, object]:
    """{key: value} of all options that text can state; None where a group or a value is not set."""
    values = {}
    for key in keys():
        group, _, name = key.rpartition(".")
        stated = getattr(options, group) if group else options
        values[key] = None if stated is None else getattr(stated, name)
    return values


def _place(key: str) -> tuple[Any, str]:
    """The class that declares a key's option, and the field's name."""
    group, _, name = key.rpartition(".")
    return (GROUPS[group] if group else RunOptions), name


def layered(
    options: RunOptions,
    overrides: Mapping[str, str],
    environ: Mapping[str, str],
    toml: Path | None,
) -> tuple[RunOptions, dict[str, str]]:
    """Lay settings over `options`.

    Args:
        options: as stated in code.
        overrides: {key: text} of the command line.
        environ: all environment variables; those without the prefix are passed over.
        toml: a headrace.toml or pyproject.toml; None: none.

    Returns: the options, and {key: origin} for every key: "code", the file's path, the variable's
        name or "command line".

    Raises: UserError for an unknown key, or a value that does not fit, and which layer set it.
    """
    settings: dict[str, _Setting] = {}
    for layer in (_from_toml(toml), _from_environ(environ), _from_overrides(overrides)):
        for setting in layer:
            settings[setting.key] = setting
    origins = dict.fromkeys(keys(), CODE) | {key: s.origin for key, s in settings.items()}
    return _apply(options, settings), origins


def find_settings_file(folder: Path) -> Path | None:
    """Find headrace.toml in `folder`, or a pyproject.toml there with a [tool.headrace] table."""
    own = folder / "headrace.toml"
    if own.is_file():
        return own
    project = folder / "pyproject.toml"
    # Searched before it is parsed: a broken pyproject.toml without our table is not our business.
    if project.is_file() and b"tool.headrace" in _bytes_of(project):
        return project
    return None


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path}: cannot be read ({reason}); correct it or remove it") from None


def _from_toml(path: Path | None) -> Iterator[_Setting]:
    if path is None:
        return
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); correct it or remove it") from None
    if path.name == "pyproject.toml":
        table = table.get("tool", {}).get("headrace", {})
    for name, value in table.items():
        if not isinstance(value, dict):
            yield _checked(name, value, str(path))
            continue
        for member, inner in _leaves(value):
            yield _checked(f"{name}.{member}", inner, str(path))


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """(dotted name, value) of a TOML table and those inside it."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _leaves(value))
        else:
            yield name, value


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Setting]:
    variables = {PREFIX + key.replace(".", "_").upper(): key for key in keys()}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX):
            continue
        if variable not in variables:
            hint = did_you_mean(variable, variables)
            raise UserError(f"the environment variable {variable} sets no option; {hint}")
        yield _checked(variables[variable], environ[variable], variable)


def _from_overrides(overrides: Mapping[str, str]) -> Iterator[_Setting]:
    for key, value in overrides.items():
        yield _checked(key, value, "command line")


def _checked(key: str, value: object, origin: str) -> _Setting:
    if is_of_region(key):
        check_key(key, origin)
        return _Setting(key, _converted(key, value, origin), origin)
    if key in options_of(RunOptions) and key not in keys():
        raise UserError(f"{origin}: {key!r} can only be set in code")
    if key not in keys():
        raise UserError(f"{origin}: there is no option {key!r}; {did_you_mean(key, keys())}")
    return _Setting(key, _converted(key, value, origin), origin)


def _converted(key: str, value: object, origin: str) -> object:
    """Text to a type of the option; "none" is None where None is a value.

    Numbers and booleans of a TOML file pass as they are.
    """
    if not isinstance(value, str):
        return value
    taken = types_of_key(key)
    if value.lower() == "none" and NoneType in taken:
        return None
    if bool in taken and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if bool in taken and str not in taken:
        raise UserError(f"{origin}: {key}={value!r} is neither true nor false")
    if int in taken and re.fullmatch(r"\d+", value):
        return int(value)
    if float in taken and re.fullmatch(r"\d+\.\d+", value):
        return float(value)
    if int in taken and str not in taken:
        raise UserError(f"{origin}: {key}={value!r} is not a whole number")
    return value


def _apply(options: RunOptions, settings: Mapping[str, _Setting]) -> RunOptions:
    regions = {key: setting for key, setting in settings.items() if is_of_region(key)}
    if regions:
        options = replace(options, regions=_regions(regions))
    top = {key: setting for key, setting in settings.items() if "." not in key}
    changes = {key: setting.value for key, setting in top.items()}
    for group, class_ in GROUPS.items():
        members = {
            key.removeprefix(f"{group}."): setting
            for key, setting in settings.items()
            if key.startswith(f"{group}.")
        }
        if members:
            changes[group] = _group(group, class_, getattr(options, group), members)
    laid: RunOptions = _made(options, changes, top)
    return laid


def _regions(settings: Mapping[str, _Setting]) -> Mapping[str, Mapping[str, Any]]:
    """{region's name: {field: value}}; each value is checked before the job is planned."""
    found: dict[str, dict[str, Any]] = {}
    for key, setting in settings.items():
        name, member = parts_of(key)
        _made(Region, {"name": name, member: setting.value}, {key: setting})
        found.setdefault(name, {})[member] = setting.value
    return found


def _group(name: str, class_: type, stated: Any, members: Mapping[str, _Setting]) -> object:
    changes = {member: setting.value for member, setting in members.items()}
    if stated is None and "directory" not in changes:
        first = next(iter(members.values()))
        raise UserError(
            f"{first.origin} sets {first.key}, but the job takes no checkpoints; "
            f"set {name}.directory too"
        )
    return _made(class_ if stated is None else stated, changes, members)


def _made(base: Any, changes: Mapping[str, Any], settings: Mapping[str, _Setting]) -> Any:
    """Make options of `changes`, over `base` unless a class; an error names the layers to blame."""
    try:
        return base(**changes) if isinstance(base, type) else replace(base, **changes)
    except UserError as error:
        origins = sorted({setting.origin for setting in settings.values()})
        raise UserError(f"{error} (set by {', '.join(origins)})") from None
