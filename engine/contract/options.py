"""Options: frozen values, one class per concern, checked when they are made.

Durations are "500ms", seconds or a timedelta; sizes are "64MiB" or bytes; a property with the unit in its name
(`interval_ns`, `buffer_bytes`) gives what the engine counts in. An unknown name or a wrong value is a `UserError` with a
suggestion, at the line that wrote it, not a `TypeError` about `__init__`.

Where values come from besides code (headrace.toml, environment, command line) is the business of `settings`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from headrace.channels.events import CheckpointMode

from .errors import UserError
from .suggestion import did_you_mean
from .units import Duration, Size, duration_ns, size_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Mode = Literal["aligned", "unaligned", "at_least_once"]
Compression = Literal["none", "lz4"]
Inflight = Literal["ad_hoc", "continuous"]
Runner = Literal["spark", "threads", "processes"]

MODES: tuple[str, ...] = ("aligned", "unaligned", "at_least_once")
Backend = Literal["heap", "rocksdb"]

BACKENDS: tuple[str, ...] = ("heap", "rocksdb")
COMPRESSION: tuple[str, ...] = ("none", "lz4")
INFLIGHT: tuple[str, ...] = ("ad_hoc", "continuous")
RUNNERS: tuple[str, ...] = ("spark", "threads", "processes")

_Options = TypeVar("_Options")


def known_names_only(cls: type[_Options]) -> type[_Options]:
    """Make a dataclass of options answer an unknown keyword with a suggestion."""
    # The class is seen as Any: assigning `__init__` is what a decorator is for and what mypy refuses.
    subject = cast(Any, cls)
    make: Callable[..., None] = subject.__init__
    names = [field.name for field in fields(subject)]

    @functools.wraps(make)
    def __init__(self: object, *args: object, **options: object) -> None:
        for name in options:
            if name not in names:
                raise UserError(
                    f"{cls.__name__} has no option {name!r}; {did_you_mean(name, names)}"
                )
        make(self, *args, **options)

    subject.__init__ = __init__
    return cls


def _ns(option: str, value: Duration) -> int:
    return duration_ns(value, option=option)


def _positive(option: str, amount: int | None) -> None:
    if amount == 0:
        raise UserError(f"{option} is zero; it must be more")


def _count(option: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{option}={value!r} is not a whole number of at least {least}")


def _choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{option}={value!r} is unknown; {did_you_mean(str(value), choices)}")


@known_names_only
@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When and how checkpoints are taken, and where they are kept.

    Attributes:
        directory: a path or any fsspec URL; holds one folder per job.
        interval: from trigger to trigger; None takes checkpoints only on request and at the end.
        mode: "aligned", "unaligned" (barriers overtake queued data) or "at_least_once".
        timeout: a checkpoint that takes longer is given up.
        min_pause: at least this long from the end of one to the next trigger.
        tolerable_failures: so many checkpoints may fail in a row; one more counts as a failure of the job, which restarts.
        retain: completed checkpoints to keep, at least one.
        max_concurrent: so many may be under way at once.
        alignment_timeout: an aligned checkpoint that is older than this, counted from its trigger, becomes unaligned; None: never.
        inflight: when records that barriers overtake are stored: "ad_hoc" by the checkpoint, "continuous" in a log beside the stream. Only
            where barriers overtake.
        compression: "lz4" of in-flight data pays where storage takes less than about half a GB a second; "none" elsewhere.
    """

    directory: str
    interval: Duration | None = "10s"
    mode: Mode = "aligned"
    timeout: Duration = "10m"
    min_pause: Duration = "0s"
    tolerable_failures: int = 3
    retain: int = 1
    max_concurrent: int = 1
    alignment_timeout: Duration | None = None
    inflight: Inflight = "ad_hoc"
    compression: Compression = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory:
            raise UserError(
                f"checkpoints.directory={self.directory!r} is not a place; write a path or a URL"
            )
        _choice("checkpoints.mode", self.mode, MODES)
        if self.interval is not None:
            _positive("checkpoints.interval", self.interval_ns)
        _positive("checkpoints.timeout", self.timeout_ns)
        duration_ns(self.min_pause, option="checkpoints.min_pause")
        _count("checkpoints.tolerable_failures", self.tolerable_failures, least=0)
        _count("checkpoints.retain", self.retain, least=1)
        _count("checkpoints.max_concurrent", self.max_concurrent, least=1)
        if self.alignment_timeout is not None:
            self._check_alignment_timeout()
        _choice("checkpoints.compression", self.compression, COMPRESSION)
        _choice("checkpoints.inflight", self.inflight, INFLIGHT)
        if (
            self.inflight != "ad_hoc"
            and self.mode != "unaligned"
            and self.alignment_timeout is None
        ):
            raise UserError(
                f"checkpoints.inflight={self.inflight!r} has no meaning with mode={self.mode!r}: "
                "no barrier overtakes a record; leave it out, use mode='unaligned', "
                "or set alignment_timeout"
            )

    def _check_alignment_timeout(self) -> None:
        duration_ns(self.alignment_timeout or 0, option="checkpoints.alignment_timeout")
        if self.mode != "aligned":
            raise UserError(
                f"checkpoints.alignment_timeout has no meaning with mode={self.mode!r}; "
                "leave it out, or use mode='aligned'"
            )

    @property
    def interval_ns(self) -> int | None:
        return None if self.interval is None else _ns("checkpoints.interval", self.interval)

    @property
    def timeout_ns(self) -> int:
        return _ns("checkpoints.timeout", self.timeout)

    @property
    def min_pause_ns(self) -> int:
        return _ns("checkpoints.min_pause", self.min_pause)

    @property
    def alignment_timeout_ns(self) -> int | None:
        if self.alignment_timeout is None:
            return None
        return _ns("checkpoints.alignment_timeout", self.alignment_timeout)

    @property
    def barrier_mode(self) -> CheckpointMode:
        """`mode` as barriers carry it."""
        return CheckpointMode(self.mode)


@known_names_only
@dataclass(frozen=True, slots=True)
class Network:
    """How data moves between subtasks.

    Attributes:
        buffer: neighbouring slices are merged up to this size when the transport takes them.
        window: the most a receiver lets be in flight on one channel; bounds memory and what a checkpoint persists.
        debloat_target: windows shrink to what a consumer drains in this time, so that slow ones hold less in flight; "0s": off.
        heartbeat: how often workers say that they live.
        heartbeat_timeout: silence after which a worker counts as dead.
    """

    buffer: Size = "1MiB"
    window: Size = "4MiB"
    debloat_target: Duration = "1s"
    heartbeat: Duration = "1s"
    heartbeat_timeout: Duration = "10s"

    def __post_init__(self) -> None:
        _positive("network.buffer", self.buffer_bytes)
        _positive("network.heartbeat", self.heartbeat_ns)
        duration_ns(self.debloat_target, option="network.debloat_target")
        if self.window_bytes < self.buffer_bytes:
            raise UserError(
                f"network.window={self.window!r} is smaller than network.buffer={self.buffer!r}; "
                "make the window at least one buffer"
            )
        if self.heartbeat_timeout_ns <= self.heartbeat_ns:
            raise UserError(
                f"network.heartbeat_timeout={self.heartbeat_timeout!r} is not longer than "
                f"network.heartbeat={self.heartbeat!r}; allow for several heartbeats"
            )

    @property
    def buffer_bytes(self) -> int:
        return size_bytes(self.buffer, option="network.buffer")

    @property
    def window_bytes(self) -> int:
        return size_bytes(self.window, option="network.window")

    @property
    def debloat_target_ns(self) -> int:
        return _ns("network.debloat_target", self.debloat_target)

    @property
    def heartbeat_ns(self) -> int:
        return _ns("network.heartbeat", self.heartbeat)

    @property
    def heartbeat_timeout_ns(self) -> int:
        return _ns("network.heartbeat_timeout", self.heartbeat_timeout)


@known_names_only
@dataclass(frozen=True, slots=True)
class Restart:
    """What happens after a failure.

    Attributes:
        attempts: restarts in a row, without a completed checkpoint in between, before the job fails; 0 fails at once.
        backoff: wait before the first restart; doubles with each further one.
        max_backoff: the longest wait.
    """

    attempts: int = 12
    backoff: Duration = "20ms"
    max_backoff: Duration = "1m"

    def __post_init__(self) -> None:
        _count("restart.attempts", self.attempts, least=0)
        if self.max_backoff_ns < self.backoff_ns:
            raise UserError(
                f"restart.max_backoff={self.max_backoff!r} is shorter than "
                f"restart.backoff={self.backoff!r}; swap them"
            )

    @property
    def backoff_ns(self) -> int:
        return _ns("restart.backoff", self.backoff)

    @property
    def max_backoff_ns(self) -> int:
        return _ns("restart.max_backoff", self.max_backoff)


@known_names_only
@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that run the slots.

    Attributes:
        advertise_host: the address that workers dial to reach the coordinator; None lets the runner choose.
        start_timeout: how long all workers together may take to register.
    """

    advertise_host: str | None = None
    start_timeout: Duration = "1m"

    def __post_init__(self) -> None:
        _positive("workers.start_timeout", self.start_timeout_ns)

    @property
    def start_timeout_ns(self) -> int:
        return _ns("workers.start_timeout", self.start_timeout)


@known_names_only
@dataclass(frozen=True, slots=True)
class State:
    """Where keyed state lies while the job runs: that of `process`, `aggregate`, windows, joins and `connect`.

    Attributes:
        backend: "heap", or "rocksdb": on local disk, for state larger than memory; its checkpoints store only what has changed.
        directory: local folder for "rocksdb", emptied when a worker ends; None: where the system keeps temporary files.
        write_buffer: memory for what is not yet on disk, for each database: one an operator and subtask.
        block_cache: memory for what was read from disk, likewise.
    """

    backend: Backend = "heap"
    directory: str | None = None
    write_buffer: Size = "64MiB"
    block_cache: Size = "64MiB"

    def __post_init__(self) -> None:
        _choice("state.backend", self.backend, BACKENDS)
        if self.directory is not None and (
            not isinstance(self.directory, str) or not self.directory or "://" in self.directory
        ):
            raise UserError(f"state.directory={self.directory!r} is not a local folder")
        _positive("state.write_buffer", self.write_buffer_bytes)
        _positive("state.block_cache", self.block_cache_bytes)

    @property
    def write_buffer_bytes(self) -> int:
        return size_bytes(self.write_buffer, option="state.write_buffer")

    @property
    def block_cache_bytes(self) -> int:
        return size_bytes(self.block_cache, option="state.block_cache")


@known_names_only
@dataclass(frozen=True, slots=True)
class Autoscale:
    """Rescaling without being asked, by doubling and halving the parallelism. Needs checkpoints.

    Attributes:
        most: the highest parallelism; None: off.
        least: the lowest.
        after: backpressure that persists so long, behind a task that is busy, scales up.
        idle_after: so long without backpressure and with every task idle most of the time scales down.
        pause: no rescale for so long after one.
    """

    most: int | None = None
    least: int = 1
    after: Duration = "30s"
    idle_after: Duration = "5m"
    pause: Duration = "1m"

    def __post_init__(self) -> None:
        _count("autoscale.least", self.least, least=1)
        if self.most is not None:
            _count("autoscale.most", self.most, least=self.least)
        _positive("autoscale.after", self.after_ns)
        _positive("autoscale.idle_after", self.idle_after_ns)
        duration_ns(self.pause, option="autoscale.pause")

    @property
    def after_ns(self) -> int:
        return _ns("autoscale.after", self.after)

    @property
    def idle_after_ns(self) -> int:
        return _ns("autoscale.idle_after", self.idle_after)

    @property
    def pause_ns(self) -> int:
        return _ns("autoscale.pause", self.pause)


#: What the options of a run that are options themselves have to be.
_GROUPS: dict[str, type] = {
    "checkpoints": Checkpoints,
    "network": Network,
    "restart": Restart,
    "workers": Workers,
    "state": State,
    "autoscale": Autoscale,
}


@known_names_only
@dataclass(frozen=True, slots=True)
class RunOptions:
    """Everything about a run that is not the pipeline itself.

    Attributes:
        runner: "spark", or "threads" or "processes" of this machine.
        master: Spark master URL; None is Spark embedded in this process. Only for runner="spark".
        spark: a session to use instead of making one; its owner stops it. Only for runner="spark".
        restore: checkpoint to start from: "latest", its number (7 or "7") or a path; None starts afresh.
        claim: what `restore` names elsewhere becomes the job's own, and is deleted once newer checkpoints have subsumed it.
        allow_unclaimed_state: start even though the checkpoint holds state of operators that the job lacks.
        renamed: operators whose state lies in the checkpoint under an older name: {old: new}, or "old=new,older=newer".
        parallelism: of operators that set none; None: one subtask per CPU.
        checkpoints: None takes none.
    """

    runner: Runner = "spark"
    master: str | None = None
    spark: SparkSession | None = None
    restore: str | int | None = None
    claim: bool = False
    allow_unclaimed_state: bool = False
    renamed: Mapping[str, str] | str | None = None
    parallelism: int | None = None
    checkpoints: Checkpoints | None = None
    network: Network = Network()
    restart: Restart = Restart()
    workers: Workers = Workers()
    state: State = State()
    autoscale: Autoscale = Autoscale()

    def __post_init__(self) -> None:
        _choice("runner", self.runner, RUNNERS)
        for flag in ("claim", "allow_unclaimed_state"):
            if not isinstance(getattr(self, flag), bool):
                raise UserError(f"{flag}={getattr(self, flag)!r} is neither True nor False")
        _ = self.renames
        if self.parallelism is not None:
            _count("parallelism", self.parallelism, least=1)
        for name, group in _GROUPS.items():
            value = getattr(self, name)
            if not isinstance(value, group) and not (value is None and name == "checkpoints"):
                raise UserError(f"{name}={value!r} is not a hr.{group.__name__}(...)")
        if self.runner != "spark":
            for name, value in (("master", self.master), ("spark", self.spark)):
                if value is not None:
                    raise UserError(
                        f"{name}= has no meaning with runner={self.runner!r}; "
                        "leave it out, or use runner='spark'"
                    )
        if self.master is not None and self.spark is not None:
            raise UserError(
                "master= and spark= exclude each other; a session has its master already"
            )

    @property
    def renames(self) -> dict[str, str]:
        """{old name of an operator: its new one}."""
        stated = self.renamed or {}
        if isinstance(stated, str):
            pairs = [pair.partition("=") for pair in stated.split(",")]
            stated = {old.strip(): new.strip() for old, _, new in pairs}
        names = dict(stated)
        if not all(isinstance(n, str) and n for pair in names.items() for n in pair):
            raise UserError(f"renamed={self.renamed!r} does not map old names to new ones, old=new")
        if len(set(names.values())) < len(names) or names.keys() & set(names.values()):
            raise UserError(
                f"renamed={self.renamed!r}: every old name needs a new one of its own,"
                " and no name can be both old and new"
            )
        return names
