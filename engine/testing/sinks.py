"""Does a sink keep its promises? Crashes at each step, lost answers, repeats, rescales.

Every case is a job of its own, with rows of its own, so that all may write to one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ..contract.connectors import Sink
from ..contract.errors import CommitLost, UserError
from ..contract.operators import Transaction, run_of
from .elsewhere import elsewhere
from .played import OPERATOR, PlayedRun, context_of, open_writer, precommitted_by
from .verdict import Broken, Findings, Row, Rows, expect, rows_of, step

#: Records of a sink that says nothing about its own.
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
#: Between the first ids of two cases.
_SPAN = 1000
_ROWS = 7


def check_sink(
    make_sink: Callable[[], Sink],
    read_back: Callable[[], Rows],
    *,
    schema: pa.Schema = SCHEMA,
    lose: Callable[[Sequence[Transaction]], None] | None = None,
    left_open: Callable[[], Collection[object]] | None = None,
    settle_s: float = 0.0,
    other_process: bool = True,
) -> list[str]:
    """Run a sink through crashes at each step, lost answers, repeated commits and rescales.

    Args:
        make_sink: makes the sink; all may write to one place.
        read_back: reads all visible rows, as another program would; columns of `schema` are
            compared.
        schema: of the rows written; the first column is an int64 that tells rows apart.
        lose: makes the other system forget pre-committed transactions; their commit must raise
            `CommitLost` then. None: not tried.
        left_open: names transactions that are open in the other system. None: not looked at.
        settle_s: how long a commit may take to show.
        other_process: rows that another process commits can be read back here.

    Returns the names of the cases. Raises: NotConforming, with a sentence for each broken promise;
        UserError.
    """
    kit = _Kit(make_sink, read_back, schema, left_open, settle_s)
    findings = Findings()
    sink = make_sink()
    if sink.delivery not in ("exactly-once", "at-least-once"):
        raise UserError(f"the sink promises {sink.delivery!r}: exactly-once or at-least-once")
    sink.check(schema)
    for number, case in enumerate(_CASES):
        with findings.case(_name(case)), kit.job(number) as job:
            case(job)
    if other_process:
        with findings.case(_name(_another_process_recovers)), kit.job(len(_CASES) + 1) as job:
            _another_process_recovers(job)
    if lose is not None:
        name = _name(_a_transaction_is_lost_by_the_other_side)
        with findings.case(name), kit.job(len(_CASES)) as job:
            _a_transaction_is_lost_by_the_other_side(job, lose)
    return findings.conclude()


@dataclass(frozen=True, slots=True)
class _Kit:
    make_sink: Callable[[], Sink]
    read_back: Callable[[], Rows]
    schema: pa.Schema
    left_open: Callable[[], Collection[object]] | None
    settle_s: float

    @contextmanager
    def job(self, number: int) -> Iterator[_Job]:
        """Make the job of one case; its writers are closed at the end."""
        job = _Job(self, f"kit-{number}", number * _SPAN)
        try:
            yield job
        finally:
            for run in job.runs:
                run.crash()


class _Job:
    """The job of one case: its runs, and the rows that must be visible."""

    def __init__(self, kit: _Kit, name: str, first: int) -> None:
        self.name = name
        self.sink = kit.make_sink()
        self.exact = self.sink.delivery == "exactly-once"
        self._kit = kit
        self.runs: list[PlayedRun] = []
        self._first = self._next = first

    def run(self, owner: str = "0a", operator: str = OPERATOR, job: str = "") -> PlayedRun:
        """Begin a run, in the directory of this owner; without a `job`, of the case's own."""
        self.runs.append(PlayedRun(self.sink, job or self.name, owner, operator))
        return self.runs[-1]

    def rows(self) -> pa.RecordBatch:
        """Make rows that no other case has."""
        ids = range(self._next, self._next + _ROWS)
        self._next += _ROWS
        columns = [pa.array(ids, pa.int64())]
        columns += [_column(field, ids) for field in list(self._kit.schema)[1:]]
        return pa.RecordBatch.from_arrays(columns, schema=self._kit.schema)

    def expect(self, *batches: pa.RecordBatch, after: str) -> None:
        """Exactly these rows are visible; of a sink that is at least once, at least these."""
        wanted = [row for batch in batches for row in rows_of(pa.Table.from_batches([batch]))]
        expect(self._found, wanted, after, repeats=not self.exact, settle_s=self._kit.settle_s)

    def expect_hidden(self, batch: pa.RecordBatch, *, after: str) -> None:
        """None of these rows is visible yet."""
        if not self.exact:
            return
        with step("reading back"):
            early = set(rows_of(pa.Table.from_batches([batch]))).intersection(self._found())
        if early:
            raise Broken(f"after {after}, {len(early)} rows are visible already")

    def expect_settled(self, *, after: str) -> None:
        """No transaction is open in the other system."""
        if self._kit.left_open is None:
            return
        with step("looking for open transactions"):
            left = self._kit.left_open()
        if left:
            shown = ", ".join(str(each) for each in list(left)[:3])
            raise Broken(f"after {after}, {len(left)} transactions are open ({shown})")

    def _found(self) -> list[Row]:
        names, key = set(self._kit.schema.names), self._kit.schema.names[0]
        rows = self._kit.read_back()
        found = rows.to_pylist() if isinstance(rows, pa.Table) else rows
        mine = range(self._first, self._first + _SPAN)
        return rows_of(
            {name: value for name, value in row.items() if name in names}
            for row in found
            if row[key] in mine
        )


def _column(field: pa.Field, ids: Iterable[int]) -> pa.Array:
    type_ = field.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pa.array([f"text {id}" for id in ids], type_)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return pa.array([b"bytes %d" % id for id in ids], type_)
    if pa.types.is_boolean(type_):
        return pa.array([id % 2 == 0 for id in ids], type_)
    try:
        return pa.array(ids, pa.int64()).cast(type_)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"check_sink makes no values for column {field.name!r} of type {type_}; give a schema"
            " of numbers, texts, bytes, booleans and times"
        ) from error


# --- the cases ------------------------------------------------------------------------------------


def _name(case: Callable[..., None]) -> str:
    return case.__name__.strip("_").replace("_", " ")


def _rows_appear_with_the_commit_and_not_before(job: _Job) -> None:
    run, first, second = job.run(), job.rows(), job.rows()
    run.start(2)
    run.write(first)
    job.expect_hidden(first, after="write")
    run.precommit()
    job.expect_hidden(first, after="the pre-commit")
    run.complete()
    run.commit()
    job.expect(first, after="the commit")
    run.checkpoint()  # without records
    run.write(second)
    run.checkpoint()
    job.expect(first, second, after="the third commit")
    run.crash()
    run.start(1)
    run.crash()
    job.expect(first, second, after="the end of the job")
    job.expect_settled(after="the end of the job")


def _a_crash_amid_the_writing(job: _Job) -> None:
    run, rows = job.run(), job.rows()
    run.start(2)
    run.write(rows)
    _crash_and_write_again(job, run, rows)


def _a_crash_behind_the_pre_commit(job: _Job) -> None:
    run, rows = job.run(), job.rows()
    run.start(2)
    run.write(rows)
    run.precommit()
    _crash_and_write_again(job, run, rows)


def _crash_and_write_again(job: _Job, run: PlayedRun, rows: pa.RecordBatch) -> None:
    run.crash()
    run.start(2)
    job.expect_settled(after="recover")
    job.expect_hidden(rows, after="recover")
    run.write(rows)
    run.checkpoint()
    job.expect(rows, after="the commit of the second attempt")


def _a_crash_between_checkpoint_and_commit(job: _Job) -> None:
    run, first, second = job.run(), job.rows(), job.rows()
    run.start(2)
    run.complete_with(first)
    run.crash()
    run.start(2)
    job.expect(first, after="recover, which was given the transactions")
    run.write(second)
    run.checkpoint()
    job.expect(first, second, after="the commit of the second attempt")


def _a_crash_amid_the_recovery(job: _Job) -> None:
    run, first, second = job.run(), job.rows(), job.rows()
    run.start(2)
    run.complete_with(first)
    run.write(second)
    run.precommit()
    run.crash()
    for _ in range(2):
        run.recover(run.committer())
    run.start(2)
    job.expect_settled(after="the third recover")
    job.expect_hidden(second, after="the third recover")
    run.write(second)
    run.checkpoint()
    job.expect(first, second, after="three recoveries in a row")


def _the_answer_of_a_commit_is_lost(job: _Job) -> None:
    run, rows = job.run(), job.rows()
    run.start(2)
    run.complete_with(rows)
    run.commit(confirmed=False)
    run.commit(confirmed=False)
    job.expect(rows, after="the same commit twice")
    run.crash()
    run.start(2)
    job.expect(rows, after="recover, which commits once more")


def _a_commit_is_repeated_after_newer_ones(job: _Job) -> None:
    run, batches = job.run(), [job.rows() for _ in range(3)]
    run.start(2)
    told: list[tuple[int, list[Transaction]]] = []
    for batch in batches:
        run.complete_with(batch)
        told.append((run.restored, list(run.named)))
        run.commit()
    for number, transactions in told:
        run.commit_once_more(run.committer(), number, transactions)
        job.expect(*batches, after=f"commit {number} was repeated after commit {told[-1][0]}")


def _a_newer_commit_joins_one_that_failed(job: _Job) -> None:
    run, first, second, third = job.run(), job.rows(), job.rows(), job.rows()
    run.start(2)
    run.complete_with(first)
    run.complete_with(second)
    run.commit(confirmed=False)
    job.expect(first, second, after="one commit for two checkpoints")
    run.complete_with(third)
    run.commit()
    job.expect(first, second, third, after="a commit of new transactions and of applied ones")


def _transactions_of_a_given_up_checkpoint_ride_with_the_next(job: _Job) -> None:
    run, first, second = job.run(), job.rows(), job.rows()
    run.start(2)
    run.write(first)
    run.precommit()
    run.complete_with(second)
    run.commit()
    job.expect(first, second, after="the commit of the second checkpoint")


def _a_restore_at_another_parallelism(job: _Job) -> None:
    run = job.run()
    done: list[pa.RecordBatch] = []
    for parallelism in (2, 3, 1):
        run.start(parallelism)
        job.expect(*done, after=f"recover before parallelism {parallelism}")
        done.append(job.rows())
        run.complete_with(done[-1])
        run.crash()
    run.start(2)
    job.expect(*done, after="recover at the last parallelism")


def _a_recovery_spares_transactions_of_newer_epochs(job: _Job) -> None:
    """A frozen driver wakes up behind its successor."""
    run, rows = job.run(), job.rows()
    run.start(2)
    frozen = run.committer()
    run.crash()
    run.start(2)
    run.write(rows)
    run.precommit()
    if frozen is not None:
        with step("recover of an older driver"):
            frozen.recover(0, [], epoch=1)
    run.complete()
    run.commit()
    job.expect(rows, after="a recovery by an older driver, and a commit")


def _another_run_of_the_job_begins_in_a_new_directory(job: _Job) -> None:
    """Its checkpoints have the numbers of the run before."""
    old, new, rows = job.run("0a"), job.run("0b"), [job.rows() for _ in range(4)]
    old.start(2)
    for batch in rows[:3]:
        old.write(batch)
        old.checkpoint()
    old.crash()
    job.expect(*rows[:3], after="the first run")
    new.start(2)
    before = set(job._found())
    new.write(rows[3])
    new.checkpoint()
    kept = [batch for batch in rows[:3] if before.intersection(_rows(batch))]
    job.expect(*kept, rows[3], after="the first commit of the second run")


def _two_sinks_of_one_job_write_to_one_place(job: _Job) -> None:
    """Their checkpoints have the same numbers in the same directory."""
    one, other = job.run(operator="one"), job.run(operator="other")
    done: list[pa.RecordBatch] = []
    for run in (one, other):
        run.start(2)
    for _ in range(2):
        for run in (one, other):
            done.append(job.rows())
            run.complete_with(done[-1])
        for run in (one, other):
            run.commit()
        job.expect(*done, after="the commits of two sinks")


def _a_restore_under_other_names(job: _Job) -> None:
    """The job and the sink are called otherwise, and go on in a directory of their own."""
    before, rows = job.run(), [job.rows() for _ in range(4)]
    before.start(2)
    for batch in rows[:2]:
        before.complete_with(batch)
    before.commit(confirmed=False)
    before.complete_with(rows[2])
    before.crash()
    run = job.run("0b", "renamed", f"{job.name}-renamed")
    run.go_on_from(before)
    run.start(3)
    job.expect(*rows[:3], after="recover of applied and of new transactions under other names")
    run.write(rows[3])
    run.checkpoint()
    job.expect(*rows, after="the first commit under other names")


def _rows(batch: pa.RecordBatch) -> list[Row]:
    return rows_of(pa.Table.from_batches([batch]))


def _another_process_recovers(job: _Job) -> None:
    run, rows, more = job.run(), job.rows(), job.rows()
    run.start(0)
    run.adopt(elsewhere(_precommitted, job.sink, job.name, run.owner, run.epoch, rows))
    run.complete()
    elsewhere(_recovered, job.sink, job.name, run.owner, run.epoch, run.restored, run.named)
    job.expect(rows, after="recover in another process")
    run.start(2)
    run.write(more)
    run.checkpoint()
    job.expect(rows, more, after="the commit of the process after that")


def _precommitted(
    sink: Sink, job: str, owner: str, epoch: int, rows: pa.RecordBatch
) -> list[Transaction]:
    writer = open_writer(sink, context_of(job, owner, epoch, 0, 1))
    writer.write(rows)
    writer.commit()
    return precommitted_by(writer, 1, run_of(job, OPERATOR, owner))


def _recovered(
    sink: Sink,
    job: str,
    owner: str,
    epoch: int,
    checkpoint: int,
    transactions: list[Transaction],
) -> None:
    run = PlayedRun(sink, job, owner)
    run.epoch, run.restored, run.named = epoch, checkpoint, transactions
    run.recover(run.committer())


def _a_transaction_is_lost_by_the_other_side(
    job: _Job, lose: Callable[[Sequence[Transaction]], None]
) -> None:
    run, rows = job.run(), job.rows()
    run.start(2)
    run.complete_with(rows)
    with step("losing the transactions"):
        lose(run.named)
    committer = run.committer()
    if committer is None:
        raise Broken("a sink without a committer has no transactions to lose")
    try:
        committer.commit(run.restored, run.named)
    except CommitLost:
        return
    except Exception as error:
        raise Broken(
            f"commit raised {type(error).__name__} ({error}) and would be repeated for ever; no"
            " try can work, so it must raise CommitLost"
        ) from error
    raise Broken("commit said nothing: the rows are lost in silence; it must raise CommitLost")


_CASES = (
    _rows_appear_with_the_commit_and_not_before,
    _a_crash_amid_the_writing,
    _a_crash_behind_the_pre_commit,
    _a_crash_between_checkpoint_and_commit,
    _a_crash_amid_the_recovery,
    _the_answer_of_a_commit_is_lost,
    _a_commit_is_repeated_after_newer_ones,
    _a_newer_commit_joins_one_that_failed,
    _transactions_of_a_given_up_checkpoint_ride_with_the_next,
    _a_restore_at_another_parallelism,
    _a_recovery_spares_transactions_of_newer_epochs,
    _another_run_of_the_job_begins_in_a_new_directory,
    _two_sinks_of_one_job_write_to_one_place,
    _a_restore_under_other_names,
)
