"""Keyed state that users declare: a value, a list or a map per key, of Arrow types.

A user declares a state as a class attribute. An opening operator binds the state to its processor;
from then on the attribute is the state of the current record's key. Behind the state are the
committed values, a table of the operator's backend, and a dictionary of the running work's writes.
Reads look at the writes first; `commit` merges the writes, at the cost of the touched keys.
Committed lists and maps never change: the first write of a piece of work copies the list or map. So
a key with a list of millions is slow: use a map, or several keys.

State with a time to live (`ttl`) has a second state beside it: the event time of each key's last
write. Values older than `ttl` read as never set, even while stored; `sweep` removes some keys at a
time.

Not here: setting the key and the time (`engine.operators.process`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK

from ..contract.errors import UserError
from ..contract.units import Duration, duration_ns
from .backend import ABSENT, ValueTable
from .types import Cell, Key, StateTypeError, check, copier

_ROUNDS_PER_TTL = 4
_TTL_MAX_NS = 1 << 60


@dataclass(slots=True)
class CurrentKey:
    """The current record's key; shared by all states of an operator instance.

    Attributes:
        now_ns: event time for states that expire, in nanoseconds since 1970.
        clock_ns: processing time at the beginning of the call, likewise.
    """

    key: Key = None
    now_ns: int = MIN_WATERMARK
    clock_ns: int = 0


class _Outside:
    """The current key outside a job: there is none, and nobody shares state through it."""

    @property
    def key(self) -> Key:
        raise self._refusal()

    @property
    def now_ns(self) -> int:
        raise self._refusal()

    @property
    def clock_ns(self) -> int:
        raise self._refusal()

    def _refusal(self) -> UserError:
        return UserError(
            "a processor called outside a job has no key, so neither state nor timers; to try it,"
            " call hr.testing.Harness(YourProcessor).process(key, row)"
        )


#: Of states and timers that no operator has bound.
OUTSIDE: Final = cast(CurrentKey, _Outside())


class _Unbound:
    """The empty table of a state before an operator opens."""

    def get(self, key: Key, default: Cell, /) -> Cell:
        return default

    def merge(self, written: dict[Key, Cell]) -> None:
        raise AssertionError("no operator has opened this state")

    def load(self, items: Iterable[tuple[Key, Cell]]) -> None:
        raise AssertionError("no operator has opened this state")

    def some(self, count: int) -> tuple[list[tuple[Key, Cell]], bool]:
        return [], True


class KeyedState(ABC):
    """Common part of the three kinds of state.

    A declared state is a template; `bind` makes the state with data.

    Attributes:
        type: Arrow type of one key's state in a checkpoint.
        default: state of a key that was never set; also fills fields added to its struct since a
            checkpoint.
        ttl_ns: a key's state expires so long after its last write, in event time; None: never.
    """

    default: Any = None

    def __init__(self, type_: pa.DataType, ttl: Duration | None = None) -> None:
        self.type = type_
        self.ttl_ns = None if ttl is None else checked_ttl_ns(ttl)
        #: When each key was last written, if that matters.
        self._stamps: KeyedState | None = None
        #: Event time at the beginning of the present or last round of sweeps; and whether the round
        #: is over.
        self._swept_ns = MIN_WATERMARK
        self._round_over = True
        self._name = "state"
        self._current = OUTSIDE
        self._committed: ValueTable = _Unbound()
        #: Writes of the running work; `ABSENT` where a key's state was cleared.
        self._written: dict[Key, Any] = {}

    def bind(self, name: str, current: CurrentKey, committed: ValueTable) -> Self:
        """Make an operator instance's state over its table of committed values."""
        bound = copy.copy(self)
        bound._name = name
        bound._current = current
        bound._committed = committed
        bound._written = {}
        bound._bound(f"state {name!r}")
        return bound

    def expires_by(self, stamps: KeyedState) -> None:
        """Keep the times of each key's last write in `stamps`, a bound state."""
        self._stamps = stamps

    def sweep(self, now_ns: int, count_max: int) -> None:
        """Forget expired state among the next `count_max` keys. Before or after user code runs.

        Rounds begin as far apart as makes sense.
        """
        stamps, ttl_ns = self._stamps, self.ttl_ns
        if stamps is None or ttl_ns is None:
            return
        if self._round_over:
            if now_ns < self._swept_ns + ttl_ns // _ROUNDS_PER_TTL:
                return
            self._swept_ns = now_ns
        some, self._round_over = stamps._committed.some(count_max)
        for key, stamp in some:
            written_ns: Any = stamp
            if written_ns + ttl_ns <= now_ns and key not in stamps._written:
                self._written[key] = stamps._written[key] = ABSENT

    @abstractmethod
    def _bound(self, what: str) -> None:
        """Make the checks; `what` names the state in errors."""

    @abstractmethod
    def from_arrow(self, value: Any) -> Any:
        """Turn a cell of `to_pylist` for `type` into the stored form."""

    def clear(self) -> None:
        """Forget this key's state; its row leaves the checkpoints."""
        self._write(ABSENT)

    def commit(self) -> None:
        """Merge the ended work's writes. Owner thread."""
        if self._written:
            self._committed.merge(self._written)
            self._written = {}

    def load(self, keys: Iterable[Key], values: Iterable[Any]) -> None:
        """Take restored state, as committed state."""
        self._committed.load(zip(keys, map(self.from_arrow, values), strict=True))

    def _read(self) -> Any:
        """This key's state, which must not be changed in place; `ABSENT` if there is none."""
        key, written = self._current.key, self._written
        if self._stamps is not None and self._is_expired():
            return ABSENT
        return written[key] if key in written else self._committed.get(key, ABSENT)

    def _write(self, value: Any) -> None:
        """Set this key's state, or remove it (`ABSENT`)."""
        if self._stamps is not None:
            self._touch(cleared=value is ABSENT)
        self._written[self._current.key] = value

    def _own(self, make: type[list[Any] | dict[Any, Any]]) -> Any:
        """Return this key's list or map among the writes; at the first write `make` copies it."""
        key = self._current.key
        expired = self._stamps is not None and self._is_expired()
        self._touch()
        own: Any = ABSENT if expired else self._written.get(key)
        if own is None:
            held: Any = self._committed.get(key, ())
            own = self._written[key] = make(held)
        elif own is ABSENT:
            own = self._written[key] = make()
        return own

    def _touch(self, *, cleared: bool = False) -> None:
        """Note when this key was written."""
        stamps = self._stamps
        if stamps is None:
            return
        now_ns = self._current.now_ns
        before: Any = ABSENT if self._is_expired() else stamps._read()
        # A late record does not make state older.
        written_ns = now_ns if before is ABSENT else max(before, now_ns)
        stamps._written[self._current.key] = ABSENT if cleared else written_ns

    def _is_expired(self) -> bool:
        assert self._stamps is not None, "it does not expire"
        assert self.ttl_ns is not None, "it does not expire"
        written_ns = self._stamps._read()
        return written_ns is not ABSENT and bool(written_ns + self.ttl_ns <= self._current.now_ns)


class ValueState(KeyedState):
    """A value per key."""

    def __init__(self, type_: pa.DataType, default: Any, ttl: Duration | None = None) -> None:
        super().__init__(type_, ttl)
        self._copy = copier(type_)
        self._is_mutable = pa.types.is_nested(type_)
        self._check = check(type_, "a value state")
        try:
            self.default = self._check(default)
        except StateTypeError as error:
            raise UserError(f"value_state: the default does not have the type: {error}") from error

    @property
    def value(self) -> Any:
        """The value, or the default if none was set.

        Changing a list or dict in place has no effect: set it again.
        """
        # `_read` in place: users' functions read and write a value with each record.
        if self._stamps is None:
            key, written = self._current.key, self._written
            found = written[key] if key in written else self._committed.get(key, ABSENT)
        else:
            found = self._read()
        if found is ABSENT:
            found = self.default
        return self._copy(found) if self._is_mutable else found

    @value.setter
    def value(self, value: Any) -> None:
        value = self._check(value)
        if self._stamps is not None:
            self._touch()
        self._written[self._current.key] = value

    @property
    def exists(self) -> bool:
        """Whether a value was set (None is a value) and not cleared."""
        return self._read() is not ABSENT

    def _bound(self, what: str) -> None:
        self._check = check(self.type, what)

    def from_arrow(self, value: Any) -> Any:
        return value


class ListState(KeyedState, MutableSequence[Any]):
    """A list per key; empty until the first append.

    Reads and changes elements as a list does; without its last element it is as if never set.
    """

    def __init__(self, element_type: pa.DataType, ttl: Duration | None = None) -> None:
        super().__init__(pa.list_(element_type), ttl)
        self._element_type = element_type
        self._copy = copier(element_type)
        self._check = check(element_type, "a list state")

    def append(self, element: Any) -> None:
        """Append an element."""
        element = self._check(element)
        self._writable().append(element)

    def extend(self, elements: Iterable[Any]) -> None:
        """Append elements; all or none: an element of a wrong type refuses the call."""
        checked = [self._check(element) for element in elements]
        self._writable().extend(checked)

    def insert(self, index: int, element: Any) -> None:
        """Insert an element before `index`."""
        element = self._check(element)
        self._writable().insert(index, element)

    def remove(self, element: Any) -> None:
        """Remove the first element equal to this one. Raises: ValueError without any."""
        if element not in self._elements():
            raise ValueError(f"state {self._name!r} holds no {element!r}")
        mine = self._writable()
        mine.remove(element)
        self._cleared(mine)

    def clear(self) -> None:
        """Forget this key's list; its row leaves the checkpoints."""
        KeyedState.clear(self)

    def replace(self, elements: Iterable[Any]) -> None:
        """Set the whole list."""
        checked = [self._check(element) for element in elements]
        self._write(checked if checked else ABSENT)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the present elements; the list may be changed meanwhile."""
        return iter([self._copy(element) for element in self._elements()])

    def __len__(self) -> int:
        return len(self._elements())

    def __contains__(self, element: object) -> bool:
        return element in self._elements()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._copy(element) for element in self._elements()[index]]
        return self._copy(self._at(index))

    def __setitem__(self, index: Any, element: Any) -> None:
        if isinstance(index, slice):
            checked = [self._check(each) for each in element]
            mine = self._writable()
            mine[index] = checked
            self._cleared(mine)
            return
        self._at(index)
        checked = self._check(element)
        self._writable()[index] = checked

    def __delitem__(self, index: int | slice) -> None:
        if not isinstance(index, slice):
            self._at(index)
        mine = self._writable()
        del mine[index]
        self._cleared(mine)

    def _at(self, index: int) -> Any:
        """Return an element. Raises: IndexError, before the list is touched."""
        found = self._elements()
        try:
            return found[index]
        except IndexError:
            raise IndexError(
                f"state {self._name!r} has {len(found)} elements, and none at {index}"
            ) from None

    def _elements(self) -> Sequence[Any]:
        found = self._read()
        elements: Sequence[Any] = () if found is ABSENT else found
        return elements

    def _cleared(self, mine: list[Any]) -> None:
        """Forget an empty list, as if it had never been set."""
        if not mine:
            self.clear()

    def _writable(self) -> list[Any]:
        own: list[Any] = self._own(list)
        return own

    def _bound(self, what: str) -> None:
        self._check = check(self._element_type, what)

    def from_arrow(self, value: Any) -> Any:
        return value


class MapState(KeyedState, MutableMapping[Any, Any]):
    """A dictionary per key; empty until the first item is set."""

    def __init__(
        self, key_type: pa.DataType, value_type: pa.DataType, ttl: Duration | None = None
    ) -> None:
        super().__init__(pa.map_(key_type, value_type), ttl)
        if pa.types.is_nested(key_type):
            raise UserError(
                f"map_state: {key_type} cannot be the type of keys; use one without parts"
            )
        self._key_type, self._value_type = key_type, value_type
        self._copy = copier(value_type)
        self._check_key = check(key_type, "a map state")
        self._check_value = check(value_type, "a map state")

    def __getitem__(self, key: Any) -> Any:
        return self._copy(self._entries()[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        key, value = self._check_key(key), self._check_value(value)
        if key is None:
            raise StateTypeError(f"state {self._name!r} cannot hold None as a key")
        self._writable()[key] = value

    def __delitem__(self, key: Any) -> None:
        if key not in self._entries():
            raise KeyError(key)
        mine = self._writable()
        del mine[key]
        if not mine:
            self.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._entries()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the present keys; the map may be changed meanwhile."""
        return iter(list(self._entries()))

    def __len__(self) -> int:
        return len(self._entries())

    def clear(self) -> None:
        """Forget this key's map; its row leaves the checkpoints."""
        KeyedState.clear(self)

    def _entries(self) -> dict[Any, Any]:
        found = self._read()
        entries: dict[Any, Any] = {} if found is ABSENT else found
        return entries

    def _writable(self) -> dict[Any, Any]:
        own: dict[Any, Any] = self._own(dict)
        return own

    def _bound(self, what: str) -> None:
        self._check_key = check(self._key_type, f"the keys of {what}")
        self._check_value = check(self._value_type, what)

    def from_arrow(self, value: Any) -> Any:
        return dict(value)


def value_state(
    type_: pa.DataType, *, default: Any = None, ttl: Duration | None = None
) -> ValueState:
    """Declare a value per key, as a class attribute of a `StatefulProcessor`.

    Args:
        ttl: "1h": a value expires so long after its last write, in event time (see
            `StatefulProcessor`); None: never.
    """
    return ValueState(type_, default, ttl)


def list_state(type_: pa.DataType, *, ttl: Duration | None = None) -> ListState:
    """Declare a list per key, as a class attribute of a `StatefulProcessor`.

    Args:
        type_: type of the elements.
        ttl: the whole list expires so long after its last change, in event time; None: never.
    """
    return ListState(type_, ttl)


def map_state(
    key_type: pa.DataType, value_type: pa.DataType, *, ttl: Duration | None = None
) -> MapState:
    """Declare a dictionary per key, as a class attribute of a `StatefulProcessor`.

    Args:
        ttl: the whole dictionary expires so long after its last change, in event time; None: never.
    """
    return MapState(key_type, value_type, ttl)


def checked_ttl_ns(ttl: Duration) -> int:
    """Read a time to live. Raises: UserError."""
    found = duration_ns(ttl, option="ttl")
    if not 0 < found <= _TTL_MAX_NS:
        raise UserError(f"ttl={ttl!r} is not longer than nothing and at most 36 years")
    return found
