"""Handshake: who gets in, who does not, and what the two ends share afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.channels.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    ClientHandshake,
    HandshakeError,
    Identity,
    ServerHandshake,
    Session,
)

SECRET = b"s" * 32
WORKER = Identity("orders", "worker", worker=3, incarnation=2, epoch=7)
COORDINATOR = Identity("orders", "coordinator", worker=0, incarnation=1, epoch=0)


def anyone(peer: Identity) -> bool:
    return True


def client(
    *,
    secret: bytes = SECRET,
    identity: Identity = WORKER,
    nonce: bytes = b"c" * 32,
    accept: Callable[[Identity], bool] = anyone,
) -> ClientHandshake:
    return ClientHandshake(secret, identity, nonce, accept)


def server(
    *,
    secret: bytes = SECRET,
    identity: Identity = COORDINATOR,
    nonce: bytes = b"n" * 32,
    accept: Callable[[Identity], bool] = anyone,
) -> ServerHandshake:
    return ServerHandshake(secret, identity, nonce, accept)


def finish(one: ClientHandshake, other: ServerHandshake) -> tuple[Session, Session]:
    proof, session = one.challenged(other.greeted(one.hello()))
    return session, other.proven(proof)


def test_both_ends_learn_who_the_other_is_and_the_epoch_of_the_client() -> None:
    ours, theirs = finish(client(), server())
    assert theirs.peer == WORKER
    assert ours.peer == replace(COORDINATOR, epoch=7)


def test_keys_fit_together_and_differ_by_direction() -> None:
    ours, theirs = finish(client(), server())
    assert ours.send_key == theirs.receive_key
    assert ours.receive_key == theirs.send_key
    assert ours.send_key != ours.receive_key
    assert len(ours.send_key) == len(ours.receive_key) == 32


@pytest.mark.parametrize("changed", ["client", "server"])
def test_another_nonce_of_either_end_makes_other_keys(changed: str) -> None:
    first, _ = finish(client(), server())
    if changed == "client":
        second, _ = finish(client(nonce=b"x" * 32), server())
    else:
        second, _ = finish(client(), server(nonce=b"x" * 32))
    assert {first.send_key, first.receive_key}.isdisjoint({second.send_key, second.receive_key})


def test_messages_have_their_fixed_sizes_whatever_the_name_of_the_job() -> None:
    job = "a very long name " * 100
    one = client(identity=replace(WORKER, job=job))
    challenge = server(identity=replace(COORDINATOR, job=job)).greeted(one.hello())
    proof, _ = one.challenged(challenge)
    assert len(one.hello()) == HELLO_BYTES < 256
    assert len(challenge) == CHALLENGE_BYTES < 256
    assert len(proof) == PROOF_BYTES < 256


def test_server_refuses_a_client_with_another_secret() -> None:
    with pytest.raises(HandshakeError, match="secret"):
        server().greeted(client(secret=b"t" * 32).hello())


def test_client_refuses_a_server_with_another_secret() -> None:
    impostors = server(secret=b"t" * 32).greeted(client(secret=b"t" * 32).hello())
    with pytest.raises(HandshakeError, match="secret"):
        client().challenged(impostors)


@pytest.mark.parametrize("position", range(HELLO_BYTES))
def test_every_changed_byte_of_the_hello_is_found(position: int) -> None:
    hello = bytearray(client().hello())
    hello[position] ^= 0x10
    with pytest.raises(HandshakeError):
        server().greeted(bytes(hello))


@pytest.mark.parametrize("position", range(CHALLENGE_BYTES))
def test_every_changed_byte_of_the_challenge_is_found(position: int) -> None:
    one = client()
    challenge = bytearray(server().greeted(one.hello()))
    challenge[position] ^= 0x10
    with pytest.raises(HandshakeError):
        one.challenged(bytes(challenge))


@pytest.mark.parametrize("position", range(PROOF_BYTES))
def test_every_changed_byte_of_the_proof_is_found(position: int) -> None:
    one, other = client(), server()
    proof = bytearray(one.challenged(other.greeted(one.hello()))[0])
    proof[position] ^= 0x10
    with pytest.raises(HandshakeError):
        other.proven(bytes(proof))


def test_a_recorded_session_does_not_open_a_second_one() -> None:
    one, other = client(), server()
    hello = one.hello()
    proof, _ = one.challenged(other.greeted(hello))
    other.proven(proof)
    again = server(nonce=b"m" * 32)
    again.greeted(hello)
    with pytest.raises(HandshakeError, match="nonce"):
        again.proven(proof)


def test_a_recorded_challenge_does_not_fool_a_client() -> None:
    recorded = server().greeted(client().hello())
    with pytest.raises(HandshakeError):
        client(nonce=b"d" * 32).challenged(recorded)


def test_a_hello_is_not_taken_for_a_challenge() -> None:
    one = client()
    with pytest.raises(HandshakeError):
        one.challenged(one.hello())


def test_another_job_is_refused_even_with_the_same_secret() -> None:
    with pytest.raises(HandshakeError, match="another job"):
        server().greeted(client(identity=replace(WORKER, job="payments")).hello())


def test_two_coordinators_do_not_connect() -> None:
    with pytest.raises(HandshakeError, match="coordinator"):
        server().greeted(client(identity=COORDINATOR).hello())


def test_two_workers_connect() -> None:
    _, theirs = finish(client(), server(identity=replace(WORKER, worker=4)))
    assert theirs.peer.worker == 3


def test_server_refuses_an_epoch_or_role_it_does_not_want() -> None:
    def current(peer: Identity) -> bool:
        return peer.epoch == 8 and peer.role == "worker"

    with pytest.raises(HandshakeError, match="not wanted"):
        server(accept=current).greeted(client().hello())
    assert server(accept=current).greeted(client(identity=replace(WORKER, epoch=8)).hello())


def test_client_refuses_a_server_it_does_not_want() -> None:
    one = client(accept=lambda peer: peer.incarnation == 9)
    with pytest.raises(HandshakeError, match="not wanted"):
        one.challenged(server().greeted(one.hello()))


@pytest.mark.parametrize("length", [0, 1, HELLO_BYTES - 1, HELLO_BYTES + 1])
def test_messages_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(HandshakeError):
        server().greeted(bytes(length))


def test_short_secrets_and_nonces_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="secret"):
        client(secret=b"short")
    with pytest.raises(ValueError, match="nonce"):
        server(nonce=b"short")
