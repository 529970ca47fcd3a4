"""Joined writes behave as one dictionary of all would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.state.rocks import recent as rocks_recent
from headrace.engine.state.rocks.recent import Recent

LAYERS = st.lists(st.dictionaries(st.integers(0, 9), st.none() | st.integers(0, 3), max_size=7))


@given(LAYERS, st.integers(1, 6))
def test_it_has_the_latest_write_of_each_key(
    layers: list[dict[int, int | None]], piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks_recent, "_PIECE_ENTRIES_MAX", piece)
        recent, model, entries = Recent(), dict[int, int | None](), 0
        for number, writes in enumerate(layers):
            recent.add(number, writes)
            model.update(writes)
            entries += len(writes)
            assert recent.last == number
        assert recent == model
        assert len(recent) == len(model)
        assert bool(recent) == bool(model)
        assert len(model) <= recent.entries <= entries
        for key in range(10):
            assert (key in recent) == (key in model)
            assert recent.get(key, "none") == model.get(key, "none")


def test_pieces_stay_small_and_what_was_added_is_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rocks_recent, "_PIECE_ENTRIES_MAX", 3)
    recent = Recent()
    layers = [{1: 1, 2: 2}, {3: 3}, {4: 4}, {n: n for n in range(9)}, {5: 5}]
    for number, writes in enumerate(layers):
        recent.add(number, writes)
    assert [dict(piece) for piece in recent.pieces] == [
        *({5: 5}, {n: n for n in range(9)}),
        *({4: 4}, {1: 1, 2: 2, 3: 3}),
    ]
    assert recent.pieces[1] is layers[3], "a large one is not copied"
    assert layers == [{1: 1, 2: 2}, {3: 3}, {4: 4}, {n: n for n in range(9)}, {5: 5}]
    with pytest.raises(KeyError):
        recent[9]
