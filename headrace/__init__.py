"""headrace: a stream-processing engine for Python whose checkpoints do not wait for backpressure.

What this module names is the public API, and all that is promised; the rest can be reached and may
change. Streams begin with `read`, a `Job` binds their sinks and options, and `Job.run` runs it.

A name is imported when it is first used: the command line, whose modules are in this package too,
need not wait for Arrow.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from . import connectors as connectors
    from . import testing as testing
    from .engine.api import read as read
    from .engine.api.read import from_source as from_source
    from .engine.api.stream import KeyedStream as KeyedStream
    from .engine.api.stream import Stream as Stream
    from .engine.api.stream import WindowedStream as WindowedStream
    from .engine.api.write import SinkHandle as SinkHandle
    from .engine.contract.connectors import Sink as Sink
    from .engine.contract.connectors import Source as Source
    from .engine.contract.errors import CommitLost as CommitLost
    from .engine.contract.errors import HeadraceError as HeadraceError
    from .engine.contract.errors import JobFailed as JobFailed
    from .engine.contract.errors import StorageUnreachable as StorageUnreachable
    from .engine.contract.errors import UserCodeError as UserCodeError
    from .engine.contract.errors import UserError as UserError
    from .engine.contract.operators import Polled as Polled
    from .engine.contract.operators import SourceStatus as SourceStatus
    from .engine.contract.operators import StateKind as StateKind
    from .engine.contract.operators import StateSnapshot as StateSnapshot
    from .engine.contract.operators import Transaction as Transaction
    from .engine.contract.options import Autoscale as Autoscale
    from .engine.contract.options import Checkpoints as Checkpoints
    from .engine.contract.options import Network as Network
    from .engine.contract.options import Restart as Restart
    from .engine.contract.options import State as State
    from .engine.contract.options import Workers as Workers
    from .engine.contract.outcomes import JobResult as JobResult
    from .engine.contract.region import Region as Region
    from .engine.inspection.data_source import HeadraceDataSource as HeadraceDataSource
    from .engine.operators.aggregations import Aggregation as Aggregation
    from .engine.operators.aggregations import collect_list as collect_list
    from .engine.operators.aggregations import count as count
    from .engine.operators.aggregations import count_distinct as count_distinct
    from .engine.operators.aggregations import custom as custom
    from .engine.operators.aggregations import first as first
    from .engine.operators.aggregations import last as last
    from .engine.operators.aggregations import max as max
    from .engine.operators.aggregations import mean as mean
    from .engine.operators.aggregations import min as min
    from .engine.operators.aggregations import quantile as quantile
    from .engine.operators.aggregations import sum as sum
    from .engine.operators.co_process import CoProcessor as CoProcessor
    from .engine.operators.connect import BroadcastProcessor as BroadcastProcessor
    from .engine.operators.custom import CustomAggregate as CustomAggregate
    from .engine.operators.process import StatefulProcessor as StatefulProcessor
    from .engine.operators.windows import session as session
    from .engine.operators.windows import sliding as sliding
    from .engine.operators.windows import tumbling as tumbling
    from .engine.session.handle import JobHandle as JobHandle
    from .engine.session.job import Job as Job
    from .engine.state.broadcast import broadcast_state as broadcast_state
    from .engine.state.keyed import list_state as list_state
    from .engine.state.keyed import map_state as map_state
    from .engine.state.keyed import value_state as value_state

#: {public name: the module that defines it}; the same list once more, for when the program runs.
_HOMES = {
    "connectors": ".connectors",
    "testing": ".testing",
    "read": ".engine.api.read",
    "Sink": ".engine.contract.connectors",
    "Source": ".engine.contract.connectors",
    "CommitLost": ".engine.contract.errors",
    "HeadraceError": ".engine.contract.errors",
    "JobFailed": ".engine.contract.errors",
    "StorageUnreachable": ".engine.contract.errors",
    "UserCodeError": ".engine.contract.errors",
    "UserError": ".engine.contract.errors",
    "JobHandle": ".engine.session.handle",
    "JobResult": ".engine.contract.outcomes",
    "Job": ".engine.session.job",
    "Region": ".engine.contract.region",
    "Polled": ".engine.contract.operators",
    "SourceStatus": ".engine.contract.operators",
    "StateKind": ".engine.contract.operators",
    "StateSnapshot": ".engine.contract.operators",
    "Transaction": ".engine.contract.operators",
    "Autoscale": ".engine.contract.options",
    "Checkpoints": ".engine.contract.options",
    "Network": ".engine.contract.options",
    "Restart": ".engine.contract.options",
    "State": ".engine.contract.options",
    "Workers": ".engine.contract.options",
    "from_source": ".engine.api.read",
    "KeyedStream": ".engine.api.stream",
    "Stream": ".engine.api.stream",
    "WindowedStream": ".engine.api.stream",
    "SinkHandle": ".engine.api.write",
    "Aggregation": ".engine.operators.aggregations",
    "count": ".engine.operators.aggregations",
    "quantile": ".engine.operators.aggregations",
    "last": ".engine.operators.aggregations",
    "first": ".engine.operators.aggregations",
    "count_distinct": ".engine.operators.aggregations",
    "custom": ".engine.operators.aggregations",
    "collect_list": ".engine.operators.aggregations",
    "max": ".engine.operators.aggregations",
    "mean": ".engine.operators.aggregations",
    "min": ".engine.operators.aggregations",
    "sum": ".engine.operators.aggregations",
    "CoProcessor": ".engine.operators.co_process",
    "BroadcastProcessor": ".engine.operators.connect",
    "CustomAggregate": ".engine.operators.custom",
    "StatefulProcessor": ".engine.operators.process",
    "session": ".engine.operators.windows",
    "sliding": ".engine.operators.windows",
    "tumbling": ".engine.operators.windows",
    "HeadraceDataSource": ".engine.inspection.data_source",
    "broadcast_state": ".engine.state.broadcast",
    "list_state": ".engine.state.keyed",
    "map_state": ".engine.state.keyed",
    "value_state": ".engine.state.keyed",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(_HOMES[name], __name__)
    # These are modules themselves; all others are in theirs.
    is_module = name in ("connectors", "read", "testing")
    value = globals()[name] = module if is_module else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
