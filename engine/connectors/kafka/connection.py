"""One connection to one Kafka broker: requests out, responses in, in the order of the requests.

Blocking sockets with a time limit, for one thread. `send` and `receive` are apart, so that several
requests can be under way and the answer can arrive while the caller works. Messages are the schemas
of kafka-python; each goes in the newest version that both sides know. Requests and responses that
carry records are coded by the caller, without a copy. A response's length is compared with a limit
before memory is taken for it, and its number with its request's.

After any failure the connection is closed: what was under way may or may not have happened, and
only the caller knows whether it can be repeated.
"""

from __future__ import annotations

import io
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from ssl import SSLSocket
from typing import TypeAlias

import pyarrow as pa
from kafka.errors import for_code
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from ...contract.errors import HeadraceError, UserError
from .security import Security

#: A request, as kafka-python defines it.
Request: TypeAlias = ApiMessage
#: A response of it.
Response: TypeAlias = ApiMessage
#: A piece of a request's body.
Buffer: TypeAlias = bytes | pa.Buffer

CLIENT_ID = "headrace"
#: Largest response that is taken; a fetch asks for less, but a batch may be larger than asked for.
RESPONSE_BYTES_MAX = 256 << 20
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
#: An answer that has begun comes without longer pauses. A source waits for the rest of an answer
#: within a poll.
STALL_S = 5.0
#: A response's header: its number, and fields that later brokers add.
_HEADER_BYTES_MAX = 1024
#: Pieces in one call of the system; POSIX grants 1024.
_PARTS_MAX = 512


class BrokerLost(OSError):
    """A connection could not be made or broke; another one may succeed."""


class BadResponse(HeadraceError):
    """A response is no message of Kafka's, or does not belong to its request."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    """An open, authenticated connection; `closed` after any failure."""

    def __init__(
        self,
        address: Address,
        security: Security,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Connect, and ask the broker which versions it knows.

        Raises: BrokerLost; BadResponse; UserError, when the broker refuses the credentials.
        """
        self.address = address
        self.closed = False
        self._timeout_s = connect_timeout_s
        self._correlation = 0
        #: {request's key: versions from and to}, as the broker offers them.
        self._offered: dict[int, tuple[int, int]] = {}
        #: Headers of requests that were sent and not answered.
        self._expected: deque[RequestHeader] = deque()
        try:
            plain = socket.create_connection((address.host, address.port), connect_timeout_s)
            self._socket = plain
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = security.wrap(plain, address.host)
        except OSError as error:
            raise BrokerLost(f"cannot connect to {address}: {error}") from error
        try:
            self._introduce(security)
        except BaseException:
            self.close()
            raise
        self._timeout_s = request_timeout_s

    def call(self, request: Request, *, max_version: int | None = None) -> Response:
        """Send a request and wait for its response; nothing else may be under way."""
        assert not self._expected, "an earlier response has not been received"
        self.send(request, max_version=max_version)
        return self.receive()

    def send(self, request: Request, *, max_version: int | None = None) -> None:
        """Send a request, in a version up to `max_version`.

        Raises: BrokerLost; UserError, when the broker knows no such version.
        """
        version = self.version(request, max_version)
        self._correlation += 1
        request.API_VERSION = version
        request.with_header(self._correlation, CLIENT_ID)
        self._write([request.encode(header=True, framed=True)])
        self._expected.append(request.header)

    def send_parts(self, kind: type[Request], version: int, parts: Sequence[Buffer]) -> None:
        """Send a request whose body the caller has encoded, in parts that are not copied.

        For versions without tagged fields. Raises: as `send`.
        """
        self.version(kind, version, oldest=version)
        self._correlation += 1
        header = RequestHeader(
            request_api_key=kind.API_KEY,
            request_api_version=version,
            correlation_id=self._correlation,
            client_id=CLIENT_ID,
        )
        head = header.encode(flexible=False)
        size = len(head) + sum(memoryview(part).nbytes for part in parts)
        self._write([struct.pack(">i", size) + head, *parts])
        self._expected.append(header)

    def receive(self) -> Response:
        """Wait for the response to the oldest request without one. Raises: BrokerLost,
        BadResponse.
        """
        header = self._expected[0]
        body = memoryview(self._read_frame()).cast("B")
        self._expected.popleft()
        kind = header.get_response_class()
        try:
            head = io.BytesIO(body[:_HEADER_BYTES_MAX])
            self._check_number(header, kind.parse_header(head).correlation_id)
            return kind.decode(body[head.tell() :])
        except (ValueError, struct.error, IndexError) as error:
            raise self._bad(f"sent a {kind.name} that cannot be read: {error}") from error

    def receive_body(self) -> pa.Buffer:
        """As `receive`, for the caller to decode; for versions without tagged fields."""
        header = self._expected[0]
        frame = self._read_frame()
        self._expected.popleft()
        self._check_number(header, struct.unpack_from(">i", frame)[0])
        return frame.slice(4)

    def ready(self, timeout_s: float) -> bool:
        """Wait until `receive` has something to read, at most so long."""
        return ready([self], timeout_s) != []

    @property
    def waiting(self) -> int:
        """How many responses have not been received."""
        return len(self._expected)

    def version(
        self, kind: Request | type[Request], max_version: int | None = None, *, oldest: int = 0
    ) -> int:
        """Return the version in which a request would be sent. Raises: UserError."""
        first, last = self._offered.get(kind.API_KEY, (0, -1))
        newest: int = kind.max_version if max_version is None else max_version
        version = min(last, newest)
        if version < max(first, oldest):
            raise UserError(
                f"Kafka at {self.address} takes {kind.name} in versions {first} to {last}, and"
                f" headrace speaks {oldest} to {newest}: use a broker between 2.4 and 4"
            )
        return version

    def fileno(self) -> int:
        """File descriptor, for `select`."""
        return self._socket.fileno()

    def buffered(self) -> bool:
        """Whether decrypted bytes wait that `select` does not see."""
        return isinstance(self._socket, SSLSocket) and self._socket.pending() > 0

    def close(self) -> None:
        """Close the socket; does not raise."""
        self.closed = True
        self._expected.clear()
        self._socket.close()

    def _introduce(self, security: Security) -> None:
        self._offered = {ApiVersionsRequest.API_KEY: (0, 0), SaslHandshakeRequest.API_KEY: (1, 1)}
        offered = self.call(ApiVersionsRequest()).api_keys
        self._offered = {each.api_key: (each.min_version, each.max_version) for each in offered}
        if security.mechanism is not None:
            self._authenticate(security, security.mechanism)

    def _authenticate(self, security: Security, name: str) -> None:
        answer = self.call(SaslHandshakeRequest(mechanism=name))
        if answer.error_code:
            raise UserError(
                f"Kafka at {self.address} does not offer SASL {name}: it offers"
                f" {', '.join(answer.mechanisms) or 'none'}"
            )
        mechanism = security.sasl(self.address.host)
        while not mechanism.is_done():
            answer = self.call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()))
            if answer.error_code:
                reason = answer.error_message or for_code(answer.error_code).message
                raise UserError(f"Kafka at {self.address} refused SASL {name}: {reason}")
            try:
                mechanism.receive(answer.auth_bytes)
            except Exception as error:
                raise UserError(f"SASL {name} with {self.address} failed: {error}") from error
        if not mechanism.is_authenticated():
            raise UserError(f"Kafka at {self.address} refused SASL {name}")

    def _write(self, parts: Sequence[Buffer]) -> None:
        try:
            self._socket.settimeout(self._timeout_s)
            if isinstance(self._socket, SSLSocket):
                self._socket.sendall(b"".join(parts))
                return
            views = deque(memoryview(part).cast("B") for part in parts)
            while views:
                sent = self._socket.sendmsg(islice(views, _PARTS_MAX))
                while views and sent >= views[0].nbytes:
                    sent -= views.popleft().nbytes
                if sent:
                    views[0] = views[0][sent:]
        except OSError as error:
            raise self._lost(error) from error

    def _read_frame(self) -> pa.Buffer:
        deadline = time.monotonic() + self._timeout_s
        (size,) = struct.unpack(">i", self._read(4, deadline, self._timeout_s))
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise self._bad(
                f"announced a response of {size} bytes, and at most {RESPONSE_BYTES_MAX} are taken;"
                " does a Kafka broker listen there, and with this security_protocol?"
            )
        return self._read(size, deadline, min(STALL_S, self._timeout_s))

    def _read(self, size: int, deadline: float, pause_s: float) -> pa.Buffer:
        # Arrow's allocator keeps memory warm; fresh pages would cost more than the copy.
        data = pa.allocate_buffer(size)
        view = memoryview(data).cast("B")
        try:
            while view:
                # Each piece in the time that is left: a peer that drips bytes is lost, too.
                left_s = max(0.001, deadline - time.monotonic())
                self._socket.settimeout(min(pause_s, left_s))
                count = self._socket.recv_into(view)
                if not count:
                    raise self._lost("the broker closed the connection")
                view = view[count:]
        except BrokerLost:
            raise
        except TimeoutError as error:
            raise self._lost(f"no answer for {pause_s:g} s") from error
        except OSError as error:
            raise self._lost(error) from error
        return data

    def _check_number(self, header: RequestHeader, number: int) -> None:
        if number != header.correlation_id:
            raise self._bad(f"answered request {number} and not {header.correlation_id}")

    def _lost(self, reason: object) -> BrokerLost:
        self.close()
        return BrokerLost(f"connection to {self.address}: {reason}")

    def _bad(self, reason: str) -> BadResponse:
        self.close()
        return BadResponse(f"Kafka at {self.address} {reason}")


def ready(connections: list[Connection], timeout_s: float) -> list[Connection]:
    """Wait until some of the connections can `receive`, at most so long; return these."""
    full = [each for each in connections if each.buffered()]
    if full or not connections:
        return full
    poller = select.poll()
    by_number = {each.fileno(): each for each in connections}
    for number in by_number:
        poller.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poller.poll(timeout_s * 1000)]
