"""Records of channels that complete checkpoints hold already, by position.

A buffer that a complete checkpoint persisted, and still lies in the channel at the next checkpoint,
is named again instead of written again. A given-up checkpoint counts until a newer checkpoint is
complete (`stored.py`). Records have positions, so no matter how buffers were merged or split in
between, and on which side of the channel.

Source: FLIP-76 names incremental in-flight state as future work; this is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.channels.buffer import Buffer, ChannelId

from .handle import BufferHandle, ChannelStateHandle


@dataclass(frozen=True, slots=True)
class _Run:
    """Records `[first, first + handle.rows)` of a channel."""

    first: int
    handle: BufferHandle

    @property
    def end(self) -> int:
        return self.first + self.handle.rows


class Confirmed:
    """An immutable index of the in-flight data that one worker stored or named."""

    def __init__(self, handles: Iterable[ChannelStateHandle] = ()) -> None:
        #: {channel: runs by position}; where they overlap, any of them will do
        self._runs: dict[ChannelId, list[_Run]] = {}
        for handle in handles:
            if handle.side == "replay":
                continue  # of a channel of an earlier attempt, whose positions mean nothing now
            runs = self._runs.setdefault(
                ChannelId(handle.edge, handle.producer, handle.consumer), []
            )
            position = handle.first
            for buffer in handle.buffers:
                runs.append(_Run(position, buffer))
                position += buffer.rows
        for runs in self._runs.values():
            runs.sort(key=lambda run: run.first)

    def split(
        self, channel: ChannelId, buffers: Sequence[Buffer]
    ) -> Iterator[BufferHandle | list[Buffer]]:
        """Cut buffers into stored records (a handle) and runs of buffers to write, in order."""
        fresh: list[Buffer] = []
        runs = self._runs.get(channel, [])
        passed = 0
        for buffer in buffers:
            while passed < len(runs) and runs[passed].end <= buffer.first:
                passed += 1
            for piece in _cover(buffer, islice(runs, passed, None)):
                if isinstance(piece, Buffer):
                    fresh.append(piece)
                    continue
                if fresh:
                    yield fresh
                    fresh = []
                yield piece
        if fresh:
            yield fresh


def _cover(buffer: Buffer, runs: Iterable[_Run]) -> Iterator[BufferHandle | Buffer]:
    """Cut one buffer at the bounds of the stored runs."""
    rest: Buffer | None = buffer
    for run in runs:
        if rest is None or run.first >= rest.end:
            break
        if run.end <= rest.first:
            continue
        if run.first > rest.first:
            ahead, rest = rest.split(run.first - rest.first)
            yield ahead
        covered = min(run.end, rest.end) - rest.first
        yield _within(run, rest.first, covered)
        rest = rest.split(covered)[1] if covered < rest.rows else None
    if rest is not None:
        yield rest


def _within(run: _Run, first: int, rows: int) -> BufferHandle:
    handle = run.handle
    return BufferHandle(
        path=handle.path,
        offset=handle.offset,
        length=handle.length,
        checksum=handle.checksum,
        blob_rows=handle.blob_rows,
        start=handle.start + first - run.first,
        rows=rows,
        inflated=handle.inflated,
    )
