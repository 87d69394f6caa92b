"""Documents of frames under the schemas that a Session reads."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.errors import NotFoundError, OutdatedError
from headrace.journal.collection import Collection
from headrace.journal.contract import Frame
from headrace.journal.local.records import CollectionPut
from headrace.shuffle.binding import Source, Sources, document_schema


class Decoder:
    """A source's schema is that of the Session's opening: columns that came later are left out.

    A collection that is deleted and made again is another one, with journals of the same names.
    Its documents are refused, since they are not what the source was opened for.
    """

    def __init__(self, sources: Sources, collections: Callable[[], list[CollectionPut]]) -> None:
        self._list = collections
        self._schemas = {source.tag: document_schema(source) for source in sources.all}
        self._names = {source.collection for source in sources.all}
        self._collections: dict[str, Collection] = {}
        self._outdated = True

    def journals_started(self) -> None:
        """They may be of collections that are newer than what is known here."""
        self._outdated = True

    def __call__(self, frame: Frame, source: Source) -> pa.RecordBatch:
        collection = self._collections.get(source.collection)
        if self._outdated or collection is None or frame.schema > collection.version:
            listed = [each for each in self._list() if each.name in self._names]
            self._collections = {each.name: Collection(each) for each in listed}
            self._outdated = False
            collection = self._collections.get(source.collection)
        if collection is None:
            raise NotFoundError(
                f"collection {source.collection!r} was deleted while it was read",
                do="take it out of the task, or create it again",
            )
        if collection.id != source.incarnation:
            raise OutdatedError(
                f"collection {source.collection!r} was deleted and made again while it was read",
                do="open the Session again: it reads the one that is there",
            )
        batch = collection.decode(frame.body, frame.schema)
        return _under(self._schemas[source.tag], batch, source.collection)


def _under(schema: pa.Schema, batch: pa.RecordBatch, collection: str) -> pa.RecordBatch:
    """The batch with the columns of an earlier schema, and no others."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = []
    for wanted in schema:
        at = batch.schema.get_field_index(wanted.name)
        if at < 0 or batch.schema.types[at] != wanted.type:
            found = "gone" if at < 0 else f"of type {batch.schema.types[at]}"
            raise _changed(collection, wanted.name, f"{found}, and was of type {wanted.type}")
        if not wanted.nullable and batch.columns[at].null_count:
            raise _changed(collection, wanted.name, "null in a document, and was NOT NULL")
        columns.append(batch.columns[at])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _changed(collection: str, column: str, how: str) -> OutdatedError:
    return OutdatedError(
        f"collection {collection!r}: column {column!r} is {how} when the Session was opened",
        do="open the Session again from its checkpoint: it reads under the newest schema",
    )
