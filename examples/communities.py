"""Four regimes of failure in one application, as in Figure 1 of the Falkirk Wheel.

People become friends, and others ask about them. An answer joins what two computations know of a
person: the community, kept up to date by a loop over the friendships, and the number of friends,
counted by a batch every few seconds. Answers go to a database, with how often each was asked for.

    inbox -> parse ------------------------------- queries-log ---+
    friendships -- friendships-log -+- communities -- labels-log -+- answer -> database
                                    +- friends ----- friends-log -+

- `inbox` is ephemeral: it keeps nothing, since the inbox gives unacknowledged queries again.
- `rounds` is lazy: a loop with much state, which takes a checkpoint now and then.
- `friends` is a batch: it runs every two seconds, and a batch that fails is repeated.
- `answer` is eager: what it has told the database must not be told again.

headrace run examples/communities.py --runner processes
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace import connectors as hc

PEOPLE = 300
FRIENDSHIPS = 4_000
QUERIES = 400
DATABASE = "communities.db"

# --- the inbox, which gives queries again until they are acknowledged ----------------------------


class Inbox:
    """A service with numbered queries, each of them text (a `Source`)."""

    schema = pa.schema([("query", pa.int64()), ("text", pa.string())])

    def __init__(self, count: int, rate: float) -> None:
        self.count, self.rate = count, rate

    def reader(self) -> "InboxReader":
        """Make a reader; one subtask reads all."""
        return InboxReader(self)


class InboxReader:
    """Reads from the first unacknowledged query on. Its state is where it stands."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.next = self.committed = self.acknowledged = 0
        self.is_mine, self.due = True, 0.0

    def open(self, context: hc.OperatorContext) -> None:
        """Begin."""
        self.is_mine, self.due = context.index == 0, time.monotonic()

    def restore(self, states: Sequence[hc.RestoredState]) -> None:
        """Go on."""
        self.next = max(n for state in states for n in state.table["next"].to_pylist())
        self.committed = self.next

    def poll(self, rows_max: int) -> hc.Polled:
        """Give the next queries that are due."""
        if not self.is_mine or self.next == self.inbox.count:
            return hc.Polled((), hc.SourceStatus.END)
        wait_s = self.due - time.monotonic()
        if wait_s > 0:
            return hc.Polled((), hc.SourceStatus.IDLE, int(wait_s * 1e9))
        self.due += 1 / self.inbox.rate
        query, self.next = self.next, self.next + 1
        batch = pa.record_batch({"query": [query], "text": [f"person {query * 7 % PEOPLE}"]})
        return hc.Polled((batch,), hc.SourceStatus.MORE)

    def completed(self, checkpoint: int, states: Sequence[hc.StateSnapshot]) -> None:
        """Acknowledge: a real service would forget these queries now."""
        self.acknowledged = max(n for state in states for n in state.table()["next"].to_pylist())

    def commit(self) -> None:
        """Publish where it stands."""
        self.committed = self.next

    def snapshot(self) -> Sequence[hc.StateSnapshot]:
        """Freeze where it stands."""
        table = pa.table({"next": [self.committed]})
        return (hc.StateSnapshot("next", hc.StateKind.UNION, lambda: table),)

    def close(self) -> None:
        """Nothing is open."""


# --- the database, in which each answer counts once ----------------------------------------------


class Statistics:
    """A SQLite database; a token in it says what has been applied (a `Sink`)."""

    delivery: hc.Delivery = "exactly-once"

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self, schema: pa.Schema) -> None:
        """The answers fit."""

    def writer(self) -> "StatisticsWriter":
        """Make the writer of a subtask."""
        return StatisticsWriter()

    def committer(self, job: str, operator: str) -> "StatisticsCommitter":
        """Make the committer."""
        return StatisticsCommitter(self.path, f"{job}/{operator}")


class StatisticsWriter:
    """Keeps answers until a checkpoint, which holds them then."""

    def open(self, context: hc.OperatorContext) -> None:
        """Begin."""
        self.id = f"{context.index}-{context.epoch}"
        self.answers: list[dict[str, Any]] = []

    def restore(self, states: Sequence[hc.RestoredState]) -> None:
        """There is no state: pre-committed answers are in the checkpoint."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep answers."""
        self.answers += batch.to_pylist()

    def precommit(self, checkpoint: int) -> Sequence[hc.Transaction]:
        """Hand the answers over."""
        if not self.answers:
            return ()
        payload: dict[str, str | int] = {"answers": json.dumps(self.answers)}
        self.answers = []
        return (hc.Transaction(f"{self.id}-{checkpoint}", payload),)

    def commit(self) -> None:
        """Nothing to publish."""

    def snapshot(self) -> Sequence[hc.StateSnapshot]:
        """Nothing to freeze."""
        return ()

    def close(self) -> None:
        """Nothing is open."""


class StatisticsCommitter:
    """Applies answers and moves the token, in one transaction of the database."""

    def __init__(self, path: str, owner: str) -> None:
        self.path, self.owner = path, owner

    def commit(self, checkpoint: int, transactions: Sequence[hc.Transaction]) -> None:
        """Apply what is newer than the token of its run."""
        with closing(sqlite3.connect(self.path, timeout=60)) as database, database:
            database.executescript(TABLES)
            database.execute("BEGIN IMMEDIATE")
            for run, group in hc.by_run(transactions).items():
                self._apply(database, f"{self.owner}/{run}", group)

    def _apply(
        self, database: sqlite3.Connection, token: str, group: Sequence[hc.Transaction]
    ) -> None:
        found = database.execute("SELECT applied FROM tokens WHERE name = ?", (token,)).fetchone()
        fresh = [each for each in group if found is None or each.checkpoint > found[0]]
        for each in fresh:
            for answer in json.loads(str(each.payload["answers"])):
                database.execute(
                    "INSERT INTO answers VALUES (:query, :person, :community, :friends)", answer
                )
                database.execute(
                    "INSERT INTO statistics VALUES (:person, 1)"
                    " ON CONFLICT (person) DO UPDATE SET asked = asked + 1",
                    answer,
                )
        if fresh:
            applied = max(each.checkpoint for each in fresh)
            database.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (token, applied))

    def recover(
        self, checkpoint: int, committed: Sequence[hc.Transaction], *, epoch: int | None = None
    ) -> None:
        """Apply once more; nothing is open elsewhere."""
        self.commit(checkpoint, committed)


TABLES = """
CREATE TABLE IF NOT EXISTS answers
    (query INTEGER, person INTEGER, community INTEGER, friends INTEGER);
CREATE TABLE IF NOT EXISTS statistics (person INTEGER PRIMARY KEY, asked INTEGER);
CREATE TABLE IF NOT EXISTS tokens (name TEXT PRIMARY KEY, applied INTEGER);
"""

# --- friendships, and the loop that keeps communities up to date ---------------------------------

#: `person` has a friend `other`, or hears of a community, or has joined one.
MESSAGE = pa.schema(
    [("what", pa.string()), ("person", pa.int64()), ("other", pa.int64()), ("label", pa.int64())]
)
FACT = pa.schema([("person", pa.int64()), ("community", pa.int64()), ("friends", pa.int64())])
ANSWER = pa.schema([("query", pa.int64()), *FACT])


def message(what: str, person: int, *, other: int = -1, label: int = -1) -> dict[str, Any]:
    """Return a record of the loop."""
    return {"what": what, "person": person, "other": other, "label": label}


def both_ways(row: dict[str, int]) -> list[dict[str, Any]]:
    """Tell both of a friendship, within one of ten parts of the people."""
    person = row["key"]
    other = (person * 7 + row["sequence"] * 10) % PEOPLE // 10 * 10 + person % 10
    return [message("friend", person, other=other), message("friend", other, other=person)]


class Person(hr.StatefulProcessor):
    """Knows friends, and the lowest label of the community so far."""

    label = hr.value_state(pa.int64())
    friends = hr.list_state(pa.int64())

    def process(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Meet a friend, or hear a label."""
        known = self.label.value
        lowest = key if known is None else known
        if row["what"] == "friend":
            self.friends.append(row["other"])
            yield message("hear", row["other"], label=lowest)
        if 0 <= row["label"] < lowest:
            lowest = row["label"]
            for friend in set(self.friends):
                yield message("hear", friend, label=lowest)
        if lowest != known:
            self.label.value = lowest
            yield message("join", key, label=lowest)


def spread(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
    """A round: people join communities and tell their friends, who hear of it in the next."""
    told = loop.key_by("person").process(Person, schema=MESSAGE, name="people")
    return told.filter(pc.field("what") == "hear"), told.filter(pc.field("what") == "join")


# --- the application ------------------------------------------------------------------------------


def parse(row: dict[str, Any]) -> dict[str, Any]:
    """Read a query: no state, so this part can be ephemeral."""
    return {"query": row["query"], "person": int(row["text"].removeprefix("person "))}


def of_label(row: dict[str, Any]) -> dict[str, Any]:
    """State what the loop has found."""
    return {"person": row["person"], "community": row["label"], "friends": 0}


def of_friends(row: dict[str, Any]) -> dict[str, Any]:
    """State what a batch has counted."""
    return {"person": row["person"], "community": -1, "friends": row["n"]}


class Answer(hr.CoProcessor):
    """Joins queries with the latest of what is known of a person."""

    community = hr.value_state(pa.int64())
    friends = hr.value_state(pa.int64())

    def process_left(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answer a query."""
        community = key if self.community.value is None else self.community.value
        friends = self.friends.value or 0
        yield {"query": row["query"], "person": key, "community": community, "friends": friends}

    def process_right(self, key: int, row: dict[str, Any]) -> None:
        """Learn. Labels only fall and numbers only grow, so order does not matter."""
        if row["community"] >= 0:
            before = self.community.value
            self.community.value = min(row["community"], key if before is None else before)
        self.friends.value = max(row["friends"], self.friends.value or 0)


def application(
    *, rate: float = 1_000, queries_rate: float = 100
) -> tuple[hr.Stream, hr.Stream, hr.Stream]:
    """Return the answers, the labels and the numbers of friends."""
    asked = hr.from_source(Inbox(QUERIES, queries_rate), name="inbox", parallelism=1)
    queries = asked.map(parse, schema=pa.schema([ANSWER.field(0), ANSWER.field(1)]), name="parse")
    queries = queries.logged(name="queries-log", read="at_once")

    met = hr.read.sequence(FRIENDSHIPS, keys=PEOPLE, rate=rate, name="friendships")
    friendships = met.flat_map(both_ways, MESSAGE, name="both").logged(name="friendships-log")

    joined = friendships.iterate(spread, name="rounds")
    labels = joined.map(of_label, schema=FACT, name="labels").logged(name="labels-log")

    counted = friendships.key_by("person").aggregate(n=hr.count(), emit="final", name="friends")
    friends = counted.map(of_friends, schema=FACT, name="counted").logged(name="friends-log")

    facts = labels.union(friends)
    answers = queries.key_by("person").connect(
        facts.key_by("person"), Answer, schema=ANSWER, name="answer"
    )
    return answers, labels, friends


REGIONS = [
    hr.Region("inbox", policy="ephemeral"),
    hr.Region("rounds", policy="lazy", interval="1s"),
    hr.Region("friends", policy="batch", interval="2s"),
    hr.Region("answer", policy="eager", interval="50ms"),
]

job = hr.Job(
    "communities",
    application()[0].write.to(Statistics(DATABASE), name="database"),
    checkpoints=hr.Checkpoints("checkpoints", interval="200ms"),
    regions=REGIONS,
    parallelism=1,
)

if __name__ == "__main__":
    job.run("processes")
