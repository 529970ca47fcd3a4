"""The events of Nexmark, an online auction: persons, auctions and bids as 1 : 3 : 46.

Every column is a function of the event's number alone, so any split makes its own range, and a
program in another language makes the same events. Of 50 numbers in a row the first is a person, the
next three are auctions, the others bids. Event time grows by a millisecond every ten numbers.

Half of the bids are for a hot auction, the newest whose id is a multiple of a hundred, the others
for one of the newest hundred auctions; three of four bids are by a hot person, three of four
auctions of a hot seller. An auction is open for up to 333 ms, while about 200 others begin.

Strings come from pools, as codes. NumPy only: programs of other engines load this file by its path.

Source: the Nexmark benchmark as Apache Beam and Flink describe it (proportions, hot items, names of
columns). Deviations: prices are `m * 10^e` with m of 100 to 999 and e of 0 to 5, and strings are
from pools, so that integers alone decide; no bid is for an auction that does not exist yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

#: Of each `EVENTS` numbers so many are persons, auctions and bids.
PERSONS, AUCTIONS, BIDS = 1, 3, 46
EVENTS: Final = PERSONS + AUCTIONS + BIDS
#: Event time of number 0, in milliseconds since 1970; a whole number of windows.
BEGIN_MS: Final = 1_700_000_000_000
EVENTS_PER_MS: Final = 10
FIRST_ID: Final = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
#: Ids of hot auctions and persons are multiples of this.
HOT: Final = 100
ACTIVE_PERSONS, OPEN_AUCTIONS = 1000, 100
LONGEST_MS: Final = 333

STATES: Final = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES: Final = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
CHANNELS: Final = ["Google", "Facebook", "Baidu", "Apple"]
NAMES: Final = [
    f"{first} {last}"
    for first in ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie")
    for last in ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones")
]
POOL: Final = 1024

Numbers = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of strings: `values` at `codes`."""

    values: list[str]
    codes: Numbers


Column = Numbers | Coded


def mixed(numbers: npt.ArrayLike, salt: int) -> _Hashes:
    """A hash of each number. Source: the finaliser of SplitMix64."""
    h = np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


def pool(length: int, salt: int) -> list[str]:
    """So many strings of `length` letters."""
    letters = mixed(np.arange(POOL * length), salt) % np.uint64(26) + np.uint64(97)
    text = letters.astype(np.uint8).tobytes().decode()
    return [text[at : at + length] for at in range(0, len(text), length)]


EMAILS, CARDS, ITEMS = pool(12, 11), pool(16, 12), pool(20, 13)
DESCRIPTIONS, EXTRAS, URLS = pool(100, 14), pool(40, 15), pool(30, 16)


def persons(numbers: Numbers, seed: int) -> dict[str, Column]:
    """Columns of the persons among the numbers, in their order."""
    numbers = numbers[numbers % EVENTS < PERSONS]
    h = mixed(numbers, seed)
    return {
        "id": FIRST_ID + numbers // EVENTS,
        "name": Coded(NAMES, _bits(h, 0, len(NAMES))),
        "email": Coded(EMAILS, _bits(h, 8, POOL)),
        "credit_card": Coded(CARDS, _bits(h, 12, POOL)),
        "city": Coded(CITIES, _bits(h, 16, len(CITIES))),
        "state": Coded(STATES, _bits(h, 32, len(STATES))),
        "date_time": times_ms(numbers),
        "extra": Coded(EXTRAS, _bits(h, 44, POOL)),
    }


def auctions(numbers: Numbers, seed: int) -> dict[str, Column]:
    """Columns of the auctions among the numbers, in their order."""
    place = numbers % EVENTS
    numbers = numbers[(place >= PERSONS) & (place < PERSONS + AUCTIONS)]
    h, other = mixed(numbers, seed), mixed(numbers, seed + 1)
    newest = numbers // EVENTS
    old = newest - _among(h >> np.uint64(8), np.minimum(newest + 1, ACTIVE_PERSONS))
    seller = np.where((h & np.uint64(3)) != 0, newest // HOT * HOT, old)
    date_time = times_ms(numbers)
    initial = _prices(other)
    return {
        "id": FIRST_ID + newest * AUCTIONS + numbers % EVENTS - PERSONS,
        "item_name": Coded(ITEMS, _bits(other, 36, POOL)),
        "description": Coded(DESCRIPTIONS, _bits(other, 40, POOL)),
        "initial_bid": initial,
        "reserve": initial + initial // 2,
        "date_time": date_time,
        "expires": date_time + 1 + _bits(h, 28, LONGEST_MS),
        "seller": FIRST_ID + seller,
        "category": FIRST_CATEGORY + _bits(h, 48, CATEGORIES),
        "extra": Coded(EXTRAS, _bits(other, 44, POOL)),
    }


def bids(numbers: Numbers, seed: int) -> dict[str, Column]:
    """Columns of the bids among the numbers, in their order."""
    numbers = numbers[numbers % EVENTS >= PERSONS + AUCTIONS]
    h, other = mixed(numbers, seed), mixed(numbers, seed + 1)
    person = numbers // EVENTS
    auction = person * AUCTIONS + AUCTIONS - 1
    old = auction - _among(h >> np.uint64(8), np.minimum(auction + 1, OPEN_AUCTIONS))
    other_person = person - _among(h >> np.uint64(28), np.minimum(person + 1, ACTIVE_PERSONS))
    hot_person = np.minimum(person // HOT * HOT + 1, person)
    return {
        "auction": FIRST_ID + np.where((h & np.uint64(1)) != 0, auction // HOT * HOT, old),
        "bidder": FIRST_ID + np.where((h & np.uint64(6)) != 0, hot_person, other_person),
        "price": _prices(other),
        "channel": Coded(CHANNELS, _bits(other, 36, len(CHANNELS))),
        "url": Coded(URLS, _bits(other, 40, POOL)),
        "date_time": times_ms(numbers),
        "extra": Coded(EXTRAS, _bits(other, 44, POOL)),
    }


def times_ms(numbers: Numbers) -> Numbers:
    """Event times."""
    times: Numbers = BEGIN_MS + numbers // EVENTS_PER_MS
    return times


def _bits(h: _Hashes, shift: int, count: int) -> Numbers:
    """Numbers below `count`, from the 16 bits of a hash above `shift`."""
    return ((h >> np.uint64(shift) & np.uint64(0xFFFF)) % np.uint64(count)).astype(np.int64)


def _among(h: _Hashes, counts: Numbers) -> Numbers:
    """Numbers below each count, from the lowest 20 bits of a hash."""
    return ((h & np.uint64(0xFFFFF)).astype(np.int64)) % counts


def _prices(h: _Hashes) -> Numbers:
    powers = 10 ** np.arange(6, dtype=np.int64)
    return (100 + _bits(h, 0, 900)) * powers[_bits(h, 16, 6)]
