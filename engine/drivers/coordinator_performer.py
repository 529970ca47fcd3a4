"""Performs the coordinator's effects, in threads as in virtual time.

`CoordinatorPerformer` says where each effect goes. Effects on storage and sinks take time: a
subclass decides when `perform_on_storage` and `perform_on_sinks` run. Both return the events that
answer the effect, and never raise.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import assert_never

from headrace.recovery import catalog, claims, links
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord
from headrace.recovery.registry import Deletable
from headrace.recovery.store import (
    AlreadyExists,
    NotFound,
    Store,
    StoreError,
    StoreRejected,
    StoreUncertain,
)

from ..contract import messages as m
from ..contract.errors import CommitLost, HeadraceError
from ..contract.operators import GoesBack, SinkCommitter, Transaction
from ..coordinator import coordinator_events as d
from ..storage.checkpoint_storage import open_store
from .checkpoint_directory import CheckpointDirectory

_log = logging.getLogger(__name__)

#: A savepoint's uncertain write, and a deletion when the job ends, is repeated this often, with
#: this pause, before it is given up; a checkpoint's write until it is certain.
_REPEATS = 5
_PAUSE_S = 0.2

Answer = d.CoordinatorEvent

StorageEffect = (
    d.ClaimEpoch
    | d.WriteMetadata
    | d.FindCheckpoint
    | d.WithdrawCheckpoints
    | d.DeleteFiles
    | d.ReleaseClaim
)
SinkEffect = d.RecoverSinks | d.CommitTransactions


class CoordinatorPerformer(ABC):
    """Performs the coordinator's effects; subclasses add network, storage, launcher and time."""

    def _perform(self, effect: d.CoordinatorEffect) -> None:
        match effect:
            case d.SendMessage(connection, message):
                self._send(connection, message)
            case d.CloseConnection(connection):
                self._close_connection(connection)
            case (
                d.ClaimEpoch()
                | d.WriteMetadata()
                | d.FindCheckpoint()
                | d.WithdrawCheckpoints()
                | d.DeleteFiles()
                | d.ReleaseClaim()
            ):
                self._store(effect)
            case d.RecoverSinks() | d.CommitTransactions():
                self._sink(effect)
            case d.ReplaceWorker(worker):
                self._replace(worker)
            case d.RequestAnswered():
                self._answer(effect)
            case d.Notice():
                self._notice(effect)
            case d.JobEnded():
                self._end(effect)
            case _:
                assert_never(effect)

    @abstractmethod
    def _send(self, connection: int, message: m.ToWorker) -> None:
        """Send a worker a message."""

    @abstractmethod
    def _close_connection(self, connection: int) -> None:
        """Close a connection when all that was sent before has left."""

    @abstractmethod
    def _store(self, effect: StorageEffect) -> None:
        """Have `perform_on_storage` run after all earlier ones, and post the answers."""

    @abstractmethod
    def _sink(self, effect: SinkEffect) -> None:
        """Have `perform_on_sinks` run after all earlier ones, and post the answer."""

    @abstractmethod
    def _replace(self, worker: int) -> None:
        """Start another incarnation of a worker."""

    @abstractmethod
    def _answer(self, answer: d.RequestAnswered) -> None:
        """Give a request its answer."""

    @abstractmethod
    def _notice(self, notice: d.Notice) -> None:
        """Tell people and tests."""

    @abstractmethod
    def _end(self, ended: d.JobEnded) -> None:
        """The job has ended."""


def perform_on_storage(effect: StorageEffect, directory: CheckpointDirectory) -> list[Answer]:
    """Perform one effect on the job's checkpoint directory."""
    store, job, sleep = directory.store, directory.job, directory.sleep
    match effect:
        case d.ClaimEpoch(above):
            return [claim_epoch(store, job, above)]
        case d.WriteMetadata(metadata, target, last):
            return write_metadata(store, metadata, sleep, target, last=last)
        case d.FindCheckpoint(below):
            return [find_checkpoint(store, job, below)]
        case d.WithdrawCheckpoints(numbers, patient):
            return [withdraw_checkpoints(store, job, numbers, patient=patient, sleep=sleep)]
        case d.DeleteFiles(what, patient, epoch):
            return [delete_files(store, job, what, epoch, patient=patient, sleep=sleep)]
        case d.ReleaseClaim(link, patient):
            return [release_claim(directory, link, patient=patient)]
        case _:
            assert_never(effect)


def perform_on_sinks(effect: SinkEffect, sinks: Sinks, directory: CheckpointDirectory) -> Answer:
    """Perform one effect on the outside systems of the job's sinks."""
    match effect:
        case d.RecoverSinks():
            return recover_sinks(directory.store, directory.job, sinks, effect)
        case d.CommitTransactions(checkpoint, records):
            return sinks.commit(checkpoint, records)
        case _:
            assert_never(effect)


def claim_epoch(store: Store | None, job: str, above: int) -> Answer:
    """Claim the next epoch. An epoch above `above` supersedes a coordinator that already ran."""
    if store is None:
        return d.EpochClaimed(above + 1)
    try:
        newest = catalog.newest_epoch(store, job) or 0
        if 0 < above < newest:
            return _superseded(job, above, newest)
        return d.EpochClaimed(catalog.claim_epoch(store, job, above=above))
    except catalog.EpochTaken:
        return _superseded(job, above, above + 1)
    except catalog.ClaimFailed as error:
        return d.EpochClaimFailed(f"an epoch could not be claimed: {error}", error.tried)
    except StoreError as error:
        return d.EpochClaimFailed(f"an epoch could not be claimed: {error}")


def write_metadata(
    store: Store | None,
    metadata: CheckpointMetadata,
    sleep: Callable[[float], None] = time.sleep,
    target: str = "",
    *,
    last: bool = False,
) -> list[Answer]:
    """Complete the checkpoint, or make certain that it never will be.

    Metadata that may be visible is never taken back: a rival may have chosen the checkpoint.

    Args:
        sleep: waits that many seconds between two tries.
        target: URL of the directory of a savepoint that does not go to `store`.
        last: the job ends with this savepoint, which is the newest point of its history.
    """
    number = metadata.checkpoint
    if store is None:
        return [d.MetadataWritten(number)]
    try:
        newest = catalog.newest_epoch(store, metadata.job) or 0
        if newest > metadata.epoch:
            superseded = _superseded(metadata.job, metadata.epoch, newest)
            return [superseded, d.MetadataDiscarded(number, superseded.reason)]
        directory = _store_of(target, store)
        if last:
            # Written first: then the next driver looks for the metadata, and finds it or not.
            link = _link(metadata, target)
            _repeat(lambda: links.write(store, metadata.job, link), sleep)
        if metadata.savepoint and not last:
            _repeat(lambda: catalog.publish(directory, metadata), sleep)
        else:
            _publish(store, metadata, sleep, directory)
        # A rival that claimed an epoch since we looked may have chosen an older checkpoint before
        # this one appeared, or may choose this one and commit it. So the checkpoint is visible for
        # good: storage that does not answer is asked again, and nothing is taken back.
        newest = _newest_epoch(store, metadata.job, sleep)
        if newest > metadata.epoch:
            superseded = _superseded(metadata.job, metadata.epoch, newest)
            return [superseded, d.MetadataDiscarded(number, superseded.reason)]
        return [d.MetadataWritten(number)]
    except AlreadyExists:
        reason = (
            f"chk-{number} exists already: another coordinator of job {metadata.job!r} is alive"
        )
        if metadata.savepoint:  # in a directory that others write to, too
            return [d.MetadataDiscarded(number, f"{target} holds a savepoint {number} already")]
        return [d.Superseded(reason), d.MetadataDiscarded(number, reason)]
    except Exception as error:
        told = isinstance(error, StoreError | HeadraceError)
        reason = str(error) if told else repr(error)
        return [d.MetadataDiscarded(number, f"its metadata could not be written: {reason}")]


def find_checkpoint(store: Store | None, job: str, below: int) -> Answer:
    """The newest complete checkpoint below a damaged one that can be read."""
    if store is None:
        return d.CheckpointFound(None)
    try:
        past = catalog.history(store, job)
        for number in catalog.complete_checkpoints(store, job, savepoints=False):
            if number < below:
                try:
                    metadata = catalog.load(store, job, number)
                except (CorruptMetadata, NotFound) as error:
                    _log.warning("chk-%d is passed over: %s", number, error)
                    continue
                if catalog.belongs(metadata, past):
                    return d.CheckpointFound(metadata)
    except Exception as error:
        return d.LauncherFailed(f"no older checkpoint can be read: {error}")
    return d.CheckpointFound(None)


def withdraw_checkpoints(
    store: Store | None,
    job: str,
    checkpoints: tuple[int, ...],
    *,
    patient: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Delete the metadata of checkpoints. `gone` are those that storage says are deleted.

    Args:
        patient: try several times.
        sleep: waits that many seconds between two tries.
    """
    if store is None:
        return d.CheckpointsWithdrawn(checkpoints, checkpoints)
    left = checkpoints
    for _ in tries(patient, sleep):
        left = tuple(n for n in left if not _deleted(catalog.withdraw, store, job, n))
        if not left:
            break
    return d.CheckpointsWithdrawn(checkpoints, tuple(n for n in checkpoints if n not in left))


def delete_files(
    store: Store | None,
    job: str,
    what: Deletable,
    epoch: int | None = None,
    *,
    patient: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Delete files. The answer names the files left. Arguments: as of `withdraw_checkpoints`.

    `epoch`: a number that was given up may be in use again, by a newer driver; files of newer
    epochs stay.
    """
    if store is None:
        return d.FilesDeleted(Deletable())
    left = what
    for _ in tries(patient, sleep):
        left = _delete_once(store, job, left, epoch)
        if left.is_empty:
            break
    return d.FilesDeleted(left)


def _delete_once(store: Store, job: str, what: Deletable, epoch: int | None) -> Deletable:
    """Returns what is left."""
    written, keep = catalog.delete_written, what.keep
    return Deletable(
        tuple(n for n in what.checkpoints if not _deleted(written, store, job, n, keep, epoch)),
        what.keep,
        tuple(file for file in what.files if not _deleted(catalog.delete_file, store, job, file)),
        tuple(
            (number, target)
            for number, target in what.savepoints
            if not _deleted(_delete_partial, store, job, number, target)
        ),
    )


def _delete_partial(store: Store, job: str, number: int, target: str) -> None:
    catalog.delete_partial_savepoint(_store_of(target, store), job, number)


def release_claim(
    directory: CheckpointDirectory, link: links.CheckpointLink, *, patient: bool = False
) -> d.ClaimReleased:
    """Delete a claimed checkpoint that is subsumed, then its link. `patient`: try several times."""
    assert directory.store is not None, "a job without checkpoints claims none"
    reason = ""
    for _ in tries(patient, directory.sleep):
        try:
            left = _release_once(directory, link)
            links.delete(directory.store, directory.job, link.number)
            return d.ClaimReleased(link, left)
        except Exception as error:
            told = isinstance(error, StoreError | HeadraceError)
            reason = str(error) if told else repr(error)
    left = f"{link}, which this job has claimed, could not be deleted ({reason})"
    return d.ClaimReleased(link, left, again=True)


def _release_once(directory: CheckpointDirectory, link: links.CheckpointLink) -> str:
    """Returns a sentence about files that stay for good; empty: none do."""
    there = directory.at(link.directory)
    try:
        claims.release(there, link.job, link.checkpoint, link.kind, directory.claimer)
    except (claims.AlreadyClaimed, claims.NotReleased) as error:
        return f"{link}, which this job has claimed, stays and is nobody's: {error}"
    except (CorruptMetadata, UnsupportedVersion) as error:
        return f"files of {link}, which this job has claimed, stay: {error}"
    return ""


def recover_sinks(store: Store | None, job: str, sinks: Sinks, effect: d.RecoverSinks) -> Answer:
    """Note where the epoch starts, and recover the sinks, unless there is a newer epoch.

    The order closes both windows of a frozen coordinator. An epoch claimed after the look finds the
    start, and chooses no checkpoint whose transactions are aborted here. Nothing of a newer epoch
    is aborted.
    """
    epoch, records = effect.epoch, effect.transactions
    if store is None:
        return sinks.recover(epoch, effect.restored, records)
    try:
        if effect.start is not None:
            catalog.note_start(store, job, effect.start)
        newest = catalog.newest_epoch(store, job) or 0
    except StoreError as error:
        return d.SinkFailed(None, f"the start of epoch {epoch} could not be noted: {error}")
    if newest > epoch:
        return _superseded(job, epoch, newest)
    starts = effect.start is not None
    return sinks.recover(epoch, effect.restored, records, through=epoch, starts=starts)


class Sinks:
    """The committers of a job's sinks, by operator name."""

    def __init__(self, committers: Mapping[str, SinkCommitter]) -> None:
        self._committers = committers

    @property
    def names(self) -> list[str]:
        """The sinks that commit, by operator name."""
        return list(self._committers)

    def commit(self, checkpoint: int, records: Sequence[TransactionRecord]) -> Answer:
        """Commit a checkpoint's transactions, sink by sink."""
        name = ""
        try:
            for sink, transactions in self._by_sink(records).items():
                name = f" to sink {sink!r}"
                if transactions:
                    self._committers[sink].commit(checkpoint, transactions)
        except Exception as error:
            reason = f"the commit of chk-{checkpoint}{name} failed: {error}"
            return d.SinkFailed(checkpoint, reason, isinstance(error, CommitLost))
        return d.TransactionsCommitted(checkpoint)

    def recover(
        self,
        epoch: int,
        restored: int,
        records: Sequence[TransactionRecord],
        *,
        through: int | None = None,
        starts: bool = False,
    ) -> Answer:
        """Commit again what the restored checkpoint names, abort everything else.

        Args:
            through: see `SinkCommitter.recover`.
            starts: an attempt starts from the restored checkpoint.
        """
        name = "the sinks"
        try:
            for sink, transactions in self._by_sink(records).items():
                name = f"sink {sink!r}"
                committer = self._committers[sink]
                committer.recover(restored, transactions, epoch=through)
                if starts and isinstance(committer, GoesBack):
                    committer.go_on(restored)
        except Exception as error:
            reason = f"{name} could not be recovered: {error}"
            return d.SinkFailed(None, reason, isinstance(error, CommitLost))
        return d.SinksRecovered(epoch)

    def _by_sink(self, records: Sequence[TransactionRecord]) -> dict[str, list[Transaction]]:
        by_sink: dict[str, list[Transaction]] = {name: [] for name in self._committers}
        for record in records:
            if record.sink not in by_sink:
                raise KeyError(f"no sink {record.sink!r} to commit {record.id} to")
            transaction = Transaction(record.id, record.payload, record.run, record.checkpoint)
            by_sink[record.sink].append(transaction)
        return by_sink


def _store_of(target: str, store: Store) -> Store:
    """The directory of a savepoint: at its own URL, or the job's."""
    return open_store(target) if target else store


def _superseded(job: str, ours: int, newest: int) -> d.Superseded:
    return d.Superseded(
        f"another coordinator of job {job!r} runs (it claimed epoch {newest}, this one has {ours})"
    )


def tries(patient: bool, sleep: Callable[[float], None]) -> Iterator[None]:
    """One try, or several with a pause between two."""
    yield
    for _ in range(_REPEATS - 1 if patient else 0):
        sleep(_PAUSE_S)
        yield


def _deleted(delete: Callable[..., None], *what: object) -> bool:
    """Whether it worked for certain."""
    try:
        delete(*what)
    except Exception as error:
        _log.warning("what is no longer needed could not be deleted: %s", error)
        return False
    return True


def _repeat(write: Callable[[], None], sleep: Callable[[float], None]) -> None:
    for attempt in range(_REPEATS):
        try:
            return write()
        except StoreUncertain:
            if attempt + 1 == _REPEATS:
                raise
            sleep(_PAUSE_S)


def _newest_epoch(store: Store, job: str, sleep: Callable[[float], None]) -> int:
    while True:
        try:
            return catalog.newest_epoch(store, job) or 0
        except StoreError as error:
            _log.warning("a newer epoch of %s cannot be looked for, trying again: %s", job, error)
            sleep(_PAUSE_S)


def _link(savepoint: CheckpointMetadata, target: str) -> links.CheckpointLink:
    """The record of the savepoint with which a job ends."""
    number = savepoint.checkpoint
    return links.CheckpointLink(
        number=number,
        directory=target,
        job=savepoint.job,
        checkpoint=number,
        savepoint=True,
        claimed=False,
    )


def _publish(
    store: Store, metadata: CheckpointMetadata, sleep: Callable[[float], None], directory: Store
) -> None:
    """Write metadata to `directory` until its fate is certain.

    Raises: StoreRejected, when it is not there; AlreadyExists, when another's is.

    Between two tries a look tells whether a rival has claimed an epoch. The file of an uncertain
    try is left then: the rival, which chose it or an older one, decides.
    """
    uncertain = False
    while True:
        try:
            return catalog.publish(directory, metadata)
        except AlreadyExists:
            raise
        except StoreUncertain as error:
            uncertain = True
            _log.warning("chk-%d may be written, trying again: %s", metadata.checkpoint, error)
        except StoreRejected:
            # A refusal says nothing about the tries before it.
            if not uncertain or not _is_there(directory, metadata, sleep):
                raise
            return None
        sleep(_PAUSE_S)
        if _newest_epoch(store, metadata.job, sleep) > metadata.epoch:
            return None


def _is_there(store: Store, metadata: CheckpointMetadata, sleep: Callable[[float], None]) -> bool:
    while True:
        try:
            return catalog.load(store, metadata.job, metadata.checkpoint) == metadata
        except (NotFound, CorruptMetadata):
            return False
        except StoreError as error:
            _log.warning("chk-%d cannot be looked for: %s", metadata.checkpoint, error)
            sleep(_PAUSE_S)
