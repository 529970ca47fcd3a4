"""headrace: a stream-processing engine for Python whose checkpoints do not wait for backpressure.

What this module names is the public API, and all that is promised; the rest can be reached and may change. Streams
begin with `read`, a `Job` binds their sinks and options, and `Job.run` runs it.
"""

from __future__ import annotations

from .engine.api import read as read
from .engine.api.connector import Sink as Sink
from .engine.api.connector import Source as Source
from .engine.api.errors import HeadraceError as HeadraceError
from .engine.api.errors import JobFailed as JobFailed
from .engine.api.errors import StorageUnreachable as StorageUnreachable
from .engine.api.errors import UserCodeError as UserCodeError
from .engine.api.errors import UserError as UserError
from .engine.api.handle import JobHandle as JobHandle
from .engine.api.handle import JobResult as JobResult
from .engine.api.job import Job as Job
from .engine.api.options import Checkpoints as Checkpoints
from .engine.api.options import Network as Network
from .engine.api.options import Restart as Restart
from .engine.api.options import Workers as Workers
from .engine.api.read import from_source as from_source
from .engine.api.stream import KeyedStream as KeyedStream
from .engine.api.stream import Stream as Stream
from .engine.api.write import SinkHandle as SinkHandle
from .engine.operators.aggregations import Aggregation as Aggregation
from .engine.operators.aggregations import count as count
from .engine.operators.aggregations import max as max
from .engine.operators.aggregations import mean as mean
from .engine.operators.aggregations import min as min
from .engine.operators.aggregations import sum as sum
from .engine.operators.process import StatefulProcessor as StatefulProcessor
from .engine.state.keyed import list_state as list_state
from .engine.state.keyed import map_state as map_state
from .engine.state.keyed import value_state as value_state
