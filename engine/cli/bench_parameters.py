"""Parameters that commands of `headrace bench` share."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter, validators

Records = Annotated[int, Parameter(validator=validators.Number(gte=1), help="How many records.")]
Parallelism = Annotated[
    int,
    Parameter(
        name=["--parallelism", "-p"],
        validator=validators.Number(gte=1),
        help="Subtasks per operator.",
    ),
]
BenchRunner = Annotated[
    Literal["processes", "threads", "spark"], Parameter(help="What carries the workers.")
]
Seconds = Annotated[
    float, Parameter(validator=validators.Number(gt=0), help="To watch each arm, at least.")
]
Rounds = Annotated[
    int,
    Parameter(
        validator=validators.Number(gte=1),
        help="Run all arms so many times, interleaved; the results are medians.",
    ),
]
Interval = Annotated[
    str, Parameter(name="--checkpoint-interval", help="Such as 1s; 'none' takes no checkpoints.")
]
Directory = Annotated[
    str | None,
    Parameter(name="--checkpoint-dir", help="Where checkpoints go; a temporary folder otherwise."),
]
