"""Who is let in: hosts, methods, tokens; and what every answer tells a browser."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from headrace.engine.ui.guard import TOKEN_HEADER, Guard, new_token

TOKEN = new_token()
JSON = {"content-type": "application/json"}


def client(token: str = TOKEN) -> TestClient:
    app = Guard(PlainTextResponse("in"), names=["Build.example"], token=token)
    return TestClient(app, base_url="http://127.0.0.1:4323")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:4323", "localhost", "LOCALHOST:1", "[::1]:4323", "10.0.0.7", "build.example:4323"],
)
def test_the_page_is_asked_for_by_address_or_by_its_own_name(host: str) -> None:
    assert client().get("/", headers={"host": host}).text == "in"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:4323", "", "localhost.evil.example", "[", "[x]"],
)
def test_a_name_that_may_have_been_rebound_is_refused(host: str) -> None:
    assert client().get("/", headers={"host": host}).status_code == 421


def test_an_order_needs_the_token_and_json() -> None:
    asking = client()
    assert asking.post("/", headers=JSON | {TOKEN_HEADER: TOKEN}).text == "in"
    assert asking.post("/", headers=JSON).status_code == 403
    for wrong in ("", TOKEN[:-1], TOKEN + "x"):
        assert asking.post("/", headers=JSON | {TOKEN_HEADER: wrong}).status_code == 403
    odd = [(TOKEN_HEADER.encode(), "é".encode("latin-1")), (b"content-type", b"application/json")]
    assert asking.post("/", headers=odd).status_code == 403
    form = {"content-type": "text/plain", TOKEN_HEADER: TOKEN}
    assert asking.post("/", headers=form).status_code == 415


def test_a_page_without_orders_takes_none_whatever_the_token() -> None:
    assert client("").post("/", headers=JSON | {TOKEN_HEADER: ""}).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused_and_no_origin_is_allowed(method: str) -> None:
    origin = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = client().request(method, "/", headers=origin)
    assert answer.status_code == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_answers_forbid_scripts_and_requests_of_elsewhere() -> None:
    headers = client().get("/").headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
