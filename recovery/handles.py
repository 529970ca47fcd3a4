"""Immutable locators of keyed state: Arrow tables, and files of a database."""

from __future__ import annotations

import msgspec


class StateHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Immutable locator of one piece of operator state: an Arrow IPC stream inside a checkpoint
    file.

    `path` is relative to the job's checkpoint folder; `checksum` is xxh3-64 of the `length` bytes
    at `offset`, in hex.
    """

    operator: str
    state: str
    kind: str
    path: str
    offset: int
    length: int
    checksum: str
    rows: int


class SharedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Immutable locator of a whole file that several checkpoints may name, such as an SST file.

    `name` is its name in the database's folder, where a number may come again after a restore: only
    `path`, relative to the job's folder, and `checksum` (xxh3-64 of all `length` bytes, in hex)
    identify the file.
    """

    name: str
    path: str
    length: int
    checksum: str


class FileHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Immutable locator of a small file `name` of a database's folder: `length` bytes at `offset`
    of a checkpoint's file.
    """

    name: str
    path: str
    offset: int
    length: int
    checksum: str


class StateSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of one state in a database, as an Arrow IPC stream without rows; the first `keys`
    of them are the key.

    The columns decide how keys and values are stored (`engine/state/rocks/codecs.py`). `path`,
    `offset`, `length`, `checksum` as in `StateHandle`.
    """

    state: str
    keys: int
    path: str
    offset: int
    length: int
    checksum: str


class DatabaseHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keyed state of one operator of one subtask as the files of an embedded database, complete.

    Attributes:
        format: "rocksdb".
        first_group: the database holds only key groups `first_group` <= group < `end_group`,
            perhaps not all of them.
        shared: the large, immutable files, which make a checkpoint incremental.
        own: the small files, which every checkpoint writes anew.
    """

    operator: str
    format: str
    first_group: int
    end_group: int
    schemas: list[StateSchema]
    shared: list[SharedFile]
    own: list[FileHandle]
