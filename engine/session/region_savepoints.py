"""Savepoints of a job of several regions: JOB/regions/sav-N names a savepoint of each region."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from headrace.recovery.layout import job_folder
from headrace.recovery.records import (
    RECORD_BYTES_MAX,
    DamagedRecord,
    decode_record,
    encode_record,
)
from headrace.recovery.store import AlreadyExists, NotFound, StoreError

from ..contract.errors import StorageUnreachable, UserError
from .region_plan import RegionsPlan

_NAME = re.compile(r"sav-(?P<number>[0-9]{1,18})/?")


class _Vector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """{region: number of its savepoint}."""

    regions: dict[str, int]


def read(plan: RegionsPlan, restore: str | int) -> Mapping[str, int]:
    """Read the savepoint that `restore` names: {region: number of its savepoint}.

    Raises: UserError, StorageUnreachable.
    """
    folder = _url(plan, "")
    match = _NAME.fullmatch(str(restore).removeprefix(folder))
    if match is None or not str(restore).startswith(folder):
        raise UserError(
            f"restore={restore!r}: a job of several regions starts from 'auto', 'latest' or one of"
            f" its savepoints, {folder}sav-N"
        )
    try:
        data = plan.store.get(_path(plan, int(match["number"])), bytes_max=RECORD_BYTES_MAX)
        regions = decode_record(data, _Vector).regions
    except NotFound:
        raise UserError(f"restore={restore!r}: there is no such savepoint") from None
    except DamagedRecord as error:
        raise UserError(f"restore={restore!r}: it is damaged ({error})") from None
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    names = {region.name for region in plan.regions}
    if regions.keys() != names:
        raise UserError(
            f"restore={restore!r} holds the regions {', '.join(sorted(regions))}, and the job has"
            f" {', '.join(sorted(names))}"
        )
    return regions


def write(plan: RegionsPlan, regions: Mapping[str, int]) -> str:
    """Write a savepoint under the next free number; return its URL. Raises: StorageUnreachable."""
    number, data = 1, encode_record(_Vector(dict(regions)))
    while True:
        try:
            plan.store.create(_path(plan, number), data)
        except AlreadyExists:
            number += 1
        except StoreError as error:
            raise StorageUnreachable(f"the savepoint cannot be written: {error}") from error
        else:
            return _url(plan, f"sav-{number}")


def _path(plan: RegionsPlan, number: int) -> str:
    return f"{job_folder(plan.job)}/regions/sav-{number}"


def _url(plan: RegionsPlan, name: str) -> str:
    return f"{plan.directory.rstrip('/')}/{job_folder(plan.job)}/regions/{name}"
