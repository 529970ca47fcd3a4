"""Databases to storage and back: each immutable file is stored once, and named from then on.

Within one attempt the database and the name tell an immutable file, since a database never gives a
name twice while it is open. After a restore it may: so across attempts only the handle's path and
checksum tell a file, and later checkpoints build only upon complete ones.

Source: Flink's incremental checkpoints; faults like SPARK-43404 (two files of one name taken for
one file) shaped the rules.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from headrace.inflight.segment import (
    Blob,
    CorruptBlob,
    InvalidTable,
    SegmentBuilder,
    checksum_of_parts,
    read_blob,
    table_from_ipc,
    table_to_ipc,
)
from headrace.inflight.stored import Stored
from headrace.recovery.handles import DatabaseHandle, FileHandle, SharedFile, StateSchema
from headrace.recovery.layout import (
    CheckpointKind,
    handle_path,
    savepoint_file_path,
    shared_path,
    store_path,
)
from headrace.recovery.store import (
    Content,
    NotFound,
    Store,
    StoreRejected,
    is_short,
    joined,
    parts_of,
)

from ..contract.operators import (
    DatabaseSnapshot,
    RestoredDatabase,
    RestoredState,
    Snapshot,
    StateLayout,
)
from .ahead import FilesAhead
from .file_content import FileContent
from .shared_files import bring

_T = TypeVar("_T")
_Id = TypeVar("_Id")

#: Files of one database that are fetched at once.
_FETCH_THREADS = 4

#: {name of an immutable file: where it is stored}
SharedFiles = Mapping[str, SharedFile]


class CorruptState(Exception):
    """A checkpoint's data is missing or damaged; the message names file and place."""


class StoredFiles(Stored[Mapping[str, SharedFiles]]):
    """Immutable files of an attempt's databases, by database. For any thread.

    Checkpoints are built upon the newest complete checkpoint, and upon each file that was stored
    for a later one, also if that one was given up: so a state whose upload takes longer than a
    checkpoint may is complete after some checkpoints. Savepoints name no file of a checkpoint and
    are not built upon, so that each lasts by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        #: {(database, name): (checkpoint, file)}, of checkpoints after the newest complete one.
        self._uploaded: dict[tuple[str, str], tuple[int, SharedFile]] = {}
        self._under_way: set[tuple[str, str]] = set()

    def base(self, snapshot: DatabaseSnapshot) -> SharedFiles:
        """Files of the database that a complete checkpoint holds."""
        if self._confirmed_number == 0:
            return snapshot.known
        return (self._confirmed or {}).get(snapshot.database, {})

    def confirmed(self, checkpoint: int) -> None:
        """See `Stored`. Other files of older checkpoints may be deleted now."""
        with self._changed:
            super().confirmed(checkpoint)
            self._uploaded = {k: v for k, v in self._uploaded.items() if v[0] > checkpoint}

    def uploaded(self, checkpoint: int, database: str, file: SharedFile) -> None:
        """The file is durable, under the number of `checkpoint`."""
        with self._changed:
            if checkpoint > self._confirmed_number:
                self._uploaded[database, file.name] = checkpoint, file

    def unconfirmed(self, database: str, name: str) -> SharedFile | None:
        """Find the file among those stored since the newest complete checkpoint."""
        found = self._uploaded.get((database, name))
        return None if found is None else found[1]

    def upload(
        self, checkpoint: int, database: str, name: str, store: Callable[[], SharedFile]
    ) -> SharedFile:
        """Name the file if it was stored since the newest complete checkpoint, else store it.

        Waits while another checkpoint stores the file.
        """
        key = database, name
        with self._changed:
            self._changed.wait_for(lambda: key not in self._under_way)
            found = self.unconfirmed(database, name)
            if found is not None:
                return found
            self._under_way.add(key)
        try:
            file = store()
            self.uploaded(checkpoint, database, file)
        finally:
            with self._changed:
                self._under_way.discard(key)
                self._changed.notify_all()
        return file


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint directory that an attempt is restored from. `ours`: the job's own.

    Checkpoints name files of the job's own directory, and copy from any other: its owner may delete
    files.
    """

    store: Store
    job: str
    ours: bool


@dataclass(frozen=True, slots=True)
class Destination:
    """The place of a worker's part of a checkpoint. `full`: it names no file of an older one."""

    store: Store
    job: str
    checkpoint: int
    worker: int
    epoch: int
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    full: bool = False


def release_all(pieces: Iterable[tuple[str, Snapshot]]) -> None:
    """Release frozen databases."""
    for _, piece in pieces:
        if isinstance(piece, DatabaseSnapshot):
            piece.release()


def write_databases(
    to: Destination,
    segment: SegmentBuilder,
    path: str,
    snapshots: Mapping[_Id, Sequence[tuple[str, Snapshot]]],
    stored: StoredFiles,
) -> tuple[dict[_Id, list[DatabaseHandle]], dict[str, SharedFiles]]:
    """Store the databases among a worker's snapshots, see `write_database`.

    Returns handles by subtask, and files by database.
    """
    handles: dict[_Id, list[DatabaseHandle]] = {id: [] for id in snapshots}
    files: dict[str, SharedFiles] = {}
    for id, pieces in snapshots.items():
        for operator, piece in pieces:
            for part in (piece, *piece.others) if isinstance(piece, DatabaseSnapshot) else ():
                handle = write_database(to, segment, path, operator, part, stored)
                handles[id].append(handle)
                files[part.database] = {file.name: file for file in handle.shared}
    return handles, files


def write_database(
    to: Destination,
    segment: SegmentBuilder,
    path: str,
    operator: str,
    snapshot: DatabaseSnapshot,
    stored: StoredFiles,
) -> DatabaseHandle:
    """Store the files that are not stored yet; small ones go into `segment`, at `path`.

    Raises: StoreError, OSError.
    """
    files = snapshot.files()
    alone = to.full or to.kind is CheckpointKind.SAVEPOINT
    base: SharedFiles = {} if alone else stored.base(snapshot)

    def shared_file(name: str) -> SharedFile:
        if name in base:
            return base[name]
        store = partial(_store_shared, to, files.folder, name)
        return store() if alone else stored.upload(to.checkpoint, snapshot.database, name, store)

    shared = [shared_file(name) for name in files.immutable]
    own = []
    for name in files.other:
        blob = segment.append(joined(_content(files.folder, name)))
        own.append(FileHandle(name, path, blob.offset, blob.length, blob.checksum))
    schemas = []
    for layout in snapshot.layouts:
        blob = segment.append(*table_to_ipc(layout.schema.empty_table()))
        place = (path, blob.offset, blob.length, blob.checksum)
        schemas.append(StateSchema(layout.name, layout.keys, *place))
    groups = snapshot.groups
    return DatabaseHandle(operator, "rocksdb", groups.start, groups.stop, schemas, shared, own)


def _store_shared(to: Destination, folder: str, name: str) -> SharedFile:
    content = _content(folder, name)
    length = 0

    def counted() -> Iterator[bytes | memoryview]:
        nonlocal length
        for part in parts_of(content):
            length += len(part)
            yield part

    checksum = checksum_of_parts(counted())
    place = shared_path if to.kind is CheckpointKind.CHECKPOINT else savepoint_file_path
    path = place(to.job, to.checkpoint, to.worker, to.epoch, checksum)
    to.store.put(path, content)
    return SharedFile(name, handle_path(to.job, path), length, checksum)


def _content(folder: str, name: str) -> Content:
    return FileContent(os.path.join(folder, name))


def read_databases(
    origin: Origin,
    handles: Sequence[DatabaseHandle],
    groups: range,
    max_parallelism: int,
    *,
    ahead: FilesAhead | None = None,
) -> dict[str, list[RestoredDatabase]]:
    """Describe the databases that a subtask with these key groups starts from, by operator.

    Files are read when they are fetched; `ahead`: files of the job's own that are here already.
    Raises: CorruptState, StoreError.
    """
    store, job = origin.store, origin.job
    found: dict[str, list[RestoredDatabase]] = {}
    for handle in handles:
        fetch = partial(_fetch, store, job, handle, ahead=ahead, links=origin.ours)
        layouts = [_layout(store, job, schema) for schema in handle.schemas]
        held = range(handle.first_group, handle.end_group)
        mine = range(max(held.start, groups.start), min(held.stop, groups.stop))
        restored = RestoredDatabase(
            groups=held,
            layouts=layouts,
            size_bytes=sum(file.length for file in handle.shared),
            known={file.name: file for file in handle.shared} if origin.ours else {},
            fetch=fetch,
            tables=partial(_tables, fetch, layouts, mine, max_parallelism),
        )
        found.setdefault(handle.operator, []).append(restored)
    return found


def _layout(store: Store, job: str, schema: StateSchema) -> StateLayout:
    where = f"{store_path(job, schema.path)}, columns of state {schema.state!r}"
    table = _checked(where, lambda: table_from_ipc(_own(store, job, schema)))
    if schema.keys > table.num_columns:
        raise CorruptState(f"{where}: {schema.keys} key columns of {table.num_columns}")
    return StateLayout(schema.state, schema.keys, table.schema)


def _fetch(
    store: Store,
    job: str,
    handle: DatabaseHandle,
    folder: str,
    *,
    ahead: FilesAhead | None,
    links: bool,
) -> None:
    def shared(file: SharedFile) -> None:
        if ahead is not None and ahead.take(file, folder):
            return
        where = f"{store_path(job, file.path)}, file of the state of {handle.operator!r}"
        _checked(where, partial(bring, store, job, file, folder, links=links))

    # Storage far away answers several as fast as one, and checksums of several use several
    # processors.
    with ThreadPoolExecutor(_FETCH_THREADS, thread_name_prefix="restore") as pool:
        for _ in pool.map(shared, handle.shared):
            pass
    for own in handle.own:
        where = f"{store_path(job, own.path)}, file {own.name} of the state of {handle.operator!r}"
        _write(folder, own.name, _checked(where, partial(_own, store, job, own)))


def _own(store: Store, job: str, handle: FileHandle | StateSchema) -> bytes:
    path = store_path(job, handle.path)
    blob = Blob(handle.offset, handle.length, handle.checksum)
    try:
        return read_blob(lambda offset, length: store.get(path, offset, length), blob)
    except NotFound:
        raise
    except StoreRejected as refused:
        # To ask again is no use if the file ends too early, which it may be for every other
        # refusal.
        if is_short(store, path, blob.offset + blob.length):
            expected = f"{blob.length} bytes"
            raise CorruptBlob(blob.offset, expected, refused.reason) from refused
        raise


def _checked(where: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (CorruptBlob, InvalidTable, NotFound) as damage:
        raise CorruptState(f"{where}: {damage}") from damage


def _write(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "xb") as file:
        file.write(data)


def _tables(
    fetch: Callable[[str], None], layouts: Sequence[StateLayout], mine: range, max_parallelism: int
) -> list[RestoredState]:
    # Not at the top: jobs on the heap need not wait for rocksdict.
    from ..state.rocks import files as rocks_files
    from ..state.rocks.tables import tables_of

    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        fetch(folder)
        database = rocks_files.open_database(folder, rocks_files.RocksSizes(), read_only=True)
        try:
            return tables_of(layouts, rocks_files.scan(database, mine), max_parallelism)
        except (KeyError, AssertionError, pa.ArrowException) as damage:
            raise CorruptState(
                f"a restored database holds what it should not: {damage}"
            ) from damage
        finally:
            database.close()
