"""Where a page listens, and what is said when it cannot."""

from __future__ import annotations

import socket
import sys
import urllib.request

import pytest
from starlette.responses import PlainTextResponse

from headrace.engine.contract.errors import AddressUnreachable, UserError
from headrace.engine.contract.page_address import PORT, PageAddress
from headrace.engine.ui.server import Server, bind, url_of

ANY = PageAddress(port=0)


def test_a_server_answers_until_it_is_closed() -> None:
    server = Server(PlainTextResponse("here"), bind(ANY))
    url = server.url
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == b"here"
        assert answer.headers["server"] is None
    server.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnreachable, match=rf"127\.0\.0\.1:{port} .* in use.*ui=PORT"):
            bind(PageAddress(port=port))


def test_where_the_usual_port_is_taken_the_next_free_one_serves() -> None:
    with bind(PageAddress()) as first, bind(PageAddress()) as second:
        ports = [each.getsockname()[1] for each in (first, second)]
        assert ports[0] != ports[1]
        assert all(port >= PORT for port in ports)
        assert url_of(first) == f"http://127.0.0.1:{ports[0]}/"


def test_a_missing_library_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'headrace\[ui\]'"):
        bind(ANY)
