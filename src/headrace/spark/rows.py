"""Documents as rows of a DataFrame.

Of one source a row has the document's own columns. Of several it has a nullable struct for each,
named like the binding, of which exactly one is not null. On request every row says where its
document stands: `_journal`, `_clock`, `_producer`, `_binding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.shuffle.binding import Source, document_schema

META = (
    pa.field("_journal", pa.string()),
    pa.field("_clock", pa.int64()),
    pa.field("_producer", pa.string()),
    pa.field("_binding", pa.string()),
)


def row_schema(sources: Sequence[Source], *, meta: bool) -> pa.Schema:
    if len(sources) == 1:
        fields = list(document_schema(sources[0]))
    else:
        fields = [
            pa.field(source.name, pa.struct(list(document_schema(source)))) for source in sources
        ]
    return pa.schema([*fields, *(META if meta else ())])


class Rows:
    def __init__(self, sources: Sequence[Source], schema: pa.Schema) -> None:
        """`schema` is that of the rows, as Spark wants it."""
        self._schema = schema
        self._sources = [source.name for source in sources]
        self._is_flat = len(sources) == 1

    def rows(self, source: Source, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_flat:
            columns = [batch.column(name) for name in self._schema.names]
            return pa.RecordBatch.from_arrays(
                [c.cast(f.type) for c, f in zip(columns, self._schema, strict=True)],
                schema=self._schema,
            )
        columns = []
        for field in self._schema:
            if field.name == source.name:
                inner = [batch.column(each.name).cast(each.type) for each in field.type]
                columns.append(pa.StructArray.from_arrays(inner, fields=list(field.type)))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def all(self, shown: Iterator[tuple[Source, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for source, batch in shown:
            yield self.rows(source, batch)
