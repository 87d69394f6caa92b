"""Samples as Prometheus remote write: what senders send. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stores.timeseries.input.protobuf import VARINT, write_bytes, write_varint
from headrace.stores.timeseries.input.remote_write import (
    METRIC_TYPES,
    SAMPLE_BYTES,
    SAMPLE_HEAD,
    TIME_AT,
)
from headrace.stores.timeseries.sample_batch import MetricMetadata
from headrace.stores.timeseries.series import Labels, SelectedSeries

_TIMES_OF_SIX_BYTES = (1 << 35, 1 << 42)


def encode_remote_write(
    samples: SelectedSeries, metadata: Mapping[str, MetricMetadata] | None = None
) -> bytes:
    """Return the body of an HTTP request, packed by snappy."""
    packed: bytes = pa.Codec("snappy").compress(encode_unpacked(samples, metadata), asbytes=True)
    return packed


def encode_unpacked(
    samples: SelectedSeries, metadata: Mapping[str, MetricMetadata] | None = None
) -> bytes:
    """Return the request before it is packed."""
    pieces = []
    least, most = _TIMES_OF_SIX_BYTES
    times = samples.timestamps
    if not len(times) or (times.min() >= least and times.max() < most):
        encoded = _usual_samples(times, samples.values).tobytes()
        starts = (samples.offsets * SAMPLE_BYTES).tolist()
        of_series = [encoded[a:b] for a, b in pairwise(starts)]
    else:
        ends = samples.offsets.tolist()
        of_series = [
            b"".join(
                _any_sample(int(time), value)
                for time, value in zip(times[a:b], samples.values[a:b], strict=True)
            )
            for a, b in pairwise(ends)
        ]
    for labels, each in zip(samples.labels, of_series, strict=True):
        pieces.append(write_bytes(1, encode_label_fields(labels) + each))
    for metric, told in (metadata or {}).items():
        body = write_varint(1 << 3 | VARINT) + write_varint(METRIC_TYPES.index(told.type))
        for field, text in ((2, metric), (4, told.help), (5, told.unit)):
            body += write_bytes(field, text.encode())
        pieces.append(write_bytes(3, body))
    return b"".join(pieces)


def encode_label_fields(labels: Labels) -> bytes:
    """Return the labels of a series, as they stand in a request."""
    return b"".join(
        write_bytes(1, write_bytes(1, name.encode()) + write_bytes(2, value.encode()))
        for name, value in labels
    )


def _usual_samples(
    times: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> npt.NDArray[np.uint8]:
    rows = np.empty((len(times), SAMPLE_BYTES), dtype=np.uint8)
    rows[:, :3] = np.frombuffer(SAMPLE_HEAD, dtype=np.uint8)
    rows[:, 3:TIME_AT] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    rows[:, TIME_AT] = 0x10
    for place in range(SAMPLE_BYTES - TIME_AT - 1):
        rows[:, TIME_AT + 1 + place] = (times >> (7 * place) & 0x7F) | 0x80
    rows[:, -1] &= 0x7F
    return rows


def _any_sample(time: int, value: float) -> bytes:
    body = b"\x09" + np.float64(value).tobytes() + b"\x10" + write_varint(time)
    return write_bytes(2, body)
