"""Prometheus remote write: snappy around protobuf, `prometheus.WriteRequest` of version 1. Pure.

Senders repeat the labels of every series in every request, byte for byte. So a decoder remembers
the labels that it has read, and numpy reads the samples, which mostly have one form: 18 bytes, with
a time of 6. Whatever has another form is read step by step.

Exemplars are ignored. Native histograms are refused: nothing could be stored for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DocumentError
from headrace.stores.timeseries.input.protobuf import (
    BYTES,
    I64,
    VARINT,
    FieldReader,
    malformed,
    read_varint,
)
from headrace.stores.timeseries.labels import encode_labels, make_labels
from headrace.stores.timeseries.sample_batch import MetricMetadata, SampleBatch

REQUEST_BYTES_MAX = 64 << 20
"""A request that is larger when it is unpacked is refused."""
KNOWN_LABELS_MAX = 200_000
KNOWN_BYTES_MAX = 64 << 20
"""A decoder remembers the labels of so many series, and labels of so many bytes."""

METRIC_TYPES = (
    *("unknown", "counter", "gauge", "histogram"),
    *("gaugehistogram", "summary", "info", "stateset"),
)

_METADATA = 3
_LABELS, _SAMPLES, _HISTOGRAMS = 1, 2, 4
_SERIES_TAG = _LABELS_TAG = 0x0A
_SAMPLES_TAG = 0x12
SAMPLE_BYTES = 18
SAMPLE_HEAD = bytes([_SAMPLES_TAG, SAMPLE_BYTES - 2, 0x09])
"""Begins a sample of the usual form: tag, length, tag of the value. The value follows."""
TIME_AT = 11
"""Where in a sample the tag of the time is: 0x10. Its 6 bytes follow."""
_DOUBLE = struct.Struct("<d")

Bytes = npt.NDArray[np.uint8]


def unpack_snappy(body: bytes, bytes_max: int = REQUEST_BYTES_MAX) -> bytes:
    """Return what was packed. Raises DocumentError if it is too large or damaged."""
    try:
        size, _ = read_varint(body, 0, min(len(body), 5))
        if size > bytes_max:
            raise DocumentError(
                f"the request has {size} bytes unpacked, and {bytes_max} are allowed",
                do="send fewer samples at once",
            )
        # snappy packs at most about 21 times: a size beyond that is made up.
        if size > 64 * len(body):
            raise DocumentError(
                f"the request has {len(body)} bytes and claims to hold {size}",
                do="send a snappy block, not a stream of frames",
            )
        unpacked: bytes = pa.Codec("snappy").decompress(body, size, asbytes=True)
    except (OSError, pa.ArrowException, IndexError) as error:
        raise DocumentError(
            f"the request is no snappy block: {error}",
            do="send Content-Encoding: snappy in the block format",
        ) from error
    return unpacked


class RemoteWriteDecoder:
    """Decodes requests. One thread uses it at a time."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        """Labels as `labels.encode_labels` makes them, by their bytes in requests."""
        self._known_bytes = 0

    def decode(self, body: bytes, bytes_max: int = REQUEST_BYTES_MAX) -> SampleBatch:
        """Return the samples of the body of an HTTP request.

        Raises DocumentError, which says at which byte, if it is malformed or cannot be stored.
        """
        return self.decode_unpacked(unpack_snappy(body, bytes_max))

    def decode_unpacked(self, data: bytes) -> SampleBatch:
        """Do the same for a request that is not packed."""
        request = _Request(data, self._known)
        try:
            return request.read()
        finally:
            self._known_bytes += request.learned_bytes
            if len(self._known) > KNOWN_LABELS_MAX or self._known_bytes > KNOWN_BYTES_MAX:
                self._known.clear()
                self._known_bytes = 0


class _Request:
    """A request while it is decoded."""

    def __init__(self, data: bytes, known: dict[bytes, bytes]) -> None:
        self._data = data
        self._known = known
        self.learned_bytes = 0
        """Bytes of the labels that were added to `known`."""
        self._series: list[bytes] = []
        self._metadata: dict[str, MetricMetadata] = {}
        self._regions: list[int] = []
        """Four numbers each: where what seem to be samples of the usual form begin, how many they
        are, of which series, and where that begins."""
        self._codes: list[int] = []
        self._times: list[int] = []
        self._values: list[float] = []
        """Samples of any other form."""

    def read(self) -> SampleBatch:
        data, position, end = self._data, 0, len(self._data)
        fields = FieldReader(data, "the request")
        while position < end:
            if data[position] == _SERIES_TAG:
                length, begin = read_varint(data, position + 1, end)
                position = begin + length
                if position > end:
                    raise malformed(begin, "a series ends beyond the end of the request")
                self._read_series(begin, position)
                continue
            field, kind, begin, position = fields.next(position, end)
            if field == _METADATA and kind == BYTES:
                self._read_metadata(begin, position)
        return self._batch()

    def _read_series(self, begin: int, end: int) -> None:
        data = self._data
        code = len(self._series)
        self._series.append(b"")
        # Mostly there is one sample. If what is before it are labels that were read before, then
        # this is what is here: known labels, followed by a sample of the usual form.
        cut = end - SAMPLE_BYTES
        known = self._known.get(data[begin:cut]) if cut > begin else None
        if known is not None and data[cut : cut + 3] == SAMPLE_HEAD:
            self._series[code] = known
            self._regions += (cut, 1, code, begin)
            return
        cut = begin
        while cut < end and data[cut] == _LABELS_TAG:
            length, inner = read_varint(data, cut + 1, end)
            cut = inner + length
        if cut > end:
            raise malformed(begin, "a label ends beyond the end of its series")
        count, rest = divmod(end - cut, SAMPLE_BYTES)
        if rest or not count or cut == begin or data[cut : cut + 3] != SAMPLE_HEAD:
            self._read_fields(begin, end, code)
            return
        self._series[code] = self._labels(data[begin:cut], begin)
        self._regions += (cut, count, code, begin)

    def _labels(self, raw: bytes, begin: int) -> bytes:
        known = self._known.get(raw)
        if known is None:
            labels = make_labels(_pairs(raw, begin), where=f"the series at byte {begin}")
            known = self._known[raw] = encode_labels(labels)
            self.learned_bytes += len(raw) + len(known)
        return known

    def _read_fields(self, begin: int, end: int, code: int) -> None:
        """Read a series whose fields stand in any order, with samples of any form."""
        data = self._data
        fields = FieldReader(data, "a series")
        raw = bytearray()
        samples = []
        position = begin
        while position < end:
            at = position
            field, kind, inner, position = fields.next(position, end)
            if field in (_LABELS, _SAMPLES) and kind != BYTES:
                raise malformed(at, f"field {field} of a series has the wrong type")
            if field == _LABELS:
                raw += data[at:position]
            elif field == _SAMPLES:
                samples.append((inner, position))
            elif field == _HISTOGRAMS:
                raise DocumentError(
                    f"the series at byte {begin} of the request has native histograms",
                    do="send classic histograms: set send_native_histograms to false",
                )
        self._series[code] = self._labels(bytes(raw), begin)
        for inner, last in samples:
            self._read_sample(inner, last, code)

    def _read_sample(self, begin: int, end: int, code: int) -> None:
        value, time = 0.0, 0
        fields = FieldReader(self._data, "a sample")
        position = begin
        while position < end:
            at = position
            field, kind, inner, position = fields.next(position, end)
            if field in (1, 2) and kind != {1: I64, 2: VARINT}[field]:
                raise malformed(at, f"field {field} of a sample has the wrong type")
            if field == 1:
                value = _DOUBLE.unpack_from(self._data, inner)[0]
            elif field == 2:
                time, _ = read_varint(self._data, inner, end)
        self._codes.append(code)
        self._times.append(time - (1 << 64) if time >= 1 << 63 else time)
        self._values.append(value)

    def _read_metadata(self, begin: int, end: int) -> None:
        fields = FieldReader(self._data, "metadata")
        kind_of_metric, texts = 0, {2: "", 4: "", 5: ""}
        position = begin
        while position < end:
            field, kind, inner, position = fields.next(position, end)
            if field == 1 and kind == VARINT:
                kind_of_metric, _ = read_varint(self._data, inner, end)
            elif field in texts and kind == BYTES:
                texts[field] = _text(self._data, inner, position)
        known = METRIC_TYPES[kind_of_metric] if kind_of_metric < len(METRIC_TYPES) else "unknown"
        if texts[2]:
            make_labels([("__name__", texts[2])], where=f"the metadata at byte {begin}")
            self._metadata[texts[2]] = MetricMetadata(known, texts[4], texts[5])

    def _batch(self) -> SampleBatch:
        regions = np.array(self._regions, dtype=np.int64).reshape(-1, 4)
        counts = regions[:, 1]
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.repeat(regions[:, 0], counts) + inside * SAMPLE_BYTES
        codes = np.repeat(regions[:, 2], counts)
        places = begins[:, None] + np.arange(SAMPLE_BYTES)
        samples = np.frombuffer(self._data, dtype=np.uint8)[places]
        is_usual = _is_usual(samples)
        if not is_usual.all():
            # A series with anything that is not what it seemed is read again, step by step.
            odd = np.unique(codes[~is_usual])
            kept = ~np.isin(codes, odd)
            samples, codes = samples[kept], codes[kept]
            for begin, count, code, first in regions[np.isin(regions[:, 2], odd)].tolist():
                self._read_fields(first, begin + count * SAMPLE_BYTES, code)
        values = np.ascontiguousarray(samples[:, 3:TIME_AT]).view("<f8").reshape(-1)
        times = _times(samples)
        if self._codes:
            codes = np.concatenate([codes, np.array(self._codes, dtype=np.int64)])
            # As they stand in the request: of samples at the same time the last counts.
            order = np.argsort(codes, kind="stable")
            codes = codes[order]
            times = np.concatenate([times, np.array(self._times, dtype=np.int64)])[order]
            values = np.concatenate([values, np.array(self._values, dtype=np.float64)])[order]
        return SampleBatch(self._series, codes, times, values, self._metadata)


def _is_usual(samples: Bytes) -> npt.NDArray[np.bool_]:
    """Return which of the samples are what their place says: value, and a time of 6 bytes."""
    mask = np.ones(len(samples), dtype=np.bool_)
    for place, expected in enumerate(SAMPLE_HEAD):
        mask &= samples[:, place] == expected
    mask &= samples[:, TIME_AT] == 0x10
    mask &= (samples[:, TIME_AT + 1 : -1] >= 0x80).all(axis=1)
    mask &= samples[:, -1] < 0x80
    return mask


def _times(samples: Bytes) -> npt.NDArray[np.int64]:
    times = np.zeros(len(samples), dtype=np.int64)
    for place in range(SAMPLE_BYTES - TIME_AT - 1):
        part = (samples[:, TIME_AT + 1 + place] & 0x7F).astype(np.int64)
        times |= part << (7 * place)
    return times


def _pairs(raw: bytes, base: int) -> Iterator[tuple[str, str]]:
    """Yield the labels of a series one by one: whoever has read too many stops."""
    fields = FieldReader(raw, "a series", base)
    position = 0
    while position < len(raw):
        _, _, inner, position = fields.next(position, len(raw))
        yield _read_label(raw, inner, position, base)


def _read_label(raw: bytes, begin: int, end: int, base: int) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    fields = FieldReader(raw, "a label", base)
    position = begin
    while position < end:
        at = position
        field, kind, inner, position = fields.next(position, end)
        if field in texts:
            if kind != BYTES:
                raise malformed(base + at, f"field {field} of a label has the wrong type")
            texts[field] = _text(raw, inner, position, base)
    return texts[1], texts[2]


def _text(data: bytes, begin: int, end: int, base: int = 0) -> str:
    try:
        return data[begin:end].decode()
    except UnicodeDecodeError as error:
        raise malformed(base + begin, "text that is not UTF-8") from error
