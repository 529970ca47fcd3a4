"""A driver that stops itself (SIGSTOP) at a step of its own, once; otherwise as `driver.py`.

frozen_driver.py STEP FOLDER ROWS RATE RUNNER [RESTORE]

STEP: "metadata" (before the third checkpoint's metadata is created) or "sinks" (as the recovery
of a sink begins, after the look for a newer epoch).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from driver import main, say  # type: ignore[import-not-found]  # beside this file, as a script

from headrace.engine.connectors.file_sink import FileCommitter
from headrace.engine.storage.checkpoint_storage import FsspecStore


def stop(step: str) -> None:
    say(frozen=step)
    os.kill(os.getpid(), signal.SIGSTOP)


def before(step: str, function: Callable[..., Any], is_step: Callable[..., bool]) -> Any:
    """Return `function` that stops the process before the first call that is the step."""
    done = False

    def stopping(*arguments: Any, **keywords: Any) -> Any:
        nonlocal done
        if not done and is_step(*arguments):
            done = True
            stop(step)
        return function(*arguments, **keywords)

    return stopping


def prepare(step: str) -> None:
    match step:
        case "metadata":
            create = before(
                step, FsspecStore.create, lambda self, path, data: path.endswith("chk-3/metadata")
            )
            FsspecStore.create = create  # type: ignore[method-assign]
        case "sinks":
            recover = before(step, FileCommitter.recover, lambda *_: True)
            FileCommitter.recover = recover  # type: ignore[method-assign]
        case _:
            raise ValueError(step)


if __name__ == "__main__":
    prepare(sys.argv[1])
    sys.exit(main(*sys.argv[2:]))
