"""Options: frozen values, one class per concern, checked when they are made.

An option is written here and nowhere else: name, type, default, meaning, range and short name on
the command line. Durations are "500ms", seconds or a timedelta; sizes are "64MiB" or bytes; a
property with the unit in its name (`interval_ns`, `buffer_bytes`) gives the engine's count. An
unknown name or a wrong value is a `UserError` with a suggestion, at the line that wrote it.

Not here: values from outside the code (headrace.toml, environment, command line), see `settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from headrace.channels.events import CheckpointMode

from .errors import UserError
from .option import (
    Counted,
    CountedOrNone,
    check,
    choice,
    count,
    duration,
    flag,
    group,
    groups_of,
    read_option,
    size,
    value,
)
from .page_address import page_address
from .units import Duration, Size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Mode = Literal["aligned", "unaligned", "at_least_once"]
Compression = Literal["none", "lz4"]
Inflight = Literal["ad_hoc", "continuous"]
Runner = Literal["spark", "threads", "processes"]
Backend = Literal["heap", "rocksdb"]
Fresh = Literal["append", "replace"]


#: The default; in modes that align nothing it stands for "not stated".
_ALIGNMENT_TIMEOUT = "1s"


def _place(name: str, stated: object) -> None:
    if not isinstance(stated, str) or not stated:
        raise UserError(f"{name}={stated!r} is not a place; write a path or a URL")


def _start(name: str, stated: object) -> None:
    if isinstance(stated, bool) or not isinstance(stated, str | int) or stated == "":
        raise UserError(
            f"{name}={stated!r} names no place to start; leave it out, or begin anew with"
            " fresh=True"
        )


def _fresh(name: str, stated: object) -> None:
    if not isinstance(stated, bool) and stated not in get_args(Fresh):
        words = " nor ".join(map(repr, get_args(Fresh)))
        raise UserError(f"{name}={stated!r} is neither True nor False nor {words}")


def _local_folder(name: str, stated: object) -> None:
    if not isinstance(stated, str) or not stated or "://" in stated:
        raise UserError(f"{name}={stated!r} is not a local folder")


@group("checkpoints")
@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When and how checkpoints are taken, and where they are kept."""

    directory: str = field(
        metadata=value(
            "a path or any fsspec URL whose storage replaces and creates objects atomically; holds "
            "one folder per job",
            _place,
            short="--checkpoint-dir",
        )
    )
    interval: Duration | None = field(
        default="10s",
        metadata=duration(
            "from trigger to trigger; `none`: only on request and at the end",
            zero=False,
            short="--checkpoint-interval",
        ),
    )
    mode: Mode = field(
        default="aligned",
        metadata=choice(
            "`aligned`, `unaligned` (barriers overtake queued records) or `at_least_once`",
            get_args(Mode),
            short="--mode",
        ),
    )
    timeout: Duration = field(
        default="10m", metadata=duration("a checkpoint that takes longer is given up", zero=False)
    )
    min_pause: Duration = field(
        default="0s", metadata=duration("from the end of one to the trigger of the next")
    )
    tolerable_failures: int = field(
        default=3,
        metadata=count("so many may fail in a row; one more fails the attempt", least=0),
    )
    retain: int = field(default=1, metadata=count("complete checkpoints to keep", least=1))
    full_every: int = field(
        default=0,
        metadata=count(
            "one complete checkpoint in so many stores everything anew and shares no file with "
            "older ones, so that damage of a file does not reach all that `retain` keeps; 0: none",
            least=0,
        ),
    )
    max_concurrent: int = field(
        default=1, metadata=count("checkpoints that may be under way at once", least=1)
    )
    alignment_timeout: Duration | None = field(
        default=_ALIGNMENT_TIMEOUT,
        metadata=duration(
            "an aligned checkpoint that is older than this, counted from its trigger, becomes "
            "unaligned; `none`: never. Of no meaning in the other modes"
        ),
    )
    spill_blocked: bool = field(
        default=False,
        metadata=flag(
            "an aligned checkpoint blocks a channel whose barrier has come; what arrives over the "
            "channel goes to local disk beyond `network.spill_memory`, and its producer goes on. "
            "Of no meaning in the other modes"
        ),
    )
    inflight: Inflight = field(
        default="ad_hoc",
        metadata=choice(
            "when records that barriers overtake are stored: `ad_hoc` by the checkpoint, "
            "`continuous` in a log beside the stream",
            get_args(Inflight),
        ),
    )
    compression: Compression = field(
        default="none",
        metadata=choice(
            "`lz4` compresses in-flight data: pays where storage takes less than about half a GB a "
            "second; a blob that would not shrink by an eighth stays as it is",
            get_args(Compression),
        ),
    )

    def __post_init__(self) -> None:
        check(self)
        if self.alignment_timeout not in (None, _ALIGNMENT_TIMEOUT) and self.mode != "aligned":
            raise UserError(
                f"checkpoints.alignment_timeout has no meaning with mode={self.mode!r}; "
                "leave it out, or use mode='aligned'"
            )
        if self.spill_blocked and self.mode != "aligned":
            raise UserError(
                f"checkpoints.spill_blocked has no meaning with mode={self.mode!r}: no channel is "
                "blocked; leave it out, or use mode='aligned'"
            )
        overtaking = self.mode == "unaligned" or self.alignment_timeout_ns is not None
        if self.inflight != "ad_hoc" and not overtaking:
            raise UserError(
                f"checkpoints.inflight={self.inflight!r} has no meaning with mode={self.mode!r}: "
                "no barrier overtakes a record; leave it out, use mode='unaligned', "
                "or set alignment_timeout"
            )

    interval_ns = CountedOrNone("interval")
    timeout_ns = Counted("timeout")
    min_pause_ns = Counted("min_pause")

    @property
    def alignment_timeout_ns(self) -> int | None:
        """When an aligned checkpoint becomes unaligned; None: never, or none is aligned."""
        timeout_ns: int | None = read_option(self, "alignment_timeout")
        return timeout_ns if self.mode == "aligned" else None

    @property
    def barrier_mode(self) -> CheckpointMode:
        """`mode` as barriers carry it."""
        return CheckpointMode(self.mode)


@group("network")
@dataclass(frozen=True, slots=True)
class Network:
    """How data moves between subtasks."""

    buffer: Size = field(
        default="1MiB",
        metadata=size("neighbouring slices are merged up to this size when they are sent"),
    )
    window: Size = field(
        default="4MiB",
        metadata=size("the largest credit of a channel: all that a receiver lets be in flight"),
    )
    memory: Size = field(
        default="64MiB",
        metadata=size(
            "what a worker's windows and output queues share, so that what is in flight does not "
            "grow with the number of channels"
        ),
    )
    spill_memory: Size = field(
        default="16MiB",
        metadata=size(
            "memory for what channels hold beyond their windows, for each operator and subtask: of "
            "`checkpoints.spill_blocked` and of loops; the rest goes to the folder "
            "`state.directory`"
        ),
    )
    spill_disk: Size = field(
        default="4GiB",
        metadata=size(
            "local disk for the same, likewise; where it is used up, producers wait as they would "
            "without it, and a loop fails"
        ),
    )
    debloat_target: Duration = field(
        default="1s",
        metadata=duration(
            "windows and output queues shrink to what keeps their consumers at work, and a record "
            "waits no longer than this from source to sink; `0s`: they stay as they are"
        ),
    )
    heartbeat: Duration = field(
        default="1s", metadata=duration("how often workers say that they live", zero=False)
    )
    heartbeat_timeout: Duration = field(
        default="10s", metadata=duration("silence after which a worker counts as dead")
    )

    def __post_init__(self) -> None:
        check(self)
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

    buffer_bytes = Counted("buffer")
    window_bytes = Counted("window")
    memory_bytes = Counted("memory")
    spill_memory_bytes = Counted("spill_memory")
    spill_disk_bytes = Counted("spill_disk")
    debloat_target_ns = Counted("debloat_target")
    heartbeat_ns = Counted("heartbeat")
    heartbeat_timeout_ns = Counted("heartbeat_timeout")


@group("restart")
@dataclass(frozen=True, slots=True)
class Restart:
    """What happens after a failure."""

    attempts: int = field(
        default=12,
        metadata=count(
            "restarts in a row, without a completed checkpoint between them, before the job fails; "
            "0: it fails at once",
            least=0,
        ),
    )
    backoff: Duration = field(
        default="20ms",
        metadata=duration("wait before the first restart; doubles with each one in a row"),
    )
    max_backoff: Duration = field(default="1m", metadata=duration("the longest wait"))

    def __post_init__(self) -> None:
        check(self)
        if self.max_backoff_ns < self.backoff_ns:
            raise UserError(
                f"restart.max_backoff={self.max_backoff!r} is shorter than "
                f"restart.backoff={self.backoff!r}; swap them"
            )

    backoff_ns = Counted("backoff")
    max_backoff_ns = Counted("max_backoff")


@group("workers")
@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that run the slots."""

    advertise_host: str | None = field(
        default=None,
        metadata=value(
            "the address by which workers reach the coordinator", usual="chosen by the runner"
        ),
    )
    start_timeout: Duration = field(
        default="1m",
        metadata=duration("how long all workers together may take to register", zero=False),
    )

    def __post_init__(self) -> None:
        check(self)

    start_timeout_ns = Counted("start_timeout")


@group("state")
@dataclass(frozen=True, slots=True)
class State:
    """Where keyed state lies while the job runs: of processors, aggregates, windows and joins."""

    backend: Backend = field(
        default="heap",
        metadata=choice(
            "where keyed state lies: `heap`, or `rocksdb` (local disk, for state larger than "
            "memory; its checkpoints store only what has changed)",
            get_args(Backend),
        ),
    )
    directory: str | None = field(
        default=None,
        metadata=value(
            "local folder for `rocksdb` and for what channels spill; workers empty what is theirs "
            "when they end",
            _local_folder,
            usual="the system's temporary folder",
        ),
    )
    write_buffer: Size = field(
        default="64MiB",
        metadata=size("memory for what is not yet on disk, for each operator and subtask"),
    )
    block_cache: Size = field(
        default="64MiB", metadata=size("memory for what was read from disk, likewise")
    )
    cache: Size = field(
        default="256MiB",
        metadata=size(
            "memory for keys of aggregates without a `ttl` that stay at hand in front of "
            "`rocksdb`, likewise; a count takes about 50 bytes a key"
        ),
    )

    def __post_init__(self) -> None:
        check(self)

    write_buffer_bytes = Counted("write_buffer")
    block_cache_bytes = Counted("block_cache")
    cache_bytes = Counted("cache")


@group("autoscale")
@dataclass(frozen=True, slots=True)
class Autoscale:
    """Rescaling without being asked, by doubling and halving parallelism. Needs checkpoints."""

    most: int | None = field(
        default=None, metadata=count("the highest parallelism; `none`: off", least=1)
    )
    least: int = field(default=1, metadata=count("the lowest parallelism", least=1))
    after: Duration = field(
        default="30s",
        metadata=duration(
            "backpressure for so long, behind a task that is busy, scales up", zero=False
        ),
    )
    idle_after: Duration = field(
        default="5m",
        metadata=duration(
            "so long without backpressure, every task idle most of the time, scales down",
            zero=False,
        ),
    )
    pause: Duration = field(
        default="1m", metadata=duration("no rescale by itself for so long after one")
    )

    def __post_init__(self) -> None:
        check(self)
        if self.most is not None and self.most < self.least:
            raise UserError(
                f"autoscale.most={self.most!r} is not a whole number of at least {self.least}"
            )

    after_ns = Counted("after")
    idle_after_ns = Counted("idle_after")
    pause_ns = Counted("pause")


def renames(stated: Mapping[str, str] | str | None) -> dict[str, str]:
    """Read the option `renamed`: {old name of an operator: its new one}. Raises: UserError."""
    pairs = stated or {}
    if isinstance(pairs, str):
        halves = [pair.partition("=") for pair in pairs.split(",")]
        pairs = {old.strip(): new.strip() for old, _, new in halves}
    if not isinstance(pairs, Mapping):
        raise UserError(f"renamed={stated!r} does not map old names to new ones, old=new")
    names = dict(pairs)
    if not all(isinstance(n, str) and n for pair in names.items() for n in pair):
        raise UserError(f"renamed={stated!r} does not map old names to new ones, old=new")
    if len(set(names.values())) < len(names) or names.keys() & set(names.values()):
        raise UserError(
            f"renamed={stated!r}: every old name needs a new one of its own,"
            " and no name can be both old and new"
        )
    return names


@group("")
@dataclass(frozen=True, slots=True)
class RunOptions:
    """Everything about a run that is not the pipeline itself."""

    runner: Runner = field(
        default="spark",
        metadata=choice("`spark`, or `processes` or `threads` of this machine", get_args(Runner)),
    )
    master: str | None = field(
        default=None,
        metadata=value("Spark master URL; `none`: Spark embedded in the job's process"),
    )
    spark: SparkSession | None = field(
        default=None,
        metadata=value(
            "a session to use in place of a new one; its owner stops it", is_in_code_only=True
        ),
    )
    restore: str | int = field(
        default="auto",
        metadata=value(
            "where to start: `auto` (the job's newest complete checkpoint, or the beginning while "
            "there is none), `latest` (the newest, which must exist), a checkpoint's number, or a "
            "path that ends in `JOB/chk-N`",
            _start,
        ),
    )
    fresh: bool | str = field(
        default=False,
        metadata=value(
            "begin anew, whatever checkpoints there are; refused while a sink's folder holds "
            "output of the job, unless `append` keeps that output or `replace` removes it",
            _fresh,
            words=get_args(Fresh),
        ),
    )
    claim: bool = field(
        default=False,
        metadata=flag(
            "a checkpoint of another directory, or a savepoint, that `restore` names becomes the "
            "job's own: it is deleted once newer checkpoints have subsumed it. Otherwise it is "
            "read and stays as it is"
        ),
    )
    allow_unclaimed_state: bool = field(
        default=False,
        metadata=flag(
            "start even if the checkpoint holds state of operators that the job lacks; that state "
            "is dropped"
        ),
    )
    renamed: Mapping[str, str] | str | None = field(
        default=None,
        metadata=value(
            "operators whose state bears an older name in the checkpoint: `old=new,older=newer` "
            "(in code also a dictionary). A checkpoint that bears the new name already is taken as"
            " it is",
            lambda name, stated: renames(stated),
            short="--map",
            is_list=True,
        ),
    )
    ui: bool | int | str = field(
        default=False,
        metadata=value(
            "the job's page for a browser: `true` at 127.0.0.1:4323 or the next free port, a port, "
            "or `HOST:PORT`, where whoever reaches the port can read the page",
            lambda name, stated: page_address(stated, name=name),
        ),
    )
    parallelism: int | None = field(
        default=None,
        metadata=count(
            "subtasks of operators that set none", least=1, short="-p", usual="one per CPU"
        ),
    )
    checkpoints: Checkpoints | None = None
    network: Network = field(default_factory=Network)
    restart: Restart = field(default_factory=Restart)
    workers: Workers = field(default_factory=Workers)
    state: State = field(default_factory=State)
    autoscale: Autoscale = field(default_factory=Autoscale)
    #: {region's name: {field of `Region`: value}}, from outside the code; over the job's own.
    regions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        for name, member in GROUPS.items():
            stated = getattr(self, name)
            if not isinstance(stated, member) and not (stated is None and name == "checkpoints"):
                raise UserError(f"{name}={stated!r} is not a hr.{member.__name__}(...)")
        if self.fresh and self.restore != "auto":
            raise UserError(
                f"fresh={self.fresh!r} and restore={self.restore!r} exclude each other: a job that"
                " begins anew restores nothing; leave one of them out"
            )
        if self.runner != "spark":
            for name, given in (("master", self.master), ("spark", self.spark)):
                if given is not None:
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
        return renames(self.renamed)


#: The options of a run that are groups, by name.
GROUPS: Mapping[str, type[Any]] = groups_of(RunOptions)


class Stated(TypedDict, total=False):
    """Options of a run that a job states in code, all groups among them, one by one for type
    checkers.

    `checkpoints` is also a path or URL, with the default options.
    """

    parallelism: int | None
    restore: str | int
    fresh: bool | Fresh
    ui: bool | int | str
    checkpoints: Checkpoints | str | None
    network: Network | None
    restart: Restart | None
    workers: Workers | None
    state: State | None
    autoscale: Autoscale | None


assert Stated.__annotations__.keys() - {"parallelism", "restore", "fresh", "ui"} == GROUPS.keys(), (
    "state every group in `Stated`"
)
