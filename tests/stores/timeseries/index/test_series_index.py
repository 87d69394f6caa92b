"""What readers of all snapshots share: it stays within its limits."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyroaring import BitMap

from headrace.stores.timeseries.index import series_index
from headrace.stores.timeseries.index.series_index import IndexCache, LabelValues
from headrace.stores.timeseries.series import Labels


def labels(*ids: int) -> dict[int, Labels]:
    return {each: (("number", f"{each}"),) for each in ids}


def values(*texts: str) -> LabelValues:
    return LabelValues(pa.array(texts), [BitMap([number]) for number in range(len(texts))])


def test_labels_are_kept_for_so_many_series_and_no_more() -> None:
    cache = IndexCache(series_max=2)
    cache.add_labels(labels(1, 2))
    assert cache.labels == labels(1, 2)
    cache.add_labels(labels(3))
    assert cache.labels == labels(3)
    cache.add_labels(labels(4, 5, 6))
    assert len(cache.labels) <= 2


def test_values_are_kept_if_they_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_index, "_VALUES_CACHED_MAX", 2)
    cache = IndexCache(series_max=9)
    few, many = values("a", "b"), values("a", "b", "c")
    cache.add_values("few", 1, few)
    cache.add_values("many", 1, many)
    assert cache.values("few", 1) is few
    assert cache.values("few", 2) is None
    assert cache.values("many", 1) is None
