"""Documents of frames under the schemas that a Session reads."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.errors import NotFoundError
from headrace.journal.collection import Collection
from headrace.journal.contract import Frame
from headrace.journal.records import CollectionPut
from headrace.shuffle.binding import Source, Sources, document_schema


class Decoder:
    """A source's schema is that of the Session's opening: columns that came later are left out."""

    def __init__(self, sources: Sources, collections: Callable[[], list[CollectionPut]]) -> None:
        self._list = collections
        self._schemas = {source.tag: document_schema(source) for source in sources.all}
        self._collections: dict[str, Collection] = {}

    def __call__(self, frame: Frame, source: Source) -> pa.RecordBatch:
        collection = self._collections.get(source.collection)
        if collection is None or frame.schema > collection.version:
            self._collections = {each.name: Collection(each) for each in self._list()}
            collection = self._collections.get(source.collection)
            if collection is None:
                raise NotFoundError(
                    f"collection {source.collection!r} was deleted while it was read",
                    do="take it out of the task, or create it again",
                )
        batch = collection.decode(frame.body, frame.schema)
        wanted = self._schemas[source.tag]
        if len(batch.schema) == len(wanted):
            return batch
        return batch.select(wanted.names)
