"""Conformance of connectors: run a source or sink of your own through what may happen to it.

`check_sink`, `check_source` and `check_split_source` play coordinator and workers by hand, with a
crash at each step.
"""

from __future__ import annotations

# An import under its own name is a re-export to type checkers.
# ruff: noqa: PLC0414
from .engine.testing.sinks import check_sink as check_sink
from .engine.testing.sources import check_source as check_source
from .engine.testing.split_sources import check_split_source as check_split_source
from .engine.testing.verdict import NotConforming as NotConforming
