"""What a PromQL query answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.stores.timeseries.series import Labels, SelectedSeries


@dataclass(frozen=True, slots=True)
class VectorResult:
    """One value of each series at one moment."""

    at_ms: int
    labels: Sequence[Labels]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Values of each series at many moments. Moments without a value are left out."""

    series: SelectedSeries


@dataclass(frozen=True, slots=True)
class ScalarResult:
    at_ms: int
    value: float


@dataclass(frozen=True, slots=True)
class StringResult:
    at_ms: int
    value: str


QueryResult = VectorResult | MatrixResult | ScalarResult | StringResult
