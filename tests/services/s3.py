"""An object store that speaks S3, on the loopback address: moto's server, installed by pip."""

from __future__ import annotations

import importlib
import importlib.util
import socket
import sys
from contextlib import suppress
from pathlib import Path

from .process import ROOT, Facts, launch, run
from .service import Service


class S3(Service):
    """A store that keeps its objects in memory: a restart forgets them."""

    def __init__(self, name: str = "s3") -> None:
        super().__init__(name)

    @property
    def endpoint(self) -> str:
        """The store's URL."""
        return f"http://{self.address}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which clients find the store, and are let in."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def install(self) -> None:
        """Let pip install the group `services` of pyproject.toml."""
        if importlib.util.find_spec("moto") and importlib.util.find_spec("flask"):
            return
        project = f"{ROOT / 'pyproject.toml'}:services"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--group", project]
        run(pip, why="pip cannot install moto")
        importlib.invalidate_caches()

    def launch(self, port: int, data: Path) -> Facts:
        """Start moto's server."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return launch(self.name, command, port, data)

    def answers(self, port: int) -> bool:
        """Tell whether the port is open; moto opens it last."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False
