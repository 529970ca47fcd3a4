"""Names for connectors of your own: the protocols of sources and sinks, and their values.

A `Source` is read by `headrace.from_source`, a `Sink` is written by `Stream.write.to`. As in
`headrace`, a name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

# An import under its own name is a re-export to type checkers.
# ruff: noqa: PLC0414
if _TYPE_CHECKING:
    from .engine.connectors.tokens import by_run as by_run
    from .engine.contract.connectors import Delivery as Delivery
    from .engine.contract.connectors import Planned as Planned
    from .engine.contract.connectors import Sink as Sink
    from .engine.contract.connectors import Source as Source
    from .engine.contract.connectors import Split as Split
    from .engine.contract.connectors import SplitPlanner as SplitPlanner
    from .engine.contract.connectors import SplitReader as SplitReader
    from .engine.contract.connectors import SplitSource as SplitSource
    from .engine.contract.errors import CommitLost as CommitLost
    from .engine.contract.operators import GoesBack as GoesBack
    from .engine.contract.operators import HearsCheckpoints as HearsCheckpoints
    from .engine.contract.operators import OperatorContext as OperatorContext
    from .engine.contract.operators import OwnsOutput as OwnsOutput
    from .engine.contract.operators import Polled as Polled
    from .engine.contract.operators import ReadsSplits as ReadsSplits
    from .engine.contract.operators import RestoredState as RestoredState
    from .engine.contract.operators import SinkCommitter as SinkCommitter
    from .engine.contract.operators import SinkWriter as SinkWriter
    from .engine.contract.operators import SourceReader as SourceReader
    from .engine.contract.operators import SourceStatus as SourceStatus
    from .engine.contract.operators import StateKind as StateKind
    from .engine.contract.operators import StateSnapshot as StateSnapshot
    from .engine.contract.operators import TakesEventTime as TakesEventTime
    from .engine.contract.operators import Transaction as Transaction

#: {public name: the module that defines it}; the same list once more, for when the program runs.
_HOMES = {
    "by_run": ".engine.connectors.tokens",
    "Delivery": ".engine.contract.connectors",
    "Sink": ".engine.contract.connectors",
    "SplitSource": ".engine.contract.connectors",
    "SplitReader": ".engine.contract.connectors",
    "SplitPlanner": ".engine.contract.connectors",
    "Split": ".engine.contract.connectors",
    "Planned": ".engine.contract.connectors",
    "Source": ".engine.contract.connectors",
    "CommitLost": ".engine.contract.errors",
    "GoesBack": ".engine.contract.operators",
    "HearsCheckpoints": ".engine.contract.operators",
    "OperatorContext": ".engine.contract.operators",
    "OwnsOutput": ".engine.contract.operators",
    "Polled": ".engine.contract.operators",
    "ReadsSplits": ".engine.contract.operators",
    "RestoredState": ".engine.contract.operators",
    "SinkCommitter": ".engine.contract.operators",
    "SinkWriter": ".engine.contract.operators",
    "SourceReader": ".engine.contract.operators",
    "SourceStatus": ".engine.contract.operators",
    "StateKind": ".engine.contract.operators",
    "StateSnapshot": ".engine.contract.operators",
    "TakesEventTime": ".engine.contract.operators",
    "Transaction": ".engine.contract.operators",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_HOMES[name], __package__), name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
