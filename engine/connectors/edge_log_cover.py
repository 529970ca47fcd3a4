"""Checkpoints of a region that reads a log ahead of its entries wait until entries cover them.

A reader with `read="at_once"` takes records whose checkpoint is not complete. What it makes of them
must not be committed before, since a failure of the writing region takes them back. So the reader's
state is handed out when entries name everything that it has read. Every complete checkpoint of the
reading region then fits the log, whichever attempt of the writing region follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.recovery.edge_log import Cursor, Place, WentBack
from headrace.recovery.edge_log_files import EdgeLogFiles

from ..contract.errors import HeadraceError

#: Waits for a while; raises when nobody needs the answer any more.
Pause = Callable[[], None]


class NotNeeded(Exception):
    """The reader was closed."""


def await_cover(
    files: EdgeLogFiles,
    place: Place,
    ends: Mapping[int, int],
    is_mine: Callable[[int], bool],
    pause: Pause,
) -> None:
    """Return when entries name all records up to a place.

    Args:
        ends: of the lanes, as of the entries before the place.

    Raises: HeadraceError, when a restart of the writing region takes some of them back; StoreError;
    whatever `pause` raises.
    """
    cursor = Cursor(is_mine, place, ends)
    while not cursor.is_covered:
        seen = cursor.next_entry
        take_all(files, cursor)
        if cursor.next_entry == seen:
            pause()


def take_all(files: EdgeLogFiles, cursor: Cursor) -> None:
    """Let a cursor take all entries that there are. Raises: HeadraceError, StoreError."""
    try:
        while (entry := files.entry(cursor.next_entry)) is not None:
            cursor.take(entry)
        if not cursor.is_covered:
            _check_begun_anew(files, cursor)
    except WentBack as reason:
        raise HeadraceError(
            f"log {files.log!r} was cut below what this region has read ({reason}):"
            " the region that writes it went back, so this one goes back, too"
        ) from reason


def _check_begun_anew(files: EdgeLogFiles, cursor: Cursor) -> None:
    """A log that begins anew loses the entries before its beginning, which a cursor may wait for.

    Raises: WentBack.
    """
    numbers = files.numbers()
    if numbers and cursor.next_entry < numbers[0]:
        place = cursor.place
        lane = max(place.positions, key=lambda lane: place.positions[lane])
        raise WentBack(lane, place.positions[lane], 0)
