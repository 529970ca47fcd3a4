"""Master URLs that cannot work are told before Java starts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.engine.contract.errors import AddressUnreachable, UserError
from headrace.engine.spark import master
from headrace.engine.spark.master import check_master

#: What a master says when it is asked for a stream that it does not have.
REFUSAL = bytes.fromhex("000000000000002d 08 00000000 00000018") + b"Stream was not found..."


@contextlib.contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """The address of a port that gives this answer and hangs up."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[3, 7]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://host:6443",
    ],
)
def test_masters_as_spark_spells_them_are_let_through(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master",
    [
        "",
        "nonsense",
        "spark:/host:7077",
        "spark://host",
        "spark://:7077",
        "spark://host:70777",
        "spark://a:7077,b",
        "local[0]",
        "mesos://host:5050",
    ],
)
def test_nonsense_is_the_users_mistake(master: str) -> None:
    with pytest.raises(UserError, match=r"is no Spark master: write spark://HOST:PORT"):
        check_master(master)


def _refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_master_that_refuses_is_unreachable() -> None:
    with pytest.raises(AddressUnreachable, match="cannot be reached: Connection refused"):
        check_master(f"spark://{_refusing()}")


def test_one_of_several_masters_is_enough() -> None:
    with saying(REFUSAL) as address:
        check_master(f"spark://{_refusing()},{address}")


def test_a_port_that_says_nothing_is_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressUnreachable, match=f"port {port} is open, but says nothing to"):
            check_master(f"spark://127.0.0.1:{port}")


def test_a_port_of_another_program_is_no_master() -> None:
    with (
        saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(AddressUnreachable, match="is open, but belongs to another program"),
    ):
        check_master(f"spark://{address}")


def test_a_port_that_hangs_up_may_be_a_master_that_wants_tls() -> None:
    with saying(b"") as address:
        check_master(f"spark://{address}")


def test_a_host_that_does_not_exist_is_unreachable() -> None:
    with pytest.raises(AddressUnreachable, match=r"spark://nowhere\.invalid:7077 cannot be"):
        check_master("spark://nowhere.invalid:7077")
