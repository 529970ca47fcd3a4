"""The Kafka source: partitions of topics as splits, offsets in checkpoints.

The driver plans: it asks the cluster for partitions, turns a time or "latest" into offsets once,
and ships them with the program, so that a restart before the first checkpoint reads the same
records. From then on the checkpoints count, and the group's offsets are for others to see.

A poll waits for no broker for longer than some milliseconds (`errands.py`): checkpoints and the end
of the job go on while one is away.

Partitions are read in turn, and each holds event time back by itself. Subtasks look for new
partitions on their own, and read them from the beginning. A partition without records holds event
time back until `with_watermark(idle_after=...)` has passed.

Offsets that retention has deleted, a topic that was deleted and created again: the job fails with a
sentence, unless it was told to go on from the oldest record.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import pyarrow as pa

from ...contract.errors import JobFailed, UserError
from ...contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateSnapshot,
)
from ...contract.suggestion import quoted
from .backlog import Backlog
from .cluster import (
    OFFSET_OUT_OF_RANGE,
    BrokerError,
    Cluster,
    Connect,
    Partition,
    Topic,
    parse_servers,
)
from .cluster import PATIENCE_S as CALL_PATIENCE_S
from .connection import Address, BrokerLost, Connection
from .errands import Errand, Errands, in_thread
from .errands import Start as StartErrand
from .fetch import Fetched
from .fetcher import PARTITION_BYTES_MAX, PATIENCE_S, Fetcher
from .group import GroupCommits
from .offsets import EARLIEST, LATEST, list_offsets
from .planning import Plan, Start, parse_start, plan
from .progress import Ledger, Progress, deal, known_progress, owns_new, progress_rows
from .security import Security
from .values import COLUMNS, Decoded, Rows

_log = logging.getLogger(__name__)
Isolation = Literal["read_committed", "read_uncommitted"]
OnMissing = Literal["error", "earliest"]
T = TypeVar("T")

#: How long a poll waits for a broker's answer: a record that comes is handed out at once, and the
#: subtask's other work does not wait for long.
_WAIT_S = 0.01
_WAIT_NS = 10_000_000
_SECOND_NS = 1_000_000_000


class RecordsMissing(JobFailed):
    """Records that the source should read next are not there any more."""


@dataclass(frozen=True, kw_only=True)
class KafkaSource:
    """Records of topics.

    Attributes:
        servers: where to ask first.
        start: where to begin without a checkpoint.
        bounded: end at what is there when the pipeline is built.
        isolation: "read_committed" leaves out records of open and aborted transactions.
        discover_ns: how often to look for new partitions; None: never.
        group: consumer group that is told the offsets of complete checkpoints; None: none is.
        on_missing: what to do about records that are not there any more: fail, or go on from the
            oldest.
        rows: columns.
        patience_s: how long a broker may be away.
    """

    topics: tuple[str, ...]
    servers: tuple[Address, ...]
    security: Security = field(default_factory=Security)
    start: Start = "earliest"
    bounded: bool = False
    isolation: Isolation = "read_committed"
    discover_ns: int | None = None
    group: str | None = None
    on_missing: OnMissing = "error"
    rows: Rows = field(default_factory=Rows)
    patience_s: float = PATIENCE_S
    connect: Connect = Connection
    clock: Callable[[], int] = time.monotonic_ns
    start_errand: StartErrand = in_thread
    #: One plan, made when it is first asked for.
    _plans: list[Plan] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch.

        The first call asks the cluster for partitions and rights, and the pipeline starts from its
        answers. Raises: UserError, AddressUnreachable.
        """
        self._planned()
        return self.rows.schema

    @property
    def committed(self) -> bool:
        """Whether only committed records are read."""
        return self.isolation == "read_committed"

    def reader(self) -> KafkaReader:
        """Make the reader of one subtask. Ask for `schema` in the driver first."""
        return KafkaReader(self, self._planned())

    def cluster(self, *, patience_s: float = CALL_PATIENCE_S) -> Cluster:
        """Make a client of the cluster."""
        return Cluster(self.servers, self.security, patience_s=patience_s, connect=self.connect)

    def errands(self) -> Errands:
        """Make a client of the cluster that no poll waits for."""
        return Errands(self.cluster(patience_s=self.patience_s), self.start_errand)

    def _planned(self) -> Plan:
        if not self._plans:
            cluster = self.cluster()
            try:
                planned = plan(
                    cluster,
                    self.topics,
                    start=self.start,
                    bounded=self.bounded,
                    committed=self.committed,
                    group=self.group,
                )
            finally:
                cluster.close()
            self._plans.append(planned)
        return self._plans[0]


def kafka_source(
    topics: Sequence[str],
    servers: str | Sequence[str],
    *,
    start: object,
    stop: object,
    isolation: Isolation,
    columns: Sequence[str] | None,
    key: Decoded,
    value: Decoded | pa.Schema,
    discover_ns: int | None,
    group: str | None,
    on_missing: OnMissing,
    options: Mapping[str, Any],
) -> KafkaSource:
    """Check what a user has given. Raises: UserError."""
    if not topics or not all(isinstance(topic, str) and topic for topic in topics):
        raise UserError(f"read.kafka: topics={topics!r}: give the names of topics")
    topics = tuple(dict.fromkeys(topics))
    for word, given, known in (
        ("isolation", isolation, get_args(Isolation)),
        ("on_missing", on_missing, get_args(OnMissing)),
        ("stop", stop, (None, "latest")),
    ):
        if given not in known:
            raise UserError(f"read.kafka: {word}={given!r}: choose one of {quoted(known)}")
    if isinstance(columns, str):
        raise UserError(f"read.kafka: columns={columns!r}: give a list of names")
    rows = Rows(tuple(COLUMNS) if columns is None else tuple(columns), key, value)
    return KafkaSource(
        topics=topics,
        servers=parse_servers(servers),
        security=Security(dict(options)),
        start=parse_start(start, topics),
        bounded=stop == "latest",
        isolation=isolation,
        discover_ns=discover_ns,
        group=group,
        on_missing=on_missing,
        rows=rows,
    )


class KafkaReader:
    """Reads the partitions of one subtask, in turn."""

    def __init__(self, source: KafkaSource, plan: Plan) -> None:
        self._source = source
        self._plan = plan
        self._ledger = Ledger()
        self._index = 0
        self._parallelism = 1
        self._errands = source.errands()
        #: A question under way, and what to do with the answer.
        self._asked: tuple[Errand[Any], Callable[[Any], None]] | None = None
        self._fetcher = Fetcher(
            source.errands(), committed=source.committed, patience_s=source.patience_s
        )
        self._group: GroupCommits | None = None
        #: Partitions that need no owner any more: all known at the start, and own later ones.
        self._known: set[Partition] = set()
        self._topic_ids: dict[str, str] = {}
        #: Own partitions that are not read to their end, in the order of their turns.
        self._turns: deque[Backlog] = deque()
        self._open: frozenset[str] = frozenset()
        self._next_look_ns = 0

    def open(self, context: OperatorContext) -> None:
        """Take this subtask's share of the planned partitions."""
        self._index, self._parallelism = context.index, context.parallelism
        if self._source.group is not None:
            self._group = GroupCommits(self._source.cluster(), self._source.group)
        self._deal(None)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take this subtask's share of the partitions of the checkpoint and of the plan.

        Raises: RecordsMissing.
        """
        self._deal([row for state in states for row in progress_rows(state.table)])

    def poll(self, rows_max: int) -> Polled:
        """Hand out records of the next partition that has any, and keep fetches under way."""
        self._settle()
        self._fetch(0)
        self._look_for_partitions()
        polled = self._hand_out(rows_max)
        if polled is None and self._turns:
            self._fetch(_WAIT_S)
            polled = self._hand_out(rows_max)
        if polled is not None:
            return polled
        if self._turns:
            # If the wait was for an answer, the next poll may follow.
            wait_ns = _WAIT_NS if self._fetcher.is_idle else 0
            return Polled((), SourceStatus.IDLE, wait_ns)
        if self._source.bounded:
            return Polled((), SourceStatus.END)
        return Polled((), SourceStatus.IDLE, self._until_look_ns())

    def open_splits(self) -> frozenset[str]:
        """All own partitions that are not read to their end."""
        return self._open

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        """Tell the group."""
        if self._group is not None:
            self._group.commit(states)

    def commit(self) -> None:
        """Publish the offsets."""
        self._ledger.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the published offsets."""
        return self._ledger.snapshot()

    def close(self) -> None:
        """Close every connection."""
        if self._group is not None:
            self._group.close()
        self._fetcher.close()
        self._errands.close()

    def _deal(self, restored: Sequence[Progress] | None) -> None:
        self._topic_ids = dict(self._plan.topic_ids)
        if restored is not None:
            restored = [self._checked(each) for each in restored]
        known = known_progress(self._plan.partitions, restored)
        own = deal(known, parallelism=self._parallelism, index=self._index)
        self._known = {each.partition for each in known}
        self._ledger.reset(own)
        self._turns.clear()
        # A topic that the program does not name any more is remembered, and not read.
        for each in own:
            if each.partition.topic in self._source.topics:
                self._take_up(each)
        self._refresh_open()

    def _checked(self, progress: Progress) -> Progress:
        """Return progress that the topic of now can go on from."""
        topic = progress.partition.topic
        id_ = self._topic_ids.get(topic, "")
        if not id_ or not progress.topic_id or id_ == progress.topic_id:
            return progress
        self._missing(
            f"topic {topic!r} was deleted and created again since the checkpoint, which had read"
            f" partition {progress.partition.index} up to {progress.offset}",
            "the oldest record",
        )
        return Progress(progress.partition, EARLIEST, id_)

    def _take_up(self, progress: Progress) -> None:
        partition = progress.partition
        backlog = Backlog(
            partition,
            progress.offset,
            stop=self._plan.stops.get(partition) if self._source.bounded else None,
            committed=self._source.committed,
            with_headers=self._source.rows.with_headers,
        )
        if not backlog.is_done:
            self._turns.append(backlog)

    def _refresh_open(self) -> None:
        names = frozenset(str(backlog.partition) for backlog in self._turns)
        if names != self._open:
            self._open = names

    def _fetch(self, wait_s: float) -> None:
        """Ask for more where there is room, and take what has come."""
        if any(backlog.position < 0 for backlog in self._turns):
            self._find_earliest()
        wanted = {
            backlog.partition: backlog.fetch_offset
            for backlog in self._turns
            if backlog.wants_more
            and backlog.position >= 0
            and backlog.size_bytes < PARTITION_BYTES_MAX
        }
        backlogs = {backlog.partition: backlog for backlog in self._turns}
        for fetched in self._fetcher.fetch(wanted, wait_s):
            backlog = backlogs[fetched.partition]
            if fetched.error:
                self._refused(backlog, fetched)
            else:
                backlog.add(fetched)

    def _ask(self, question: Callable[[Cluster], T], then: Callable[[T], None]) -> bool:
        """Ask the cluster, and act on the answer in a later poll.

        Returns False when another question is under way: ask again.
        """
        if self._asked is not None:
            return False
        self._asked = (self._errands.go(question), then)
        self._settle()
        return True

    def _settle(self) -> None:
        """Act on an answer, if it is there.

        Raises: RecordsMissing; what the question has raised.
        """
        if self._asked is not None and self._asked[0].is_over:
            (errand, then), self._asked = self._asked, None
            then(errand.result())

    def _find_earliest(self) -> None:
        times = {each.partition: EARLIEST for each in self._turns if each.position < 0}

        def begin(found: dict[Partition, int]) -> None:
            for backlog in self._turns:
                if backlog.position < 0 and backlog.partition in found:
                    backlog.move(found[backlog.partition])
                    self._note(backlog)

        self._ask(lambda cluster: _offsets(cluster, times), begin)

    def _refused(self, backlog: Backlog, fetched: Fetched) -> None:
        """Act on an error that does not pass. Raises: RecordsMissing, BrokerError."""
        partition, position = backlog.partition, backlog.position
        if fetched.error != OFFSET_OUT_OF_RANGE:
            raise BrokerError(f"partition {partition} of Kafka at {self._errands}", fetched.error)
        if not backlog.is_empty:
            return  # asked again when the records before have been handed out

        def ends(cluster: Cluster) -> tuple[int, int, Mapping[str, Topic]]:
            first, end = (
                _offsets(cluster, {partition: at})[partition] for at in (EARLIEST, LATEST)
            )
            topics = cluster.patiently(lambda: cluster.topics([partition.topic]))
            return first, end, topics

        def move(answer: tuple[int, int, Mapping[str, Topic]]) -> None:
            if backlog.position == position and backlog.is_empty:
                self._move_into_range(backlog, *answer)

        self._ask(ends, move)

    def _move_into_range(
        self, backlog: Backlog, first: int, end: int, topics: Mapping[str, Topic]
    ) -> None:
        """Go on where there are records. Raises: RecordsMissing."""
        partition, position = backlog.partition, backlog.position
        if position < first:
            self._missing(
                f"records {position} to {first - 1} of {partition} have been deleted by retention"
                " and were not read",
                "the oldest record",
            )
            backlog.move(first)
        elif position > end:
            self._check_ids(topics)
            self._missing(
                f"{partition} ends at {end}, and record {position} was to be read: a leader has"
                " lost records that were read",
                "the end",
            )
            backlog.move(end)
        self._note(backlog)

    def _note(self, backlog: Backlog) -> None:
        topic_id = self._topic_ids.get(backlog.partition.topic, "")
        self._ledger.note(Progress(backlog.partition, backlog.position, topic_id))

    def _check_ids(self, topics: Mapping[str, Topic]) -> None:
        """Raises: RecordsMissing, when a topic is another one than when the program was built."""
        for topic in topics.values():
            before = self._topic_ids.setdefault(topic.name, topic.id)
            if topic.id and before and topic.id != before:
                raise RecordsMissing(
                    f"topic {topic.name!r} was deleted and created again; to read the new one from"
                    ' its beginning, start the job again with on_missing="earliest"'
                )

    def _missing(self, problem: str, go_on: str) -> None:
        """Fail, or tell and go on. Raises: RecordsMissing."""
        if self._source.on_missing == "error":
            raise RecordsMissing(
                f'{problem}; to go on from {go_on}, read with on_missing="earliest"'
            )
        _log.warning("%s; going on from %s", problem, go_on)

    def _hand_out(self, rows_max: int) -> Polled | None:
        """Take records of the first partition in turn that has any; None: there are none."""
        for _ in range(len(self._turns)):
            backlog = self._turns.popleft()
            before = backlog.position
            records = backlog.take(rows_max)
            if backlog.position != before:
                self._note(backlog)
            if backlog.is_done:
                self._refresh_open()
            else:
                self._turns.append(backlog)
            if records is not None:
                batch = self._source.rows.batch(backlog.partition, records)
                return Polled((batch,), SourceStatus.MORE, split=str(backlog.partition))
        return None

    def _until_look_ns(self) -> int:
        if self._source.discover_ns is None:
            return _SECOND_NS
        return max(1, self._next_look_ns - self._source.clock())

    def _look_for_partitions(self) -> None:
        """Take up new partitions that this subtask owns, when it is time to look."""
        every_ns = self._source.discover_ns
        if every_ns is None or self._source.bounded or self._source.clock() < self._next_look_ns:
            return
        if self._ask(self._described, self._take_up_new):
            self._next_look_ns = self._source.clock() + every_ns

    def _described(self, cluster: Cluster) -> Mapping[str, Topic]:
        try:
            return cluster.topics(self._source.topics)
        except (BrokerLost, BrokerError):
            return {}  # the next look follows, and fetches tell when a broker stays away

    def _take_up_new(self, topics: Mapping[str, Topic]) -> None:
        self._check_ids(topics)
        for topic in topics.values():
            for index in sorted(topic.leaders):
                self._consider(Partition(topic.name, index), topic.id)

    def _consider(self, partition: Partition, topic_id: str) -> None:
        own = owns_new(partition, parallelism=self._parallelism, index=self._index)
        if partition in self._known or not own:
            return
        self._known.add(partition)
        progress = Progress(partition, EARLIEST, topic_id)
        self._ledger.note(progress)
        self._take_up(progress)
        self._refresh_open()


def _offsets(cluster: Cluster, times: Mapping[Partition, int]) -> dict[Partition, int]:
    return cluster.patiently(lambda: list_offsets(cluster, times, committed=False))
