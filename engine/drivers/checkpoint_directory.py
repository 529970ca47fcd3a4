"""A job's checkpoint directory as the driver uses it: in storage, in a simulation, or none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.recovery.claims import Claimer
from headrace.recovery.store import Store

from ..contract.places import absolute
from ..storage.checkpoint_storage import open_store

#: Opens the checkpoint directory of a URL.
Open = Callable[[str], Store]


@dataclass(frozen=True, slots=True)
class CheckpointDirectory:
    """Where a job keeps checkpoints, and how its driver reaches other directories.

    Attributes:
        job: name of the job.
        store: None: the job keeps no checkpoints.
        url: of `store`.
        open: opens another directory.
        sleep: waits so many seconds between two tries.
    """

    job: str
    store: Store | None
    url: str = ""
    open: Open = open_store
    sleep: Callable[[float], None] = time.sleep

    @property
    def claimer(self) -> Claimer:
        """The job as a claimer of checkpoints in other directories."""
        return Claimer(directory=absolute(self.url), job=self.job)

    def at(self, url: str) -> Store:
        """Open the directory `url`; empty: this one."""
        if url:
            return self.open(url)
        assert self.store is not None, "the job keeps no checkpoints"
        return self.store
