"""The partitioner chooses the journal of each document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import NotFoundError
from headrace.ids import JournalId
from headrace.journal.collection import Collection, define
from headrace.journal.documents.keyhash import key_hash
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.local.owner import Owner
from headrace.journal.names import Selector, parse_journal_name, unescape_value
from headrace.journal.write.partitioner import Partitioner
from headrace.settings import Settings


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[LocalJournals]:
    owner = Owner(tmp_path, Settings())
    yield LocalJournals(owner)
    owner.close()


def make(location: LocalJournals, schema: str, **options: Any) -> Collection:
    return Collection(location.put_collection(define("c", schema, **options)))


def batch(collection: Collection, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, collection.schema)


def spread(
    partitioner: Partitioner, collection: Collection, rows: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the documents of each journal in their order, by the journal's name."""
    found: dict[JournalId, list[dict[str, Any]]] = defaultdict(list)
    for journal, part in partitioner.partition(collection, batch(collection, rows)):
        found[journal] += part.to_pylist()
    names = {info.id: info.name for info in partitioner.journals.journals(Selector())}
    return {names[id]: rows for id, rows in found.items()}


@pytest.mark.parametrize(
    ("kind", "value", "name"),
    [
        ("string", "eu", "c/p=eu/0000"),
        ("string", "a/b=c", "c/p=a%2Fb%3Dc/0000"),
        ("string", "50%", "c/p=50%25/0000"),
        ("string", "a b\n", "c/p=a%20b%0A/0000"),
        ("string", "é", "c/p=%C3%A9/0000"),
        ("string", "..", "c/p=../0000"),
        ("string", "%null", "c/p=%25null/0000"),
        ("string", "null", "c/p=null/0000"),
        ("string", "", "c/p=%empty/0000"),
        ("string", None, "c/p=%null/0000"),
        ("long", -3, "c/p=-3/0000"),
        ("long", None, "c/p=%null/0000"),
        ("boolean", True, "c/p=true/0000"),
        ("date", date(2026, 11, 15), "c/p=2026-11-15/0000"),
    ],
)
def test_a_partition_value_stands_escaped_in_the_name_of_its_journal(
    journals: LocalJournals, kind: str, value: object, name: str
) -> None:
    collection = make(journals, f"p {kind}", partition_by="p")
    assert spread(Partitioner(journals), collection, [{"p": value}]) == {name: [{"p": value}]}


def test_null_and_the_texts_that_look_like_it_are_partitions_of_their_own(
    journals: LocalJournals,
) -> None:
    collection = make(journals, "p string", partition_by="p")
    values = [None, "", "null", "None", "%null", "%empty"]
    found = spread(Partitioner(journals), collection, [{"p": value} for value in values])
    assert len(found) == len(values)
    for name, rows in found.items():
        [(_, escaped)] = parse_journal_name(name).partition
        assert rows == [{"p": unescape_value(escaped)}]


SCHEMA = "n long, region string, day date, account long"


def random_rows(chance: Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "region": chance.choice([None, "", "eu", "us", "a/b"]),
            "day": chance.choice([None, date(2026, 1, 1), date(2026, 1, 2)]),
            "account": chance.randrange(40),
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [1, 2, 300])
def test_every_document_is_kept_in_order_in_the_one_journal_of_its_partition_and_key(
    journals: LocalJournals, seed: int, count: int
) -> None:
    collection = make(journals, SCHEMA, key="account", partition_by="region, day", journals=3)
    rows = random_rows(Random(seed), count)
    found = spread(Partitioner(journals), collection, rows)
    home: dict[tuple[object, ...], str] = {}
    for name, part in found.items():
        numbers = [row["n"] for row in part]
        assert numbers == sorted(numbers)
        region, day = (unescape_value(value) for _, value in parse_journal_name(name).partition)
        for row in part:
            assert row["region"] == region
            assert row["day"] == (day and date.fromisoformat(day))
            same = row["region"], row["day"], row["account"]
            assert home.setdefault(same, name) == name
    together = sorted((row for part in found.values() for row in part), key=lambda row: row["n"])
    assert together == rows


def test_a_key_has_the_same_journal_in_every_batch_and_for_every_publisher(
    journals: LocalJournals,
) -> None:
    collection = make(journals, SCHEMA, key="account", journals=5)
    home: dict[int, str] = {}
    for seed in range(5):
        for name, rows in spread(
            Partitioner(journals), collection, random_rows(Random(seed), 50)
        ).items():
            assert all(home.setdefault(row["account"], name) == name for row in rows)
    assert len(set(home.values())) == 5


def test_journal_i_of_n_holds_the_ith_of_n_equal_ranges_of_key_hashes(
    journals: LocalJournals,
) -> None:
    collection = make(journals, "account long", key="account", journals=3)
    found = spread(Partitioner(journals), collection, [{"account": n} for n in range(1000)])
    for number in range(3):
        hashes = key_hash(batch(collection, found[f"c/{number:04d}"]), ["account"])
        assert 250 < len(hashes) < 420
        shares = hashes.astype(np.float64) / 2.0**64
        assert number / 3 <= shares.min()
        assert shares.max() <= (number + 1) / 3


def test_without_a_key_appends_take_turns(journals: LocalJournals) -> None:
    collection = make(journals, "n long", journals=3)
    partitioner = Partitioner(journals)
    for n in range(7):
        rows = [{"n": n}, {"n": n + 1}]
        assert spread(partitioner, collection, rows) == {f"c/{n % 3:04d}": rows}


def test_any_number_of_partition_fields_is_told_apart(journals: LocalJournals) -> None:
    """Codes that only grow would overflow and lose the first of these fields."""
    fields = [f"f{number}" for number in range(40)]
    collection = make(journals, ", ".join(f"{f} int" for f in fields), partition_by=fields)
    rows = [dict.fromkeys(fields, n % 4) | {"f0": n // 4} for n in range(8)]
    assert sorted(map(len, spread(Partitioner(journals), collection, rows).values())) == [1] * 8


def test_no_documents_need_no_journal(journals: LocalJournals) -> None:
    collection = make(journals, "p string", partition_by="p")
    assert spread(Partitioner(journals), collection, []) == {}
    assert journals.journals(Selector()) == []


def test_journals_that_were_deleted_are_made_again_once_they_are_forgotten(
    journals: LocalJournals,
) -> None:
    collection = make(journals, "p string", partition_by="p")
    partitioner = Partitioner(journals)
    [(first, _)] = partitioner.partition(collection, batch(collection, [{"p": "x"}]))
    journals.delete_journals(["c/p=x/0000"])
    [(known, _)] = partitioner.partition(collection, batch(collection, [{"p": "x"}]))
    assert known == first
    partitioner.forget()
    [(again, _)] = partitioner.partition(collection, batch(collection, [{"p": "x"}]))
    assert again != first


def test_a_collection_that_was_made_again_shares_no_journal_with_the_one_before(
    journals: LocalJournals,
) -> None:
    before = make(journals, "p string", partition_by="p")
    partitioner = Partitioner(journals)
    [(old, _)] = partitioner.partition(before, batch(before, [{"p": "x"}]))
    journals.delete_collection("c")
    after = make(journals, "p string", partition_by="p")
    [(new, _)] = partitioner.partition(after, batch(after, [{"p": "x"}]))
    assert new != old
    with pytest.raises(NotFoundError, match="was deleted and created again"):
        list(partitioner.partition(before, batch(before, [{"p": "y"}])))
