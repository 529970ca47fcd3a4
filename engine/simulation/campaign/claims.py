"""Claims in a simulated world: a job starts elsewhere from a claimed checkpoint.

All faults are on, and the job starts again after each death of its driver. When a drawn checkpoint
of a run completes, a copy is made of all durable data: storage, and the sinks' system. After the
run a new world starts from the copy, as if every process had died at that moment. The job's folder
belongs to another job there, and the job claims the checkpoint in that folder. Besides all checks
of every world:

- the job's output together with the output committed before the copy is the reference's;
- no process reads the claimed checkpoint when it goes;
- in the end either the job's folder still knows the claim, or all files of the checkpoint are gone,
  except files named by others there, which are whole.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from headrace.recovery import catalog, links
from headrace.recovery.codec import CorruptMetadata, decode_metadata, encode_metadata
from headrace.recovery.layout import CheckpointKind, checkpoint_folder, parse_checkpoint_path

from ..sink import SinkSystem
from ..watch import Violation
from .oracles import deletes_for_certain
from .storage import SimulatedStorage

if TYPE_CHECKING:
    from .world import World

#: Name of the claimed checkpoint's job, and URL of its directory.
EARLIER = "earlier"
_ELSEWHERE = "memory://elsewhere"


def seen_as(storage: SimulatedStorage, job: str, other: str) -> SimulatedStorage:
    """Show the storage to observers with the folder of `job` as the folder of `other`."""
    if job == other:
        return storage
    seen = SimulatedStorage()
    for path, data in storage.objects.items():
        folder, slash, rest = path.partition("/")
        if folder == job:
            seen.objects[f"{other}{slash}{rest}"] = data
    return seen


@dataclass(frozen=True, slots=True)
class _Copy:
    """The durable data at the moment when checkpoint `number` was complete."""

    number: int
    objects: dict[str, bytes]
    sinks: SinkSystem


class Claims:
    """The checkpoint of a world that another world claims."""

    def __init__(self, world: World) -> None:
        self._world = world
        # A drained job's last checkpoint tells the records read, but the copy may lack that
        # checkpoint. And with a frozen driver beside a new driver, the copy may hold half of each
        # driver's work.
        scenario = world.scenario
        profile = scenario.profile
        fit = scenario.drain_ns is None and not (profile.pauses or profile.freezes)
        self._left = scenario.settings.claim_after if fit else None
        self._copy: _Copy | None = None

    def completed(self, number: int) -> None:
        """A checkpoint is complete."""
        if self._left is None or self._copy is not None:
            return
        env = self._world.env
        complete = catalog.complete_checkpoints(env.storage, env.plan.job, savepoints=False)
        self._left -= 1
        # Another driver may have gone on since.
        if self._left <= 0 and complete and complete[0] == number:
            self._copy = _Copy(number, dict(env.storage.objects), deepcopy(env.sinks))

    def check(self) -> None:
        """The run is over. Start the job from the copy. Raises Violation."""
        if self._copy is None:
            return
        violation = self._claimed(self._copy)
        if violation:
            raise Violation(f"claimed chk-{self._copy.number}: {violation}")
        self._world.coverage.count("checkpoints claimed")

    def _claimed(self, copy: _Copy) -> str:
        old = self._world
        settings = replace(old.scenario.settings, savepoints=0, claim_after=None)
        graph = old.newest_graph
        scenario = replace(old.scenario, graph=graph, settings=settings, rescales=(), drain_ns=None)
        new = type(old)(old.seed, scenario)
        new.rescaled, new.widths = old.rescaled, old.widths
        job = new.env.plan.job
        _move(copy, job, new.env.storage)
        sinks = deepcopy(copy.sinks)
        new.env.sinks.transactions.update(sinks.transactions)
        new.env.sinks.visible += sinks.visible
        path = f"{_ELSEWHERE}/{EARLIER}/chk-{copy.number}"
        new.env = replace(new.env, claim=path, run="claimer")
        report = new.run()
        for what in ("claims released", "claims kept until the end"):
            old.coverage.count(what, report.coverage.get(what, 0))
        return report.violation


def check_released(world: World) -> None:
    """Check the claim at the end of a job. Raises Violation."""
    storage, job = world.env.storage, world.env.plan.job
    path = world.env.claim
    if not path:
        return
    number = int(path.rpartition("-")[2])
    folder = checkpoint_folder(EARLIER, number)
    known = links.numbers(storage, job)
    left = storage.list(folder)
    whole = f"{folder}metadata" in left
    try:
        named = _named(storage)
    except CorruptMetadata:
        return  # nobody can tell what may go
    if known:
        world.coverage.count("claims kept until the end")
        complete = catalog.complete_checkpoints(storage, job, savepoints=False)
        retained = len(complete) >= world.env.settings.retain
        has_left = world.coordinator is not None and world.coordinator.has_left
        if retained and has_left and deletes_for_certain(world.scenario.profile):
            raise Violation(f"{folder} is subsumed, and still claimed")
        return
    leaked = [path for path in left if path not in named]
    if whole or leaked:
        raise Violation(f"{folder} was released, and left are {leaked[:3]}")
    world.coverage.count("claims released")


def check_unread(text: str) -> None:
    """Check the failure of an attempt or checkpoint.

    Raises Violation when a claimed file was missing.
    """
    if f"{EARLIER}/" in text and "not found" in text:
        raise Violation(f"what was claimed went while it was read: {text}")


def _named(storage: SimulatedStorage) -> set[str]:
    """Return the files named by the complete checkpoints of the other job; checks that all are
    whole.

    Raises: CorruptMetadata, Violation.
    """
    named: set[str] = set()
    for path, files in storage.audit.live.items():
        if path.startswith(f"{EARLIER}/"):
            named |= files
    for number in catalog.complete_checkpoints(storage, EARLIER, savepoints=False):
        catalog.load_kind(storage, EARLIER, number, CheckpointKind.CHECKPOINT)
        problems = catalog.verify(storage, EARLIER, number)
        if problems:
            raise Violation(f"chk-{number} of the other job is complete, but {problems[0]}")
    return named


def _move(copy: _Copy, job: str, storage: SimulatedStorage) -> None:
    """Move the job's folder to another job; the epochs stay too: the sinks' system knows them."""
    metadata = []
    for path, data in copy.objects.items():
        folder, _, rest = path.partition("/")
        assert folder == job, path
        if rest.startswith("elsewhere/"):
            continue
        there = f"{EARLIER}/{rest}"
        parsed = parse_checkpoint_path(there)
        if parsed is not None and parsed.name == "metadata":
            data = _renamed(data, there)
            metadata.append(there)
        storage.objects[there] = data
        if rest.startswith("epochs/"):
            storage.objects[path] = data
    for there in metadata:
        storage.audit.created(there)


def _renamed(data: bytes, path: str) -> bytes:
    try:
        metadata = decode_metadata(data, path)
    except CorruptMetadata:
        return data
    return encode_metadata(msgspec.structs.replace(metadata, job=EARLIER))
