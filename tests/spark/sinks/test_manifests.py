"""Which files a location holds. Groups of three, so that a few checkpoints make several."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DataError, ExistsError, NotFoundError, SchemaError, VersionError
from headrace.spark.sinks import manifests
from headrace.spark.sinks.manifests import Manifests, Written, data_key, found, owned, staged_key
from headrace.storage import Objects, open_objects

COLUMNS = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "GROUP", 3)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "location"))


def opened(objects: Objects, task: str = "bank/totals", generation: str = "g1") -> Manifests:
    return owned(objects, "location", task, generation)


def write(objects: Objects, to: Manifests, number: int) -> Written:
    key = data_key(number)
    objects.put(staged_key(to.staging, key), b"rows")
    return Written(key, 1, 4)


def commit(objects: Objects, to: Manifests, number: int) -> Written:
    written = write(objects, to, number)
    to.show(to.commit(number, [written], COLUMNS))
    to.close_group(number)
    return written


def visible(objects: Objects) -> set[str]:
    """What readers see that do not know Headrace."""
    return {each.key for each in objects.list() if not each.key.startswith("_")}


def staged(objects: Objects) -> set[str]:
    keys = (each.rpartition("/")[2] for each in names(objects, "_headrace/staged"))
    return {each.removesuffix(".staged") for each in keys}


def names(objects: Objects, prefix: str) -> set[str]:
    return {each.key for each in objects.list(prefix)}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 9])
def test_every_committed_checkpoint_is_found(objects: Objects, count: int) -> None:
    writer = opened(objects)
    written = [commit(objects, writer, number) for number in range(1, count + 1)]
    assert opened(objects).last() == writer.last() == count
    read = list(found(objects, "location").all())
    assert [each.number for each in read] == list(range(1, count + 1))
    assert [each for one in read for each in one.files] == written
    assert len(names(objects, "_headrace/groups")) == count // 3


def test_a_complete_group_is_one_object_to_read_and_is_not_kept(objects: Objects) -> None:
    writer = opened(objects)
    written = [commit(objects, writer, number) for number in range(1, 9)]
    assert sorted(writer._recent) == [6, 7, 8]
    groups = [f"_headrace/manifests/g1/{group:020d}" for group in (0, 1)]
    for key in [key for group in groups for key in names(objects, group)]:
        objects.delete(key)
    reader = found(objects, "location")
    assert [each for one in reader.all() for each in one.files] == written
    assert not reader._recent


def test_a_group_that_was_not_put_together_is_found_too(objects: Objects) -> None:
    writer = opened(objects)
    written = [commit(objects, writer, number) for number in range(1, 8)]
    for key in names(objects, "_headrace/groups"):
        objects.delete(key)
    assert opened(objects).last() == 7
    assert [each for one in found(objects, "location").all() for each in one.files] == written


def test_the_first_to_commit_a_number_wins(objects: Objects) -> None:
    """# proves G14"""
    first, second = opened(objects), opened(objects)
    files = [write(objects, each, 1) for each in (first, second)]
    assert first.commit(1, files[:1], COLUMNS).files == (files[0],)
    assert second.commit(1, files[1:], COLUMNS).files == (files[0],)


def test_only_files_of_checkpoints_that_are_decided_are_settled(objects: Objects) -> None:
    writer = opened(objects)
    kept = {commit(objects, writer, number).key for number in range(1, 5)}
    lost = {write(objects, writer, number).key for number in (1, 2, 4, 5)}
    committed = write(objects, writer, 5)
    writer.commit(5, [committed], COLUMNS)
    undecided = write(objects, writer, 6).key
    objects.put("mine.txt", b"")
    assert staged(objects) == lost | {committed.key, undecided}
    opened(objects).settle(5)
    assert staged(objects) == {undecided}
    assert visible(objects) == kept | {committed.key, "mine.txt"}


def test_readers_that_look_into_every_folder_find_committed_rows_only(
    objects: Objects, tmp_path: Path
) -> None:
    """# proves G14"""
    writer = opened(objects)
    first = commit(objects, writer, 1)
    writer.commit(2, [write(objects, writer, 2)], COLUMNS)
    write(objects, writer, 3)
    assert [each.name for each in tmp_path.rglob("*.parquet")] == [first.key]


def test_a_group_is_settled_when_it_is_complete(objects: Objects) -> None:
    writer = opened(objects)
    lost = write(objects, writer, 1).key
    kept = {commit(objects, writer, number).key for number in (1, 2)}
    assert staged(objects) == {lost}
    kept.add(commit(objects, writer, 3).key)
    assert (visible(objects), staged(objects)) == (kept, set())


def test_a_checkpoint_is_read_when_all_its_files_are_visible(objects: Objects) -> None:
    """Whoever committed it may have died before, and whoever comes next completes it."""
    writer = opened(objects)
    first = commit(objects, writer, 1)
    files = [write(objects, writer, 2) for _ in range(2)]
    writer.commit(2, files, COLUMNS)
    objects.move(staged_key(writer.staging, files[0].key), files[0].key)
    assert writer.last() == 2
    assert [each.number for each in found(objects, "location").visible()] == [1]
    opened(objects).settle(2)
    assert [each.number for each in found(objects, "location").visible()] == [1, 2]
    assert visible(objects) == {first.key, *(each.key for each in files)}


def test_a_place_of_the_older_layout_goes_on(objects: Objects) -> None:
    """It has its manifests at the top, and rows below `data`."""
    key = "data/g1/00000000000000000000/00000000000000000001-00.parquet"
    schema = b64encode(COLUMNS.serialize().to_pybytes()).decode()
    objects.put(key, b"rows")
    objects.put("owner.json", b'{"task":"bank/totals","generation":"g1","format":1}')
    objects.put(
        "manifests/g1/00000000000000000000/00000000000000000001.json",
        f'{{"task":"bank/totals","generation":"g1","number":1,"files":[{{"key":"{key}","rows":1,'
        f'"bytes":4}}],"schema":"{schema}","format":1}}'.encode(),
    )
    writer = opened(objects)
    assert writer.last() == 1
    added = [commit(objects, writer, number) for number in (2, 3, 4)]
    assert opened(objects).last() == 4
    read = [each.key for one in found(objects, "location").visible() for each in one.files]
    assert read == [key, *(each.key for each in added)]
    assert names(objects, "_headrace") == set()
    with pytest.raises(ExistsError, match="task 'bank/totals' writes to location"):
        opened(objects, task="other")


def test_a_file_of_somebody_else_does_not_make_the_layout_older(objects: Objects) -> None:
    writer = opened(objects)
    commit(objects, writer, 1)
    objects.put("owner.json", b"{}")
    assert opened(objects).last() == 1
    assert [each.number for each in found(objects, "location").visible()] == [1]


def test_a_column_keeps_its_type_and_spelling(objects: Objects) -> None:
    writer = opened(objects)
    commit(objects, writer, 1)
    with pytest.raises(
        SchemaError, match=r"'id' is string in checkpoint 2 .* and int64 in location"
    ):
        writer.commit(2, [], pa.schema([("id", pa.string())]))
    with pytest.raises(SchemaError, match="'ID' is spelled 'id' in location; rename it"):
        writer.commit(2, [], pa.schema([("ID", pa.int64())]))
    added = pa.schema([("name", pa.string()), ("id", pa.int64())])
    assert writer.commit(2, [], added).columns.names == ["id", "name"]
    assert writer.commit(3, [], COLUMNS).columns.names == ["id", "name"]


def test_a_place_is_of_one_generation_of_one_task(objects: Objects) -> None:
    opened(objects)
    opened(objects)
    with pytest.raises(
        ExistsError, match="task 'bank/totals' writes to location; give task 'other'"
    ):
        opened(objects, task="other")
    with pytest.raises(ExistsError, match=r"which would write it again; .* delete this one"):
        opened(objects, generation="g2")


def test_a_manifest_that_is_missing_or_damaged_is_named(objects: Objects) -> None:
    with pytest.raises(NotFoundError, match="no task has written to location"):
        found(objects, "location")
    writer = opened(objects)
    for number in (1, 2):
        commit(objects, writer, number)
    first, second = sorted(names(objects, "_headrace/manifests"))
    data = objects.get(first)
    objects.put(first, objects.get(second))
    with pytest.raises(DataError, match=r"1.json in location is of checkpoint 2"):
        list(found(objects, "location").all())
    objects.put(first, data[:-5])
    with pytest.raises(DataError, match=r"1.json in location is damaged"):
        list(found(objects, "location").all())
    objects.put(first, data.replace(b'"format":1', b'"format":2'))
    with pytest.raises(VersionError, match=r"1.json in location has format 2"):
        list(found(objects, "location").all())
    objects.delete(first)
    with pytest.raises(DataError, match=r"1.json in location is missing"):
        list(found(objects, "location").all())
