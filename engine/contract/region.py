"""Settings of one region of a job, where they differ from the job's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

from .option import check, choice, count, duration, group, value
from .options import Mode, RunOptions
from .units import Duration


@group("region")
@dataclass(frozen=True, slots=True)
class Region:
    """Settings of the region that holds the operator `name`."""

    name: str = field(
        metadata=value(
            "an operator, source or sink of the region, or a log that it reads; the region's name"
        )
    )
    interval: Duration | None = field(
        default=None, metadata=duration("of its checkpoints; None: the job's", zero=False)
    )
    mode: Mode | None = field(
        default=None, metadata=choice("of its checkpoints; None: the job's", get_args(Mode))
    )
    parallelism: int | None = field(
        default=None, metadata=count("of operators that set none; None: the job's", least=1)
    )

    def __post_init__(self) -> None:
        check(self)

    def options(self, options: RunOptions) -> RunOptions:
        """Lay the settings over the job's options."""
        checkpoints = options.checkpoints
        if checkpoints is not None and self.interval is not None:
            checkpoints = replace(checkpoints, interval=self.interval)
        if checkpoints is not None and self.mode is not None:
            checkpoints = replace(checkpoints, mode=self.mode)
        return replace(
            options,
            checkpoints=checkpoints,
            parallelism=self.parallelism or options.parallelism,
        )
