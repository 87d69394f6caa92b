"""Whether rows can be documents of a collection, told before any work is done."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import DocumentError, SchemaError
from headrace.journal.collection import Collection
from headrace.journal.write.write_buffer import to_batch
from headrace.settings import JournalSettings


def check_fits(collection: Collection, rows: pa.Schema) -> None:
    """Before any work is done: columns go by their names."""
    where = f"collection {collection.name!r}"
    for field in collection.schema:
        needed = not field.nullable or field.name in collection.key
        if needed and field.name not in rows.names:
            raise SchemaError(
                f"{where} needs column {field.name!r}, which the rows do not have",
                do=f"they have {', '.join(rows.names)}",
            )
    nothing = pa.RecordBatch.from_pylist([], schema=rows)
    try:
        to_batch(collection, nothing, JournalSettings().document_bytes_max)
    except DocumentError as error:
        raise SchemaError(f"{where}: {error.what}", do=error.do) from error
