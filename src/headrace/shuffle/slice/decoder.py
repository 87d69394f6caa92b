"""Decodes the documents of frames under the schemas that a Session reads."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.errors import NotFoundError, OutdatedError
from headrace.journal.collection import Collection
from headrace.journal.contract import Frame
from headrace.journal.local.records import CollectionPut
from headrace.shuffle.binding import Source, Sources, document_schema


class Decoder:
    """Decodes documents under the schema that a source had when the Session was opened.

    It leaves out columns that came later. It refuses documents of a collection that was deleted and
    created again: that is another collection, whose journals only have the same names.
    """

    def __init__(self, sources: Sources, collections: Callable[[], list[CollectionPut]]) -> None:
        self._list_collections = collections
        self._schemas = {source.tag: document_schema(source) for source in sources.all}
        self._names = {source.collection for source in sources.all}
        self._collections: dict[str, Collection] = {}
        self._outdated = True

    def journals_started(self) -> None:
        """New journals may belong to collections that are not known here yet."""
        self._outdated = True

    def __call__(self, frame: Frame, source: Source) -> pa.RecordBatch:
        collection = self._collections.get(source.collection)
        if self._outdated or collection is None or frame.schema > collection.version:
            found = [put for put in self._list_collections() if put.name in self._names]
            self._collections = {put.name: Collection(put) for put in found}
            self._outdated = False
            collection = self._collections.get(source.collection)
        if collection is None:
            raise NotFoundError(
                f"collection {source.collection!r} was deleted while the Session read it",
                do="take it out of the task, or create it again",
            )
        if collection.id != source.incarnation:
            raise OutdatedError(
                f"collection {source.collection!r} was deleted and created again while the Session"
                " read it",
                do="open the Session again: it reads the new collection",
            )
        batch = collection.decode(frame.body, frame.schema)
        return _conform(self._schemas[source.tag], batch, source.collection)


def _conform(schema: pa.Schema, batch: pa.RecordBatch, collection: str) -> pa.RecordBatch:
    """Return the batch with the columns of an earlier schema only."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = []
    for wanted in schema:
        index = batch.schema.get_field_index(wanted.name)
        if index < 0 or batch.schema.types[index] != wanted.type:
            found = "gone" if index < 0 else f"of type {batch.schema.types[index]}"
            raise _changed(collection, wanted.name, f"{found}, and was of type {wanted.type}")
        if not wanted.nullable and batch.columns[index].null_count:
            raise _changed(collection, wanted.name, "null in a document, and was NOT NULL")
        columns.append(batch.columns[index])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _changed(collection: str, column: str, how: str) -> OutdatedError:
    return OutdatedError(
        f"collection {collection!r}: column {column!r} is {how} when the Session was opened",
        do="open the Session again from its checkpoint: it reads under the newest schema",
    )
