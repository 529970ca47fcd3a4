"""Spark as a reader of Delta and Iceberg tables: a program of Java over jars that Maven fetches.

Delta and Iceberg are built for one minor version of Spark, and lag behind PySpark's newest one. So
this Spark is one of its own, without Python, in `.services/tables-jars`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import jars
from .process import FOLDER

_JARS = FOLDER / "tables-jars"
_HERE = Path(__file__).parent
#: Packages of Java into which Spark reaches.
_OPENED = (
    *("java.io", "java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.util.calendar"),
)
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # Without it a small table takes 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}


class SparkTables:
    """Reads tables by Spark, a process for each."""

    def install(self) -> None:
        """Let Maven fetch the jars. Raises: Unavailable."""
        jars.fetch(_HERE / "tables_pom.xml", _JARS, "Spark for tables")

    def delta(self, path: str) -> list[dict[str, Any]]:
        """Rows of the Delta table at this path."""
        settings = {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        return self._read("delta", path, settings)

    def iceberg(self, table: str, catalog: str, warehouse: str) -> list[dict[str, Any]]:
        """Rows of an Iceberg table.

        Args:
            catalog: the SQLite database of pyiceberg's catalog "default".
        """
        name = "spark.sql.catalog.default"
        settings = {
            name: "org.apache.iceberg.spark.SparkCatalog",
            f"{name}.type": "jdbc",
            f"{name}.uri": f"jdbc:sqlite:{catalog}",
            f"{name}.warehouse": warehouse,
        }
        return self._read("iceberg", f"default.{table}", settings)

    def _read(self, format: str, place: str, settings: Mapping[str, str]) -> list[dict[str, Any]]:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        given = [f"{key}={value}" for key, value in {**_SETTINGS, **settings}.items()]
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder, "rows")
            program = [str(_HERE / "ReadTable.java"), format, place, str(rows), *given]
            options = ["-Xmx512m", f"-Djava.io.tmpdir={folder}", *opened]
            jars.run_tool(_JARS, *options, *program)
            return [json.loads(line) for line in rows.read_text().splitlines()]
