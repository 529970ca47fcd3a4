"""A writer of a Kafka sink that tests can freeze. It obeys standard input, and says on standard
output what it has done, one JSON object per line.

kafka_writer.py SERVERS TOPIC EPOCH

"write TEXT" writes a record, and sends it at once. "precommit N" says the transactions of a
checkpoint.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import pyarrow as pa
from driver import say  # type: ignore[import-not-found]  # beside this file, as a script

from headrace.engine.connectors.kafka import writer as writer_module
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.contract.operators import OperatorContext


def main(servers: str, topic: str, epoch: str) -> None:
    writer_module._GATHERED_BYTES = 1
    writer = KafkaSink(Layout(topic=topic, value="text"), servers).writer()
    writer.open(OperatorContext(topic, "out", 0, 1, 128, int(epoch), owner="run"))
    say(open=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        try:
            if word == "write":
                writer.write(pa.record_batch({"text": [rest]}))
                say(written=rest)
            else:
                say(precommitted=[asdict(each) for each in writer.precommit(int(rest))])
        except HeadraceError as error:
            say(failed=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
