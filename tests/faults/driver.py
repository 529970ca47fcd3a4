"""A driver that tests can kill: runs the audited job and says on standard output what happens, one
JSON object per line.

driver.py FOLDER ROWS RATE RUNNER [RESTORE]
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, get_args

from headrace.bench.audit import AuditedJob
from headrace.engine.contract.errors import JobFailed
from headrace.engine.contract.options import Runner
from headrace.engine.coordinator.rules import Phase
from headrace.engine.session.handle import JobHandle


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def watch(handle: JobHandle) -> None:
    seen, running = 0, False
    while (status := handle.status()).phase is not Phase.ENDED:
        if status.phase is Phase.RUNNING and not running:
            running = True
            say(running=list(status.workers.values()), epoch=status.epoch)
        if status.completed > seen and running:
            seen = status.completed
            say(checkpoint=status.checkpoints[-1].checkpoint)
        time.sleep(0.005)


def main(folder: str, rows: str, rate: str, runner: str, restore: str = "auto") -> int:
    runners: tuple[Runner, ...] = get_args(Runner)
    audited = AuditedJob(Path(folder), int(rows), float(rate), interval="0.2s")
    chosen = next(name for name in runners if name == runner)
    handle = audited.build().start(chosen, restore=restore)
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    try:
        result = handle.wait()
    except JobFailed as error:
        say(failed=str(error))
        return 1
    except KeyboardInterrupt:
        say(interrupted=True)
        return 130
    say(finished=result.checkpoints)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
