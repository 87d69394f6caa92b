"""Finds series by matchers, and their labels, in one snapshot of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from headrace.errors import DataError
from headrace.stores.kv.contract import KeyValueSnapshot, prefix_end
from headrace.stores.timeseries.chunks.bucket_record import bitmap_ids
from headrace.stores.timeseries.index.series_dictionary import decode_posting
from headrace.stores.timeseries.key_layout import (
    INVERTED,
    forward_key,
    inverted_key,
    name_prefix,
)
from headrace.stores.timeseries.labels import decode_labels
from headrace.stores.timeseries.matchers import accepts_missing, check_matchers, matching
from headrace.stores.timeseries.series import LabelMatcher, Labels, MatchKind

_VALUES_CACHED_MAX = 50_000
"""The values of a label are kept in memory if they are not more."""


@dataclass(frozen=True, slots=True)
class LabelValues:
    """All values of a label, and which series have each of them."""

    values: pa.Array
    series: list[BitMap]


class IndexCache:
    """What readers of all snapshots share. Nothing in it can be out of date.

    The labels of an id never change, and an id is never given again. The values of a label are kept
    with the version of the index that they belong to.
    """

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._lock = threading.Lock()
        self.labels: dict[int, Labels] = {}
        self._values: dict[str, tuple[int, LabelValues]] = {}

    def add_labels(self, found: dict[int, Labels]) -> None:
        with self._lock:
            if len(self.labels) + len(found) > self._series_max:
                self.labels = {}
            if len(found) <= self._series_max:
                self.labels.update(found)

    def values(self, name: str, version: int) -> LabelValues | None:
        found = self._values.get(name)
        return found[1] if found and found[0] == version else None

    def add_values(self, name: str, version: int, values: LabelValues) -> None:
        with self._lock:
            if len(values.series) <= _VALUES_CACHED_MAX:
                self._values[name] = (version, values)


class SeriesIndex:
    """The index as a snapshot shows it. `version` is that of the snapshot's StoreCounters."""

    def __init__(self, snapshot: KeyValueSnapshot, version: int, cache: IndexCache) -> None:
        self._snapshot = snapshot
        self._version = version
        self._cache = cache

    def find(self, matchers: Sequence[LabelMatcher], among: BitMap) -> BitMap:
        """Return those of the series that all matchers accept."""
        check_matchers(matchers)
        found = among
        # Those that demand a label come first: they leave few series for the others.
        for matcher in sorted(matchers, key=accepts_missing):
            if not found:
                break
            if accepts_missing(matcher):
                found = found - self._with_value(matcher, accepted=False)
            else:
                found = found & self._with_value(matcher, accepted=True)
        return found

    def _with_value(self, matcher: LabelMatcher, *, accepted: bool) -> BitMap:
        """Return the series whose value of the label the matcher accepts, or does not accept."""
        is_one = {True: MatchKind.EQUAL, False: MatchKind.UNEQUAL}[accepted]
        if matcher.kind is is_one:
            stored = self._snapshot.get(inverted_key(matcher.name, matcher.value))
            return BitMap() if stored is None else decode_posting(stored)[1]
        known = self.values(matcher.name)
        mask = matching(matcher, known.values) == accepted
        chosen = [known.series[position] for position in np.flatnonzero(mask)]
        return BitMap.union(*chosen) if chosen else BitMap()

    def values(self, name: str) -> LabelValues:
        """Return the values of a label."""
        found = self._cache.values(name, self._version)
        if found is None:
            prefix = name_prefix(name)
            stored = [
                decode_posting(value)
                for _, value in self._snapshot.scan(prefix, prefix_end(prefix))
            ]
            values = pa.array([value for value, _ in stored], pa.string())
            found = LabelValues(values, [series for _, series in stored])
            self._cache.add_values(name, self._version, found)
        return found

    def names(self) -> Iterator[str]:
        """Yield the names of all labels, sorted. Seeks once for each, whatever the values are."""
        start, end = INVERTED, prefix_end(INVERTED)
        while (entry := next(self._snapshot.scan(start, end), None)) is not None:
            name = entry[0][1:].partition(b"\x00")[0]
            yield name.decode()
            start = INVERTED + name + b"\x01"

    def labels(self, series: BitMap) -> list[Labels]:
        """Return the labels of each series, by ascending id."""
        ids = bitmap_ids(series).tolist()
        known = self._cache.labels
        missing = [each for each in ids if each not in known]
        if missing:
            stored = self._snapshot.get_many([forward_key(each) for each in missing])
            read = {}
            for each, value in zip(missing, stored, strict=True):
                if value is None:
                    raise DataError(
                        f"series {each} has samples, and no labels", do="restore the store's copy"
                    )
                read[each] = decode_labels(value)
            self._cache.add_labels(read)
            return [known.get(each) or read[each] for each in ids]
        return [known[each] for each in ids]
