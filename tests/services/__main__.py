"""`make services` and `make services-stop`: python -m tests.services start|stop [NAME...]."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .kafka import Kafka
from .postgres import Postgres
from .process import Unavailable
from .s3 import S3
from .service import Service


def main(verb: str, names: Sequence[str]) -> int:
    """Start or stop services; return 1 if one of them cannot be had."""
    services: dict[str, Service] = {"kafka": Kafka(), "postgres": Postgres(), "s3": S3()}
    return max(VERBS[verb](services[name]) for name in names or services)


def start(service: Service) -> int:
    """Start a service, unless it runs, and say where."""
    try:
        begun = service.start()
    except Unavailable as reason:
        print(f"{service.name}: {reason}")
        return 1
    facts = service.facts
    print(f"{service.name}: {'started' if begun else 'runs'}, {service.address}, pid {facts.pid}")
    return 0


def stop(service: Service) -> int:
    """Stop a service, if it runs, by its pid."""
    print(f"{service.name}: {'stopped' if service.stop() else 'did not run'}")
    return 0


VERBS = {"start": start, "stop": stop}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in VERBS:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
