"""Streams: what each method adds to the graph, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.options import State
from headrace.engine.operators.aggregations import count, sum
from headrace.engine.operators.process import StatefulProcessor
from headrace.engine.plan.graph import Keyed, Node
from headrace.engine.state.keyed import value_state

ORDERS = pa.schema([("customer", pa.string()), ("amount", pa.int64())])
OTHER = pa.schema([("customer", pa.string())])


class FraudModel(StatefulProcessor):
    """Never run here."""


BY_AMOUNT = ByRange("amount", ("1", "20"))


def orders(name: str = "orders") -> Stream:
    return batches(
        [pa.record_batch({"customer": ["ann"], "amount": [3]}, schema=ORDERS)], name=name
    )


def same(value: Any) -> Any:
    return value


async def waits(value: Any) -> Any:
    return value


class Waits:
    async def __call__(self, value: Any) -> Any:
        return value


def first_only(batch: pa.RecordBatch, consumers: int) -> list[int]:
    return [0] * batch.num_rows


def node(stream: Stream) -> Node:
    assert len(stream.inputs) == 1
    return stream.inputs[0].node


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("method", ["map", "flat_map", "map_batches"])
def test_a_function_keeps_the_schema_unless_another_is_declared(method: str) -> None:
    stream = orders()
    kept = getattr(stream, method)(same, name="kept")
    declared = getattr(stream, method)(same, OTHER, parallelism=3)
    assert (kept.schema, declared.schema) == (ORDERS, OTHER)
    assert (node(kept).name, node(declared).name) == ("kept", None)
    assert (node(kept).parallelism, node(declared).parallelism) == (None, 3)
    assert node(kept).runs_user_code
    assert not node(kept).stateful
    assert node(kept).inputs[0].node is node(stream)


def test_a_condition_runs_user_code_only_if_it_is_a_function() -> None:
    assert not node(orders().filter(pc.field("amount") > 1)).runs_user_code
    assert node(orders().filter(bool)).runs_user_code


def test_select_keeps_columns_and_adds_computed_ones() -> None:
    stream = orders().select("amount", double=pc.field("amount") * 2, who=pc.field("customer"))
    assert stream.schema == pa.schema(
        [("amount", pa.int64()), ("double", pa.int64()), ("who", pa.string())]
    )


def test_an_aggregate_has_its_keys_and_results_as_columns() -> None:
    totals = orders().key_by("customer").aggregate(total=sum("amount"), n=count(), name="totals")
    assert totals.schema.names == ["customer", "total", "n"]
    assert node(totals).stateful
    assert node(totals).inputs[0].partitioning == Keyed(("customer",))


def test_group_by_is_key_by() -> None:
    stream = orders()
    assert stream.group_by("customer", "amount") == stream.key_by("customer", "amount")


def test_a_processor_is_keyed_stateful_user_code() -> None:
    found = orders().key_by("customer").process(FraudModel, schema=OTHER, name="fraud")
    assert (node(found).kind, node(found).name, found.schema) == ("process", "fraud", OTHER)
    assert node(found).stateful
    assert node(found).runs_user_code
    assert node(found).inputs[0].partitioning == Keyed(("customer",))


@pytest.mark.parametrize(
    ("partitioned", "partitioning"),
    [
        (Stream.rebalance, Rebalance()),
        (Stream.shuffle, Shuffle()),
        (Stream.broadcast, Broadcast()),
        (lambda stream: stream.partition_by(first_only), Custom(first_only, None)),
        (lambda stream: stream.partition_by(first_only, "amount"), Custom(first_only, ("amount",))),
        (lambda stream: stream.shuffle().rebalance(), Rebalance()),
        (lambda stream: stream.partition_by_range("amount", [1, 20]), BY_AMOUNT),
    ],
)
def test_a_partitioning_is_a_fact_of_the_input(
    partitioned: Callable[[Stream], Stream], partitioning: object
) -> None:
    stream = orders()
    inputs = node(partitioned(stream).map(same)).inputs
    assert [(edge.node, edge.partitioning) for edge in inputs] == [(node(stream), partitioning)]


def test_a_union_gives_its_consumer_several_inputs() -> None:
    left, middle, right = orders("left"), orders("middle"), orders("right")
    taken = node(left.union(middle.shuffle(), right).map(same)).inputs
    assert [edge.node.name for edge in taken] == ["left", "middle", "right"]
    assert [edge.partitioning for edge in taken] == [None, Shuffle(), None]


def test_a_partitioning_after_a_union_holds_for_all_its_inputs() -> None:
    taken = node(orders("left").union(orders("right")).rebalance().map(same)).inputs
    assert [edge.partitioning for edge in taken] == [Rebalance(), Rebalance()]


def loose() -> Any:
    """A stream to call with arguments that a type checker refuses too."""
    return orders()


def keyed() -> Any:
    return orders().key_by("customer")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda: loose().select("amout"),
            "select: there is no column 'amout'; did you mean 'amount'?",
        ),
        (lambda: loose().select(), "select needs at least one column"),
        (
            lambda: loose().filter(pc.field("custmer") == "x"),
            "filter: there is no column 'custmer'; did you mean 'customer'?",
        ),
        (lambda: loose().filter(3), "filter takes a function, got 3"),
        (lambda: loose().map("f"), "map takes a function, got 'f'"),
        (
            lambda: loose().map(same, name="a/b"),
            "map: name='a/b' may not hold '/', '->', line breaks or outer spaces",
        ),
        (
            lambda: loose().map(same, parallelism=0),
            "map: parallelism=0 is not a whole number from 1 to 32768",
        ),
        (
            lambda: loose().map_batches(same, batch_size=0),
            "map_batches: batch_size=0 is not a whole number from 1 to 2147483647",
        ),
        (
            lambda: loose().map_batches(same, linger="50ms"),
            (
                "map_batches: linger='50ms' without batch_size waits for nothing; state the rows of"
                " a full batch, such as batch_size=4096"
            ),
        ),
        (
            lambda: loose().map_batches(same, batch_size=2, linger="soon"),
            (
                "map_batches: linger='soon' is not a duration; write '500ms', '10s', '5m', a number"
                " of seconds or a timedelta"
            ),
        ),
        (
            lambda: loose().map_batches(same, batch_format="polars"),
            "map_batches: batch_format='polars' is none of 'arrow', 'pandas', 'numpy'",
        ),
        (
            lambda: loose().map_batches(same, share="worker"),
            (
                "map_batches: share='worker' shares the instance of a class, and got a function; "
                "leave share= out, or pass a class"
            ),
        ),
        (
            lambda: loose().map_batches(same, share="all"),
            "map_batches: share='all' is neither 'subtask' nor 'worker'",
        ),
        (
            lambda: loose().map_batches(waits),
            (
                "map_batches takes a plain function, and 'waits' is a coroutine function (async "
                "def); map_async takes those"
            ),
        ),
        (
            lambda: loose().map(waits),
            (
                "map takes a plain function, and 'waits' is a coroutine function (async def); "
                "map_async takes those"
            ),
        ),
        (
            lambda: loose().map_batches(Waits),
            (
                "map_batches takes a plain function, and 'Waits' is a coroutine function (async "
                "def); map_async takes those"
            ),
        ),
        (
            lambda: loose().key_by("custmer"),
            "key_by: there is no column 'custmer'; did you mean 'customer'?",
        ),
        (lambda: loose().key_by(), "key_by needs at least one column"),
        (
            lambda: keyed().aggregate(n=count()),
            (
                "aggregate needs name=, by which its state is found again; "
                "for example name='customer-totals'"
            ),
        ),
        (
            lambda: keyed().aggregate(name="totals"),
            "aggregate needs at least one aggregation, such as n=hr.count()",
        ),
        (
            lambda: keyed().aggregate(n=count(), name="totals", state="rocksdb"),
            "aggregate: state='rocksdb' is not a hr.State(...)",
        ),
        (
            lambda: keyed().aggregate(n=count(), name="totals", state=State(directory="here")),
            (
                "aggregate: state.directory='here' belongs to the job: give it hr.Job(...,"
                " state=hr.State(directory=...))"
            ),
        ),
        (
            lambda: keyed().aggregate(n=3, name="totals"),
            "aggregate: n=3 is not an aggregation; write n=hr.sum(...)",
        ),
        (
            lambda: keyed().aggregate(n=sum("amout"), name="totals"),
            "aggregate: n: there is no column 'amout'; did you mean 'amount'?",
        ),
        (
            lambda: keyed().aggregate(n=count(), name="totals", emit="change"),
            "aggregate: emit='change' is unknown; did you mean 'changes'?",
        ),
        (
            lambda: keyed().aggregate(n=count(), name="totals", emit="final", ttl="1h"),
            (
                'aggregate: emit="final" gives every key when the input ends, but ttl= forgets keys'
                " before; use one of them"
            ),
        ),
        (
            lambda: keyed().aggregate(n=count(), name="totals", ttl=0),
            (
                "aggregate: state with a ttl needs to know which column holds the time of an"
                " event, and how late records may "
                'be; for example .with_watermark("time", "10s") before it'
            ),
        ),
        (
            lambda: keyed().process(FraudModel, schema=OTHER),
            (
                "process needs name=, by which its state is found again; for example"
                " name='fraud-model'"
            ),
        ),
        pytest.param(
            lambda: keyed().process(same, schema=OTHER, name="fraud"),
            f"process takes a StatefulProcessor, got {same!r}",
            id="process takes a StatefulProcessor",
        ),
        (
            lambda: loose().union(orders().select("customer")),
            (
                "union: stream 2 has no column 'amount', which stream 1 has; "
                "make the schemas equal with select()"
            ),
        ),
        (lambda: loose().union(3), "union takes streams, got 3"),
        (
            lambda: loose().partition_by(same, "amout"),
            "partition_by: there is no column 'amout'; did you mean 'amount'?",
        ),
        (
            lambda: loose().partition_by_range("amout", [1]),
            "partition_by_range: there is no column 'amout'; did you mean 'amount'?",
        ),
        (
            lambda: loose().partition_by_range("amount", [2, 1]),
            "partition_by_range: boundaries must rise: 1 comes after 2",
        ),
        (
            lambda: loose().partition_by_range("amount", []),
            "partition_by_range: boundaries are empty; state at least one",
        ),
        (
            lambda: loose().partition_by_range("amount", ["a"]),
            "partition_by_range: boundaries are string, and column 'amount' is int64",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], expected: str) -> None:
    assert sentence(call) == expected


def test_a_stream_is_a_value() -> None:
    stream = orders()
    first: Sequence[Stream] = [stream.map(same), stream.map(same)]
    assert stream.inputs[0].node.inputs == ()
    assert node(first[0]) is not node(first[1])


# --- event time -----------------------------------------------------------------------------------

TIMED = pa.schema([("customer", pa.string()), ("at", pa.timestamp("us")), ("amount", pa.int64())])


def timed() -> Stream:
    return batches([pa.RecordBatch.from_pylist([], schema=TIMED)], name="timed")


def test_a_stream_knows_its_event_time_as_long_as_the_column_is_there() -> None:
    stream = timed().with_watermark("at", "10s")
    assert stream.event_time == "at"
    assert stream.filter(pc.field("amount") > 1).shuffle().event_time == "at"
    assert stream.select("customer").event_time is None
    assert stream.select(at=pc.field("amount")).event_time is None, "not a timestamp any more"
    assert stream.union(stream).event_time == "at"
    assert stream.union(timed()).event_time is None
    assert timed().event_time is None


def test_a_watermark_operator_is_named_after_its_stream_and_as_wide() -> None:
    made = node(timed().with_watermark("at", "10s", idle_after="1m"))
    assert (made.name, made.kind, made.stateful) == ("timed-watermark", "with_watermark", True)
    assert made.idle_after_ns == 60 * 10**9
    narrow = timed().filter(pc.field("amount") > 1, name="some", parallelism=1)
    assert node(narrow.with_watermark("at", "10s")).parallelism == 1
    assert node(timed().with_watermark("at", "1s", name="late")).name == "late"


def test_what_cannot_be_event_time_is_refused() -> None:
    assert "there is no column 'att'" in sentence(lambda: timed().with_watermark("att", "1s"))
    said = sentence(lambda: timed().with_watermark("amount", "1s"))
    assert "'amount' is int64" in said
    assert "cast" in said
    assert "delay" in sentence(lambda: timed().with_watermark("at", "soon"))
    unnamed = timed().filter(pc.field("amount") > 1)
    assert "name=" in sentence(lambda: unnamed.with_watermark("at", "1s"))


class Reminders(StatefulProcessor):
    """Has timers; never run here."""

    def on_timer(self, key: Any, time_ns: int) -> None: ...


def test_timers_need_event_time() -> None:
    def reminded(stream: Stream) -> Stream:
        return stream.key_by("customer").process(Reminders, schema=OTHER, name="reminders")

    assert '.with_watermark("at", "10s")' in sentence(lambda: reminded(timed()))
    made = node(reminded(timed().with_watermark("at", "10s")))
    assert made.operator is not None
    assert hasattr(made.operator(operator="reminders"), "advance")


class Sightings(StatefulProcessor):
    """Has state that expires; never run here."""

    seen = value_state(pa.int64(), ttl="1h")


def test_state_that_expires_needs_event_time() -> None:
    def seen(stream: Stream) -> Stream:
        return stream.key_by("customer").process(Sightings, schema=OTHER, name="sightings")

    said = sentence(lambda: seen(timed()))
    assert "state with a ttl" in said
    assert '.with_watermark("at", "10s")' in said
    made = node(seen(timed().with_watermark("at", "10s")))
    assert made.operator is not None
    assert hasattr(made.operator(operator="sightings"), "advance")


class Alarm(StatefulProcessor):
    """Has timers by the clock; never run here."""

    def on_processing_timer(self, key: Any, time_ns: int) -> None: ...


def test_timers_by_the_clock_need_no_event_time() -> None:
    made = node(timed().key_by("customer").process(Alarm, schema=OTHER, name="alarm"))
    assert made.operator is not None
    assert hasattr(made.operator(operator="alarm"), "fire")


# --- failures -------------------------------------------------------------------------------------


def test_a_stream_shows_its_operators_and_columns() -> None:
    stream = orders()
    assert repr(stream) == "<Stream of 'orders': customer: string, amount: int64>"
    unnamed = orders("more").map(lambda row: row)
    assert repr(stream.union(unnamed)).startswith("<Stream of 'orders', map: customer")
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(14)] + [("at", pa.timestamp("us"))])
    wide = batches([pa.RecordBatch.from_pylist([], schema=schema)], name="wide")
    timed = wide.with_watermark("at", "1s")
    assert repr(timed).endswith("c11: int64, and 3 more columns; event time 'at'>")
    keyed = repr(stream.key_by("customer"))
    assert keyed == f"KeyedStream(stream={stream!r}, columns=('customer',))"
