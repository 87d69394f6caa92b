"""The cache of hint tables."""

from __future__ import annotations

import pytest

from headrace.journal import hint_tables
from headrace.journal.hint_tables import HintTableCache


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_tables, "REMEMBERED_BYTES", 100)


def held(recent: HintTableCache[str], *positions: int) -> list[str | None]:
    return [recent._held[each][0] if each in recent._held else None for each in positions]


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    recent: HintTableCache[str] = HintTableCache()
    for position in (1, 2, 3):
        recent.put(position, f"table {position}", 40)
    assert held(recent, 1, 2, 3) == [None, "table 2", "table 3"]
    assert recent.get(2) == "table 2"
    recent.put(4, "table 4", 40)
    assert held(recent, 2, 3, 4) == ["table 2", None, "table 4"]
    assert recent.get(3) is None


def test_the_last_is_remembered_however_large() -> None:
    """Otherwise nobody would share the table of the widest transaction."""
    recent: HintTableCache[str] = HintTableCache()
    recent.put(1, "small", 10)
    recent.put(2, "huge", 1000)
    assert held(recent, 1, 2) == [None, "huge"]
    recent.put(3, "small", 10)
    assert held(recent, 2, 3) == [None, "small"]


def test_what_is_put_again_counts_once() -> None:
    recent: HintTableCache[str] = HintTableCache()
    for _ in range(10):
        recent.put(1, "one", 50)
    recent.put(2, "two", 50)
    assert held(recent, 1, 2) == ["one", "two"]
    recent.put(1, "larger", 60)
    assert held(recent, 1, 2) == ["larger", None]
