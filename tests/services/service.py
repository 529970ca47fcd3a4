"""What the services of tests have in common: install, start, find, kill, freeze, restart, stop."""

from __future__ import annotations

import os
import signal
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from .process import (
    FOLDER,
    Facts,
    end,
    forget,
    free_port,
    is_running,
    last_facts,
    locked,
    log_tail,
    read_facts,
    wait_for,
    write_facts,
)


class Service(ABC):
    """A server on the loopback address.

    Attributes:
        name: of its files below `.services`; a test that wants a server of its own chooses another
            name than the class's.
    """

    #: The signal on which the server ends in good order.
    stop_signal = signal.SIGTERM

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def install(self) -> None:
        """Fetch what is missing. Raises: Unavailable."""

    @abstractmethod
    def launch(self, port: int, data: Path) -> Facts:
        """Start the server over `data`, which may hold the data of a killed one."""

    @abstractmethod
    def answers(self, port: int) -> bool:
        """Tell whether the server serves requests."""

    @property
    def facts(self) -> Facts:
        """Of the server that runs, or was killed."""
        facts = last_facts(self.name)
        assert facts is not None, f"{self.name} has not been started"
        return facts

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.facts.port}"

    def start(self) -> bool:
        """Install and start the server, unless it runs. Return whether it was started.

        Raises: Unavailable.
        """
        with locked():
            if read_facts(self.name) is not None:
                return False
            self.install()
            if (left := last_facts(self.name)) is not None:
                forget(self.name, left)
            data = Path(tempfile.mkdtemp(prefix=f"headrace-{self.name}-"))
            self._launch(free_port(), data)
            return True

    def stop(self) -> bool:
        """End the server and remove its data. Return whether it ran."""
        with locked():
            facts = last_facts(self.name)
            if facts is None:
                return False
            ran = is_running(facts)
            end(facts, self.stop_signal)
            forget(self.name, facts)
            return ran

    def kill(self) -> None:
        """End the server by SIGKILL."""
        end(self.facts, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the server's process, which keeps its connections and answers none."""
        os.kill(self.facts.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.facts.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Start a killed server again, at its port and over its data."""
        facts = self.facts
        assert not is_running(facts), f"{self.name} runs"
        self._launch(facts.port, Path(facts.data))

    def _launch(self, port: int, data: Path) -> None:
        facts = self.launch(port, data)
        write_facts(self.name, facts)
        try:
            wait_for(lambda: self._answers(facts), f"{self.name} to answer")
        except TimeoutError as error:
            end(facts, signal.SIGKILL)
            raise TimeoutError(f"{error}\n{log_tail(self.name)}") from None

    def _answers(self, facts: Facts) -> bool:
        if not is_running(facts):
            log = FOLDER / f"{self.name}.log"
            raise RuntimeError(f"{self.name} ended, see {log}:\n{log_tail(self.name)}")
        return self.answers(facts.port)
