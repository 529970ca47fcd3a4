"""From `FILE[:JOB]` or `MODULE[:JOB]` on the command line to a `Job`.

A file is loaded as Python runs a script: its folder comes first on sys.path, but `__name__` is the
file's stem, so that `if __name__ == "__main__": job.run()` does not run. Its functions are shipped
to the workers by value, since no worker could import the file.

JOB may be a function that makes the job; it is called without arguments.

Every fault in the user's file is the user's mistake, unless a system that it names does not answer:
one sentence with the line, never our frames.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ..contract.errors import AddressUnreachable, HeadraceError, StorageUnreachable, UserError
from ..contract.suggestion import did_you_mean
from ..session.job import Job


def load_job(target: str) -> Job:
    """Load the job that `target` names, or that the function of this name makes.

    Raises: UserError when there is none.
    """
    place, name = _split(target)
    is_file = place.endswith(".py") or os.sep in place or Path(place).is_file()
    module = _load_file(Path(place)) if is_file else _load_module(place)
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, Job)}
    if name is not None:
        return _named(name, module, jobs, place)
    distinct = {id(job): key for key, job in jobs.items()}
    if not distinct:
        raise UserError(f"{place} makes no job; assign one at its top level: job = hr.Job(...)")
    if len(distinct) > 1:
        names = ", ".join(sorted(distinct.values()))
        raise UserError(
            f"{place} makes several jobs ({names}); choose one, as in"
            f" {place}:{names.split(', ')[0]}"
        )
    return next(iter(jobs.values()))


def _split(target: str) -> tuple[str, str | None]:
    place, colon, name = target.rpartition(":")
    # What stands behind the last colon is a name, unless it is part of a path.
    if colon and name.isidentifier() and place:
        return place, name
    return target, None


def _named(name: str, module: ModuleType, jobs: dict[str, Job], place: str) -> Job:
    if name in jobs:
        return jobs[name]
    found = getattr(module, name, None)
    if inspect.isfunction(found) or isinstance(found, functools.partial):
        return _made(found, f"{place}:{name}", getattr(module, "__file__", None) or "")
    if hasattr(module, name):
        kind = type(found).__name__
        raise UserError(f"{place}:{name} is a {kind}, not a headrace.Job")
    hint = did_you_mean(name, sorted(jobs)) if jobs else "it makes no job at all"
    raise UserError(f"{place} has no job {name!r}; {hint}")


def _made(make: Callable[..., object], place: str, file: str) -> Job:
    """Call a function that makes a job. Raises: UserError."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(make).parameters.values()
    due = [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
    if due:
        raise UserError(
            f"{place} takes {', '.join(due)}, and a function that makes a job is called without"
            " arguments; give each a default"
        )
    try:
        job = make()
    except HeadraceError as error:
        raise _located(error, place, file) from error
    except Exception as error:
        raise _unloadable(place, file, error) from error
    if not isinstance(job, Job):
        raise UserError(f"{place} returned {type(job).__name__}, not a headrace.Job")
    return job


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}")
    path = path.resolve()
    name = path.stem if path.stem.isidentifier() else "job"
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        # Another module has the name, and user code may want that module.
        name = f"{name}_job"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except HeadraceError as error:
        raise _located(error, path.name, str(path)) from error
    except Exception as error:
        sys.modules.pop(name, None)
        raise _unloadable(path.name, str(path), error) from error
    _ship_by_value(module)
    return module


def _load_module(name: str) -> ModuleType:
    # As `python -m` does, and what an installed console script does not.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"there is no module {name!r}; a file is written with its ending, as in job.py:job"
            ) from error
        raise _unloadable(name, _file_of(name), error) from error
    except HeadraceError as error:
        raise _located(error, name, _file_of(name)) from error
    except Exception as error:
        raise _unloadable(name, _file_of(name), error) from error


def _file_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    return (spec.origin if spec is not None else None) or ""


def _ship_by_value(module: ModuleType) -> None:
    # Here, not above: `headrace --help` need not wait for it.
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def _line(error: BaseException, file: str) -> str:
    """Return `, line 17`: the last line of `file` that the error passed through; empty if none."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f", line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f", line {frames[-1].lineno}" if frames else ""


def _located(error: HeadraceError, place: str, file: str) -> HeadraceError:
    """Return the error with the line: the user's mistake, unless a system did not answer."""
    text = f"{place}{_line(error, file)}: {error}"
    is_away = isinstance(error, AddressUnreachable | StorageUnreachable)
    return type(error)(text) if is_away else UserError(text)


def _unloadable(place: str, file: str, error: Exception) -> UserError:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return UserError(f"{place}{_line(error, file)}: {what}")
