"""The services of tests: found where they run, killed, frozen and up again with their data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .kafka import Kafka
from .postgres import Postgres
from .process import ROOT, is_running
from .s3 import S3

pytestmark = pytest.mark.services


def test_kafka_keeps_its_topics_through_a_kill(kafka: Kafka) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    server = ("--bootstrap-server", kafka.address)
    kafka.tool(topics, *server, "--create", "--if-not-exists", "--topic", "services")
    kafka.kill()
    assert not is_running(kafka.facts)
    kafka.restart()
    assert "services" in kafka.tool(topics, *server, "--list").splitlines()


def test_postgres_keeps_a_prepared_transaction_through_a_kill(postgres: Postgres) -> None:
    postgres.psql("drop table if exists kept; create table kept (n int);")
    postgres.psql("begin; insert into kept values (1); prepare transaction 'kept';")
    postgres.kill()
    postgres.restart()
    assert postgres.psql("select count(*) from kept") == ["0"]
    postgres.psql("commit prepared 'kept'")
    assert postgres.psql("select count(*) from kept") == ["1"]


def test_frozen_postgres_does_not_answer_until_it_thaws(postgres: Postgres) -> None:
    postgres.freeze()
    command = ["pg_isready", "-q", "-t", "1", "-h", "127.0.0.1", "-p", str(postgres.facts.port)]
    assert subprocess.run(command, check=False).returncode != 0
    postgres.thaw()
    assert postgres.psql("select 1") == ["1"]


def test_s3_is_the_store_of_the_environment(s3: S3) -> None:
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.makedirs("services", exist_ok=True)
    files.pipe_file("services/a", b"1")
    assert files.cat("services/a") == b"1"


def test_a_second_start_finds_the_running_service(kafka: Kafka) -> None:
    command = [sys.executable, "-m", "tests.services", "start", "kafka"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"kafka: runs, {kafka.address}, pid {kafka.facts.pid}\n"
