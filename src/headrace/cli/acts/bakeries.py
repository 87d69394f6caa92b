"""The bakeries of `headrace demo`: what they sell in a day, and what their customers write.

Nothing here learns from data: the vector of a text counts its words, each at a place that a hash of
the word chooses. So texts that share words are near each other, with no model to load.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

import headrace as hr

SALES = "bakery/sales"
REVIEWS = "bakery/reviews"
SHOPS = ("harbour", "market", "station")
OPENING_MS = int(datetime(2026, 1, 5, 6, tzinfo=UTC).timestamp() * 1000)
CLOSING_MS = int(datetime(2026, 1, 5, 18, tzinfo=UTC).timestamp() * 1000)
SALES_PER_REVIEW = 4
"""The customer of one sale of this many writes a review."""
DIMENSION = 64
VECTOR_COLUMNS = "id string, vector array<float>, number long, shop string, text string"
"""What `review_vectors` yields, as Spark writes it."""

_SALES_SCHEMA = "number long, shop string, at_ms long, cents long"
_REVIEWS_SCHEMA = "number long, shop string, text string"
_PEAK_HOURS = {"harbour": (7.0,), "market": (12.0,), "station": (8.0, 17.0)}
"""When the shops sell the most."""
_PEAK_WIDTH_HOURS = 1.5
_GOODS = ("bread", "croissant", "coffee", "cake", "apple pie", "roll")
_TASTES = ("fresh and warm", "stale", "burnt", "delicious", "far too sweet", "as always")
_REMARKS = (
    "the queue was long",
    "the staff was kind",
    "nobody said hello",
    "it was cheap",
    "they had no change",
    "we will come again",
)


class Sale(NamedTuple):
    number: int
    shop: str
    at_ms: int
    cents: int


class Review(NamedTuple):
    number: int
    shop: str
    text: str


class Bakeries:
    """Publishes sales and reviews, and remembers what it published."""

    def __init__(self, workspace: hr.Workspace, seed: int, sales: int) -> None:
        self.sale_documents = workspace.collection(SALES, _SALES_SCHEMA, key="shop", journals=2)
        self.review_documents = workspace.collection(
            REVIEWS, _REVIEWS_SCHEMA, key="shop", journals=2
        )
        self.sales: list[Sale] = []
        self.reviews: list[Review] = []
        self._chance = random.Random(seed)
        self._gap_ms = (CLOSING_MS - OPENING_MS) // sales
        self._publisher = workspace.publisher()

    def sell(self, count: int) -> None:
        """Publish so many sales. A sale and its review are one transaction."""
        pending = []
        for number in range(len(self.sales), len(self.sales) + count):
            sale = self._sale(number)
            transaction = self._publisher.begin()
            transaction.append(self.sale_documents, [sale._asdict()])
            if number % SALES_PER_REVIEW == 0:
                review = Review(number, sale.shop, self._text())
                transaction.append(self.review_documents, [review._asdict()])
                self.reviews.append(review)
            pending.append(transaction.commit_nowait())
            self.sales.append(sale)
        for commit in pending:
            commit.result()

    def _sale(self, number: int) -> Sale:
        # No two sales are at the same time, and none is at a whole second, where a step of the
        # chart could begin.
        at_ms = OPENING_MS + number * self._gap_ms + self._chance.randrange(self._gap_ms) // 2
        at_ms |= 1
        hour = 6 + (at_ms - OPENING_MS) / 3_600_000
        [shop] = self._chance.choices(SHOPS, [_appetite(shop, hour) for shop in SHOPS])
        return Sale(number, shop, at_ms, self._chance.randrange(1_50, 12_00))

    def _text(self) -> str:
        good, taste, remark = map(self._chance.choice, (_GOODS, _TASTES, _REMARKS))
        return f"the {good} was {taste}, {remark}"


def _appetite(shop: str, hour: float) -> float:
    """Return how much a shop sells at an hour, compared with the others."""
    peaks = ((hour - peak) / _PEAK_WIDTH_HOURS for peak in _PEAK_HOURS[shop])
    return 0.1 + sum(math.exp(-(each**2)) for each in peaks)


def embed(text: str) -> list[float]:
    """Return the vector of a text, of length 1, in the precision of a store."""
    counts = np.zeros(DIMENSION)
    for word in text.replace(",", " ").lower().split():
        hashed = xxhash.xxh3_64_intdigest(word.encode())
        counts[hashed % DIMENSION] += 1 if hashed >> 63 else -1
    length = float(np.linalg.norm(counts))
    vector: list[float] = (counts / (length or 1.0)).astype(np.float32).tolist()
    return vector


def review_vectors(attempt: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the vector store for reviews; their ids end with the attempt."""
    for batch in batches:
        vectors = pa.array(map(embed, batch["text"].to_pylist()), pa.list_(pa.float32()))
        ids = [f"{number}-{attempt}" for number in batch["number"].to_pylist()]
        yield pa.record_batch(
            [pa.array(ids, pa.string()), vectors, *batch.select(["number", "shop", "text"])],
            ["id", "vector", "number", "shop", "text"],
        )
