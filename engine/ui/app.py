"""The HTTP surface: a board as pages, JSON, Server-Sent Events and metrics; orders as POST.

    GET  /                     the page, with its files
    GET  /api/job              plan, settings, deliveries
    GET  /api/look             the latest Observation
    GET  /api/explain          its Finding
    GET  /api/history          points of the last hours
    GET  /api/checkpoints      the last 60; /api/checkpoints/N with its subtasks
    GET  /api/events           Server-Sent Events: what is new, once a second
    GET  /metrics, /healthz
    POST /api/checkpoint, /api/savepoint, /api/rescale, /api/stop

A client of `/api/events` that reads slowly gets fewer messages, each with the latest look and all
points and events that it lacks: nothing is queued for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ..contract.errors import HeadraceError, UserError
from .board import Board, Cursor
from .exposition import CONTENT_TYPE
from .guard import Guard
from .orders import BODY_BYTES_MAX, ORDERS, Desk

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Clients of `/api/events` at once.
_CLIENTS_MAX = 32
#: Without anything new a client hears a comment, so that a dead one is noticed.
_ALIVE_EVERY_S = 15.0


def make_app(
    board: Board,
    *,
    metrics: Callable[[], bytes] | None = None,
    desk: Desk | None = None,
    names: Sequence[str] = (),
    token: str = "",
) -> ASGIApp:
    """Make the application.

    Args:
        metrics: of a running job, in Prometheus' text format.
        desk: takes orders; None: there is no job to give them to.
        names: host names under which the page may be asked for, besides addresses.
        token: of orders.
    """
    surface = _Surface(board, metrics, desk)
    app = Starlette(routes=surface.routes(), exception_handlers={HTTPException: _told})
    return Guard(app, names=names, token=token if desk is not None else "")


class _Surface:
    def __init__(
        self, board: Board, metrics: Callable[[], bytes] | None, desk: Desk | None
    ) -> None:
        self._board = board
        self._metrics_text = metrics
        self._desk = desk
        self._clients = 0

    def routes(self) -> list[Route]:
        board = self._board
        files = [_file(path) for path in sorted(_STATIC.iterdir()) if path.suffix in _TYPES]
        reads: dict[str, Callable[[Request], object]] = {
            "/api/job": lambda _: board.facts,
            "/api/look": lambda _: msgspec.Raw(board.encoded_look),
            "/api/explain": lambda _: None if board.look is None else board.look.finding,
            "/api/history": lambda _: {"points": board.points()},
            "/api/checkpoints": lambda _: [] if board.look is None else board.look.checkpoints,
            "/api/checkpoints/{number:int}": self._checkpoint,
            "/healthz": lambda _: {"job": board.facts.job, "ended": board.has_ended},
        }
        return [
            *files,
            *(Route(path, _reader(read)) for path, read in reads.items()),
            Route("/api/events", self._events),
            Route("/metrics", self._metrics),
            *(Route(f"/api/{kind}", self._order(kind), methods=["POST"]) for kind in ORDERS),
        ]

    def _checkpoint(self, request: Request) -> object:
        number = int(request.path_params["number"])
        found = self._board.checkpoint(number)
        if found is None:
            raise HTTPException(404, f"checkpoint {number} is not among the last ones")
        return found

    async def _metrics(self, request: Request) -> Response:
        if self._metrics_text is None:
            raise HTTPException(404, "the job does not run: it has no metrics")
        text = await run_in_threadpool(self._metrics_text)
        return Response(text, media_type=CONTENT_TYPE)

    async def _events(self, request: Request) -> Response:
        if self._clients >= _CLIENTS_MAX:
            raise HTTPException(503, f"{_CLIENTS_MAX} clients are connected already")
        cursor = Cursor.parse(request.headers.get("last-event-id"))
        return StreamingResponse(self._stream(cursor), media_type="text/event-stream")

    async def _stream(self, cursor: Cursor) -> AsyncIterator[bytes]:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            # The loop may have been closed meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        forget = self._board.listen(tell)
        self._clients += 1
        try:
            yield b"retry: 1000\n\n"
            while True:
                changed.clear()
                message, cursor = self._board.news(cursor)
                yield b"id: %s\ndata: %s\n\n" % (
                    str(cursor).encode(),
                    msgspec.json.encode(message),
                )
                if message.ended:
                    return
                while not await _happens(changed):
                    yield b": alive\n\n"
        finally:
            self._clients -= 1
            forget()

    def _order(self, kind: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            if self._desk is None:
                raise HTTPException(409, "the job does not run: nobody takes orders")
            body = await _body(request)
            try:
                done = await run_in_threadpool(self._desk.take, kind, body)
            except HeadraceError as error:
                status = 400 if isinstance(error, UserError) else 409
                raise HTTPException(status, str(error)) from error
            return _json(done)

        return answer


async def _happens(event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), _ALIVE_EVERY_S)
    except TimeoutError:
        return False
    return True


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"an order has at most {BODY_BYTES_MAX} bytes")
    return body


def _reader(read: Callable[[Request], object]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        return _json(read(request))

    return answer


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    return _json({"error": error.detail}, error.status_code)


def _file(path: Path) -> Route:
    """A file of the page, read once: no request reaches the file system."""
    content = path.read_bytes()
    kind = _TYPES[path.suffix]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return Route("/" if path.name == "index.html" else f"/{path.name}", answer)
