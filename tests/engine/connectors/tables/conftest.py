"""Tables in folders of a test: made, written to as the runtime does, read by their libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.partitions import partitions_by
from headrace.engine.connectors.tables.delta import DeltaSink
from headrace.engine.connectors.tables.iceberg import IcebergSink
from headrace.engine.connectors.writers import PARQUET
from headrace.engine.contract.operators import OperatorContext, SinkCommitter, Transaction

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.string())])


def rows(*numbers: int) -> pa.RecordBatch:
    """A record a number; its day is the number's last digit."""
    days = [f"day {n % 10}" for n in numbers]
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(days)], schema=SCHEMA)


@dataclass
class Table:
    """A table of one kind.

    Attributes:
        folder: of the test; the table lies below.
    """

    kind: str
    folder: Path

    @property
    def root(self) -> Path:
        """The folder of data files."""
        return self.folder / ("delta" if self.kind == "delta" else "warehouse/shop/orders")

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def sink(self, schema: pa.Schema = SCHEMA, by: Sequence[str] = (), **options: Any) -> Any:
        """A checked sink."""
        given: dict[str, Any] = {
            "partitions": partitions_by(by, kept=self.kind == "iceberg"),
            "roll_bytes": 1 << 28,
        }
        given |= options
        made = (
            DeltaSink(str(self.root), PARQUET, **given)
            if self.kind == "delta"
            else IcebergSink("shop.orders", self.catalog, PARQUET, **given)
        )
        made.check(schema)
        return made

    def committer(self, sink: Any, run: str = "aa", job: str = "job") -> SinkCommitter:
        made: SinkCommitter = sink.committer(job, "out")
        made.own(run, anew=True)  # type: ignore[attr-defined]  # of `OwnsOutput`
        return made

    def precommitted(
        self, sink: Any, checkpoint: int, *batches: pa.RecordBatch, run: str = "aa", epoch: int = 1
    ) -> list[Transaction]:
        """What a writer hands over, as the runtime stamps it."""
        writer = sink.writer()
        context = OperatorContext("job", "out", 0, 1, 128, epoch, owner=run)
        writer.open(context)
        for batch in batches:
            writer.write(batch)
        found = writer.precommit(checkpoint)
        writer.close()
        return [replace(t, run=context.run, checkpoint=checkpoint) for t in found]

    def numbers(self) -> list[int]:
        """What another program reads."""
        return sorted(self.read()["n"].to_pylist())

    def read(self) -> pa.Table:
        if self.kind == "delta":
            return self.loaded().to_pyarrow_table()
        return self.loaded().scan().to_arrow()

    def loaded(self) -> Any:
        """The table as its own library sees it."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(str(self.root))
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog).load_table("shop.orders")

    def data_files(self) -> list[str]:
        found = self.root.rglob("part-*.parquet")
        return sorted(str(path.relative_to(self.root)) for path in found)

    def notes(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*.begun"))


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)
