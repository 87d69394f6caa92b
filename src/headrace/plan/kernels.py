"""What each operator makes of its input, on Arrow tables. Pure but for the functions of users.

The columns that an operator returns are found by applying it to a table without rows, so that a
plan is checked by the same code that runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError, UnitError
from headrace.plan.aggregates import final_aggregate, partial_aggregate
from headrace.plan.groups import group_numbers
from headrace.plan.joins import join_tables
from headrace.plan.key_columns import check_columns, check_keys, with_plain_keys
from headrace.plan.operators import (
    Distinct,
    Filter,
    FinalHashAggregate,
    HashJoin,
    Map,
    Operator,
    PartialHashAggregate,
    PlanSink,
    Project,
    ShuffleRead,
    ShuffleWrite,
    SourceScan,
    inputs,
)
from headrace.plan.unified_columns import plain_schema, plain_table


def evaluate(operator: Operator, given: Mapping[Operator, pa.Table]) -> pa.Table:
    """Return the rows of an operator; `given` has those of the scans and shuffle reads below it."""
    if operator in given:
        return plain_table(given[operator])
    return apply(operator, *(evaluate(below, given) for below in inputs(operator)))


def apply(operator: Operator, *tables: pa.Table) -> pa.Table:
    """Return what an operator makes of the rows of its inputs."""
    match operator:
        case HashJoin(on=on, kind=kind):
            left, right = tables
            return join_tables(operator, left, right, on, kind)
        case Map(function=function):
            return _map(operator, tables[0], function)
        case Filter(function=function):
            return _filter(operator, tables[0], function)
    return _apply_to_columns(operator, tables[0])


def _apply_to_columns(operator: Operator, table: pa.Table) -> pa.Table:
    """Apply an operator that calls no function of a user."""
    match operator:
        case Project(columns=columns):
            check_columns(operator, columns, table.schema)
            return table.select(list(columns))
        case PartialHashAggregate(keys=keys, aggregates=aggregates):
            check_keys(operator, keys, table.schema)
            check_columns(
                operator, [each.column for each in aggregates if each.column], table.schema
            )
            return partial_aggregate(with_plain_keys(table, keys), keys, aggregates)
        case FinalHashAggregate(keys=keys, aggregates=aggregates):
            return final_aggregate(table, keys, aggregates)
        case Distinct(keys=keys):
            check_keys(operator, keys, table.schema)
            return _distinct(with_plain_keys(table, keys), keys)
        case ShuffleWrite(keys=keys):
            check_keys(operator, keys, table.schema)
    return table


def schema_of(operator: Operator) -> pa.Schema | None:
    """Return the columns of an operator; None if a function that declares none is below it.

    Raises SchemaError, which names operator and column, for a plan whose columns do not fit.
    """
    match operator:
        case SourceScan(source=source):
            schema = source.schema
            return None if schema is None else plain_schema(schema)
        case Map(schema=schema):
            schema_of(operator.input)
            return None if schema is None else plain_schema(schema)
        case Filter() | ShuffleRead() | PlanSink():
            return schema_of(operator.input)
    schemas = [schema_of(below) for below in inputs(operator)]
    known = [schema.empty_table() for schema in schemas if schema is not None]
    return apply(operator, *known).schema if len(known) == len(schemas) else None


def _distinct(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    if not table.num_rows:
        return table
    _, first_rows = np.unique(group_numbers(table, keys), return_index=True)
    return table.combine_chunks().take(pa.array(np.sort(first_rows)))


def _map(operator: Map, table: pa.Table, function: Any) -> pa.Table:
    made = [_call(operator, function, batch) for batch in _batches(table)]
    tables = [_as_table(operator, each) for each in made]
    if operator.schema is not None:
        declared = plain_schema(operator.schema)
        tables = [_as_declared(operator, each, declared) for each in tables]
        return pa.concat_tables([declared.empty_table(), *tables])
    return pa.concat_tables(tables, promote_options="permissive")


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows as record batches: at least one, so that a function sees the columns."""
    found = table.to_batches()
    return found or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def _call(operator: Operator, function: Any, batch: pa.RecordBatch) -> Any:
    try:
        return function(batch)
    except Exception as error:
        raise UnitError(
            f"{operator}: {type(error).__name__}: {error}", do="mend the function"
        ) from error


def _as_table(operator: Map, made: Any) -> pa.Table:
    if isinstance(made, pa.RecordBatch):
        return plain_table(pa.Table.from_batches([made]))
    if isinstance(made, pa.Table):
        return plain_table(made)
    raise UnitError(
        f"{operator} returned a {type(made).__name__}", do="return a record batch or a table"
    )


def _as_declared(operator: Map, table: pa.Table, declared: pa.Schema) -> pa.Table:
    try:
        return table.select(declared.names).cast(declared)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise SchemaError(
            f"{operator} returned {_columns(table.schema)}, and declares {_columns(declared)}",
            do="return what is declared, or declare what is returned",
        ) from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def _filter(operator: Filter, table: pa.Table, function: Any) -> pa.Table:
    kept = []
    for batch in table.to_batches():
        mask = _call(operator, function, batch)
        try:
            kept.append(batch.filter(pa.array(mask) if not isinstance(mask, pa.Array) else mask))
        except (pa.ArrowException, TypeError) as error:
            raise UnitError(
                f"{operator} returned no mask of the batch: {error}",
                do="return a boolean for each row",
            ) from error
    return pa.Table.from_batches(kept, table.schema)
