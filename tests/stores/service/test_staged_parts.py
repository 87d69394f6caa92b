"""Parts of a checkpoint: any process stages them, one applies them all, and no leftover stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import (
    DocumentError,
    FencedError,
    NotFoundError,
    UsageError,
)
from headrace.stores.checkpoint_record import StoreCheckpoint
from tests.stores.service.row_store import contents, open_rows, some_rows
from tests.stores.service.row_store import staged_files as files

FIRST = StoreCheckpoint("a/task", "g1", 1)
SECOND = StoreCheckpoint("a/task", "g1", 2)


@pytest.fixture(params=["owner", "client"], autouse=True)
def is_client(request: pytest.FixtureRequest, place: Path) -> bool:
    if request.param == "client":
        request.getfixturevalue("owner")
    return bool(request.param == "client")


def test_parts_are_seen_together_when_they_are_applied(place: Path) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        parts = [store.stage([some_rows("a"), some_rows("b")], FIRST)]
        parts.append(store.stage(iter([some_rows("c", value=3)]), FIRST))
        parts.append(store.stage([], FIRST))
        assert contents(store) == {}
        assert len(files(place)) == 3
        assert store.apply_parts(parts, FIRST)
        assert contents(store) == {"a": 1, "b": 1, "c": 3}
        assert files(place) == []
        assert not store.apply_parts(parts, FIRST)
        assert store.apply_parts([store.stage([some_rows("a", value=2)], SECOND)], SECOND)
        assert contents(store) == {"a": 2, "b": 1, "c": 3}


def test_rows_take_the_types_of_the_store(place: Path) -> None:
    given = pa.RecordBatch.from_pydict(
        {"value": pa.array([4], pa.int32()), "key": pa.array(["a"], pa.large_string())}
    )
    with open_rows(place) as store:
        store.take("a/task", "g1")
        assert store.apply_parts([store.stage([given], FIRST)], FIRST)
        assert contents(store) == {"a": 4}


def test_parts_may_have_different_columns(place: Path) -> None:
    extra = pa.RecordBatch.from_pydict({"key": ["b"], "value": [2], "colour": ["red"]})
    with open_rows(place) as store:
        store.take("a/task", "g1")
        parts = [store.stage([each], FIRST) for each in (some_rows("a"), extra)]
        assert store.apply_parts(parts, FIRST)
        assert contents(store) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "columns",
    [{"key": ["a"], "value": ["many"]}, {"key": ["a"], "value": [1], "colour": ["red"]}],
    ids=["a text for a number", "other columns than before"],
)
def test_rows_that_do_not_fit_leave_no_part(place: Path, columns: dict[str, list[object]]) -> None:
    given = pa.RecordBatch.from_pydict(columns)
    with open_rows(place) as store:
        store.take("a/task", "g1")
        with pytest.raises(DocumentError, match="do not fit"):
            store.stage([some_rows("b"), given], FIRST)
        assert files(place) == []


def test_a_source_that_fails_leaves_no_part(place: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield some_rows("a")
        raise ValueError("no more")

    with open_rows(place) as store:
        store.take("a/task", "g1")
        with pytest.raises(ValueError, match="no more"):
            store.stage(failing(), FIRST)
        assert files(place) == []


def test_parts_of_attempts_that_lost_go_with_the_checkpoint(place: Path) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        store.stage([some_rows("lost")], FIRST)
        store.stage([some_rows("of another task")], StoreCheckpoint("other", "g1", 1))
        won = store.stage([some_rows("a")], FIRST)
        assert store.apply_parts([won], FIRST)
        assert len(files(place)) == 1
        assert contents(store) == {"a": 1}


def test_parts_of_earlier_checkpoints_go_with_the_next_one(place: Path) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        assert store.apply_parts([store.stage([some_rows("a")], FIRST)], FIRST)
        store.stage([some_rows("late")], FIRST)
        assert store.apply_parts([store.stage([some_rows("b")], SECOND)], SECOND)
        assert files(place) == []
        assert contents(store) == {"a": 1, "b": 1}


def test_a_run_that_begins_removes_what_earlier_runs_staged(place: Path) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows("a")], FIRST)
        store.take("a/task", "g1")
        assert files(place) == []
        with pytest.raises(NotFoundError, match=r"part \w+ of checkpoint 1 .* is not staged"):
            store.apply_parts([part], FIRST)


def test_a_checkpoint_that_comes_again_late_removes_nothing(place: Path) -> None:
    """A driver that was paused may repeat a batch long after another one went on."""
    with open_rows(place) as store:
        store.take("a/task", "g1")
        assert store.apply_parts([], FIRST)
        assert store.apply_parts([store.stage([some_rows("a")], SECOND)], SECOND)
        third = StoreCheckpoint("a/task", "g1", 3)
        part = store.stage([some_rows("b")], third)
        assert not store.apply_parts([], FIRST)
        assert store.apply_parts([part], third)
        assert contents(store) == {"a": 1, "b": 1}


def test_a_generation_that_was_replaced_applies_nothing(place: Path) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        assert store.apply_parts([store.stage([some_rows("a")], FIRST)], FIRST)
        store.take("a/task", "g2")
        part = store.stage([some_rows("b")], SECOND)
        with pytest.raises(FencedError, match="replaced by g2"):
            store.apply_parts([part], SECOND)
        assert contents(store) == {"a": 1}


@pytest.mark.parametrize(
    "other", [SECOND, StoreCheckpoint("a/task", "g0", 1), StoreCheckpoint("other", "g1", 1)]
)
def test_a_part_belongs_to_one_checkpoint(place: Path, other: StoreCheckpoint) -> None:
    with open_rows(place) as store:
        store.take("other", "g1")
        store.take("a/task", "g1")
        part = store.stage([some_rows("a")], other)
        with pytest.raises(NotFoundError, match="is not staged"):
            store.apply_parts([part], FIRST)
        assert contents(store) == {}


@pytest.mark.parametrize("part", ["../../data/data.mdb", "", "x" * 48])
def test_what_is_no_part_is_refused(place: Path, part: str) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        with pytest.raises(UsageError, match="is no part"):
            store.apply_parts([part], FIRST)


def test_a_part_that_is_named_twice_is_refused(place: Path) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows("a")], FIRST)
        with pytest.raises(UsageError, match="is named twice"):
            store.apply_parts([part, part], FIRST)


def test_a_marker_does_not_replace_a_checkpoint(place: Path, is_client: bool) -> None:
    """A restored backup may have the marker and not the checkpoint."""
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows("a")], FIRST)
        [path] = (place / "staged").rglob("*.arrow")
        (path.parent / "applied").touch()
        assert store.apply_parts([part], FIRST)
        assert contents(store) == {"a": 1}
