"""A function in a process of its own, which ends without closing anything, as a killed one does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .verdict import Broken

_Result = TypeVar("_Result")

_PATIENCE_S = 120
_PROGRAM = """
import os, pickle, sys
function, arguments = pickle.load(open(sys.argv[1], "rb"))
result = function(*arguments)
with open(sys.argv[2], "wb") as file:
    pickle.dump(result, file)
os._exit(0)
"""


def copied(value: _Result) -> _Result:
    """Return a value as another process gets it. Raises: Broken."""
    try:
        copy: _Result = pickle.loads(_dumped(value))
    except Exception as error:
        raise Broken(f"it cannot be sent to a worker: {type(error).__name__}: {error}") from error
    return copy


def elsewhere(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call the function in another process. Raises: Broken."""
    with tempfile.TemporaryDirectory() as folder:
        program, answer = Path(folder, "program"), Path(folder, "answer")
        program.write_bytes(_dumped((function, arguments)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, program, answer],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise Broken(f"in another process: {last}")
        result: _Result = pickle.loads(answer.read_bytes())
    return result


def _dumped(value: object) -> bytes:
    import cloudpickle

    strange = [sys.modules[module] for module in _modules_of(value) if _is_strange(module)]
    for module in strange:
        cloudpickle.register_pickle_by_value(module)
    try:
        dumped: bytes = cloudpickle.dumps(value)
    finally:
        for module in strange:
            cloudpickle.unregister_pickle_by_value(module)
    return dumped


def _modules_of(value: object) -> set[str]:
    """Name the modules of the classes and functions that come first in a value."""
    parts = value if isinstance(value, tuple) else (value,)
    found: set[str] = set()
    for part in parts:
        if isinstance(part, tuple):
            found |= _modules_of(part)
        else:
            found.add(str(getattr(part, "__module__", type(part).__module__)))
    return found


def _is_strange(module: str) -> bool:
    """Another process cannot import it: a test's module, or a notebook."""
    if module not in sys.modules or module == "__main__":
        return False
    top = module.partition(".")[0]
    specs = [finder.find_spec(top, None) for finder in sys.meta_path]
    return not any(spec is not None and spec.origin is not None for spec in specs)
