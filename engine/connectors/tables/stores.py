"""Options of object stores, in the spelling of fsspec's file systems and in that of others.

Workers write data files through fsspec; Delta's log is written by `deltalake` and Iceberg's by
`pyiceberg`, which have names of their own for the same facts. What is not given comes from the
environment, where all of them look for `AWS_ACCESS_KEY_ID` and its like.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

#: {fsspec: deltalake} for S3.
_OF_DELTA = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "region_name": "AWS_REGION",
}
#: {pyiceberg: fsspec} for S3.
_OF_ICEBERG = {
    "s3.access-key-id": "key",
    "s3.secret-access-key": "secret",
    "s3.session-token": "token",
    "s3.endpoint": "endpoint_url",
    "s3.region": "region_name",
}


def fsspec_options(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for fsspec, from those of any of the three."""
    if not _is_s3(path):
        return {name: value for name, value in options.items() if not name.startswith("s3.")}
    of_delta = {theirs.upper(): ours for ours, theirs in _OF_DELTA.items()}
    found: dict[str, Any] = {}
    for name, value in options.items():
        ours = of_delta.get(name.upper()) or _OF_ICEBERG.get(name)
        if ours == "region_name":
            found.setdefault("client_kwargs", {})[ours] = value
        elif ours is not None:
            found[ours] = value
        elif not name.upper().startswith("AWS_") and not name.startswith("s3."):
            found[name] = value
    return found


def object_store_options(path: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return options for `deltalake`, from those of fsspec or its own."""
    if not _is_s3(path):
        return {name: str(value) for name, value in options.items()}
    flat = {**options, **options.get("client_kwargs", {})}
    found = {
        _OF_DELTA.get(name, name): str(value)
        for name, value in flat.items()
        if name in _OF_DELTA or name.upper().startswith("AWS_")
    }
    endpoint = found.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint.startswith("http:"):
        found.setdefault("AWS_ALLOW_HTTP", "true")
    return found


def _is_s3(path: str) -> bool:
    return path.startswith(("s3://", "s3a://"))
