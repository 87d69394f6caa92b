"""Remote write: every form of a request, and every way it can be malformed."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DocumentError
from headrace.stores.timeseries.input import remote_write
from headrace.stores.timeseries.input.protobuf import read_varint, write_bytes, write_varint
from headrace.stores.timeseries.input.remote_write import (
    RemoteWriteDecoder,
    unpack_snappy,
)
from headrace.stores.timeseries.input.remote_write_encoder import (
    encode_label_fields,
    encode_remote_write,
    encode_unpacked,
)
from headrace.stores.timeseries.labels import decode_labels, make_labels
from headrace.stores.timeseries.sample_batch import MetricMetadata, SampleBatch
from headrace.stores.timeseries.series import STALE_BITS, Labels, SelectedSeries

UP = make_labels([("__name__", "up"), ("job", "api")])
USUAL_MS = 1_700_000_000_000

Found = list[tuple[Labels, int, int]]


def sample(time: int, value: float) -> bytes:
    body = b"\x09" + struct.pack("<d", value) + b"\x10" + write_varint(time)
    return write_bytes(2, body)


def series(*fields: bytes) -> bytes:
    return write_bytes(1, b"".join(fields))


def found_in(batch: SampleBatch) -> Found:
    """Return labels, time and bits of the value of each sample."""
    names = [decode_labels(each) for each in batch.series]
    bits = batch.values.view(np.uint64).tolist()
    times = batch.timestamps.tolist()
    return [
        (names[code], time, each) for code, time, each in zip(batch.codes, times, bits, strict=True)
    ]


def bits_of(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


times = st.integers(USUAL_MS, USUAL_MS + 9) | st.integers(-(1 << 63), (1 << 63) - 1)
values = st.integers(0, (1 << 64) - 1) | st.just(STALE_BITS) | st.floats().map(bits_of)
requests = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), st.text(min_size=1), min_size=1),
        st.lists(st.tuples(times, values), max_size=3),
    )
)


@given(requests)
def test_what_is_encoded_is_decoded(
    request_: list[tuple[dict[str, str], list[tuple[int, int]]]],
) -> None:
    labels = [make_labels(each.items()) for each, _ in request_]
    counts = [len(samples) for _, samples in request_]
    flat = [each for _, samples in request_ for each in samples]
    selected = SelectedSeries(
        labels,
        np.cumsum([0, *counts], dtype=np.int64),
        np.array([time for time, _ in flat], dtype=np.int64),
        np.array([bits for _, bits in flat], dtype=np.uint64).view(np.float64),
    )
    expected = [
        (labels[place], time, bits)
        for place, (_, samples) in enumerate(request_)
        for time, bits in samples
    ]
    decoder = RemoteWriteDecoder()
    body = encode_remote_write(selected)
    for _ in range(2):  # With labels that are read first, and that are known.
        assert found_in(decoder.decode(body)) == expected


def test_fields_may_stand_in_any_order_and_unknown_ones_are_ignored() -> None:
    labels = encode_label_fields(UP)
    whole = sample(USUAL_MS, 1.0)
    backwards = write_bytes(2, b"\x10" + write_varint(USUAL_MS + 1) + b"\x09" + bytes(8))
    zero = write_bytes(2, b"")
    unknown = write_bytes(9, b"x") + b"\x50\x05" + b"\x5d\0\0\0\0" + b"\x61" + bytes(8)
    exemplar = write_bytes(3, b"whatever")
    expected = [(UP, USUAL_MS, bits_of(1.0))]
    for fields, more in (
        ((labels, whole), []),
        ((whole, labels), []),
        ((labels, unknown, whole, exemplar), []),
        ((labels, whole, backwards), [(UP, USUAL_MS + 1, 0)]),
        ((labels, whole, zero), [(UP, 0, 0)]),
    ):
        for known in (False, True):
            decoder = RemoteWriteDecoder()
            if known:
                decoder.decode_unpacked(series(labels, whole))
            data = series(*fields) + unknown + series(labels)
            assert found_in(decoder.decode_unpacked(data)) == expected + more
    # The labels of two names, with the sample between them.
    first, second = (encode_label_fields((pair,)) for pair in UP)
    data = series(first, whole, second)
    assert found_in(RemoteWriteDecoder().decode_unpacked(data)) == expected


def test_samples_of_odd_and_usual_form_keep_their_order() -> None:
    labels = encode_label_fields(UP)
    odd = write_bytes(2, b"\x10" + write_varint(USUAL_MS) + b"\x09" + struct.pack("<d", 2.0))
    data = series(labels, odd) + series(labels, sample(USUAL_MS, 3.0))
    batch = RemoteWriteDecoder().decode_unpacked(data)
    assert batch.values.tolist() == [2.0, 3.0]
    assert batch.codes.tolist() == [0, 1]


def test_metadata_is_read() -> None:
    told = {
        "up": MetricMetadata("gauge", "Is it up?", "bool"),
        "requests_total": MetricMetadata("counter", "", ""),
    }
    nothing = SelectedSeries([], np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
    batch = RemoteWriteDecoder().decode(encode_remote_write(nothing, told))
    assert batch.metadata == told
    strange = write_bytes(3, b"\x08\x63" + write_bytes(2, b"x"))
    found = RemoteWriteDecoder().decode_unpacked(strange).metadata
    assert found == {"x": MetricMetadata("unknown")}


GOOD = series(encode_label_fields(UP), sample(USUAL_MS, 1.0))


# proves G27
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GOOD[:-1], "byte 2 of the request: a series ends beyond"),
        (b"\x0a", "byte 1 of the request: a number that does not end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "byte 1 .* does not end"),
        (GOOD + b"\x03", "byte .* wire type 3"),
        (GOOD + b"\x00\x01", "a field without a number"),
        (GOOD + b"\x12\x05abc", "a field ends beyond"),
        (series(b"\x0a\x50ab"), "a label ends beyond the end of its series"),
        (series(write_bytes(1, b"\x0a\x09a")), "a field ends beyond the end of a label"),
        (series(write_bytes(1, b"\x08\x09")), "field 1 of a label has the wrong type"),
        (series(write_bytes(1, write_bytes(1, b"\xff"))), "not UTF-8"),
        (series(b"\x08\x01"), "field 1 of a series has the wrong type"),
        (series(encode_label_fields(UP), b"\x10\x01"), "field 2 of a series has the wrong type"),
        (series(encode_label_fields(UP), write_bytes(2, b"\x08\x01")), "field 1 of a sample"),
        (series(encode_label_fields(UP), write_bytes(2, b"\x09\x01")), "ends beyond .* a sample"),
        (series(encode_label_fields(UP), write_bytes(4, b"")), "native histograms"),
        (series(sample(USUAL_MS, 1.0)), "the series at byte 2 has no labels"),
        (series(encode_label_fields((("a b", "1"),)), sample(1, 1.0)), "the label name 'a b'"),
        (series(encode_label_fields((*UP, *UP)), sample(1, 1.0)), "label '__name__' twice"),
        (
            series(encode_label_fields((("a", "x" * (10 << 20)),)), sample(1, 1.0)),
            "a value of 10485760 bytes",
        ),
        (write_bytes(3, write_bytes(2, b"a b")), "the metric name 'a b'"),
    ],
)
def test_malformed_requests_say_where(data: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as caught:
        RemoteWriteDecoder().decode_unpacked(data)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "a number that does not end"),
        (b"\xff\xff\xff\xff\xff", "does not end"),
        (b"\xff\xff\xff\xff\x0f", "4294967295 bytes unpacked"),
        (b"\x80\x80\x04abc", "claims to hold 65536"),
        (b"\x05\x10abc", "no snappy block"),
        (b"\xff\x06\x00\x00sNaPpY", "claims to hold 895"),
        (GOOD, "no snappy block"),
    ],
)
def test_what_is_no_snappy_block_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        RemoteWriteDecoder().decode(body)


def test_requests_beyond_the_limit_are_refused_before_they_are_unpacked() -> None:
    packed = pa.Codec("snappy").compress(bytes(1000), asbytes=True)
    assert unpack_snappy(packed, 1000) == bytes(1000)
    with pytest.raises(DocumentError, match="1000 bytes unpacked, and 999 are allowed"):
        unpack_snappy(packed, 999)


@pytest.mark.parametrize("ending", [b"", b"\x0a\xff"], ids=["whole", "torn"])
@pytest.mark.parametrize(("limit", "most"), [("KNOWN_LABELS_MAX", 20), ("KNOWN_BYTES_MAX", 20_000)])
def test_a_decoder_remembers_a_bounded_number_of_labels(
    ending: bytes, limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever senders send, also requests that are refused at their end."""
    monkeypatch.setattr(remote_write, limit, most)
    decoder = RemoteWriteDecoder()
    for number in range(50):
        labels = make_labels([("__name__", "up"), ("text", f"{number} {'x' * 500}")])
        data = series(encode_label_fields(labels), sample(USUAL_MS, 1.0)) + ending
        with suppress(DocumentError):
            decoder.decode_unpacked(data)
        assert len(decoder._known) <= 20


def test_a_series_with_too_many_labels_is_refused_before_all_are_read() -> None:
    """A request of 64 MiB may hold 10 million labels, which would take gigabytes as objects."""
    labels = b"".join(
        write_bytes(1, write_bytes(1, b"n%d" % number) + write_bytes(2, b"x"))
        for number in range(200_000)
    )
    data = series(labels, sample(USUAL_MS, 1.0))
    tracemalloc.start()
    try:
        with pytest.raises(DocumentError, match="has 129 labels"):
            RemoteWriteDecoder().decode_unpacked(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def test_damaged_bytes_raise_a_document_error_or_decode() -> None:
    """Nothing else may happen, whatever a sender sends."""
    seed = 11
    print("seed", seed)
    chance = random.Random(seed)
    good = (
        GOOD
        + write_bytes(3, write_bytes(2, b"up"))
        + encode_unpacked(
            SelectedSeries([UP], np.array([0, 2]), np.array([1, -5]), np.array([1.0, 2.0]))
        )
    )
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            batch = RemoteWriteDecoder().decode_unpacked(bytes(data))
        except DocumentError:
            refused += 1
        else:
            assert len(batch.codes) == len(batch.timestamps) == len(batch.values)
    assert refused > 300


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_numbers_survive(number: int) -> None:
    written = write_varint(number)
    assert read_varint(written, 0, len(written)) == (number % (1 << 64), len(written))


def test_labels_are_remembered_until_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_write, "KNOWN_LABELS_MAX", 2)
    decoder = RemoteWriteDecoder()
    one = np.ones(1, np.int64)
    for number in range(9):
        labels = [make_labels([("__name__", f"m{number}")])]
        series = SelectedSeries(labels, np.array([0, 1]), one, one.astype(np.float64))
        decoder.decode(encode_remote_write(series))
        assert len(decoder._known) <= 2
