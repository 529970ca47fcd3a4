"""Options of an object store are understood in either spelling."""

from __future__ import annotations

import pytest

from headrace.engine.connectors.tables.stores import fsspec_options, object_store_options

FSSPEC = {
    "key": "k",
    "secret": "s",
    "endpoint_url": "http://127.0.0.1:1",
    "client_kwargs": {"region_name": "r"},
}
DELTA = {
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_REGION": "r",
}
ICEBERG = {
    "s3.access-key-id": "k",
    "s3.secret-access-key": "s",
    "s3.endpoint": "http://127.0.0.1:1",
    "s3.region": "r",
}


@pytest.mark.parametrize("options", [FSSPEC, DELTA, ICEBERG])
def test_workers_write_with_them(options: dict[str, str]) -> None:
    assert fsspec_options("s3://b/t", options) == FSSPEC


@pytest.mark.parametrize("options", [FSSPEC, DELTA])
def test_the_log_is_written_with_them(options: dict[str, str]) -> None:
    assert object_store_options("s3://b/t", options) == DELTA | {"AWS_ALLOW_HTTP": "true"}


def test_a_plain_endpoint_of_the_environment_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert object_store_options("s3://b/t", {}) == {"AWS_ALLOW_HTTP": "true"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")
    assert object_store_options("s3://b/t", {}) == {}


def test_other_stores_get_what_is_given() -> None:
    assert fsspec_options("gs://b/t", {"token": "x", "s3.region": "r"}) == {"token": "x"}
    assert object_store_options("gs://b/t", {"token": "x"}) == {"token": "x"}
