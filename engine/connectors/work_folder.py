"""The folder `_headrace` in a sink's output: what is not visible yet, and notes of committers.

Its name begins with `_`, so readers pass over it, as Spark and pyarrow datasets do.

    <output>/_headrace/<job>/<operator>/<owner>/...
        what one owner (`OperatorContext`) has under way; found by a transaction's id, which is a
        path below `_headrace`, also when job or sink have other names by then
"""

from __future__ import annotations

from urllib.parse import quote

import xxhash

from .filesystem import Location

_NAME_BYTES_MAX = 150


def work_folder(location: Location) -> str:
    """Return the folder in a sink's output."""
    return f"{location.root}/_headrace"


def work_name(job: str, operator: str, owner: str) -> str:
    """Return the place of what an owner has under way, below `work_folder`; without an owner, of
    all owners.
    """
    name = f"{safe_name(job)}/{safe_name(operator)}"
    return f"{name}/{owner}" if owner else name


def safe_name(name: str) -> str:
    """Return a user's name as one part of a path, different for different names.

    A long one is cut and ends in its hash: file systems take 255 bytes, of which other parts of the
    file's name need some.
    """
    safe = quote(name, safe=" ").replace(".", "%2E")
    if len(safe) <= _NAME_BYTES_MAX:
        return safe
    return f"{safe[: _NAME_BYTES_MAX - 17]}-{xxhash.xxh3_64_hexdigest(name.encode())}"


def is_inside(path: str) -> bool:
    """Whether a relative path, which a checkpoint names, stays below its folder."""
    return all(part and "\\" not in part and not part.startswith(".") for part in path.split("/"))
