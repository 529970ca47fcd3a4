"""Master URLs that cannot work are told before Java starts."""

import socket

import pytest

from headrace.engine.contract.errors import AddressUnreachable, UserError
from headrace.engine.spark.master import check_master


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_master(f"spark://{_refusing()},127.0.0.1:{listener.getsockname()[1]}")


def test_a_host_that_does_not_exist_is_unreachable() -> None:
    with pytest.raises(AddressUnreachable, match=r"spark://nowhere\.invalid:7077 cannot be"):
        check_master("spark://nowhere.invalid:7077")
