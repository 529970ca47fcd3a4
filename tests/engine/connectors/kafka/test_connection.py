"""Connections over real sockets, to servers that say what a test wants."""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from headrace.engine.connectors.kafka import connection as connection_module
from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.connection import (
    Address,
    BadResponse,
    BrokerLost,
    Connection,
    ready,
)
from headrace.engine.connectors.kafka.produce import VERSION, send_produce
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.contract.errors import UserError

#: Given (api key, version, correlation, body): bytes to answer; None: close.
Answer = Callable[[int, int, int, bytes], bytes | None]


def framed(correlation: int, body: bytes, *, flexible: bool = False) -> bytes:
    data = struct.pack(">i", correlation) + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(data)) + data


def versions(correlation: int, offered: dict[int, tuple[int, int]] | None = None) -> bytes:
    kind = ApiVersionsResponse.ApiVersion
    ranges = {0: (3, 13), 1: (4, 17), 3: (0, 13), 17: (0, 1), 36: (0, 2)} | (offered or {})
    keys = [kind(api_key=key, min_version=a, max_version=b) for key, (a, b) in ranges.items()]
    body = ApiVersionsResponse(error_code=0, api_keys=keys).encode(version=0)
    return framed(correlation, bytes(body))


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def encrypted(plain: socket.socket, certificate: str | None) -> socket.socket:
    if certificate is None:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context.wrap_socket(plain, server_side=True)


@contextmanager
def server(answer: Answer, certificate: str | None = None) -> Iterator[Address]:
    """A server of one connection, encrypted where there is a certificate."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            # A client that has read enough resets the connection.
            with suppress(ConnectionError, ssl.SSLError), encrypted(peer, certificate) as peer:
                while head := _read(peer, 4):
                    request = _read(peer, struct.unpack(">i", head)[0])
                    key, version, correlation = struct.unpack_from(">hhi", request)
                    said = answer(key, version, correlation, request[8:])
                    if said is None:
                        return
                    peer.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        thread.join(timeout=10)


def connected(address: Address, timeout_s: float = 5, **options: Any) -> Connection:
    return Connection(
        address, Security(options), connect_timeout_s=timeout_s, request_timeout_s=timeout_s
    )


def broker(answer: Answer, offered: dict[int, tuple[int, int]] | None = None) -> Answer:
    """Answers the request for versions, and leaves the rest to `answer`."""

    def both(key: int, version: int, correlation: int, body: bytes) -> bytes | None:
        if key == 18:
            return versions(correlation, offered)
        return answer(key, version, correlation, body)

    return both


def metadata(key: int, version: int, correlation: int, body: bytes) -> bytes:
    answer = MetadataResponse(cluster_id=f"v{version}", brokers=[], topics=[])
    return framed(correlation, bytes(answer.encode(version=version)), flexible=version >= 9)


def test_requests_go_in_the_newest_version_that_both_know() -> None:
    for offered, asked, expected in (((0, 12), None, "v12"), ((0, 99), 9, "v9"), ((0, 5), 9, "v5")):
        with server(broker(metadata, {3: offered})) as address:
            connection = connected(address)
            answer = connection.call(MetadataRequest(topics=[]), max_version=asked)
            assert answer.cluster_id == expected
            connection.close()


def test_a_broker_of_another_age_is_refused() -> None:
    with server(broker(metadata, {3: (40, 50)})) as address:
        connection = connected(address)
        with pytest.raises(UserError, match="takes MetadataRequest in versions 40 to 50"):
            connection.call(MetadataRequest(topics=[]))
        connection.close()


def test_several_requests_are_under_way_and_answered_in_order() -> None:
    with server(broker(metadata)) as address:
        connection = connected(address)
        for version in (1, 9, 12):
            connection.send(MetadataRequest(topics=[]), max_version=version)
        assert connection.waiting == 3
        assert ready([connection], 5) == [connection]
        assert connection.ready(5)
        got = [connection.receive().cluster_id for _ in range(3)]
        assert got == [None, "v9", "v12"]
        assert not connection.ready(0)
        connection.close()


def test_records_go_out_in_parts_and_come_in_as_they_are() -> None:
    seen: list[bytes] = []

    def produced(key: int, version: int, correlation: int, body: bytes) -> bytes:
        seen.append(body)
        return framed(correlation, b"answer")

    parts = [pa.py_buffer(b"x" * 3_000_000), pa.py_buffer(b""), pa.py_buffer(b"end")]
    with server(broker(produced)) as address:
        connection = connected(address)
        connection.send_parts(ProduceRequest, 8, parts)
        assert connection.receive_body().to_pybytes() == b"answer"
        connection.close()
    assert seen[0].endswith(b"x" * 3_000_000 + b"end")


def test_a_produce_request_is_what_another_implementation_writes() -> None:
    seen: list[bytes] = []

    def produced(key: int, version: int, correlation: int, body: bytes) -> bytes:
        seen.append(body)
        return framed(correlation, bytes(ProduceResponse(responses=[]).encode(version=VERSION)))

    batches = {Partition("t", 1): b"abc", Partition("u", 0): b"", Partition("t", 0): b"d"}
    with server(broker(produced)) as address:
        connection = connected(address)
        for id_ in (None, "id"):
            parts = {each: [pa.py_buffer(data)] for each, data in batches.items()}
            send_produce(connection, parts, transactional_id=id_, timeout_ms=7)
            assert connection.receive().responses == []
        connection.close()
    kind = ProduceRequest.TopicProduceData
    for id_, body in zip((None, "id"), seen, strict=True):
        topics = [
            kind(
                name=topic,
                partition_data=[
                    kind.PartitionProduceData(index=each.index, records=data)
                    for each, data in batches.items()
                    if each.topic == topic
                ],
            )
            for topic in ("t", "u")
        ]
        other = ProduceRequest(transactional_id=id_, acks=-1, timeout_ms=7, topic_data=topics)
        client = struct.pack(">h", 8) + b"headrace"
        assert body == client + bytes(other.encode(version=VERSION))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"HTTP/1.1 400", "announced a response of 1213486160 bytes"),
        (struct.pack(">i", 3), "announced a response of 3 bytes"),
        (struct.pack(">i", -1), "announced a response of -1 bytes"),
        (framed(999, b""), "answered request 999 and not 2"),
        (framed(2, b"\0\0"), "sent a MetadataResponse that cannot be read"),
    ],
)
def test_what_is_no_answer_is_refused(said: bytes, problem: str) -> None:
    with server(broker(lambda *_: said)) as address:
        connection = connected(address)
        with pytest.raises(BadResponse, match=problem):
            connection.call(MetadataRequest(topics=[]), max_version=1)
        assert connection.closed


def test_a_large_response_is_refused_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "RESPONSE_BYTES_MAX", 1000)
    with (
        server(broker(lambda *_: framed(2, bytes(1000)))) as address,
        pytest.raises(BadResponse, match="1004 bytes, and at most 1000 are taken"),
    ):
        connected(address).call(MetadataRequest(topics=[]), max_version=1)


def test_a_broker_that_leaves_or_stalls_is_lost() -> None:
    with server(broker(lambda *_: None)) as address:
        connection = connected(address)
        with pytest.raises(BrokerLost, match="closed the connection"):
            connection.call(MetadataRequest(topics=[]))
        assert connection.closed
    for said in (b"", b"\0\0", struct.pack(">i", 100) + b"part"):
        with server(broker(lambda *_, said=said: said)) as address:
            connection = connected(address, timeout_s=0.3)
            with pytest.raises(BrokerLost, match=r"no answer for 0\.3 s"):
                connection.call(MetadataRequest(topics=[]))
            assert connection.closed


def test_nobody_listening_is_a_lost_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(BrokerLost, match=f"cannot connect to 127.0.0.1:{port}"):
        connected(Address("127.0.0.1", port))


def sasl(mechanisms: list[str], error: int) -> Answer:
    def answer(key: int, version: int, correlation: int, body: bytes) -> bytes:
        if key == 17:
            code = 0 if "PLAIN" in mechanisms else 33
            said = SaslHandshakeResponse(error_code=code, mechanisms=mechanisms)
            return framed(correlation, bytes(said.encode(version=version)))
        if key == 36:
            right = body.endswith(b"\0user\0secret\0") or b"user\0user\0secret" in body
            assert right, body
            message = "wrong password" if error else None
            done = SaslAuthenticateResponse(
                error_code=error, error_message=message, auth_bytes=b"", session_lifetime_ms=0
            )
            return framed(correlation, bytes(done.encode(version=version)), flexible=version >= 2)
        return metadata(key, version, correlation, body)

    return answer


CREDENTIALS: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "user",
    "sasl_plain_password": "secret",
}


def test_credentials_are_given_before_the_first_request() -> None:
    with server(broker(sasl(["PLAIN"], 0))) as address:
        connection = connected(address, **CREDENTIALS)
        assert connection.call(MetadataRequest(topics=[])).brokers == []
        connection.close()


def test_credentials_that_are_refused_are_the_users_matter() -> None:
    with (
        server(broker(sasl(["PLAIN"], 58))) as address,
        pytest.raises(UserError, match="refused SASL PLAIN: wrong password"),
    ):
        connected(address, **CREDENTIALS)
    with (
        server(broker(sasl(["GSSAPI"], 0))) as address,
        pytest.raises(UserError, match="does not offer SASL PLAIN: it offers GSSAPI"),
    ):
        connected(address, **CREDENTIALS)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a key and a certificate for 127.0.0.1, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no `openssl` here, which makes a certificate")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-keyout", str(path), "-out", f"{path}.crt"], check=True, capture_output=True
    )
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return str(path)


def test_records_go_and_come_over_tls(certificate: str) -> None:
    said = bytes(range(256)) * 1000

    def echo(key: int, version: int, correlation: int, body: bytes) -> bytes:
        return framed(correlation, body)

    with server(broker(echo), certificate) as address:
        connection = connected(address, security_protocol="SSL", ssl_cafile=certificate)
        for _ in range(2):
            connection.send_parts(ProduceRequest, 8, [pa.py_buffer(said), pa.py_buffer(b"end")])
        # What was decrypted together with the first answer is not seen by `select`.
        for _ in range(2):
            assert connection.ready(5)
            assert connection.receive_body().to_pybytes().endswith(said + b"end")
        connection.close()


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: str) -> None:
    with (
        server(broker(metadata), certificate) as address,
        pytest.raises(BrokerLost, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        connected(address, security_protocol="SSL")
