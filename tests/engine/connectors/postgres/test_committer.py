"""Commits, repeats of commits, and recoveries, of prepared transactions and of staged rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres.committer import Committer
from headrace.engine.connectors.postgres.connection import Connection, Database, Unavailable
from headrace.engine.connectors.postgres.sink import PostgresSink
from headrace.engine.contract.errors import CommitLost, UserError
from headrace.engine.contract.operators import Transaction

pytestmark = pytest.mark.services

MODES = pytest.mark.parametrize("mode", ["insert", "upsert"])


class Scene:
    """A table, its sink, and writers and committers as attempts make them."""

    def __init__(self, db: Any, at: Callable[..., Any], mode: str) -> None:
        self.db, self.at, self.mode = db, at, mode
        db.psql("CREATE TABLE orders (id bigint PRIMARY KEY, text text)")
        key = ("id",) if mode == "upsert" else ()
        self.sink = PostgresSink(Database(db.url), "orders", mode, key, 10**9)  # type: ignore[arg-type]
        self.sink.check(pa.schema([("id", pa.int64()), ("text", pa.string())]))

    def precommitted(
        self, *ids: int, text: str = "x", checkpoint: int = 1, **context: Any
    ) -> Transaction:
        """A transaction as a checkpoint names it, of a writer that has gone."""
        writer = self.sink.writer()
        where = self.at(**context)
        writer.open(where)
        writer.write(pa.record_batch({"id": pa.array(ids, pa.int64()), "text": [text] * len(ids)}))
        (transaction,) = writer.precommit(checkpoint)
        writer.close()
        return replace(transaction, run=where.run, checkpoint=checkpoint)

    def committer(self, owner: str = "run") -> Committer:
        committer = self.sink.committer("job", "out")
        committer.own(owner, anew=False)
        return committer

    def rows(self) -> list[str]:
        return list(self.db.psql("SELECT id FROM orders ORDER BY id"))

    def open(self) -> Sequence[str]:
        """Transactions that are neither committed nor aborted."""
        return [*self.db.prepared(), *self.db.stages()]


@pytest.fixture
def scene(db: Any, at: Callable[..., Any]) -> Any:
    return partial(Scene, db, at)


@MODES
def test_a_repeated_commit_changes_nothing_also_after_newer_ones(scene: Any, mode: str) -> None:
    s = scene(mode)
    committer = s.committer()
    first = [s.precommitted(1, index=0), s.precommitted(2, index=1)]
    committer.commit(1, first)
    committer.commit(1, first)
    s.db.psql("DELETE FROM orders WHERE id = 1")
    second = [s.precommitted(3, checkpoint=2, index=0)]
    committer.commit(2, second)
    committer.commit(1, first)
    s.committer().recover(2, [*first, *second], epoch=1)
    assert (s.rows(), s.open()) == (["2", "3"], [])


@MODES
def test_a_commit_joined_by_newer_transactions_commits_all(scene: Any, mode: str) -> None:
    s = scene(mode)
    committer = s.committer()
    older, newer = s.precommitted(1, checkpoint=6), s.precommitted(2, checkpoint=7)
    committer.commit(6, [older])
    committer.commit(7, [older, newer])
    assert (s.rows(), s.open()) == (["1", "2"], [])


@MODES
def test_a_commit_whose_answer_was_lost_is_not_repeated(
    scene: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = scene(mode)
    execute = Connection.execute
    losses: list[str] = []

    def lossy(self: Connection, text: str) -> None:
        execute(self, text)
        if text.startswith("COMMIT") and not losses:
            losses.append(text)
            raise Unavailable("the answer is lost")

    transactions = [s.precommitted(1), s.precommitted(2, index=1)]
    committer = s.committer()
    monkeypatch.setattr(Connection, "execute", lossy)
    with pytest.raises(Unavailable):
        committer.commit(1, transactions)
    committer.commit(1, transactions)
    assert losses
    assert (s.rows(), s.open()) == (["1", "2"], [])


@MODES
def test_a_committer_goes_on_after_the_server_was_killed(scene: Any, mode: str) -> None:
    s = scene(mode)
    committer = s.committer()
    transactions = [s.precommitted(1)]
    s.db.server.kill()
    for _ in range(2):
        with pytest.raises(Unavailable):
            committer.commit(1, transactions)
    s.db.server.restart()
    committer.commit(1, transactions)
    assert (s.rows(), s.open()) == (["1"], [])


@MODES
def test_a_transaction_that_somebody_has_aborted_is_lost_by_name(scene: Any, mode: str) -> None:
    s = scene(mode)
    transaction = s.precommitted(1)
    how = "ROLLBACK PREPARED '{}'" if mode == "insert" else "DROP TABLE {}"
    s.db.psql(how.format(transaction.id))
    with pytest.raises(CommitLost, match=f"{transaction.id}.*sink 'out'"):
        s.committer().commit(1, [transaction])
    assert s.rows() == []


def test_a_number_that_the_server_has_not_come_to_is_lost_by_name(scene: Any) -> None:
    s = scene("insert")
    transaction = Transaction("headrace/job/out/run/1/0/x/1", {"xid": str(10**12)}, "run", 1)
    with pytest.raises(CommitLost, match="another one, or an old copy"):
        s.committer().commit(1, [transaction])


def test_a_number_that_the_server_has_forgotten_is_lost_by_name(scene: Any) -> None:
    s = scene("insert")
    # Frozen when the cluster was made.
    transaction = Transaction("headrace/job/out/run/1/0/x/1", {"xid": "3"}, "run", 1)
    s.db.psql("SELECT 1")
    status = s.db.psql("SELECT pg_xact_status('3'::xid8)")
    if status == ["committed"]:
        pytest.skip("this server remembers its first transaction")
    with pytest.raises(CommitLost, match="forgotten"):
        s.committer().commit(1, [transaction])


@MODES
def test_a_recovery_aborts_what_it_is_not_told_of_up_to_its_epoch(scene: Any, mode: str) -> None:
    s = scene(mode)
    named = s.precommitted(1, epoch=2)
    s.precommitted(2, epoch=2)
    s.precommitted(3, epoch=3)
    newer = s.precommitted(4, epoch=4)
    committer = s.committer()
    committer.recover(1, [named], epoch=3)
    assert (s.rows(), s.open()) == (["1"], [newer.id])
    committer.recover(1, [named])
    assert (s.rows(), s.open()) == (["1"], [])


@MODES
def test_a_recovery_ends_the_session_of_a_killed_writer(scene: Any, mode: str) -> None:
    s = scene(mode)
    frozen = s.sink.writer()
    frozen.open(s.at(epoch=1))
    frozen.write(pa.record_batch({"id": [7], "text": ["x"]}))
    frozen._insist(frozen._send)
    s.committer().recover(0, [], epoch=1)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'"
    assert s.db.psql(sessions.format(frozen._names.session)) == ["0"]
    frozen.close()


@MODES
def test_what_a_frozen_writer_leaves_after_the_recovery_is_swept_by_a_commit(
    scene: Any, mode: str
) -> None:
    s = scene(mode)
    committer = s.committer()
    committer.recover(0, [], epoch=2)
    s.precommitted(1, epoch=1)
    own = s.precommitted(2, epoch=2)
    later = s.precommitted(3, epoch=2, checkpoint=2)
    committer.commit(1, [own])
    assert (s.rows(), s.open()) == (["2"], [later.id])


@MODES
def test_transactions_of_another_owner_are_left_alone_and_told(
    scene: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    s = scene(mode)
    foreign = s.precommitted(1, owner="other")
    with caplog.at_level(logging.WARNING):
        committer = s.committer("run")
    committer.recover(0, [], epoch=9)
    assert s.open() == [foreign.id]
    (record,) = caplog.records
    assert foreign.id in record.getMessage()
    assert "ROLLBACK PREPARED" in record.getMessage() or "DROP TABLE" in record.getMessage()


def test_rows_that_only_differ_in_the_run_have_tokens_of_their_own(scene: Any) -> None:
    s = scene("upsert")
    s.committer("one").commit(5, [s.precommitted(1, checkpoint=5, owner="one")])
    # A fresh start in another checkpoint directory, whose numbers begin anew.
    s.committer("two").commit(1, [s.precommitted(2, checkpoint=1, owner="two")])
    assert (s.rows(), s.open()) == (["1", "2"], [])


@MODES
def test_a_job_forked_from_a_checkpoint_finds_its_transactions_committed(
    scene: Any, mode: str
) -> None:
    s = scene(mode)
    transaction = s.precommitted(1)
    s.committer().commit(1, [transaction])
    fork = s.sink.committer("fork", "out")
    fork.own("other", anew=False)
    fork.recover(1, [transaction], epoch=1)
    assert (s.rows(), s.open()) == (["1"], [])


def test_of_rows_with_one_key_the_last_counts(scene: Any) -> None:
    s = scene("upsert")
    committer = s.committer()
    writer = s.sink.writer()
    writer.open(s.at())
    for text in ("a", "b", "c"):
        writer.write(pa.record_batch({"id": [1, 2], "text": [text, text]}))
    (transaction,) = writer.precommit(1)
    writer.close()
    s.db.psql("INSERT INTO orders VALUES (1, 'before'), (3, 'stays')")
    older = replace(transaction, run="run", checkpoint=1)
    newer = s.precommitted(2, text="newer", checkpoint=2)
    committer.commit(2, [newer, older])
    assert s.db.psql("SELECT id, text FROM orders ORDER BY id") == ["1|c", "2|newer", "3|stays"]


def test_an_upsert_of_rows_that_wait_for_their_commit_does_not_wait(scene: Any) -> None:
    """A checkpoint is given up: its transaction is committed with the next one, which names it, and
    which is complete only after the next pre-commit.
    """
    s = scene("upsert")
    first = s.precommitted(1, text="a", checkpoint=2)
    second = s.precommitted(1, text="b", checkpoint=2)
    s.committer().commit(2, [first, second])
    assert s.db.psql("SELECT id, text FROM orders") == ["1|b"]


def test_a_table_of_keys_alone_is_upserted(db: Any, at: Callable[..., Any]) -> None:
    db.psql("CREATE TABLE orders (id bigint PRIMARY KEY)")
    sink = PostgresSink(Database(db.url), "orders", "upsert", ("id",), 10**9)
    sink.check(pa.schema([("id", pa.int64())]))
    writer, committer = sink.writer(), sink.committer("job", "out")
    writer.open(at())
    writer.write(pa.record_batch({"id": [1, 1]}))
    (transaction,) = writer.precommit(1)
    writer.close()
    committer.commit(1, [replace(transaction, run="run", checkpoint=1)])
    assert db.psql("SELECT id FROM orders") == ["1"]


def test_replacing_output_is_refused_unless_the_table_is_empty(scene: Any) -> None:
    s = scene("insert")
    committer = s.committer()
    committer.remove_output()
    s.db.psql("INSERT INTO orders VALUES (1)")
    with pytest.raises(UserError, match="fresh=append"):
        committer.remove_output()
    assert committer.output() == ""
