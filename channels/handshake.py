"""Handshake: two processes prove to each other that they know the job's secret, and agree on keys.

Three messages of fixed size, little endian, format (a change takes a new magic):

    hello      client -> server  magic "HRH1", nonce (32), identity (60), MAC (32)       128 bytes
    challenge  server -> client  magic "HRC1", nonce (32), identity (60), MAC (32)       128 bytes
    proof      client -> server  magic "HRP1", MAC (32)                                   36 bytes

    identity   SHA-256 of the job's name (32), role (4: 1 coordinator, 2 worker, 3 controller),
               worker (8), incarnation (8), epoch (8)

Each MAC is HMAC-SHA256 under the job's secret over everything sent so far, both ways, the MAC
itself excluded. So a message is parsed only after its sender has proved to know the secret, and a
name never travels as text. The server's MAC covers the client's nonce and the client's proof
covers the server's nonce: a recording of either side answers the wrong nonce. A replayed hello gets
no more than a challenge.

Keys, one for each direction, come from secret and transcript as in HKDF (RFC 5869): extract, then
expand with a label.

The epoch belongs to the connection: the client names the epoch, and the server takes it over if
`accept` agrees. Nonces are arguments and must be fresh random bytes for every handshake. Not here:
secrecy of later messages, which needs TLS.

Source: challenge-response of ISO/IEC 9798-4 (three-pass mutual authentication).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

Role = Literal["coordinator", "worker", "controller"]

#: Sizes of the messages and of the nonces: format, never change.
HELLO_BYTES: Final = 128
CHALLENGE_BYTES: Final = 128
PROOF_BYTES: Final = 36
NONCE_BYTES: Final = 32

#: Shortest secret that is accepted; a job's has 32 bytes.
SECRET_BYTES_MIN: Final = 16

# Format, never change.
_HELLO, _CHALLENGE, _PROOF = b"HRH1", b"HRC1", b"HRP1"
_IDENTITY: Final = struct.Struct("<32sIqqq")
_MAC_BYTES: Final = 32
_ROLE_CODES: Final[dict[Role, int]] = {"coordinator": 1, "worker": 2, "controller": 3}
_ROLE_OF_CODE: Final[dict[int, Role]] = {code: role for role, code in _ROLE_CODES.items()}

assert 4 + NONCE_BYTES + _IDENTITY.size + _MAC_BYTES == HELLO_BYTES


class HandshakeError(Exception):
    """The peer did not prove to belong to the job. Close the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The process at an end of a connection.

    Attributes:
        job: name of the job.
        role: of the process in the job.
        worker: index of the worker; any fixed number for the coordinator.
        incarnation: number of the worker's start.
        epoch: fencing number of the attempt that the connection serves.
    """

    job: str
    role: Role
    worker: int
    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Session:
    """Result of a finished handshake. One end sends with the key by which the other receives.

    Attributes:
        peer: the other end, proven.
        send_key: 32 bytes.
        receive_key: 32 bytes.
    """

    peer: Identity
    send_key: bytes
    receive_key: bytes


class ClientHandshake:
    """The client's end: send `hello()`, then hand the answer to `challenged`."""

    def __init__(
        self,
        secret: bytes,
        identity: Identity,
        nonce: bytes,
        accept: Callable[[Identity], bool],
    ) -> None:
        """`identity` is ours, with the connection's epoch; `accept` decides about the server."""
        _check_arguments(secret, nonce)
        self._secret = secret
        self._identity = identity
        self._accept = accept
        self._hello = _introduce(secret, _HELLO, nonce, identity, b"")

    def hello(self) -> bytes:
        """The first message, `HELLO_BYTES` long."""
        return self._hello

    def challenged(self, challenge: bytes) -> tuple[bytes, Session]:
        """Check the server's answer of `CHALLENGE_BYTES`.

        Returns the proof, to be sent before any frame, and the session, good at once: the server is
        proven.

        Raises: HandshakeError.
        """
        peer = _recognise(
            self._secret, _CHALLENGE, challenge, self._hello, self._identity, self._accept
        )
        if peer.epoch != self._identity.epoch:
            raise HandshakeError(f"epoch {peer.epoch}, not {self._identity.epoch}")
        transcript = self._hello + challenge
        to_server, to_client = _keys(self._secret, transcript)
        return _prove(self._secret, transcript), Session(peer, to_server, to_client)


class ServerHandshake:
    """The server's end: answer `greeted(hello)`, then hand the proof to `proven`."""

    def __init__(
        self,
        secret: bytes,
        identity: Identity,
        nonce: bytes,
        accept: Callable[[Identity], bool],
    ) -> None:
        """`identity` is ours, with the client's epoch; `accept` decides about the client.

        A replayed hello may ask `accept`, which therefore must not change anything.
        """
        _check_arguments(secret, nonce)
        self._secret = secret
        self._identity = identity
        self._nonce = nonce
        self._accept = accept
        self._peer: Identity | None = None
        self._transcript = b""

    def greeted(self, hello: bytes) -> bytes:
        """Check the client's first message of `HELLO_BYTES` and return the challenge.

        Raises: HandshakeError.
        """
        assert self._peer is None, "a handshake is used once"
        peer = _recognise(self._secret, _HELLO, hello, b"", self._identity, self._accept)
        ours = replace(self._identity, epoch=peer.epoch)
        challenge = _introduce(self._secret, _CHALLENGE, self._nonce, ours, hello)
        self._peer = peer
        self._transcript = hello + challenge
        return challenge

    def proven(self, proof: bytes) -> Session:
        """Check the client's proof of `PROOF_BYTES`; frames follow it. Raises: HandshakeError."""
        assert self._peer is not None, "the client has not said hello"
        if not hmac.compare_digest(proof, _prove(self._secret, self._transcript)):
            raise HandshakeError("the proof does not answer our nonce")
        to_server, to_client = _keys(self._secret, self._transcript)
        return Session(self._peer, to_client, to_server)


def _check_arguments(secret: bytes, nonce: bytes) -> None:
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(f"a secret has at least {SECRET_BYTES_MIN} bytes, not {len(secret)}")
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _job_digest(job: str) -> bytes:
    return hashlib.sha256(job.encode()).digest()


def _introduce(
    secret: bytes, magic: bytes, nonce: bytes, identity: Identity, transcript: bytes
) -> bytes:
    message = (
        magic
        + nonce
        + _IDENTITY.pack(
            _job_digest(identity.job),
            _ROLE_CODES[identity.role],
            identity.worker,
            identity.incarnation,
            identity.epoch,
        )
    )
    return message + _mac(secret, transcript + message)


def _recognise(
    secret: bytes,
    magic: bytes,
    message: bytes,
    transcript: bytes,
    ours: Identity,
    accept: Callable[[Identity], bool],
) -> Identity:
    """Check an introduction, the MAC first: only a sender who knows the secret reaches the rest."""
    if len(message) != HELLO_BYTES:
        raise HandshakeError(f"{len(message)} bytes instead of {HELLO_BYTES}")
    signed = message[:-_MAC_BYTES]
    if not hmac.compare_digest(message[-_MAC_BYTES:], _mac(secret, transcript + signed)):
        raise HandshakeError("the peer does not know the secret")
    if signed[:4] != magic:
        raise HandshakeError(f"the peer speaks {signed[:4]!r}, not {magic!r}")
    job, code, worker, incarnation, epoch = _IDENTITY.unpack(signed[4 + NONCE_BYTES :])
    role = _ROLE_OF_CODE.get(code)
    if job != _job_digest(ours.job):
        raise HandshakeError("the peer belongs to another job")
    if role is None:
        raise HandshakeError(f"the peer has the unknown role {code}")
    if role == ours.role == "coordinator":
        raise HandshakeError("a coordinator does not talk to another one")
    peer = Identity(ours.job, role, worker, incarnation, epoch)
    if not accept(peer):
        raise HandshakeError(f"{peer} is not wanted")
    return peer


def _prove(secret: bytes, transcript: bytes) -> bytes:
    return _PROOF + _mac(secret, transcript + _PROOF)


def _keys(secret: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """Return the keys of the two directions: to the server, to the client."""
    extracted = _mac(secret, b"headrace keys" + transcript)
    return _mac(extracted, b"to the server\x01"), _mac(extracted, b"to the client\x01")
