"""`Journals` in the process that owns the workspace, for each client of the owner."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from headrace.errors import CommitOutcome, HeadraceError
from headrace.ids import Holder, JournalId, Offset, Producer, new_producer
from headrace.journal.contract import (
    Frame,
    JournalInfo,
    Lease,
    Prepared,
    Write,
    Written,
    until_full,
)
from headrace.journal.local.catalog import CatalogChange
from headrace.journal.local.commit_outcome import find_offset, find_outcome
from headrace.journal.local.owner import Owner
from headrace.journal.local.producers import Client
from headrace.journal.local.records import CollectionPut, Record
from headrace.journal.local.state import OwnerState
from headrace.journal.local.watch import LocalWatch
from headrace.journal.names import Selector
from headrace.journal.write.commit_id import AppendedFrame, CommitId

OWNER: Client = 0


class LocalJournals:
    """`Journals` for one client of an owner in this process."""

    def __init__(self, owner: Owner, client: Client = OWNER) -> None:
        self._owner = owner
        self._client = client

    def put_collection(self, collection: CollectionPut) -> CollectionPut:
        def decision(state: OwnerState) -> tuple[list[Record], CollectionPut]:
            changes = state.change_catalog(state.catalog.put_collection(collection))
            return changes, state.catalog.collection(collection.name)

        return self._owner.decide(decision)

    def delete_collection(self, name: str) -> None:
        self._change(lambda state: state.catalog.delete_collection(name))

    def collections(self) -> list[CollectionPut]:
        return self._owner.collections()

    def create_journals(
        self, collection: str, incarnation: int, partitions: Sequence[tuple[str, ...]]
    ) -> list[JournalInfo]:
        def decision(state: OwnerState) -> tuple[list[Record], list[str]]:
            catalog = state.catalog
            changes = catalog.create_journals(collection, incarnation, partitions)
            names = catalog.journal_names(catalog.collection(collection), partitions)
            return state.change_catalog(changes), names

        return self._owner.journals_named(self._owner.decide(decision))

    def delete_journals(self, names: Sequence[str]) -> None:
        self._change(lambda state: state.catalog.delete_journals(names))

    def journals(self, selector: Selector) -> list[JournalInfo]:
        return self._owner.journals(selector)

    def journals_named(self, names: Sequence[str]) -> list[JournalInfo]:
        return self._owner.journals_named(names)

    def open_publisher(self, name: str) -> Lease:
        return self._signed(
            self._owner.decide(
                lambda state: state.open_publisher(self._client, name, new_producer())
            )
        )

    def close_publisher(self, producer: Producer, holder: Holder) -> None:
        self._owner.decide(
            lambda state: (state.close_publisher(self._client, producer, holder), None)
        )

    def publisher_payloads(self, prefix: str) -> dict[str, bytes]:
        return self._owner.decide(lambda state: ([], state.payloads(prefix)))

    def trim(self, journal: JournalId, offset: Offset) -> None:
        begin = self._owner.with_index(
            lambda index: index.journal(journal).documents_before(offset)
        )
        self._owner.trim([(journal, begin)])

    def write(self, write: Write, bodies: Sequence[Any]) -> Written:
        return self._owner.write(self._client, write, bodies)

    def rollback(self, producer: Producer, holder: Holder) -> None:
        self._owner.decide(lambda state: (state.rollback(self._client, producer, holder), None))

    def begin(self, producer: Producer, holder: Holder) -> int:
        transaction = secrets.randbits(63)

        def decision(state: OwnerState) -> tuple[list[Record], int]:
            state.begin(self._client, producer, holder, transaction)
            return [], transaction

        return self._owner.decide(decision)

    def join(self, transaction: int) -> Lease:
        return self._signed(
            self._owner.decide(
                lambda state: ([], state.join(self._client, transaction, new_producer()))
            )
        )

    def prepare(self, prepared: Prepared) -> None:
        def decision(state: OwnerState) -> tuple[list[Record], None]:
            state.prepare(self._client, prepared)
            return [], None

        self._owner.decide(decision)

    def outcome(self, commit: CommitId, fence: bool = True) -> CommitOutcome:
        return find_outcome(self._owner, commit, fence)

    def frame_offsets(self, producer: Producer, frames: Sequence[AppendedFrame]) -> list[Offset]:
        return [find_offset(self._owner, producer, frame) for frame in frames]

    def read(
        self, journal: JournalId, offset: Offset, through: Offset, committed: bool
    ) -> Iterator[Frame]:
        return self._owner.read(journal, offset, through, committed)

    def fetch(
        self, journal: JournalId, offset: Offset, through: Offset, bytes_max: int
    ) -> Future[list[Frame]]:
        done: Future[list[Frame]] = Future()
        try:
            frames = self._owner.read(journal, offset, through, False)
            done.set_result(until_full(frames, bytes_max, lambda frame: frame.bytes))
        except HeadraceError as error:
            done.set_exception(error)
        return done

    def at_most_bytes(self, offset: Offset, through: Offset) -> int:
        return through - offset

    def journal_names(self, journals: Sequence[JournalId]) -> list[str]:
        return self._owner.journal_names(journals)

    def watch(self, *selectors: Selector) -> LocalWatch:
        return self._owner.watch(*selectors)

    def end_leases(self) -> None:
        """End every lease of this client, and roll back what it has pending."""
        self._owner.decide(lambda state: (state.client_lost(self._client), None))

    def close(self) -> None:
        self.end_leases()

    def _signed(self, lease: Lease) -> Lease:
        return msgspec.structs.replace(lease, workspace=self._owner.identity)

    def _change(self, changes: Callable[[OwnerState], Iterable[CatalogChange]]) -> None:
        self._owner.decide(lambda state: (state.change_catalog(changes(state)), None))
