"""Which files a place holds. Groups of three, so that a few checkpoints make several."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DataError, ExistsError, NotFoundError, SchemaError, VersionError
from headrace.spark.sinks import manifests
from headrace.spark.sinks.manifests import Manifests, Written, data_key, found, owned
from headrace.storage import Objects, open_objects

COLUMNS = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "GROUP", 3)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "place"))


def opened(objects: Objects, task: str = "bank/totals", generation: str = "g1") -> Manifests:
    return owned(objects, "place", task, generation)


def write(objects: Objects, to: Manifests, number: int) -> Written:
    key = data_key(to.data_prefix(number))
    objects.put(key, b"rows")
    return Written(key, 1, 4)


def commit(objects: Objects, to: Manifests, number: int) -> Written:
    written = write(objects, to, number)
    to.commit(number, [written], COLUMNS)
    to.close_group(number)
    return written


def names(objects: Objects, prefix: str) -> set[str]:
    return {each.key for each in objects.list(prefix)}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 9])
def test_every_committed_checkpoint_is_found(objects: Objects, count: int) -> None:
    writer = opened(objects)
    written = [commit(objects, writer, number) for number in range(1, count + 1)]
    assert opened(objects).last() == writer.last() == count
    read = list(found(objects, "place").all())
    assert [each.number for each in read] == list(range(1, count + 1))
    assert [each for one in read for each in one.files] == written
    assert len(names(objects, "groups")) == count // 3


def test_a_group_that_was_not_put_together_is_found_too(objects: Objects) -> None:
    writer = opened(objects)
    written = [commit(objects, writer, number) for number in range(1, 8)]
    for key in names(objects, "groups"):
        objects.delete(key)
    assert opened(objects).last() == 7
    assert [each for one in found(objects, "place").all() for each in one.files] == written


def test_the_first_to_commit_a_number_wins(objects: Objects) -> None:
    """# proves G14"""
    first, second = opened(objects), opened(objects)
    files = [write(objects, each, 1) for each in (first, second)]
    assert first.commit(1, files[:1], COLUMNS).files == (files[0],)
    assert second.commit(1, files[1:], COLUMNS).files == (files[0],)


def test_only_files_of_checkpoints_that_are_decided_are_swept(objects: Objects) -> None:
    writer = opened(objects)
    kept = {commit(objects, writer, number).key for number in range(1, 6)}
    lost = {write(objects, writer, number).key for number in (1, 2, 4, 5)}
    undecided = write(objects, writer, 6).key
    objects.put("data/mine.txt", b"")
    opened(objects).sweep(5)
    assert names(objects, "data") == kept | {undecided, "data/mine.txt"}
    assert lost.isdisjoint(names(objects, "data"))


def test_a_group_is_swept_when_it_is_complete(objects: Objects) -> None:
    writer = opened(objects)
    lost = write(objects, writer, 1).key
    kept = {commit(objects, writer, number).key for number in (1, 2)}
    assert lost in names(objects, "data")
    kept.add(commit(objects, writer, 3).key)
    assert names(objects, "data") == kept


def test_a_column_keeps_its_type_and_spelling(objects: Objects) -> None:
    writer = opened(objects)
    commit(objects, writer, 1)
    with pytest.raises(SchemaError, match=r"'id' is string in checkpoint 2 .* and int64 in place"):
        writer.commit(2, [], pa.schema([("id", pa.string())]))
    with pytest.raises(SchemaError, match="'ID' is 'id' in place; rename it"):
        writer.commit(2, [], pa.schema([("ID", pa.int64())]))
    added = pa.schema([("name", pa.string()), ("id", pa.int64())])
    assert writer.commit(2, [], added).columns.names == ["id", "name"]
    assert writer.commit(3, [], COLUMNS).columns.names == ["id", "name"]


def test_a_place_is_of_one_generation_of_one_task(objects: Objects) -> None:
    opened(objects)
    opened(objects)
    with pytest.raises(ExistsError, match="task 'bank/totals' writes to place; give task 'other'"):
        opened(objects, task="other")
    with pytest.raises(ExistsError, match=r"which would write it again; .* delete this one"):
        opened(objects, generation="g2")


def test_a_manifest_that_is_missing_or_damaged_is_named(objects: Objects) -> None:
    with pytest.raises(NotFoundError, match="no task has written to place"):
        found(objects, "place")
    writer = opened(objects)
    for number in (1, 2):
        commit(objects, writer, number)
    first, second = sorted(names(objects, "manifests"))
    data = objects.get(first)
    objects.put(first, objects.get(second))
    with pytest.raises(DataError, match=r"1.json in place is of checkpoint 2"):
        list(found(objects, "place").all())
    objects.put(first, data[:-5])
    with pytest.raises(DataError, match=r"1.json in place is damaged"):
        list(found(objects, "place").all())
    objects.put(first, data.replace(b'"format":1', b'"format":2'))
    with pytest.raises(VersionError, match=r"1.json in place has format 2"):
        list(found(objects, "place").all())
    objects.delete(first)
    with pytest.raises(DataError, match=r"1.json in place is missing"):
        list(found(objects, "place").all())
