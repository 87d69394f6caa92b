"""`Workspace.follow`: each committed document once, in the order of commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import NotFoundError, UsageError

SCHEMA = "name string, region string"


@pytest.fixture
def people(workspace: hr.Workspace) -> hr.Collection:
    return workspace.collection("people", SCHEMA, key="name", partition_by="region")


def names(batch: pa.RecordBatch) -> list[str]:
    return [str(each) for each in batch["name"].to_pylist()]


def person(name: str, region: str = "eu") -> dict[str, str]:
    return {"name": name, "region": region}


def take(batches: Iterator[pa.RecordBatch], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += names(next(batches))
    return found


def test_it_yields_what_is_there_and_then_what_commits(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    workspace.append(people, [person("ann")])
    batches = workspace.follow(people)
    assert take(batches, 1) == ["ann"]
    workspace.append(people, [person("bob", "us"), person("cay", "us")])
    assert take(batches, 2) == ["bob", "cay"]


def test_an_open_transaction_delays_no_other_and_appears_when_it_commits(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    # proves G2, G11
    kept, given_up = workspace.publisher().begin(), workspace.publisher().begin()
    large = "x" * 20_000  # larger than the buffer: the publisher sends it before the commit
    kept.append(people, [person("kept" + large)])
    given_up.append(people, [person("given up" + large)])
    batches = workspace.follow(people)
    workspace.append(people, [person("bob")])
    assert take(batches, 1) == ["bob"]
    given_up.rollback()
    kept.commit()
    workspace.append(people, [person("last")])
    assert [each[:4] for each in take(batches, 2)] == ["kept", "last"]


def test_one_publisher_may_have_a_transaction_open_in_several_journals(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    # proves G2
    batches = workspace.follow(people)
    with workspace.publisher() as tx:
        for region in ("eu", "us"):
            tx.append(people, [person(region + "x" * 20_000, region)])
    assert sorted(each[:2] for each in take(batches, 2)) == ["eu", "us"]


def test_it_sees_new_fields(workspace: hr.Workspace, people: hr.Collection) -> None:
    batches = workspace.follow(people)
    workspace.append(people, [person("ann")])
    assert next(batches).schema.names == ["name", "region"]
    wider = workspace.collection(
        "people", SCHEMA + ", note string", key="name", partition_by="region"
    )
    workspace.append(wider, [person("bob") | {"note": "new"}])
    assert next(batches).to_pylist() == [{"name": "bob", "region": "eu", "note": "new"}]


def test_it_follows_the_journals_of_a_selector_only(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    batches = workspace.follow(people, selector=hr.selector("people", {"region": ["us"]}))
    workspace.append(people, [person("ann", "eu")])
    workspace.append(people, [person("bob", "us")])
    assert take(batches, 1) == ["bob"]


def test_it_starts_at_the_given_offsets(workspace: hr.Workspace, people: hr.Collection) -> None:
    workspace.append(people, [person("ann")])
    [journal] = workspace.journals(hr.selector("people"))
    workspace.append(people, [person("bob")])
    [batch] = [next(workspace.follow(people, start={journal.name: journal.head}, meta=True))]
    assert names(batch) == ["bob"]
    assert batch["_journal"].to_pylist() == [journal.name]


def test_it_refuses_to_start_in_a_journal_that_it_does_not_read(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    # proves G27
    with pytest.raises(UsageError, match="the read of 'people' has no journal 'other'"):
        workspace.follow(people, start={"other": 0})


def test_it_ends_when_it_is_stopped(workspace: hr.Workspace, people: hr.Collection) -> None:
    stop = threading.Event()
    workspace.append(people, [person("ann")])
    batches = workspace.follow(people, stop=stop)
    assert take(batches, 1) == ["ann"]
    stop.set()
    assert list(batches) == []


def test_a_deleted_journal_ends_nothing_and_one_made_again_is_read_from_its_beginning(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    workspace.append(people, [person("ann")])
    batches = workspace.follow(people)
    assert take(batches, 1) == ["ann"]
    [journal] = workspace.journals(hr.selector("people"))
    workspace.delete_journals([journal.name])
    workspace.append(people, [person("bob")])
    assert take(batches, 1) == ["bob"]


def test_a_deleted_collection_ends_it_with_an_error(
    workspace: hr.Workspace, people: hr.Collection
) -> None:
    workspace.append(people, [person("ann")])
    batches = workspace.follow(people)
    assert take(batches, 1) == ["ann"]
    workspace.delete_collection("people")
    with pytest.raises(NotFoundError, match="no collection 'people'"):
        next(batches)
