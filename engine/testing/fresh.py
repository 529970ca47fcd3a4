"""A user's objects as a new process finds them.

Workers get the user's program by pickle, and import the user's modules: attributes of instances and
classes, and globals of modules, begin anew with each process. Within one process they would be
shared, and a test would pass whose job fails. So the program is pickled once, with the classes and
functions of the user's modules *by value*, and each load makes classes, functions and globals of
its own.

Where that cannot be done (a lock in a module's globals), or where the copy is large (a model), the
user's modules are shared; attributes of instances begin anew all the same.
"""

from __future__ import annotations

import io
import pickle
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from ..contract.errors import UserError

_Value = TypeVar("_Value")

#: Copies of modules may be so large: a simulation loads a program hundreds of times.
_BY_VALUE_BYTES_MAX = 4 << 20
_SKELETONS = ("_make_skeleton_class", "_make_skeleton_enum")


class Program(Generic[_Value]):
    """A value, pickled once.

    Raises: UserError when it cannot be pickled; `what` names it.
    """

    def __init__(self, value: _Value, *, what: str) -> None:
        found = _dumped(value, _users_modules())
        if found is None or len(found[0]) > _BY_VALUE_BYTES_MAX:
            found = _dumped(value, [])
        if found is None:
            raise UserError(
                f"{what} cannot be pickled, as for a worker; make what cannot be pickled in"
                " open(), or inside the function"
            )
        self._data, self._buffers = found

    def load(self) -> _Value:
        """Return the value as another process gets it."""
        return cast(_Value, _Anew(io.BytesIO(self._data), buffers=self._buffers).load())


class _Anew(pickle.Unpickler):
    """Makes classes anew: cloudpickle's own unpickler finds those of the last time again."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name in _SKELETONS and module.startswith("cloudpickle"):
            return partial(_untracked, found)
        return found


def _untracked(make: Callable[..., type], *arguments: Any) -> type:
    """Make a class under no number; the number is the last argument but one."""
    *first, _, last = arguments
    return make(*first, None, last)


def _dumped(
    value: object, by_value: list[ModuleType]
) -> tuple[bytes, list[pickle.PickleBuffer]] | None:
    """Pickle; Arrow's columns stay where they are. None: it cannot be done."""
    import cloudpickle
    from cloudpickle.cloudpickle import list_registry_pickle_by_value

    buffers: list[pickle.PickleBuffer] = []
    # Programs that the command line has loaded are registered for good.
    registered = list_registry_pickle_by_value()
    by_value = [module for module in by_value if module.__name__ not in registered]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception:  # a user's __reduce__ may raise anything
        return None
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return data, buffers


def _users_modules() -> list[ModuleType]:
    """The imported modules that belong neither to Python, nor to an installed package, nor here."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [
        module
        for name, module in sorted(sys.modules.items())
        if isinstance(module, ModuleType)
        and module.__name__ == name != "__main__"
        and name.partition(".")[0] != "headrace"
        and isinstance(file := getattr(module, "__file__", None), str)
        and not file.startswith(installed)
        and not {"site-packages", "dist-packages"} & {*Path(file).parts}
    ]
