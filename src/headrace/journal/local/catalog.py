"""The collections and journals of a workspace, and how they may change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from headrace.errors import ExistsError, NotFoundError
from headrace.ids import JournalId, Offset
from headrace.journal.documents.schema import deserialize, merge_declaration, serialize
from headrace.journal.local.records import (
    CollectionDeleted,
    CollectionPut,
    JournalsCreated,
    JournalsDeleted,
)
from headrace.journal.names import JournalName, check_collection_name, parse_journal_name

Limit = TypeVar("Limit", int | None, float | None)

CatalogChange = CollectionPut | CollectionDeleted | JournalsCreated | JournalsDeleted


@dataclass(slots=True)
class JournalState:
    name: str
    head: Offset


DELETED_REMEMBERED = 65_536


class Deleted(NamedTuple):
    """A journal that somebody deleted."""

    name: str
    collection: int
    """The incarnation of its collection."""


@dataclass(slots=True)
class Catalog:
    """Decisions return changes; `apply` carries them out."""

    collections: dict[str, CollectionPut] = field(default_factory=dict)
    journals: dict[JournalId, JournalState] = field(default_factory=dict)
    by_name: dict[str, JournalId] = field(default_factory=dict)
    last_journal: int = 0
    last_collection: int = 0
    deleted: dict[JournalId, Deleted] = field(default_factory=dict)
    """The journals deleted last. A publisher may still know them by their ids. This need not be
    durable: a publisher forgets the ids that it got from an earlier owner."""

    def collection(self, name: str) -> CollectionPut:
        if (found := self.collections.get(name)) is None:
            raise NotFoundError(
                f"there is no collection {name!r}",
                do="create it with `headrace collections create` or `ws.collection`",
            )
        return found

    def journal_id(self, name: str) -> JournalId:
        if (found := self.by_name.get(name)) is None:
            raise NotFoundError(f"there is no journal {name!r}", do="see `headrace journals list`")
        return found

    def put_collection(self, wanted: CollectionPut) -> list[CatalogChange]:
        present = self.collections.get(wanted.name)
        if present is None:
            check_collection_name(wanted.name)
            new = replace(
                wanted,
                id=self.last_collection + 1,
                retention_s=_kept(None, wanted.retention_s),
                retention_bytes=_kept(None, wanted.retention_bytes),
            )
            partitions: list[tuple[str, ...]] = [] if new.partition_by else [()]
            return [new, *self._missing_journals(new, partitions)]
        for what in ("key", "partition_by", "journals"):
            has, asks = getattr(present, what), getattr(wanted, what)
            if has != asks:
                raise ExistsError(
                    f"collection {wanted.name} exists with {what} {_show(has)}, not {_show(asks)}",
                    do="use the same, or another name",
                )
        changed = replace(
            present,
            schemas=_evolved(present, wanted),
            retention_s=_kept(present.retention_s, wanted.retention_s),
            retention_bytes=_kept(present.retention_bytes, wanted.retention_bytes),
        )
        return [changed] if changed != present else []

    def delete_collection(self, name: str) -> list[CatalogChange]:
        self.collection(name)
        ids = [
            id
            for id, journal in self.journals.items()
            if journal.name.startswith(f"{name}/")
            and parse_journal_name(journal.name).collection == name
        ]
        return [JournalsDeleted(ids), CollectionDeleted(name)]

    def create_journals(
        self, name: str, incarnation: int, partitions: Sequence[tuple[str, ...]]
    ) -> list[CatalogChange]:
        collection = self.collection(name)
        if collection.id != incarnation:
            raise NotFoundError(
                f"collection {name!r} was deleted and created again", do="open the collection again"
            )
        return self._missing_journals(collection, partitions)

    def journal_names(
        self, collection: CollectionPut, partitions: Iterable[tuple[str, ...]]
    ) -> list[str]:
        fields = collection.partition_by
        return [
            str(JournalName(collection.name, tuple(zip(fields, values, strict=True)), number))
            for values, number in product(partitions, range(collection.journals))
        ]

    def find_again(
        self, ids: Iterable[JournalId]
    ) -> tuple[dict[JournalId, JournalId], list[CatalogChange]]:
        """Return the journals that now have the names of deleted ones; create the missing ones."""
        found: dict[JournalId, JournalId] = {}
        missing: dict[str, JournalId] = {}
        for id in ids:
            if (gone := self.deleted.get(id)) is None:
                raise NotFoundError(
                    "somebody deleted a journal of this write long ago",
                    do="repeat the append: it creates the journal anew",
                )
            collection = parse_journal_name(gone.name).collection
            present = self.collections.get(collection)
            if present is None or present.id != gone.collection:
                raise NotFoundError(
                    f"somebody deleted collection {collection!r} while it was written to",
                    do="create it again with `ws.collection`",
                )
            if gone.name not in self.by_name:
                first = JournalId(self.last_journal + 1 + len(missing))
                found[id] = missing.setdefault(gone.name, first)
            else:
                found[id] = self.by_name[gone.name]
        created = [(id, name) for name, id in missing.items()]
        return found, [JournalsCreated(created)] if created else []

    def delete_journals(self, names: Iterable[str]) -> list[CatalogChange]:
        return [JournalsDeleted([self.journal_id(name) for name in names])]

    def apply(self, change: CatalogChange) -> None:
        match change:
            case CollectionPut():
                self.collections[change.name] = change
                self.last_collection = max(self.last_collection, change.id)
            case CollectionDeleted():
                self.collections.pop(change.name, None)
            case JournalsCreated():
                for id, name in change.journals:
                    self.journals[id] = JournalState(name, Offset(0))
                    self.by_name[name] = id
                    self.last_journal = max(self.last_journal, id)
            case JournalsDeleted():
                for id in change.journals:
                    if gone := self.journals.pop(id, None):
                        del self.by_name[gone.name]
                        self._remember(id, gone.name)

    def validate(self) -> None:
        """Assert the invariants that hold between decisions."""
        assert {j.name: id for id, j in self.journals.items()} == self.by_name, "names of journals"
        assert max(self.journals, default=0) <= self.last_journal, "a journal's id is yet to come"
        assert self.journals.keys().isdisjoint(self.deleted), "a deleted journal is there"
        assert len(self.deleted) <= DELETED_REMEMBERED
        for name, collection in self.collections.items():
            assert collection.name == name, name
            assert 0 < collection.id <= self.last_collection, f"{name}: incarnation {collection.id}"
        for journal in self.by_name:
            assert parse_journal_name(journal).collection in self.collections, journal

    def _remember(self, id: JournalId, name: str) -> None:
        collection = self.collections.get(parse_journal_name(name).collection)
        self.deleted[id] = Deleted(name, collection.id if collection else 0)
        if len(self.deleted) > DELETED_REMEMBERED:
            del self.deleted[next(iter(self.deleted))]

    def _missing_journals(
        self, collection: CollectionPut, partitions: Sequence[tuple[str, ...]]
    ) -> list[CatalogChange]:
        names = dict.fromkeys(self.journal_names(collection, partitions))
        missing = [name for name in names if name not in self.by_name]
        first = self.last_journal + 1
        created = [(JournalId(id), name) for id, name in enumerate(missing, first)]
        return [JournalsCreated(created)] if created else []


def _evolved(present: CollectionPut, wanted: CollectionPut) -> tuple[bytes, ...]:
    newest = deserialize(present.schemas[-1])
    merged = merge_declaration(newest, deserialize(wanted.schemas[-1]))
    if merged.equals(newest):
        return present.schemas
    return (*present.schemas, serialize(merged))


def _kept(present: Limit, wanted: Limit) -> Limit:
    """Return the limit to keep: None leaves it as it is, and zero removes it."""
    return present if wanted is None else wanted or None


def _show(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
