"""Keys of the settings of one region, `regions.NAME.FIELD`; a name may contain dots."""

from __future__ import annotations

from ..contract.errors import UserError
from ..contract.option import options_of, types_of
from ..contract.region import Region
from ..contract.suggestion import did_you_mean

_PREFIX = "regions."
#: What can be set from outside: a region's name finds it, and is none of its settings.
_FIELDS = tuple(name for name in options_of(Region) if name != "name")


def is_of_region(key: str) -> bool:
    """The key belongs to a region."""
    return key.startswith(_PREFIX)


def parts_of(key: str) -> tuple[str, str]:
    """The region's name, and the field of `Region`."""
    name, _, member = key.removeprefix(_PREFIX).rpartition(".")
    return name, member


def check_key(key: str, origin: str) -> None:
    """Refuse a key that names no region or no field. Raises: UserError."""
    name, member = parts_of(key)
    if not name:
        raise UserError(f"{origin}: {key!r} names no region; write regions.NAME.{_FIELDS[0]}")
    if member not in _FIELDS:
        hint = did_you_mean(member, _FIELDS)
        raise UserError(f"{origin}: a region has no setting {member!r} ({key!r}); {hint}")


def types_of_region_key(key: str) -> frozenset[object]:
    """The types that the setting is declared to take."""
    return types_of(Region)[parts_of(key)[1]]
