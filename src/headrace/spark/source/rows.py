"""Turns documents into rows of a DataFrame.

With one source a row has the document's own columns. With several sources it has a nullable struct
for each, named like the binding, and exactly one of them is not null. On request every row has the
position of its document: `_journal`, `_clock`, `_producer`, `_binding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.frontier import TAG_BITS
from headrace.ids import format_producer
from headrace.shuffle.binding import Source, document_schema
from headrace.shuffle.block import CLOCK_FIELD, PAIR_FIELD, Block

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
        """`schema` is the schema of the rows that Spark expects."""
        self._schema = schema
        self._is_flat = len(sources) == 1

    def all(self, shown: Iterable[tuple[Source, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for source, batch in shown:
            yield self._rows(source, batch, {})

    def all_with_meta(
        self, blocks: Iterable[Block], journals: Mapping[int, str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with meta columns. `journals` has the names of journals by tag."""
        for block in blocks:
            yield self._rows(block.source, block.batch, meta_columns(block, journals))

    def _rows(
        self, source: Source, batch: pa.RecordBatch, meta: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            if field.name in meta:
                columns.append(meta[field.name])
            elif self._is_flat:
                columns.append(_column(batch, field))
            elif field.name == source.name:
                columns.append(_struct(batch, field))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def meta_columns(block: Block, journals: Mapping[int, str]) -> dict[str, pa.Array]:
    """Return the meta columns. Strings are made once for each pair, not for each document."""
    pair = block.batch.column(PAIR_FIELD.name)
    tags = (block.pairs["place"] >> np.uint64(TAG_BITS)).tolist()
    names = pa.array([journals[tag] for tag in tags], pa.string())
    producers = pa.array(map(format_producer, block.pairs["producer"].tolist()), pa.string())
    return {
        "_journal": names.take(pair),
        # Spark has no unsigned integers. A clock fits into a signed one until the year 3796.
        "_clock": block.batch.column(CLOCK_FIELD.name).view(pa.int64()),
        "_producer": producers.take(pair),
        "_binding": pa.repeat(pa.scalar(block.source.name), block.batch.num_rows),
    }


def _struct(batch: pa.RecordBatch, field: pa.Field) -> pa.StructArray:
    inner = [_column(batch, each) for each in field.type]
    return pa.StructArray.from_arrays(inner, fields=list(field.type))


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    return batch.column(field.name).cast(field.type)
