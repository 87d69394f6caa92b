"""Rows: which columns are taken, and that what cannot be stored is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DocumentError
from headrace.stores.timeseries.input.arrow_samples import (
    SCHEMA,
    KnownLabels,
    read_rows,
    write_rows,
)
from headrace.stores.timeseries.labels import decode_labels
from headrace.stores.timeseries.sample_batch import SampleBatch
from headrace.stores.timeseries.series import Labels

MAP = pa.map_(pa.string(), pa.string())


def rows_with(**columns: object) -> pa.RecordBatch:
    whole: dict[str, object] = {"timestamp": [1], "value": [1.0], **columns}
    return pa.RecordBatch.from_pydict({name: each for name, each in whole.items() if each})


def of_each_row(batch: SampleBatch) -> list[Labels]:
    return [decode_labels(batch.series[code]) for code in batch.codes]


def test_labels_come_from_a_map_from_columns_or_from_both() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "timestamp": [1, 2, 3],
            "value": [1, 2, 3],
            "labels": pa.array([[("a", "1")], [("a", "1"), ("b", "2")], [("b", "2")]], MAP),
            "job": pa.array(["x", None, ""]).dictionary_encode(),
            "zone": pa.array([None, None, "z"], pa.large_string()),
            "none": pa.nulls(3),
        }
    )
    assert of_each_row(read_rows(rows)) == [
        (("a", "1"), ("job", "x")),
        (("a", "1"), ("b", "2")),
        (("b", "2"), ("zone", "z")),
    ]


pairs = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from(["", "1", "2"]) | st.none(), min_size=1
).map(lambda labels: list(labels.items()))


@given(st.lists(st.tuples(pairs, st.randoms(use_true_random=False))), st.integers(0, 3))
def test_maps_with_the_same_labels_in_any_order_are_one_series(
    rows: list[tuple[list[tuple[str, str | None]], object]], skipped: int
) -> None:
    maps = []
    for each, random in rows:
        random.shuffle(each)  # type: ignore[attr-defined]
        maps.append([("z", "1"), *each])
    count = len(maps)
    whole = pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.array(np.arange(count, dtype=np.float64)),
            pa.array(maps, MAP),
        ],
        names=["timestamp", "value", "labels"],
    )
    batch = read_rows(whole.slice(skipped))
    expected = [tuple(sorted((k, v) for k, v in each if v)) for each in maps[skipped:]]
    assert of_each_row(batch) == expected
    assert batch.timestamps.tolist() == list(range(count))[skipped:]
    assert len(set(batch.series)) == len(set(expected))


def test_many_columns_with_many_values_are_told_apart() -> None:
    count = 4000
    columns = {f"c{n}": [f"{row * (n + 1) % count}" for row in range(count)] for n in range(7)}
    batch = read_rows(
        rows_with(timestamp=list(range(count)), value=[1.0] * count, **columns, job=["x"] * count)
    )
    assert len(batch.series) == count
    found = [dict(labels)["c0"] for labels in of_each_row(batch)]
    assert found == columns["c0"]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1_700_000_000_123], pa.int64()), 1_700_000_000_123),
        (pa.array([17], pa.uint8()), 17),
        (pa.array([-1], pa.timestamp("us", tz="UTC")), -1),
        (pa.array([1_999_999], pa.timestamp("ns", tz="Europe/Berlin")), 1),
        (pa.array([datetime(1970, 1, 2, tzinfo=UTC)]), 86_400_000),
        (pa.array([5], pa.timestamp("s", tz="+02:00")), 5000),
    ],
)
def test_times_become_milliseconds(column: pa.Array, expected: int) -> None:
    assert read_rows(rows_with(timestamp=column, a=["1"])).timestamps.tolist() == [expected]


@pytest.mark.parametrize(
    "column", [[7], pa.array([7], pa.float32()), [Decimal("7.0")], pa.array([7], pa.uint64())]
)
def test_numbers_of_any_type_are_values(column: object) -> None:
    assert read_rows(rows_with(value=column, a=["1"])).values.tolist() == [7.0]


# proves G27
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamp": None, "a": ["1"]}, "0 columns 'timestamp'"),
        ({"value": None, "a": ["1"]}, "0 columns 'value'"),
        ({"timestamp": pa.array([None], pa.int64()), "a": ["1"]}, "row 0 has no timestamp"),
        ({"value": pa.array([None], pa.float64()), "a": ["1"]}, "row 0 has no value"),
        ({"timestamp": ["2024-01-01"], "a": ["1"]}, "column 'timestamp' has the type string"),
        ({"timestamp": [1.5], "a": ["1"]}, "column 'timestamp' has the type double"),
        ({"timestamp": pa.array([1], pa.timestamp("ms"))}, "has the type timestamp.ms.; give"),
        ({"timestamp": pa.array([1 << 63], pa.uint64())}, "column 'timestamp': Integer value"),
        ({"timestamp": pa.array([1 << 62], pa.timestamp("s", tz="UTC"))}, "'timestamp': Casting"),
        ({"value": ["1"], "a": ["1"]}, "column 'value' has the type string"),
        ({"value": [True], "a": ["1"]}, "column 'value' has the type bool"),
        ({"value": [(1 << 53) + 1], "a": ["1"]}, "column 'value': Integer value"),
        ({"a": [1]}, "column 'a' has the type int64; labels are strings"),
        ({"labels": [["a"]]}, "column 'labels' has the type list"),
        ({"labels": pa.array([None], MAP)}, "row 0 has no labels"),
        ({"labels": pa.array([[]], MAP)}, "row 0 has no labels"),
        ({"labels": pa.array([[("a", "1"), ("a", "2")]], MAP)}, "row 0 has the label 'a' twice"),
        ({"labels": pa.array([[("a", "1")]], MAP), "a": ["1"]}, "row 0 has the label 'a' twice"),
        ({"labels": pa.array([[("a", "")]], MAP)}, "row 0 has no labels"),
        ({"a-b": ["1"]}, "row 0 has the label name 'a-b'"),
        ({"a": ["x" * (10 << 20)]}, "row 0 has a value of 10485760 bytes in the label 'a'"),
        ({}, "row 0 has no labels"),
    ],
)
def test_rows_that_cannot_be_stored_are_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(DocumentError, match=message) as caught:
        read_rows(rows_with(**columns))
    assert caught.value.do


def test_the_error_names_the_first_row_of_the_wrong_series() -> None:
    with pytest.raises(DocumentError, match="row 2 has no labels"):
        read_rows(rows_with(timestamp=[1, 2, 3], value=[1, 2, 3], a=["1", "1", ""]))


def test_no_rows_are_no_samples() -> None:
    empty = SCHEMA.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
    batch = read_rows(empty[0])
    assert batch.series == []
    assert len(batch.codes) == 0


def test_rows_come_back_as_they_were_written() -> None:
    maps: Sequence[list[tuple[str, str]]] = [[("a", "1")], [("a", "1")], [("a", "2")]]
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([1, 2, 1]).cast(pa.timestamp("ms", tz="UTC")),
            pa.array([1.5, float("inf"), -0.0]),
            pa.array(maps, MAP),
        ],
        schema=SCHEMA,
    )
    batch = read_rows(rows)
    assert write_rows(batch.select([], 0, 9)).equals(rows)


@pytest.mark.parametrize("series_max", [0, 2])
def test_labels_are_remembered_for_so_many_series_and_no_more(series_max: int) -> None:
    known = KnownLabels(series_max)
    columns = [("job", pa.array(list("abcde")))]
    for row in range(5):
        known.encode(columns, np.array([row]))
        assert len(known._known) <= series_max
