"""Addresses of pages as users state them."""

from __future__ import annotations

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.options import RunOptions
from headrace.engine.contract.page_address import PageAddress, page_address


@pytest.mark.parametrize(
    ("stated", "address"),
    [
        (False, None),
        (True, PageAddress("127.0.0.1", None)),
        (8080, PageAddress("127.0.0.1", 8080)),
        ("8080", PageAddress("127.0.0.1", 8080)),
        ("0.0.0.0:80", PageAddress("0.0.0.0", 80)),
        ("[::1]:80", PageAddress("::1", 80)),
        ("localhost:0", PageAddress("localhost", 0)),
    ],
)
def test_true_a_port_or_a_host_and_port(stated: object, address: PageAddress | None) -> None:
    assert page_address(stated) == address


@pytest.mark.parametrize("stated", ["yes", "", ":80", "host:", "host", 70000, -1, 1.5, None, "²"])
def test_anything_else_is_refused_in_one_sentence(stated: object) -> None:
    with pytest.raises(UserError, match="is no address of a page"):
        page_address(stated)
    with pytest.raises(UserError, match=r"^ui="):
        RunOptions(ui=stated)  # type: ignore[arg-type]
