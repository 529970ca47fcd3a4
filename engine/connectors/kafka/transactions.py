"""Kafka transactions that one process writes and another one decides.

A transaction is known by its transactional id, producer id and producer epoch: strings and numbers,
which travel in a checkpoint. A writer begins each transaction anew by InitProducerId, which raises
the epoch, so the three name one transaction for ever, and whoever knows them can end it.

An end that is repeated after the id was used again answers ProducerFenced, committed or not. So
each transaction carries a *token*: the offset `number` of a consumer group that has the name of the
transactional id, and is stored only if the transaction commits. `number` counts the transactions of
the id. A token at or above it means committed, because an id is used again only when its last
transaction was seen committed.

Ids are JOB.SINK.RUN.EPOCH.SUBTASK-SLOT. A run is a job in one checkpoint directory; the epoch is
the attempt's, so that no attempt uses ids of another. Slots: a subtask's transactions wait for
their commit while the next one is written.

Requests are those of brokers before "transactions version 2", where an end changes the epoch.

Source: Kafka's protocol; KIP-98, KIP-360, KIP-447, KIP-664, KIP-939.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from .cluster import GROUP, NO_ERROR, TRANSACTION, BrokerError, Cluster, Partition
from .connection import Response

INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
#: Answers to an end of a transaction that is over: committed, or aborted by the broker.
OVER = (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    INVALID_PRODUCER_ID_MAPPING,
    PRODUCER_FENCED,
)

ONGOING = "Ongoing"
COMMITTED = "CompleteCommit"
#: States of a transaction that waits for its commit, or whose commit is not everywhere yet.
UNDECIDED = (ONGOING, "PrepareCommit")
UNKNOWN = "Unknown"

#: Newest versions before "transactions version 2".
_ADD_PARTITIONS_VERSION = 3
_ADD_OFFSETS_VERSION = 3
_OFFSET_COMMIT_VERSION = 3
_END_VERSION = 4
_INIT_VERSION = 5
#: The version that knows transactions without a time limit (KIP-939).
_INIT_TWO_PHASE_VERSION = 6
#: Newest version for one group.
_OFFSET_FETCH_VERSION = 7
#: Of an id that is taken only to abort its transaction.
_FENCING_TIMEOUT_MS = 1_000

_EPOCH = re.compile(r"([0-9]+)\.[0-9]+-[0-9]+")


@dataclass(frozen=True, slots=True)
class Family:
    """Transactional ids of one sink of one job."""

    job: str
    operator: str

    @property
    def prefix(self) -> str:
        """What the ids of all runs begin with."""
        return f"{_safe(self.job)}.{_safe(self.operator)}."

    def of_run(self, run: str) -> str:
        """Return what the ids of a run begin with."""
        return f"{self.prefix}{_safe(run)}."

    def id(self, run: str, epoch: int, subtask: int, slot: int) -> str:
        """Return a transactional id."""
        return f"{self.of_run(run)}{epoch}.{subtask}-{slot}"


def epoch_of(transactional_id: str, run_prefix: str) -> int | None:
    """Return the attempt's epoch in an id; None: the id is no writer's of this run."""
    match = _EPOCH.fullmatch(transactional_id.removeprefix(run_prefix))
    return int(match[1]) if match and transactional_id.startswith(run_prefix) else None


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction, for ever.

    Attributes:
        id: transactional id; `producer` and `epoch` are the broker's numbers.
        timeless: the broker never aborts it (KIP-939).
    """

    id: str
    producer: int
    epoch: int
    timeless: bool = False


def begin(
    cluster: Cluster, transactional_id: str, timeout_ms: int, *, two_phase: bool
) -> Transaction:
    """Take an id for a new transaction; an open one of the id is aborted.

    Args:
        two_phase: ask for a transaction that never times out, if the broker knows these.

    Raises: BrokerError, AddressUnreachable.
    """
    if two_phase and _knows_two_phase(cluster, transactional_id):
        answer = _init(cluster, transactional_id, timeout_ms, two_phase=True)
        # The broker knows the request, and does not allow it: by its settings, or to this user.
        if answer.error_code != TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return _begun(transactional_id, answer, timeless=True)
    answer = _init(cluster, transactional_id, timeout_ms, two_phase=False)
    return _begun(transactional_id, answer, timeless=False)


def plain_producer(cluster: Cluster) -> tuple[int, int]:
    """Take a producer id and epoch for records without transactions.

    Raises: BrokerError, AddressUnreachable.
    """

    def attempt() -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
        )
        answer = cluster.any(request, max_version=_INIT_VERSION)
        _refuse(answer.error_code, "a producer id")
        return answer.producer_id, answer.producer_epoch

    return cluster.patiently(attempt)


def add_partitions(
    cluster: Cluster, transaction: Transaction, partitions: Iterable[Partition]
) -> None:
    """Make partitions part of a transaction, before their first record.

    Raises: BrokerError, AddressUnreachable.
    """
    topics = [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name=topic, partitions=[each.index for each in group]
        )
        for topic, group in _by_topic(partitions)
    ]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction.id,
        v3_and_below_producer_id=transaction.producer,
        v3_and_below_producer_epoch=transaction.epoch,
        v3_and_below_topics=topics,
    )
    answer = cluster.at_coordinator(
        TRANSACTION,
        transaction.id,
        request,
        max_version=_ADD_PARTITIONS_VERSION,
        errors=lambda answer: [code for _, code in _partition_codes(answer)],
    )
    # All fail together; those without a fault of their own say OPERATION_NOT_ATTEMPTED.
    for partition, code in sorted(_partition_codes(answer), key=lambda each: each[1]):
        _refuse(code, f"partition {partition} in transaction {transaction.id!r}")


def check_open(cluster: Cluster, transaction: Transaction, partition: Partition) -> None:
    """Ask whether a transaction is still open: what timed out must not get into a checkpoint.

    A partition that is part of a transaction already is added again, which a coordinator answers
    without a write to its log.

    Args:
        partition: one that was added.

    Raises: BrokerError, with a code of OVER when it is not; AddressUnreachable.
    """
    add_partitions(cluster, transaction, [partition])


def store_token(
    cluster: Cluster, transaction: Transaction, number: int, partition: Partition
) -> None:
    """Store the token within a transaction: it shows when the transaction commits.

    Args:
        partition: any that exists; Kafka stores offsets of partitions.

    Raises: BrokerError, AddressUnreachable.
    """
    three = {
        "transactional_id": transaction.id,
        "producer_id": transaction.producer,
        "producer_epoch": transaction.epoch,
        "group_id": transaction.id,
    }
    answer = cluster.at_coordinator(
        TRANSACTION,
        transaction.id,
        AddOffsetsToTxnRequest(**three),
        max_version=_ADD_OFFSETS_VERSION,
    )
    what = f"the group of transaction {transaction.id!r}"
    _refuse(answer.error_code, what)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    token = topic.TxnOffsetCommitRequestPartition(
        partition_index=partition.index, committed_offset=number, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        **three, topics=[topic(name=partition.topic, partitions=[token])]
    )
    answer = cluster.at_coordinator(
        GROUP,
        transaction.id,
        request,
        max_version=_OFFSET_COMMIT_VERSION,
        errors=_offset_codes,
    )
    for code in _offset_codes(answer):
        _refuse(code, what)


def end(cluster: Cluster, transaction: Transaction, *, commit: bool) -> int:
    """Commit or abort; return NO_ERROR, or one of OVER. NO_ERROR means decided; readers see it some
    milliseconds later.

    Raises: BrokerError, AddressUnreachable.
    """
    request = EndTxnRequest(
        transactional_id=transaction.id,
        producer_id=transaction.producer,
        producer_epoch=transaction.epoch,
        committed=commit,
    )
    answer = cluster.at_coordinator(TRANSACTION, transaction.id, request, max_version=_END_VERSION)
    code: int = answer.error_code
    if code not in (NO_ERROR, *OVER):
        raise BrokerError(f"the end of transaction {transaction.id!r}", code)
    return code


def token(cluster: Cluster, transactional_id: str) -> int:
    """Return the number of the newest committed transaction of an id; -1: none has committed.

    Raises: BrokerError, AddressUnreachable.
    """
    # `require_stable` would wait for an open transaction of the id, which nobody may ever end.
    request = OffsetFetchRequest(group_id=transactional_id, topics=None, require_stable=False)
    answer = cluster.at_coordinator(
        GROUP, transactional_id, request, max_version=_OFFSET_FETCH_VERSION, errors=_fetch_codes
    )
    for code in _fetch_codes(answer):
        _refuse(code, f"the group of transaction {transactional_id!r}")
    offsets = [each.committed_offset for topic in answer.topics for each in topic.partitions]
    return max(offsets, default=-1)


def state(cluster: Cluster, transactional_id: str) -> str:
    """Return the state of an id's last transaction, in the broker's words; UNKNOWN: none was seen.

    Raises: BrokerError, AddressUnreachable.
    """
    answer = cluster.at_coordinator(
        TRANSACTION,
        transactional_id,
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        errors=lambda answer: [each.error_code for each in answer.transaction_states],
    )
    (described,) = answer.transaction_states
    if described.error_code == TRANSACTIONAL_ID_NOT_FOUND:
        return UNKNOWN
    _refuse(described.error_code, f"transaction {transactional_id!r}")
    return str(described.transaction_state)


def open_ids(cluster: Cluster, prefix: str) -> list[str]:
    """List the ids with an open transaction; every broker knows its own.

    Raises: BrokerError, AddressUnreachable.
    """

    def attempt() -> list[str]:
        found = []
        for address in cluster.brokers():
            request = ListTransactionsRequest(state_filters=[ONGOING], producer_id_filters=[])
            answer = cluster.at(address).call(request)
            _refuse(answer.error_code, f"the list of transactions at {address}")
            found += [str(each.transactional_id) for each in answer.transaction_states]
        return sorted(each for each in found if each.startswith(prefix))

    return cluster.patiently(attempt)


def abort(cluster: Cluster, transactional_id: str) -> None:
    """Abort the open transaction of an id; a writer that still lives can write to it no more.

    Raises: BrokerError, AddressUnreachable.
    """
    answer = _init(cluster, transactional_id, _FENCING_TIMEOUT_MS, two_phase=False)
    _refuse(answer.error_code, f"transaction {transactional_id!r}")


def _safe(name: str) -> str:
    """Return a name without dots, different for different names."""
    return quote(name, safe=" ").replace(".", "%2E")


def _knows_two_phase(cluster: Cluster, transactional_id: str) -> bool:
    def attempt() -> bool:
        connection = cluster.at(cluster.coordinator(TRANSACTION, transactional_id))
        return connection.version(InitProducerIdRequest()) >= _INIT_TWO_PHASE_VERSION

    return cluster.patiently(attempt)


def _init(cluster: Cluster, transactional_id: str, timeout_ms: int, *, two_phase: bool) -> Response:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
        enable2_pc=two_phase,
        keep_prepared_txn=False,
    )
    version = _INIT_TWO_PHASE_VERSION if two_phase else _INIT_VERSION
    return cluster.at_coordinator(TRANSACTION, transactional_id, request, max_version=version)


def _begun(transactional_id: str, answer: Response, *, timeless: bool) -> Transaction:
    _refuse(answer.error_code, f"transaction {transactional_id!r}")
    return Transaction(transactional_id, answer.producer_id, answer.producer_epoch, timeless)


def _refuse(code: int, what: str) -> None:
    if code:
        raise BrokerError(what, code)


def _by_topic(partitions: Iterable[Partition]) -> Iterator[tuple[str, list[Partition]]]:
    for topic, group in groupby(sorted(partitions), key=lambda each: each.topic):
        yield topic, list(group)


def _partition_codes(answer: Response) -> Sequence[tuple[Partition, int]]:
    return [
        (Partition(topic.name, each.partition_index), each.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]


def _offset_codes(answer: Response) -> list[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def _fetch_codes(answer: Response) -> list[int]:
    return [answer.error_code, *_offset_codes(answer)]
