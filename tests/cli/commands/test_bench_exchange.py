"""`headrace bench exchange`: what it compares, and the command at its smallest size."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.bench.bench_exchange import _Totals, _totals
from headrace.bench.exchange_data import DATA_SETS, DataSet, hash_rows, sum_rows
from headrace.bench.targets import TARGETS
from tests.cli.headrace_process import HEADRACE

ROWS = 500


@pytest.fixture(params=DATA_SETS, ids=[each.name for each in DATA_SETS])
def table(request: pytest.FixtureRequest) -> pa.Table:
    data: DataSet = request.param
    return data.generate(np.random.default_rng(1), ROWS)


def hashed(table: pa.Table) -> _Totals:
    return _totals(pa.Table.from_batches([hash_rows(each) for each in table.to_batches()]))


def summed(table: pa.Table) -> _Totals:
    return _totals(pa.Table.from_batches([sum_rows(each) for each in table.to_batches()]))


def test_rows_are_equal_in_any_order_and_any_batches(table: pa.Table) -> None:
    other = table.take(np.random.default_rng(2).permutation(ROWS))
    cut = pa.concat_tables([other.slice(0, 7), other.slice(7)])
    assert hashed(cut) == hashed(table)
    assert summed(cut) == summed(table)
    assert hashed(table).rows == ROWS


def test_a_row_that_is_lost_repeated_or_changed_is_noticed(table: pa.Table) -> None:
    keys, rows = table["key"].to_numpy(), np.arange(ROWS)
    other = int(np.flatnonzero(keys != keys[0])[0])
    repeated, swapped = rows.copy(), rows.copy()
    repeated[0] = other
    swapped[[0, other]] = [other, 0]
    whole = hashed(table)
    assert hashed(table.slice(1)).rows == whole.rows - 1
    assert hashed(table.take(repeated)) != whole
    values = table["value"].take(pa.array(swapped))
    assert hashed(table.set_column(1, "value", values)) != whole


@pytest.mark.parametrize("name", ["ints", "strings"])
def test_a_sum_wraps_around(name: str) -> None:
    (data,) = (each for each in DATA_SETS if each.name == name)
    (batch,) = data.generate(np.random.default_rng(1), 50).to_batches()
    values = batch["value"].to_pylist()
    words = values if name == "ints" else [byte for text in values for byte in text.encode()]
    wanted = sum(words) + sum(batch["key"].to_pylist())
    found = _totals(pa.Table.from_batches([sum_rows(batch)]))
    assert found == (50, wanted % (1 << 64))


@pytest.mark.spark
@pytest.mark.deep
def test_it_measures_spark_in_the_same_run(here: Path) -> None:
    done = subprocess.run(
        [HEADRACE, "bench", "exchange", "--scale", "0.0001", "--rounds", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for kind in ("durable", "plain"):
        ratios = [found[f"{data.name}_ratio_{kind}"] for data in DATA_SETS]
        assert found[f"ratio_{kind}"] == max(ratios)
        for data, ratio in zip(DATA_SETS, ratios, strict=True):
            assert ratio == found[f"{data.name}_s"] / found[f"spark_{kind}_{data.name}_s"] > 0
    assert TARGETS["exchange"].keys() <= found.keys()
    assert list(here.iterdir()) == []
