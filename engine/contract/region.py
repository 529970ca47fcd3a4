"""Settings of one region of a job, where they differ from the job's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from .option import check, choice, count, duration, group, value
from .options import Mode, RunOptions
from .units import Duration, duration_ns

#: How a region survives failures; docs/regions.md compares them.
Policy = Literal["lazy", "eager", "batch", "ephemeral"]

#: {policy: interval of checkpoints, unless one is stated}; of batches: from one to the next.
_INTERVALS: dict[Policy, Duration] = {"eager": "20ms", "batch": "10s", "ephemeral": "100ms"}


@group("region")
@dataclass(frozen=True, slots=True)
class Region:
    """Settings of the region that holds the operator `name`."""

    name: str = field(
        metadata=value(
            "an operator, source or sink of the region, or a log that it reads; the region's name"
        )
    )
    policy: Policy = field(
        default="lazy",
        metadata=choice(
            "`lazy` takes checkpoints, `eager` takes them all the time, `batch` runs now and then "
            "and repeats a batch that fails, `ephemeral` keeps nothing",
            get_args(Policy),
        ),
    )
    interval: Duration | None = field(
        default=None,
        metadata=duration(
            "of its checkpoints, of a `batch` region from batch to batch; None: the policy's, else "
            "the job's",
            zero=False,
        ),
    )
    mode: Mode | None = field(
        default=None, metadata=choice("of its checkpoints; None: the job's", get_args(Mode))
    )
    retain: int | None = field(
        default=None,
        metadata=count(
            "complete checkpoints to keep; None: the job's, or as many as reach back as far as "
            "those of the regions whose logs it reads",
            least=1,
        ),
    )
    parallelism: int | None = field(
        default=None, metadata=count("of operators that set none; None: the job's", least=1)
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_batch(self) -> bool:
        """The region runs now and then."""
        return self.policy == "batch"

    @property
    def batch_every_ns(self) -> int | None:
        """From the start of a batch to the start of the next; None: it runs all the time."""
        if not self.is_batch:
            return None
        return duration_ns(self.interval or _INTERVALS["batch"], option="region.interval")

    def options(self, options: RunOptions) -> RunOptions:
        """Lay the settings over the job's options."""
        checkpoints = options.checkpoints
        interval = self.interval or _INTERVALS.get(self.policy)
        if checkpoints is not None and interval is not None:
            # A batch is repeated as a whole: its one checkpoint is at its end.
            checkpoints = replace(checkpoints, interval=None if self.is_batch else interval)
        if checkpoints is not None and self.retain is not None:
            checkpoints = replace(checkpoints, retain=self.retain)
        if checkpoints is not None and self.mode is not None:
            checkpoints = replace(checkpoints, mode=self.mode)
        return replace(
            options,
            checkpoints=checkpoints,
            parallelism=self.parallelism or options.parallelism,
        )
