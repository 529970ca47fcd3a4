"""Kafka on the loopback address: one broker that is its own controller, and Kafka's tools.

Maven fetches the jars into `.services/kafka-jars`, once.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from . import jars
from .process import FOLDER, WAIT_S, Facts, free_port, launch
from .service import Service

JARS = FOLDER / "kafka-jars"
POM = Path(__file__).with_name("pom.xml")
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
_MARK = "end of what was there at "

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}/logs
num.partitions=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""

_LOGGING = """\
Configuration:
  status: error
  Appenders:
    Console:
      name: STDERR
      target: SYSTEM_ERR
      PatternLayout: {pattern: "%d %p %c{1} %m%n"}
  Loggers:
    Root: {level: warn, AppenderRef: {ref: STDERR}}
"""


class Kafka(Service):
    """A broker.

    Args:
        properties: of the broker, over those of all tests.
    """

    def __init__(self, name: str = "kafka", properties: Mapping[str, str] | None = None) -> None:
        super().__init__(name)
        self._properties = dict(properties or {})

    def install(self) -> None:
        """Let Maven fetch the jars."""
        jars.fetch(POM, JARS, "Kafka")

    def launch(self, port: int, data: Path) -> Facts:
        """Format the data unless it is a killed broker's, and start the broker."""
        settings = data / "server.properties"
        if not settings.exists():
            controller = free_port()
            text = _PROPERTIES.format(port=port, controller=controller, data=data)
            more = [f"{key}={value}\n" for key, value in self._properties.items()]
            settings.write_text("".join([text, *more]))
            (data / "log4j2.yaml").write_text(_LOGGING)
            cluster = "MkU3OEVBNTcwNTJENDM2Qg"
            self.tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings))
        heap = ("-Xms64m", "-Xmx384m")
        logging = f"-Dlog4j2.configurationFile={data}/log4j2.yaml"
        command = [*jars.java(JARS), *heap, logging, "kafka.Kafka", str(settings)]
        return launch(self.name, command, port, data)

    def answers(self, port: int) -> bool:
        """Ask for the versions of requests, which any client asks first."""
        request = struct.pack(">hhih", 18, 0, 1, 1) + b"x"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.settimeout(2.0)
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(4)) == 4
        return False

    def tool(self, main: str, *arguments: str) -> str:
        """Run a tool of Kafka by its class; return its standard output."""
        return jars.run_tool(JARS, main, *arguments)

    def create_topic(self, topic: str, partitions: int = 2, **settings: str) -> str:
        """Create a topic with these settings (underscores stand for dots); return its name."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        client = AdminClient({"bootstrap.servers": self.address})
        config = {name.replace("_", "."): value for name, value in settings.items()}
        wanted = NewTopic(topic, partitions, 1, config=config)
        for future in client.create_topics([wanted]).values():
            future.result()
        return topic

    def consume(self, topic: str) -> list[str]:
        """Read all committed values of a topic by Kafka's console consumer. No transaction may be
        open.

        A mark is written behind the values of each partition: how long a consumer is idle tells
        nothing on a busy machine.
        """
        mark = f"{_MARK}{time.time_ns()}"
        partitions = self._mark(topic, mark)
        values: list[str] = []
        command = [*jars.java(JARS), CONSOLE_CONSUMER, *self._reading(topic)]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            with _killed_when_silent(reader) as heard:
                for line in reader.stdout:
                    heard()
                    partitions -= line.rstrip("\n") == mark
                    if not partitions:
                        break
                    values.append(line.rstrip("\n"))
            reader.kill()
        assert not partitions, self._no_end(topic, partitions, len(values))
        return [value for value in values if not value.startswith(_MARK)]

    def _no_end(self, topic: str, partitions: int, count: int) -> str:
        """Say why the console consumer came to no end: a transaction is open, or it was slow."""
        listed = self.tool(TRANSACTIONS, "--bootstrap-server", self.address, "list")
        ongoing = [line for line in listed.splitlines()[1:] if _is_open(line)]
        why = f"open: {ongoing}" if ongoing else "no transaction is open: it was too slow, or ended"
        return (
            f"{partitions} partitions of {topic} have no end after {count} values, and then none"
            f" for {WAIT_S:.0f} s; {why}"
        )

    def peek(self, topic: str, *, idle_ms: int = 4_000) -> list[str]:
        """Read the committed values of a topic, until there are none for a while."""
        return self.tool(
            CONSOLE_CONSUMER, *self._reading(topic), "--timeout-ms", str(idle_ms)
        ).splitlines()

    def committed(self, topic: str) -> Counter[tuple[int, int, bytes]]:
        """Read (partition, offset, value) of what is committed now, up to the first open
        transaction of each partition, by another client.
        """
        from confluent_kafka import Consumer, TopicPartition

        config = {
            "bootstrap.servers": self.address,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
        consumer = Consumer(config)
        partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        found: Counter[tuple[int, int, bytes]] = Counter()
        ended: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        while ended != set(partitions):
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            # `consume` waits until it has as many as asked for, or time is up.
            for message in consumer.consume(5000, 0.05):
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if message.error():
                    ended.add(partition)
                else:
                    found[partition, offset, message.value() or b""] += 1
        consumer.close()
        return found

    def _reading(self, topic: str) -> list[str]:
        place = ["--bootstrap-server", self.address, "--topic", topic, "--from-beginning"]
        return [*place, "--isolation-level", "read_committed"]

    def _mark(self, topic: str, mark: str) -> int:
        """Write a value into each partition; return how many there are."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "message.max.bytes": 1000})
        partitions = producer.list_topics(topic, 30.0).topics[topic].partitions
        for partition in partitions:
            producer.produce(topic, mark, partition=partition)
        assert producer.flush(30.0) == 0, f"{topic}: no mark could be written"
        return len(partitions)


def _is_open(line: str) -> bool:
    """Whether a line of the list of transactions tells of one that readers wait for."""
    return any(state in line for state in ("Ongoing", "Prepare"))


@contextmanager
def _killed_when_silent(process: subprocess.Popen[str]) -> Iterator[Callable[[], None]]:
    """Kill the process when the function given was not called for `WAIT_S`."""
    over = threading.Event()
    last_s = time.monotonic()

    def heard() -> None:
        nonlocal last_s
        last_s = time.monotonic()

    def watch() -> None:
        while not over.wait(1.0):
            if time.monotonic() - last_s > WAIT_S:
                process.kill()

    watchdog = threading.Thread(target=watch, daemon=True)
    watchdog.start()
    try:
        yield heard
    finally:
        over.set()
        watchdog.join()
