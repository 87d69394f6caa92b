"""A workspace: collections, publishers and readers of one installation."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.errors import FencedError, NotFoundError, PeerLostError, UsageError
from headrace.ids import Offset
from headrace.journal.collection import Collection, define
from headrace.journal.connection import Connection
from headrace.journal.contract import Commit, Frame, JournalInfo, Watch
from headrace.journal.names import Selector
from headrace.journal.outgoing import Documents, Outgoing, Writer
from headrace.journal.publisher import Participant, Publisher
from headrace.journal.sequencer import Flags
from headrace.journal.spread import Spreader
from headrace.settings import Settings

_POOLED_MAX = 64
_INVITATION = re.compile("[0-9a-f]{16}")

META_FIELDS = (
    pa.field("_journal", pa.string()),
    pa.field("_producer", pa.uint64()),
    pa.field("_clock", pa.uint64()),
)


class Workspace:
    """Open one with `headrace.open`. Any thread may use it."""

    def __init__(
        self, place: str | Path, settings: Settings | None = None, *, create: bool = True
    ) -> None:
        self.place = str(place)
        self._settings = settings or Settings()
        self._connection = Connection(place, self._settings, create=create)
        self._lock = threading.Lock()
        self._pool: list[Writer] = []
        self._spreader = Spreader(self._connection.journals())

    # -- collections and journals ----------------------------------------------------------

    def collection(
        self,
        name: str,
        schema: str | pa.Schema | None = None,
        *,
        key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        journals: int = 1,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
    ) -> Collection:
        """The collection of that name. With a schema it is made, or brought up to it.

        `schema` is a Spark DDL string or an Arrow schema. Documents with equal `key` keep their
        order; each combination of `partition_by` values has `journals` journals of its own.
        Retention is of each journal: whole frames go, oldest first.
        """
        if schema is None:
            return self._existing(name)
        wanted = define(
            name,
            schema,
            key=key,
            partition_by=partition_by,
            journals=journals,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
        )
        return Collection(self._connection.call(lambda j: j.put_collection(wanted)))

    def collections(self) -> list[Collection]:
        """All of them, by name."""
        return [Collection(each) for each in self._connection.call(lambda j: j.collections())]

    def delete_collection(self, name: str) -> None:
        """Its journals and documents go with it; a new one of that name shares nothing with it."""
        self._connection.journals().delete_collection(name)
        self._spreader.forget()

    def journals(self, selector: Selector | None = None) -> list[JournalInfo]:
        """Matching journals by name, as of one moment: no transaction is half in it."""
        return self._connection.call(lambda j: j.journals(selector or Selector()))

    def delete_journals(self, names: Sequence[str]) -> None:
        self._connection.journals().delete_journals(names)
        self._spreader.forget()

    def watch(self, selector: Selector | None = None) -> Watch:
        """Sees journals come and go, and their heads move."""
        return self._connection.call(lambda j: j.watch(selector or Selector()))

    # -- publishing ------------------------------------------------------------------------

    def publisher(self, name: str = "") -> Publisher:
        """Writes transactions; with a name it takes over from the previous one of that name."""
        return Publisher(self, name)

    def append(self, collection: Collection | str, documents: Documents) -> int:
        """Append documents outside of any transaction; returns when they are durable."""
        target = self.resolve(collection)
        writer = self.take_writer("")
        outgoing = self.outgoing(writer, Flags.OUTSIDE)
        try:
            outgoing.append(target, documents)
            outgoing.send(outgoing.seal()).result()
        finally:
            self.give_back(writer)
        return outgoing.documents

    def join(self, invitation: str) -> Participant:
        """Take part in a transaction whose coordinator, in any process, called `invite`."""
        if not _INVITATION.fullmatch(invitation):
            raise UsageError(
                f"{invitation!r} is not an invitation", do="pass what `invite` returned"
            )
        number = int(invitation, 16)
        journals = self._connection.journals()
        return Participant(self, Writer(journals.join(number), journals))

    # -- reading ---------------------------------------------------------------------------

    def read(
        self,
        collection: Collection | str,
        *,
        selector: Selector | None = None,
        start: Mapping[str, int] | None = None,
        meta: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The committed documents up to now: one cut, the same in all journals.

        Journal after journal; `start` gives offsets to begin at, by journal name. With `meta` the
        columns `_journal`, `_producer` and `_clock` are added.
        """
        source = self._newest(collection)
        chosen = selector or Selector(source.name)
        for journal in self.journals(chosen):
            begin = (start or {}).get(journal.name, journal.begin)
            for frame in self.frames(journal, begin):
                yield _documents(source, journal, frame, meta=meta)

    def table(self, collection: Collection | str, **options: Any) -> pa.Table:
        """What `read` yields, as one table."""
        source = self._newest(collection)
        meta = META_FIELDS if options.get("meta") else ()
        schema = pa.schema([*source.schema, *meta])
        return pa.Table.from_batches(self.read(source, **options), schema)

    def frames(
        self, journal: JournalInfo, offset: int | None = None, *, committed: bool = True
    ) -> Iterator[Frame]:
        """Frames from an offset to the journal's head as `journal` knows it.

        The committed ones, where their transactions committed; or every one as it stands, ACKs
        with their hints.
        """
        begin = Offset(journal.begin if offset is None else offset)
        return self._connection.journals().read(journal.id, begin, journal.head, committed)

    # -- the rest --------------------------------------------------------------------------

    @property
    def address(self) -> str | None:
        """Where others can reach this workspace, if this process owns it."""
        ownership = self._connection.ownership
        return ownership.address if ownership else None

    def maintain(self) -> None:
        """Apply retention, save the index and rewrite old segments now, if this is the owner."""
        if ownership := self._connection.ownership:
            ownership.keeper.keep()

    def close(self) -> None:
        """What is not committed is rolled back. Closing twice is harmless."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Workspace({self.place!r})"

    # -- what publishers need --------------------------------------------------------------

    def resolve(self, collection: Collection | str) -> Collection:
        return self._existing(collection) if isinstance(collection, str) else collection

    def take_writer(self, name: str) -> Writer:
        journals = self._connection.journals()
        if not name:
            with self._lock:
                while self._pool:
                    writer = self._pool.pop()
                    if writer.journals is journals and not writer.broken:
                        return writer
        return self._connection.call(lambda j: Writer(j.open_publisher(name), j))

    def give_back(self, writer: Writer) -> None:
        with self._lock:
            if len(self._pool) < _POOLED_MAX:
                self._pool.append(writer)
                return
        # A writer that was lost or refused has nothing to give back.
        with suppress(PeerLostError, FencedError):
            writer.journals.close_publisher(writer.lease.producer, writer.lease.holder)

    def outgoing(self, writer: Writer, flags: Flags) -> Outgoing:
        with self._lock:
            if self._spreader.journals is not writer.journals:
                self._spreader = Spreader(writer.journals)
            return Outgoing(writer, self._spreader, self._settings.journal, flags)

    def was_committed(self, writer: Writer, commit: Commit) -> bool:
        lease = writer.lease
        self._connection.reattach(writer.journals)
        return self._connection.call(
            lambda j: j.was_committed(lease.producer, lease.holder, commit.clock)
        )

    def _newest(self, collection: Collection | str) -> Collection:
        return self._existing(collection if isinstance(collection, str) else collection.name)

    def _existing(self, name: str) -> Collection:
        for collection in self.collections():
            if collection.name == name:
                return collection
        known = ", ".join(each.name for each in self.collections()) or "none"
        raise NotFoundError(
            f"no collection {name!r} in {self.place}",
            do=f"create it with `headrace collections create`; there are: {known}",
        )


def _documents(
    collection: Collection, journal: JournalInfo, frame: Frame, *, meta: bool
) -> pa.RecordBatch:
    batch = collection.decode(frame.body, frame.schema).slice(frame.skip)
    if not meta:
        return batch
    rows = batch.num_rows
    clocks = np.arange(frame.clock + frame.skip, frame.clock + frame.documents, dtype=np.uint64)
    columns = [
        pa.repeat(journal.name, rows),
        pa.repeat(pa.scalar(frame.producer, pa.uint64()), rows),
        pa.array(clocks),
    ]
    schema = pa.schema([*collection.schema, *META_FIELDS])
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)
