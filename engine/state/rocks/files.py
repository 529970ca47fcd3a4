"""A RocksDB database in a folder: open, write, scan, cut to key groups, copy by links.

There is no write-ahead log: the last checkpoint replaces the losses of a crash. `rocksdict` holds
the GIL while it writes, so writes are cut into small batches. RocksDB refuses a batch instead of
delaying the writer, and the wait is here, where other threads can run.

Compaction is universal (size-tiered): it rewrites each byte less often than levels do, and the next
incremental checkpoint must store every rewritten byte again. Reads look at some more files; their
bloom filters answer for most.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from .links import link_database

#: A stored key and its value; None deletes it.
Entry = tuple[bytes, bytes | None]

#: The GIL is held for a batch of so many entries: two tenths of a millisecond. (1,000 take more
#: than four times as long: 1.2 ms.)
_BATCH_ENTRIES = 250
_SCAN_ENTRIES = 4096
_STALL_PAUSE_S = 0.002
_BLOOM_BITS = 10
#: Above so many runs RocksDB merges some, sometimes with the oldest and largest run: a lower limit
#: rewrites, and stores, more. Measured over whole cycles, 1 % of the keys changed between
#: checkpoints: 12 or 16 runs stored 3.0 bytes for each changed byte, 20 runs 2.8, 24 or 32 runs
#: 2.6.
_SORTED_RUNS_MAX = 24
#: Writes are slowed down, and stopped, when merging has fallen behind by so much.
_SORTED_RUNS_SLOW = 2 * _SORTED_RUNS_MAX
_SORTED_RUNS_STOP = 3 * _SORTED_RUNS_MAX
_GROUPS_END = 1 << 15
#: Every checkpoint reads and stores the manifest: past this size RocksDB begins a new manifest, of
#: some kilobytes.
_MANIFEST_BYTES_MAX = 64 << 10
#: Neither needed to open the database again nor worth keeping.
_PASSING = ("LOG", "LOCK", "IDENTITY")


@dataclass(frozen=True, slots=True)
class RocksSizes:
    """Memory of a database: the write buffer before it becomes a file, and the cache of files."""

    write_buffer_bytes: int = 64 << 20
    block_cache_bytes: int = 64 << 20


def group_start(group: int) -> bytes:
    """Return the lower bound of all stored keys of `group`, above all keys of earlier groups."""
    return group.to_bytes(2, "big")


def open_database(folder: str, sizes: RocksSizes, *, read_only: bool = False) -> Rdict:
    """Open the database in `folder`, or create it. Raises: Exception, as rocksdict does."""
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    return Rdict(folder, _options(sizes), access_type=access)


def write(database: Rdict, entries: Iterable[Entry]) -> int:
    """Write entries in order, without a log; returns their number.

    Waits while RocksDB cannot keep up.
    """
    total = 0
    left = iter(entries)
    while some := list(itertools.islice(left, _BATCH_ENTRIES)):
        _write_batch(database, some)
        total += len(some)
    return total


def scan(database: Rdict, groups: range) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the entries of these key groups in key order, some thousand at a time."""
    options = ReadOptions()
    options.set_iterate_upper_bound(group_start(groups.stop))
    # In raw mode all keys are bytes, which rocksdict's types do not say.
    entries: Iterator[Any] = database.items(from_key=group_start(groups.start), read_opt=options)
    while found := list(itertools.islice(entries, _SCAN_ENTRIES)):
        yield found


def keep_only(database: Rdict, groups: range) -> None:
    """Delete every key outside these key groups, at once: two marks, not one per key."""
    options = _write_options(no_slowdown=False)
    if groups.start > 0:
        database.delete_range(group_start(0), group_start(groups.start), options)
    if groups.stop < _GROUPS_END:
        database.delete_range(group_start(groups.stop), b"\xff\xff", options)


def copy_groups(source: Rdict, target: Rdict, groups: range) -> None:
    """Copy the entries of these key groups."""
    write(target, (entry for entries in scan(source, groups) for entry in entries))


def checkpoint(database: Rdict, folder: str) -> None:
    """Copy the database to the new folder `folder`, immutable files as links. No writes meanwhile.

    A separate flush comes first and releases the GIL; `create_checkpoint` holds the GIL while it
    flushes and syncs.
    """
    database.flush(True)
    if not link_database(database.path(), folder):
        Checkpoint(database).create_checkpoint(folder)


def is_merging(database: Rdict) -> bool:
    """Whether files are being merged, or written, in the background."""
    running = ("rocksdb.num-running-compactions", "rocksdb.num-running-flushes")
    return any(database.property_int_value(name) for name in running)


def files_of(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of a closed database's immutable files, and of its other needed files."""
    immutable: list[str] = []
    other: list[str] = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".sst"):
            immutable.append(name)
        elif name not in _PASSING and not name.startswith("LOG.") and not name.endswith(".log"):
            other.append(name)
    return immutable, other


def _write_batch(database: Rdict, entries: list[Entry]) -> None:
    options = _write_options(no_slowdown=True)
    while True:
        batch = WriteBatch(raw_mode=True)
        if None in map(itemgetter(1), entries):
            for key, value in entries:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
        else:
            # Exhausts the calls without running Python for each.
            deque(itertools.starmap(batch.put, entries), maxlen=0)
        try:
            database.write(batch, options)
        except Exception as error:
            # rocksdict has one exception for everything.
            if "incomplete" not in str(error).lower():
                raise
            time.sleep(_STALL_PAUSE_S)
        else:
            return


def _write_options(*, no_slowdown: bool) -> WriteOptions:
    options = WriteOptions()
    # A property, whatever rocksdict's type stubs say.
    options.disable_wal = True  # type: ignore[assignment,method-assign]
    options.no_slowdown = no_slowdown
    return options


def _options(sizes: RocksSizes) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(sizes.write_buffer_bytes)
    options.set_max_write_buffer_number(4)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_SORTED_RUNS_MAX)
    options.set_level_zero_slowdown_writes_trigger(_SORTED_RUNS_SLOW)
    options.set_level_zero_stop_writes_trigger(_SORTED_RUNS_STOP)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_max_manifest_file_size(_MANIFEST_BYTES_MAX)
    options.set_stats_dump_period_sec(0)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(sizes.block_cache_bytes))
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    options.set_block_based_table_factory(blocks)
    return options
