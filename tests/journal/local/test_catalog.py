"""The catalog: what clients may create, change and delete."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.errors import ExistsError, NotFoundError, SchemaError, UsageError
from headrace.ids import JournalId
from headrace.journal.collection import Collection, define
from headrace.journal.local import catalog as catalogs
from headrace.journal.local.catalog import Catalog, CatalogChange
from headrace.journal.local.records import CollectionPut, JournalsCreated, JournalsDeleted


def applied(catalog: Catalog, changes: list[CatalogChange]) -> list[CatalogChange]:
    for change in changes:
        catalog.apply(change)
    return changes


def catalog_with(name: str = "c", schema: str = "x long", **options: Any) -> Catalog:
    catalog = Catalog()
    applied(catalog, catalog.put_collection(define(name, schema, **options)))
    return catalog


def put(catalog: Catalog, name: str, schema: str, **options: Any) -> CollectionPut:
    applied(catalog, catalog.put_collection(define(name, schema, **options)))
    return catalog.collection(name)


def test_a_collection_comes_with_the_journals_of_its_only_partition() -> None:
    catalog = catalog_with(journals=3)
    assert sorted(catalog.by_name) == ["c/0000", "c/0001", "c/0002"]
    assert sorted(catalog.by_name.values()) == [1, 2, 3]


def test_a_partitioned_collection_has_no_journals_at_first() -> None:
    assert not catalog_with(partition_by="x").journals


def test_putting_the_same_again_changes_nothing() -> None:
    catalog = catalog_with(key="x", journals=2, retention_s=5)
    again = define("c", "x long", key="x", journals=2, retention_s=5)
    assert catalog.put_collection(again) == []


def test_an_added_field_makes_a_version_and_old_ones_stay() -> None:
    catalog = catalog_with()
    grown = put(catalog, "c", "x long, y string")
    assert len(grown.schemas) == 2
    assert Collection(grown).schema.names == ["x", "y"]
    assert catalog.put_collection(define("c", "x long, y string")) == []


def test_fields_in_another_order_are_the_same_schema() -> None:
    catalog = catalog_with(schema="x long, y string")
    assert catalog.put_collection(define("c", "y string, x long")) == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("x string", "'x' changed from bigint to string"),
        ("y long", "'x' is not declared, and 'y' is new"),
    ],
)
def test_an_incompatible_schema_is_refused_naming_the_field(schema: str, named: str) -> None:
    catalog = catalog_with()
    with pytest.raises(SchemaError, match=named):
        catalog.put_collection(define("c", schema))


def test_an_older_declaration_is_served_and_changes_nothing() -> None:
    catalog = catalog_with(schema="x long NOT NULL, y string, z int")
    assert catalog.put_collection(define("c", "x long NOT NULL, y string")) == []
    assert catalog.put_collection(define("c", "z int COMMENT 'other', x long NOT NULL")) == []
    with pytest.raises(SchemaError, match="'x' is NOT NULL, and is not declared"):
        catalog.put_collection(define("c", "y string, z int"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": "y"}, "exists with key x, not y"),
        ({"key": ()}, "exists with key x, not none"),
        ({"partition_by": "y"}, "exists with partition_by none, not y"),
        ({"journals": 3}, "exists with journals 2, not 3"),
    ],
)
def test_what_places_documents_cannot_change(options: dict[str, Any], named: str) -> None:
    catalog = catalog_with(schema="x long, y long", key="x", journals=2)
    with pytest.raises(ExistsError, match=named):
        catalog.put_collection(
            define("c", "x long, y long", **dict[str, Any](key="x", journals=2) | options)
        )


def test_retention_can_change() -> None:
    catalog = catalog_with(retention_s=5)
    assert put(catalog, "c", "x long", retention_bytes=10).retention_bytes == 10
    assert catalog.collection("c").retention_s == 5
    assert put(catalog, "c", "x long", retention_s=0).retention_s is None


@pytest.mark.parametrize("limit", [-1, 1 << 70, float("nan"), float("inf")])
@pytest.mark.parametrize("which", ["retention_s", "retention_bytes"])
def test_a_retention_that_means_nothing_is_refused(which: str, limit: float) -> None:
    with pytest.raises(UsageError, match=which):
        define("c", "x long", **{which: limit})  # type: ignore[arg-type]


def test_deleting_a_collection_takes_its_journals_and_no_others() -> None:
    catalog = catalog_with("a", journals=2)
    put(catalog, "a/b", "x long")
    put(catalog, "ab", "x long")
    applied(catalog, catalog.delete_collection("a"))
    assert sorted(catalog.by_name) == ["a/b/0000", "ab/0000"]
    assert sorted(catalog.collections) == ["a/b", "ab"]
    with pytest.raises(NotFoundError, match="no collection 'a'"):
        catalog.delete_collection("a")


def test_a_partition_field_of_any_name_keeps_its_journals_in_the_collection() -> None:
    catalog = catalog_with(schema="`a/b=c` string", partition_by="a/b=c")
    made = catalog.create_journals("c", catalog.collection("c").id, [("v",)])
    applied(catalog, made)
    applied(catalog, catalog.delete_collection("c"))
    assert not catalog.journals


def test_a_journal_made_again_is_another_incarnation() -> None:
    catalog = catalog_with()
    id = catalog.collection("c").id
    assert applied(catalog, catalog.delete_journals(["c/0000"])) == [
        JournalsDeleted([JournalId(1)])
    ]
    made = applied(catalog, catalog.create_journals("c", id, [()]))
    assert made == [JournalsCreated([(JournalId(2), "c/0000")])]
    assert catalog.create_journals("c", id, [()]) == []


def test_journals_are_made_once_however_often_a_partition_is_named() -> None:
    catalog = catalog_with(partition_by="x")
    id = catalog.collection("c").id
    [made] = applied(catalog, catalog.create_journals("c", id, [("1",), ("2",), ("1",)]))
    assert made == JournalsCreated([(JournalId(1), "c/x=1/0000"), (JournalId(2), "c/x=2/0000")])


def test_a_collection_made_again_refuses_those_who_hold_the_old_one() -> None:
    catalog = catalog_with()
    old = catalog.collection("c").id
    applied(catalog, catalog.delete_collection("c"))
    new = put(catalog, "c", "x string").id
    assert new != old
    with pytest.raises(NotFoundError, match="deleted and created again"):
        catalog.create_journals("c", old, [()])


def test_ids_are_not_reused_after_deletion() -> None:
    catalog = catalog_with(journals=2)
    before = set(catalog.journals)
    applied(catalog, catalog.delete_collection("c"))
    put(catalog, "c", "x long", journals=2)
    assert not before & set(catalog.journals)


def test_unknown_names_are_refused() -> None:
    catalog = catalog_with()
    with pytest.raises(NotFoundError, match="no journal 'c/0009'"):
        catalog.delete_journals(["c/0009"])
    with pytest.raises(NotFoundError, match="no collection 'd'"):
        catalog.create_journals("d", 1, [()])
    with pytest.raises(UsageError, match="cannot name a collection"):
        catalog.put_collection(replace(define("c", "x long"), name="c/0"))


def test_only_the_journals_deleted_last_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "DELETED_REMEMBERED", 2)
    catalog = catalog_with(journals=3)
    first, second, third = (catalog.by_name[f"c/000{n}"] for n in range(3))
    applied(catalog, catalog.delete_journals(["c/0000", "c/0001", "c/0002"]))
    assert catalog.find_again([second, third]) == (
        {second: JournalId(4), third: JournalId(5)},
        [JournalsCreated([(JournalId(4), "c/0001"), (JournalId(5), "c/0002")])],
    )
    with pytest.raises(
        NotFoundError, match="somebody deleted a journal of this write long ago; repeat the append"
    ):
        catalog.find_again([second, first])
