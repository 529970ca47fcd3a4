"""The imports of a worker, for processes from which workers are forked: every worker is born with
them.

The module only imports: no threads of ours, files or connections that a fork would share.
"""

from __future__ import annotations

import importlib

#: The connectors are what most programs read from and write to.
MODULES = (
    "headrace.engine.drivers.worker_process",
    "headrace.engine.connectors.file_sink",
    "headrace.engine.connectors.files",
    "headrace.engine.connectors.sequence",
    "headrace.engine.operators.aggregate",
    "headrace.engine.operators.process",
    "headrace.engine.operators.row",
    "headrace.engine.state.rocks.keyed",
    # Imported late by modules above.
    "asyncio",
    "fsspec.asyn",
    "fsspec.implementations.local",
    "pyarrow.acero",
)


def import_all() -> None:
    """Import them."""
    for module in MODULES:
        importlib.import_module(module)
