"""Tests of users' own code: processors, whole jobs, sources and sinks.

`Harness` runs one processor, call by call. `Simulated` runs a job in virtual time, `simulate` runs
it hundreds of times under faults. `check_sink`, `check_source` and `check_split_source` play
coordinator and workers by hand, with a crash at each step.
"""

from __future__ import annotations

# An import under its own name is a re-export to type checkers.
# ruff: noqa: PLC0414
from .engine.testing.harness import Harness as Harness
from .engine.testing.harness import HarnessSnapshot as HarnessSnapshot
from .engine.testing.simulate import SimulationFailed as SimulationFailed
from .engine.testing.simulate import SimulationReport as SimulationReport
from .engine.testing.simulate import simulate as simulate
from .engine.testing.simulated import Simulated as Simulated
from .engine.testing.sinks import check_sink as check_sink
from .engine.testing.sources import check_source as check_source
from .engine.testing.split_sources import check_split_source as check_split_source
from .engine.testing.verdict import NotConforming as NotConforming
