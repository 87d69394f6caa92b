"""Series as columns, and how to select them. What stores give and PromQL takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name, without empty values. The metric's name is `__name__`."""

STALE_BITS = 0x7FF0000000000002
"""The bits of the NaN that ends a series: Prometheus calls it a staleness marker."""


class MatchKind(StrEnum):
    EQUAL = "="
    UNEQUAL = "!="
    MATCHES = "=~"
    UNLIKE = "!~"


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """Selects series by one label. A label that a series does not have counts as empty.

    Expressions are RE2, and match only a whole value.
    """

    name: str
    kind: MatchKind
    value: str

    def __str__(self) -> str:
        return f'{self.name}{self.kind}"{self.value}"'


@dataclass(frozen=True, slots=True)
class SelectedSeries:
    """Samples of many series in three arrays.

    Series i has the samples from `offsets[i]` up to `offsets[i + 1]`, by ascending time, no time
    twice.
    """

    labels: Sequence[Labels]
    offsets: npt.NDArray[np.int64]
    """One more than there are series; begins with 0."""
    timestamps: npt.NDArray[np.int64]
    """Milliseconds since 1970."""
    values: npt.NDArray[np.float64]
    """Staleness markers keep their bits."""


class SampleSource(Protocol):
    """Where PromQL reads: a store, or series in memory."""

    def select(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int, samples_max: int
    ) -> SelectedSeries:
        """Return all series that match, with their samples in start_ms ≤ time ≤ end_ms.

        Series without such a sample are left out. Raises QueryError if there are more samples than
        `samples_max`.
        """
