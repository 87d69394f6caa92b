"""What a call does with its rows: the kinds of operators behind one interface.

    map          a function of a row (a dict), which returns a row
    flat_map     a function of a row, which returns any number of rows
    filter       a function of a batch, which returns a mask: true for the rows to keep
    map_batches  a function of a batch, or an object with `process`, which returns as many rows

Every function may be `async def`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, UnitError
from headrace.pipeline.calls.answer import Answer
from headrace.pipeline.calls.outputs import from_rows, to_table

Kind = Literal["map", "flat_map", "filter", "map_batches"]
Cost = float | Callable[[], float] | None
ROW_KINDS = frozenset({"map", "flat_map"})


class Body(ABC):
    """One operator in one thread. `apply` returns an Answer whose rows are a table."""

    is_async = False

    def setup(self) -> Any:
        return None

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> Any:
        """Return the Answer to a batch, or a coroutine of it if `is_async`."""

    def close(self) -> Any:
        return None


def make_body(kind: Kind, target: Any, schema: pa.Schema | None, same_rows: bool) -> Body:
    """Return the body of an operator, before its set-up. `target` may be a class."""
    operator = target() if isinstance(target, type) else target
    function = operator.process if hasattr(operator, "process") else operator
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  an object may be called
    )
    if kind in ROW_KINDS:
        rows = _RowAnswers(schema, several=kind == "flat_map")
        if is_async:
            return _AsyncRows(operator, function, rows)
        return _Rows(operator, function, rows)
    finish = _keep if kind == "filter" else _BatchAnswers(schema, same_rows)
    return (_AsyncBatches if is_async else _Batches)(operator, function, finish)


class _Wrapper(Body):
    def __init__(
        self, operator: Any, function: Callable[..., Any], finish: Callable[[Any, Any], Answer]
    ) -> None:
        self._operator = operator
        self._function = function
        self._finish = finish

    def setup(self) -> Any:
        return self._operator.setup() if hasattr(self._operator, "setup") else None

    def close(self) -> Any:
        return self._operator.close() if hasattr(self._operator, "close") else None


class _Batches(_Wrapper):
    def apply(self, batch: pa.RecordBatch) -> Answer:
        return self._finish(self._function(batch), batch)


class _AsyncBatches(_Wrapper):
    is_async = True

    async def apply(self, batch: pa.RecordBatch) -> Answer:
        return self._finish(await self._function(batch), batch)


class _Rows(_Wrapper):
    def apply(self, batch: pa.RecordBatch) -> Answer:
        returned = []
        for index, row in enumerate(batch.to_pylist()):
            with _blame(index, batch):
                returned.append(self._function(row))
        return self._finish(returned, batch)


class _AsyncRows(_Wrapper):
    is_async = True

    async def apply(self, batch: pa.RecordBatch) -> Answer:
        returned = []
        for index, row in enumerate(batch.to_pylist()):
            with _blame(index, batch):
                returned.append(await self._function(row))
        return self._finish(returned, batch)


class RowBlame(Exception):
    """Says which row of a batch raised its cause."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _blame:
    """Adds the row's index to what a row function raises, if there are several rows."""

    def __init__(self, index: int, batch: pa.RecordBatch) -> None:
        self._index = index
        self._is_alone = batch.num_rows == 1

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit) and not self._is_alone:
            raise RowBlame(self._index) from error


class _RowAnswers:
    """Makes a table of the rows that a row function returned."""

    def __init__(self, schema: pa.Schema | None, several: bool) -> None:
        self._schema = schema
        self._several = several

    def __call__(self, returned: list[Any], batch: pa.RecordBatch) -> Answer:
        rows: list[Mapping[str, Any]] = []
        cost: Cost = None
        tokens = 0
        for index, value in enumerate(returned):
            if isinstance(value, Answer):
                cost = _add_cost(cost, value.cost)
                tokens += value.tokens
                value = value.rows
            with _blame(index, batch):
                rows.extend(_check_rows(value) if self._several else [_check_row(value)])
        return Answer(from_rows(rows, batch.schema, self._schema), cost, tokens)


def _add_cost(total: Cost, cost: Cost) -> Cost:
    if total is None or cost is None:
        return total if cost is None else cost
    first, second = total, cost
    return lambda: sum(each() if callable(each) else each for each in (first, second))


def _check_row(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnitError(
            f"the operator returned {_kind_of(value)} instead of a row",
            do="return a dict, or use filter to drop rows",
        )
    return value


def _check_rows(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping | str | bytes) or not isinstance(value, Iterable):
        raise UnitError(
            f"the operator returned {_kind_of(value)} instead of rows",
            do="return a list of dicts, or yield dicts",
        )
    return [_check_row(each) for each in value]


def _keep(returned: Any, batch: pa.RecordBatch) -> Answer:
    """Return the rows for which the mask is true."""
    mask = returned.combine_chunks() if isinstance(returned, pa.ChunkedArray) else returned
    if isinstance(mask, np.ndarray):
        mask = pa.array(mask)
    elif isinstance(mask, list | tuple):
        mask = pa.array(mask, pa.bool_()) if all(map(_is_truth, mask)) else pa.array(mask)
    if not isinstance(mask, pa.Array) or not pa.types.is_boolean(mask.type):
        found = f"an array of {mask.type}" if isinstance(mask, pa.Array) else _kind_of(returned)
        raise UnitError(
            f"the filter returned {found} instead of a mask",
            do="return an array with true or false for each row of the batch",
        )
    if len(mask) != batch.num_rows:
        raise UnitError(
            f"the filter returned a mask of {len(mask)} for {batch.num_rows} rows",
            do="return an array with true or false for each row of the batch",
        )
    return Answer(pa.Table.from_batches([batch.filter(mask)]))


def _is_truth(value: Any) -> bool:
    return value is None or isinstance(value, bool | np.bool_)


class _BatchAnswers:
    """Checks the rows that a batch function returned."""

    def __init__(self, schema: pa.Schema | None, same_rows: bool) -> None:
        self._schema = schema
        self._same_rows = same_rows

    def __call__(self, returned: Any, batch: pa.RecordBatch) -> Answer:
        answer = returned if isinstance(returned, Answer) else Answer(returned)
        table = to_table(answer.rows, self._schema)
        if self._same_rows and table.num_rows != batch.num_rows:
            raise UnitError(
                f"the operator returned {table.num_rows} rows for {batch.num_rows}",
                do="return a row for each row, or declare same_rows=False",
            )
        return answer._replace(rows=table)


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def is_foreseen(error: BaseException) -> bool:
    """True if the rows are to blame for an error, and not the connection or the budget."""
    return isinstance(error, UnitError) or not isinstance(error, HeadraceError)
