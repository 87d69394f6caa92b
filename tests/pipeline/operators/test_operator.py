"""What each kind of operator does with rows, and what a wrong one is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import HeadraceError, RetryableError, UnitError, UsageError
from headrace.pipeline.contract import UnitRows
from headrace.pipeline.operators.operator import Operator, OperatorSpec, current_call, operator_spec
from headrace.pipeline.operators.retries import Retries
from tests.pipeline.operator_runs import process, rows_of, with_operator

ROWS: list[dict[str, Any]] = [{"n": n, "name": f"row {n}"} for n in range(10)]
AT_ONCE = Retries(attempts_max=3, first_s=0.0, longest_s=0.0)


def fails_on_three(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 3:
        raise ValueError("three\nis too many")
    return row


def refusal(spec: OperatorSpec, rows: list[dict[str, Any]] = ROWS) -> str:
    """Return the error of a unit, which is one line with a remedy."""
    with pytest.raises(HeadraceError) as raised:
        process(spec, rows)
    assert "\n" not in str(raised.value)
    assert raised.value.do
    return str(raised.value)


def test_map_takes_and_returns_rows() -> None:
    spec = operator_spec("map", lambda row: {**row, "square": row["n"] ** 2})
    assert rows_of(process(spec, ROWS)) == [{**row, "square": row["n"] ** 2} for row in ROWS]


def test_map_keeps_the_types_that_came_in() -> None:
    given = pa.table({"n": pa.array([1, 2], pa.int32()), "d": pa.array([None, 1.5], pa.float32())})
    table = process(operator_spec("map", lambda row: row | {"n": 7}), given).table
    assert table is not None
    assert table.schema == given.schema


def test_flat_map_returns_any_number_of_rows() -> None:
    def repeat(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for copy in range(row["n"]):
            yield {"n": row["n"], "copy": copy}

    found = rows_of(process(operator_spec("flat_map", repeat), ROWS[:4]))
    assert found == [{"n": n, "copy": copy} for n in range(4) for copy in range(n)]
    assert process(operator_spec("flat_map", lambda row: []), ROWS).table is None


@pytest.mark.parametrize(
    "mask",
    [
        lambda batch: pc.greater(batch["n"], 6),
        lambda batch: batch["n"].to_numpy() > 6,
        lambda batch: [n > 6 for n in batch["n"].to_pylist()],
        lambda batch: pa.chunked_array([pc.greater(batch["n"], 6)]),
        lambda batch: pc.if_else(pc.greater(batch["n"], 6), True, None),
    ],
)
def test_filter_keeps_what_the_mask_marks(mask: Any) -> None:
    assert rows_of(process(operator_spec("filter", mask, batch_size=4), ROWS)) == ROWS[7:]


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: batch.append_column("double", pc.multiply(batch["n"], 2)),
        lambda batch: pa.Table.from_batches([batch]).append_column(
            "double", pc.multiply(batch["n"], 2)
        ),
        lambda batch: {"n": batch["n"], "name": batch["name"], "double": batch["n"].to_numpy() * 2},
        lambda batch: batch.to_pandas().assign(double=lambda frame: frame["n"] * 2),
    ],
)
def test_map_batches_takes_what_people_return(function: Any) -> None:
    found = rows_of(process(operator_spec("map_batches", function, batch_size=3), ROWS))
    assert found == [{**row, "double": 2 * row["n"]} for row in ROWS]


def test_a_matrix_is_a_column_of_lists() -> None:
    spec = operator_spec("map_batches", lambda batch: {"v": np.ones((batch.num_rows, 3))})
    assert rows_of(process(spec, ROWS[:2])) == [{"v": [1.0, 1.0, 1.0]}] * 2


class Counted(Operator):
    def __init__(self, step: int = 1) -> None:
        self.step = step

    def setup(self) -> None:
        self.calls = 0
        self.thread = threading.get_ident()

    def process(self, batch: pa.RecordBatch) -> dict[str, Any]:
        assert threading.get_ident() == self.thread
        self.calls += self.step
        return {"calls": [self.calls] * batch.num_rows}


@pytest.mark.parametrize(("target", "step"), [(Counted, 1), (Counted(5), 5)])
def test_an_operator_is_set_up_once_in_the_thread_that_calls_it(target: Any, step: int) -> None:
    spec = operator_spec("map_batches", target, batch_size=5)

    async def two_units(operator: Any) -> list[Any]:
        table = pa.Table.from_pylist(ROWS)
        return [await operator.process(UnitRows(unit, table)) for unit in ("a", "b")]

    found = [rows_of(each) for each in with_operator(spec, two_units)]
    calls = [row["calls"] for rows in found for row in rows]
    assert calls == [step] * 5 + [2 * step] * 5 + [3 * step] * 5 + [4 * step] * 5


def test_an_operator_is_closed() -> None:
    process(OperatorSpec(kind="map_batches", target=Closing), ROWS)
    assert Closing.closed == ["headrace-captions"], "in the thread that made its calls"


class Closing(Operator):
    closed: ClassVar[list[str]] = []

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def close(self) -> None:
        Closing.closed.append(threading.current_thread().name)


def test_async_calls_run_at_once_up_to_a_bound() -> None:
    class Concurrent(Operator):
        async def setup(self) -> None:
            self.running = self.most = 0

        async def process(self, batch: pa.RecordBatch) -> dict[str, Any]:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.01)
            self.running -= 1
            return {"n": batch["n"], "most": [self.most] * batch.num_rows}

    spec = operator_spec("map_batches", Concurrent, batch_size=1, concurrency=3)
    found = rows_of(process(spec, ROWS))
    assert [row["n"] for row in found] == list(range(10)), "in order, whoever ends first"
    assert max(row["most"] for row in found) == 3


def test_async_functions_of_rows() -> None:
    async def double(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": 2 * row["n"]}

    for concurrency in (1, 4):
        spec = operator_spec("map", double, concurrency=concurrency)
        assert [row["n"] for row in rows_of(process(spec, ROWS))] == list(range(0, 20, 2))


TOGETHER = threading.Barrier(4, timeout=30)


def meet(row: dict[str, Any]) -> dict[str, Any]:
    TOGETHER.wait()
    return row


def test_threads_run_at_once_too() -> None:
    spec = operator_spec("map", meet, concurrency=4)
    assert rows_of(process(spec, ROWS[:8])) == ROWS[:8]


def test_a_call_knows_itself() -> None:
    def tell(row: dict[str, Any]) -> dict[str, Any]:
        call = current_call()
        return {"unit": call.unit, "rows": list(call.rows), "key": call.idempotency_key}

    found = rows_of(process(operator_spec("map", tell, concurrency=2), ROWS))
    assert [row["rows"] for row in found] == [[n] for n in range(10)]
    assert len({row["key"] for row in found}) == 10
    with pytest.raises(UsageError, match="no call under way"):
        current_call()


# What goes wrong


# proves G18
def test_an_operator_that_raises_names_stage_unit_and_row() -> None:
    line = refusal(operator_spec("map", fails_on_three))
    assert line.startswith("stage 'captions', unit u1, row 3: ValueError: three is too many; mend")


def test_a_batch_operator_that_raises_names_the_rows() -> None:
    def fail(batch: pa.RecordBatch) -> Any:
        raise KeyError("image")

    line = refusal(operator_spec("map_batches", fail, batch_size=4))
    assert line.startswith("stage 'captions', unit u1, rows 0 to 3: KeyError: 'image'; ")


# proves G18
def test_rows_that_fail_are_given_up_one_by_one() -> None:
    spec = operator_spec("map", fails_on_three, on_error="dead_letter")
    processed = process(spec, ROWS)
    assert rows_of(processed) == ROWS[:3] + ROWS[4:]
    assert list(processed.dead) == [(3, "ValueError: three is too many", 1)]


# proves G18
def test_a_bad_row_does_not_take_its_batch_along() -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if {3, 8} & set(batch["n"].to_pylist()):
            raise ValueError("bad row")
        return batch

    processed = process(
        operator_spec("map_batches", fail, batch_size=5, on_error="dead_letter"), ROWS
    )
    assert [row["n"] for row in rows_of(processed)] == [0, 1, 2, 4, 5, 6, 7, 9]
    assert [dead.row for dead in processed.dead] == [3, 8]


@pytest.mark.parametrize(
    ("kind", "function", "expected"),
    [
        ("map", lambda row: None, "row 0: the operator returned None instead of a row"),
        ("map", lambda row: [row], "row 0: the operator returned a list instead of a row"),
        ("map", lambda row: {1: 2}, "the operator returned a column named 1"),
        ("flat_map", lambda row: row, "row 0: the operator returned a dict instead of rows"),
        ("flat_map", lambda row: ["a"], "row 0: the operator returned a str instead of a row"),
        ("filter", lambda batch: batch, "the filter returned a RecordBatch instead of a mask"),
        ("filter", lambda batch: batch["n"], "an array of int64 instead of a mask"),
        ("filter", lambda batch: [True], "the filter returned a mask of 1 for 10 rows"),
        ("map_batches", lambda batch: None, "the operator returned None instead of rows"),
        ("map_batches", lambda batch: batch.slice(0, 7), "returned 7 rows for 10"),
        ("map_batches", lambda batch: {"a": [1], "b": [1, 2]}, "columns that are no table"),
        ("map_batches", lambda batch: batch.append_column("n", batch["n"]), "'n' twice"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(kind: Any, function: Any, expected: str) -> None:
    assert expected in refusal(operator_spec(kind, function))


def test_a_batch_operator_may_change_the_number_of_rows_if_it_says_so() -> None:
    spec = operator_spec("map_batches", lambda batch: batch.slice(0, 1), same_rows=False)
    assert rows_of(process(spec, ROWS)) == ROWS[:1]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda row: {"n": 1}, "no column 'text', which its schema declares"),
        (lambda row: {"n": 1, "text": "a", "x": 1}, "returned 'x', which its schema does not"),
        (lambda row: {"n": "one", "text": "a"}, "'n' is declared as int64, and the operator ret"),
        (lambda row: {"n": row["n"] or "?", "text": "a"}, "the operator returned '?'"),
    ],
)
def test_rows_of_a_wrong_schema_are_refused(function: Any, expected: str) -> None:
    assert expected in refusal(operator_spec("map", function, schema="n long, text string"))


def test_batches_of_a_wrong_schema_are_refused() -> None:
    spec = operator_spec("map_batches", lambda batch: batch, schema="n long, name long")
    assert "column 'name' is declared as int64, and the operator returned string" in refusal(spec)


def test_a_declared_schema_decides_the_types() -> None:
    spec = operator_spec("map", lambda row: {"n": row["n"], "t": None}, schema="n double, t string")
    table = process(spec, ROWS).table
    assert table is not None
    assert table.schema.types == [pa.float64(), pa.string()]


def test_the_schema_of_a_class_counts() -> None:
    class Declared(Operator):
        schema = "n double"

        def process(self, batch: pa.RecordBatch) -> dict[str, Any]:
            return {"n": batch["n"]}

    table = process(operator_spec("map_batches", Declared), ROWS).table
    assert table is not None
    assert table.schema.types == [pa.float64()]


@pytest.mark.long
def test_a_function_that_hangs_is_left_behind() -> None:
    def hang(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 3:
            threading.Event().wait()
        return row

    options: dict[str, Any] = {"timeout_s": 0.2, "retries": AT_ONCE}
    line = refusal(operator_spec("map", hang, **options))
    assert "row 3: the call did not return within 0.2 s (after 3 attempts)" in line
    processed = process(operator_spec("map", hang, on_error="dead_letter", **options), ROWS)
    assert rows_of(processed) == ROWS[:3] + ROWS[4:]
    assert [(dead.row, dead.attempts) for dead in processed.dead] == [(3, 3)]


def test_a_coroutine_that_hangs_is_cancelled() -> None:
    async def hang(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 3:
            await asyncio.Event().wait()
        return row

    spec = operator_spec("map", hang, timeout_s=0.05, retries=AT_ONCE, on_error="dead_letter")
    assert [dead.row for dead in process(spec, ROWS).dead] == [3]


def test_an_operator_that_exits_is_an_error() -> None:
    def leave(row: dict[str, Any]) -> dict[str, Any]:
        raise SystemExit(3)

    assert "row 0: the operator called sys.exit(3)" in refusal(operator_spec("map", leave))


def test_a_set_up_that_fails_names_the_stage() -> None:
    class Broken(Operator):
        def setup(self) -> None:
            raise FileNotFoundError("no model.bin")

    line = refusal(operator_spec("map_batches", Broken))
    assert line.startswith("stage 'captions': the set-up of its operator failed: FileNotFound")


def test_retryable_errors_are_tried_again_and_others_are_not() -> None:
    def fail_once(row: dict[str, Any]) -> dict[str, Any]:
        if current_call().attempt == 1 and row["n"] == 4:
            raise RetryableError("busy")
        return {**row, "attempt": current_call().attempt}

    spec = operator_spec("map", fail_once, retries=AT_ONCE, concurrency=2)
    assert [row["attempt"] for row in rows_of(process(spec, ROWS))] == [1, 1, 1, 1, 2] + [1] * 5
    assert "after" not in refusal(operator_spec("map", fails_on_three, retries=AT_ONCE))


def test_a_number_of_retries_means_any_error() -> None:
    spec = operator_spec("map", fails_on_three, retries=2)
    assert spec.retries == Retries(attempts_max=3, any_error=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"timeout_s": 0}, "timeout_s must be more than 0, got 0"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"in_doubt": "guess"}, "in_doubt is 'guess'"),
        ({"colour": 1}, "colour is no option of an operator"),
        ({"retries": -1}, "attempts_max must be at least 1, got 0"),
    ],
)
def test_options_are_checked_when_they_are_given(options: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        operator_spec("map", fails_on_three, **options)


def test_what_is_no_operator_is_refused() -> None:
    with pytest.raises(UsageError, match="7 is no operator"):
        operator_spec("map", 7)


def test_skipped_rows_are_left_out_and_the_others_keep_their_numbers() -> None:
    table = pa.Table.from_pylist(ROWS)
    for batch_size in (1, 4, 100):
        spec = operator_spec("map", fails_on_three, batch_size=batch_size)
        skipped = process(spec, UnitRows("u1", table, skip=frozenset({0, 3, 9})))
        assert [row["n"] for row in rows_of(skipped)] == [1, 2, 4, 5, 6, 7, 8]


def test_a_probe_hears_of_each_row_before_it_is_processed() -> None:
    heard: list[int] = []

    async def probe(rows: Any) -> None:
        heard.extend(rows)

    spec = operator_spec("map_batches", lambda batch: batch, batch_size=4, concurrency=3)
    processed = process(spec, UnitRows("u1", pa.Table.from_pylist(ROWS), probe=probe))
    assert rows_of(processed) == ROWS
    assert heard == list(range(10))


def test_calls_that_return_different_types_are_refused() -> None:
    spec = operator_spec("map", lambda row: {"v": row["n"] if row["n"] % 2 else [1]}, concurrency=2)
    assert "columns of different types" in refusal(spec)


def test_errors_of_the_unit_keep_their_kind() -> None:
    with pytest.raises(UnitError):
        process(operator_spec("map", fails_on_three), ROWS)


def test_what_cannot_travel_is_refused_at_once() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot travel to workers: TypeError: cannot pickle"):
        operator_spec("map", lambda row: {"locked": lock.locked()})


def test_a_function_that_raises_stop_iteration_fails_like_any_other() -> None:
    """`next` without a default raises it, and no future takes it: the unit would wait for ever."""
    nothing: list[int] = []
    spec = operator_spec("map", lambda row: {"n": next(iter(nothing))})
    assert "row 0: the operator raised StopIteration" in refusal(spec, ROWS[:1])
    whole = operator_spec("map_batches", lambda batch: next(iter(nothing)))
    assert "the operator raised StopIteration" in refusal(whole)
