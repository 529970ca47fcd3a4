"""DDL strings without a session, against Spark's own parser."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from headrace.engine.connectors.spark.ddl import schema_of
from headrace.engine.contract.errors import UserError

TEXTS = [
    "a int",
    "name string, date string, zipcode string",
    "id BIGINT NOT NULL, price decimal(10,2), d decimal, s decimal(5)",
    "a: int, `odd name`: string comment 'what it is', `b``c` double",
    "xs array<map<string, array<bigint>>>, s struct<a:int, b: struct<c string not null>>",
    "t timestamp, n timestamp_ntz, d date, y binary, f float, r real, tiny tinyint, v void",
    "struct<a:int,b:string>",
    "l long, sh short, by byte, i integer, bo boolean, n numeric(38, 18)",
]


@pytest.mark.spark
def test_texts_mean_what_spark_says(spark: SparkSession) -> None:
    for text in TEXTS:
        assert schema_of(text, "test") == StructType.fromDDL(text), text


def test_a_text_is_parsed_without_spark() -> None:
    found = schema_of("a varchar(3) not null, b decimal(4,1)", "test")
    expected = [StructField("a", StringType(), False), StructField("b", DecimalType(4, 1))]
    assert found == StructType(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a intt", "a type such as bigint or array<string> where 'intt' stands there"),
        ("a array<int", "'>' where the text ends"),
        ("a", "a type such as bigint or array<string> where the text ends"),
        ("a int b", "the end where 'b' stands there"),
        ("a decimal(x)", "a number where 'x)' stands there"),
        (", a int", "a column's name where ', a int' stands there"),
        ("a int; b int", "a name, a type or a sign where '; b int' stands there"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=r"^source 'x': ") as caught:
        schema_of(text, "source 'x'")
    assert reason in str(caught.value)
