"""The bakeries of the demo: a seed makes always the same, texts that share words are near."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.cli.acts.bakeries import (
    CLOSING_MS,
    DIMENSION,
    OPENING_MS,
    REVIEWS,
    SALES,
    SHOPS,
    Bakeries,
    embed,
    review_vectors,
)


def test_bakeries_remember_what_they_published(tmp_path: Path) -> None:
    with hr.open(tmp_path / "first") as workspace:
        bakeries = Bakeries(workspace, seed=3, sales=30)
        bakeries.sell(19)
        bakeries.sell(11)
        sold = workspace.table(SALES).to_pylist()
        written = workspace.table(REVIEWS).to_pylist()
    assert sorted(sold, key=lambda row: row["number"]) == [
        each._asdict() for each in bakeries.sales
    ]
    assert sorted(written, key=lambda row: row["number"]) == [
        each._asdict() for each in bakeries.reviews
    ]
    assert (len(sold), len(written)) == (30, 8)
    with hr.open(tmp_path / "second") as workspace:
        again = Bakeries(workspace, seed=3, sales=30)
        again.sell(30)
    assert (again.sales, again.reviews) == (bakeries.sales, bakeries.reviews)


def test_every_sale_has_a_time_of_its_own_which_is_no_whole_second(tmp_path: Path) -> None:
    """So every sale is a sample, and no step of a chart is at the edge of one."""
    with hr.open(tmp_path / "bakeries") as workspace:
        bakeries = Bakeries(workspace, seed=1, sales=500)
        bakeries.sell(500)
    times = [each.at_ms for each in bakeries.sales]
    assert times == sorted(set(times))
    assert times[0] > OPENING_MS
    assert times[-1] < CLOSING_MS
    assert all(each % 1000 for each in times)
    assert {each.shop for each in bakeries.sales} == set(SHOPS)


def test_texts_that_share_words_are_near() -> None:
    stale, warm, other = map(
        np.array, map(embed, ("the bread was stale", "bread, STALE", "a kind cashier"))
    )
    assert len(stale) == DIMENSION
    assert np.isclose(np.linalg.norm(stale), 1)
    assert stale @ warm > 0.5 > stale @ other


def test_a_row_of_the_store_is_a_review_with_its_vector_and_its_attempt() -> None:
    batch = pa.RecordBatch.from_pylist([{"number": 8, "shop": "market", "text": "stale"}])
    [rows] = review_vectors("a1", [batch])
    assert rows.to_pylist() == [
        {
            "id": "8-a1",
            "vector": embed("stale"),
            "number": 8,
            "shop": "market",
            "text": "stale",
        }
    ]
