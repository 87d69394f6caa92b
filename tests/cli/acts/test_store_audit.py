"""What the demo makes of stores that lost rows, have rows twice, or answer wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.cli.acts.bakeries import CLOSING_MS, Review, Sale, embed
from headrace.cli.acts.store_audit import (
    START_MS,
    STEP_MS,
    WANTED_SHOP,
    WANTED_TEXT,
    WINDOW_MS,
    RowCount,
    count_samples,
    count_vectors,
    takings,
    wrong_hits,
    wrong_points,
)
from headrace.stores.timeseries.series import SelectedSeries

SALES = [
    Sale(0, "market", START_MS + 1, 500),
    Sale(1, "market", START_MS + STEP_MS + 1, 300),
    Sale(2, "harbour", CLOSING_MS - 1, 200),
]
REVIEWS = [
    Review(number, WANTED_SHOP, f"{' '.join(['stale'] * number)} bread {number}")
    for number in range(8)
]


def samples(*found: tuple[str, int, float], attempt: str = "a1") -> pa.Table:
    kind = pa.schema(
        [
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("value", pa.float64()),
            ("labels", pa.map_(pa.string(), pa.string())),
        ]
    )
    rows = [
        {"timestamp": at_ms, "value": value, "labels": {"shop": shop, "attempt": attempt}}
        for shop, at_ms, value in found
    ]
    return pa.Table.from_pylist(rows, kind)


PUBLISHED = [(each.shop, each.at_ms, float(each.cents)) for each in SALES]


@pytest.mark.parametrize(
    ("found", "lost", "twice", "wrong"),
    [
        (PUBLISHED, 0, 0, 0),
        (PUBLISHED[1:], 1, 0, 0),
        (PUBLISHED * 2, 0, 3, 0),
        ([*PUBLISHED[1:], ("market", START_MS + 1, 501.0)], 0, 0, 1),
        ([*PUBLISHED, ("station", START_MS + 1, 500.0)], 0, 0, 1),
        ([], 3, 0, 0),
    ],
)
def test_wrong_samples_are_counted(
    found: list[tuple[str, int, float]], lost: int, twice: int, wrong: int
) -> None:
    assert count_samples(SALES, samples(*found)) == RowCount(3, lost, twice, wrong)


def vector_rows(*reviews: Review, **change: Any) -> pa.Table:
    rows = [{**each._asdict(), "vector": embed(each.text), **change} for each in reviews]
    return pa.Table.from_pylist(rows) if rows else pa.table({"number": pa.array([], pa.int64())})


@pytest.mark.parametrize(
    ("found", "lost", "twice", "wrong"),
    [
        (vector_rows(*REVIEWS), 0, 0, 0),
        (vector_rows(*REVIEWS[1:]), 1, 0, 0),
        (vector_rows(*REVIEWS, REVIEWS[3]), 0, 1, 0),
        (vector_rows(*REVIEWS[1:], REVIEWS[0]._replace(text="bread 1")), 0, 0, 1),
        (vector_rows(*REVIEWS, vector=embed("cake")), 0, 0, 8),
        (vector_rows(), 8, 0, 0),
    ],
)
def test_wrong_vectors_are_counted(found: pa.Table, lost: int, twice: int, wrong: int) -> None:
    assert count_vectors(REVIEWS, found) == RowCount(8, lost, twice, wrong)


def test_takings_count_a_sale_for_as_long_as_the_window_has_it() -> None:
    steps = WINDOW_MS // STEP_MS
    expected = {("market", START_MS + STEP_MS): 5.0, ("harbour", CLOSING_MS): 2.0}
    expected |= {("market", START_MS + step * STEP_MS): 8.0 for step in range(2, steps + 1)}
    expected[("market", START_MS + (steps + 1) * STEP_MS)] = 3.0
    assert takings(SALES) == expected


def answer(points: dict[tuple[str, int], float]) -> SelectedSeries:
    shops = sorted({shop for shop, _ in points})
    of_shops = [
        sorted((at, value) for (shop, at), value in points.items() if shop == each)
        for each in shops
    ]
    times, values = (
        np.array([each[column] for rows in of_shops for each in rows]) for column in (0, 1)
    )
    offsets = np.cumsum([0, *map(len, of_shops)])
    return SelectedSeries([(("shop", each),) for each in shops], offsets, times, values)


def test_points_that_are_missing_too_many_or_different_are_wrong() -> None:
    right = takings(SALES)
    assert wrong_points(SALES, answer(right)) == 0
    first = ("market", START_MS + STEP_MS)
    assert wrong_points(SALES, answer({**right, first: 10.0})) == 1
    assert wrong_points(SALES, answer({**right, ("station", START_MS): 1.0})) == 1
    assert wrong_points(SALES, answer({each: right[each] for each in right if each != first})) == 1
    assert wrong_points(SALES, answer({each: value * 2 for each, value in right.items()})) == len(
        right
    )


def hits(reviews: list[Review] = REVIEWS) -> list[dict[str, Any]]:
    """The right ones, nearest first."""
    wanted = np.array(embed(WANTED_TEXT))
    found = [
        {"number": each.number, "distance": 1 - wanted @ np.array(embed(each.text))}
        for each in reviews
    ]
    return sorted(found, key=lambda each: each["distance"])[:5]


def test_reviews_that_are_not_the_nearest_are_wrong() -> None:
    elsewhere = Review(99, "harbour", WANTED_TEXT)
    assert wrong_hits([*REVIEWS, elsewhere], hits()) == 0
    first, *others = hits()
    assert wrong_hits([*REVIEWS, elsewhere], [{**first, "number": 99}, *others]) == 1
    assert wrong_hits(REVIEWS, [first, first, *others[1:]]) == 1
    assert wrong_hits(REVIEWS, [{**first, "distance": 0.1}, *others]) == 1
    assert wrong_hits(REVIEWS, [first, *others[:-1]]) == 1
    assert wrong_hits(REVIEWS, []) == 5


def test_texts_that_are_equally_near_may_come_in_any_order() -> None:
    [text] = (each.text for each in REVIEWS if each.number == hits()[0]["number"])
    reviews = [*REVIEWS, Review(100, WANTED_SHOP, text)]
    first, second, *others = hits(reviews)
    assert first["distance"] == second["distance"]
    assert wrong_hits(reviews, [second, first, *others]) == 0
    assert wrong_hits(reviews, [first, first, *others]) == 1
