"""Compares the stores of `headrace demo`, and what they answer, with what was published. Pure.

What must come out is computed here again, from what was published, without any code of a store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headrace.cli.acts.bakeries import CLOSING_MS, OPENING_MS, Review, Sale, embed
from headrace.stores.timeseries.series import SelectedSeries

WINDOW_MS = 30 * 60_000
STEP_MS = 5 * 60_000
START_MS = OPENING_MS + WINDOW_MS
QUERY = "sum by (shop) (sum_over_time(sale_cents[30m])) / 100"
"""What the shops took in half an hour, in dollars; from START_MS until they close."""
WANTED_TEXT = "stale bread and a long queue"
WANTED_SHOP = "market"
NEAREST = 5
_EXACTLY = 1e-9
_NEARLY = 1e-5
"""Vectors have the precision of float32."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Point = tuple[str, int]
"""A shop, and a time in milliseconds."""


class RowCount(NamedTuple):
    """How many rows a store must hold, and how many are wrong, by what is wrong with them."""

    published: int
    lost: int
    twice: int
    wrong: int
    """Nobody published them, or not so."""


def count_rows(published: Mapping[Key, Value], found: Iterable[tuple[Key, Value]]) -> RowCount:
    """Compare what was published with all rows of a store."""
    times: Counter[Key] = Counter()
    wrong = 0
    for key, value in found:
        times[key] += 1
        wrong += key not in published or published[key] != value
    return RowCount(
        len(published),
        lost=len(published.keys() - times.keys()),
        twice=sum(count - 1 for count in times.values()),
        wrong=wrong,
    )


def count_samples(sales: Iterable[Sale], rows: pa.Table) -> RowCount:
    """Compare sales with all samples of a store."""
    times = rows["timestamp"].cast(pa.int64()).to_pylist()
    shops = (dict(labels)["shop"] for labels in rows["labels"].to_pylist())
    found = zip(zip(shops, times, strict=True), rows["value"].to_pylist(), strict=True)
    return count_rows({(each.shop, each.at_ms): each.cents for each in sales}, found)


def count_vectors(reviews: Iterable[Review], rows: pa.Table) -> RowCount:
    """Compare reviews, and their vectors, with all rows of a store."""
    found = ((row["number"], (row["shop"], row["text"], row["vector"])) for row in rows.to_pylist())
    published = {each.number: (each.shop, each.text, embed(each.text)) for each in reviews}
    return count_rows(published, found)


# -- the queries ---------------------------------------------------------------------------


def takings(sales: Iterable[Sale]) -> dict[Point, float]:
    """Return the answer to QUERY at every step."""
    cents: Counter[Point] = Counter()
    for sale in sales:
        # The steps from the sale on whose window still has it.
        first = max(START_MS, -(-(sale.at_ms - START_MS) // STEP_MS) * STEP_MS + START_MS)
        for step in range(first, min(sale.at_ms + WINDOW_MS, CLOSING_MS + 1), STEP_MS):
            cents[sale.shop, step] += sale.cents
    return {point: total / 100 for point, total in cents.items()}


def wrong_points(sales: Iterable[Sale], answer: SelectedSeries) -> int:
    """Return at how many points the answer to QUERY differs from what was published."""
    expected = takings(sales)
    found: dict[Point, float] = {}
    for number, labels in enumerate(answer.labels):
        span = slice(answer.offsets[number], answer.offsets[number + 1])
        for at_ms, value in zip(answer.timestamps[span], answer.values[span], strict=True):
            found[dict(labels).get("shop", ""), int(at_ms)] = float(value)
    return sum(
        point not in found
        or point not in expected
        or not math.isclose(found[point], expected[point], rel_tol=_EXACTLY)
        for point in found.keys() | expected.keys()
    )


def wrong_hits(reviews: Iterable[Review], hits: Sequence[Mapping[str, Any]]) -> int:
    """Return at how many places of the answer there is no review of that distance, or none at all.

    Texts that are equally near may come in any order.
    """
    wanted = np.array(embed(WANTED_TEXT), np.float64)
    distances = {
        each.number: 1 - float(wanted @ np.array(embed(each.text), np.float64))
        for each in reviews
        if each.shop == WANTED_SHOP
    }
    nearest = sorted(distances.values())[:NEAREST]
    seen: set[int] = set()
    right = 0
    for hit, expected in zip(hits, nearest, strict=False):
        number = hit["number"]
        claims = distances.get(number, math.inf), hit["distance"]
        is_near = all(abs(each - expected) < _NEARLY for each in claims)
        right += is_near and number not in seen
        seen.add(number)
    return max(len(nearest), len(hits)) - right
