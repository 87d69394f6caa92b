from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.transport.message import (
    ENVELOPE,
    MESSAGE_BYTES_MAX,
    Heartbeat,
    MessageBatch,
    decode_packet,
    encode_message,
    encode_packet,
    pack,
    unpack,
)
from tests.transport.echo_service import REPLIES, Say


def round_trip(*messages: tuple[str, list[bytes]]) -> list[tuple[str, list[bytes]]]:
    batch, metadata = pack([encode_message(Say(text), bodies) for text, bodies in messages])
    frame = decode_packet(pa.py_buffer(metadata))
    assert isinstance(frame, MessageBatch)
    return [
        (m.control.text, [b.to_pybytes() for b in m.bodies])
        for m, _ in unpack(frame, batch, REPLIES)
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [("none", [])],
        [("empty", [b""])],
        [("one", [b"abc"])],
        [("many", [b"", b"abc", b"", b"d" * 1000])],
        [("a", []), ("b", [b"1"]), ("c", []), ("d", [b"", b"22"]), ("e", [b""])],
    ],
)
def test_messages_that_share_a_batch_keep_their_bodies(
    messages: list[tuple[str, list[bytes]]],
) -> None:
    assert round_trip(*messages) == messages


def test_a_single_body_is_not_copied_on_either_side() -> None:
    body = pa.py_buffer(b"x" * 1000)
    batch, metadata = pack([encode_message(Say("a"), [body])])
    frame = decode_packet(metadata)
    assert isinstance(frame, MessageBatch)
    [(message, _)] = unpack(frame, batch, REPLIES)
    assert message.bodies[0].address == body.address


def test_bodies_may_be_any_buffer() -> None:
    for body in (b"abc", bytearray(b"abc"), memoryview(b"abc"), pa.py_buffer(b"abc")):
        assert encode_message(Say(""), [body]).bodies[0].to_pybytes() == b"abc"


def test_a_message_above_the_limit_is_refused_with_its_size() -> None:
    half = bytes(MESSAGE_BYTES_MAX // 2)
    encode_message(Say(""), [half])
    with pytest.raises(UsageError, match=r"a Say message of \d+ bytes exceeds 100663296"):
        encode_message(Say(""), [half, half])


@pytest.mark.parametrize("counts", [[], [0], [2], [1, 1]])
def test_counts_that_do_not_fit_the_batch_are_malformed(counts: list[int]) -> None:
    batch, _ = pack([encode_message(Say("a"), [b"abc"])])
    frame = MessageBatch([msgspec.msgpack.encode(Say("a"))], counts)
    with pytest.raises(msgspec.ValidationError, match="1 bodies came"):
        unpack(frame, batch, REPLIES)


def test_a_negative_count_is_malformed() -> None:
    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        decode_packet(encode_packet(MessageBatch([b""], [-1])))


def test_another_schema_is_malformed() -> None:
    batch = pa.record_batch({"number": [1]})
    frame = MessageBatch([msgspec.msgpack.encode(Say("a"))], [1])
    with pytest.raises(msgspec.ValidationError, match="number"):
        unpack(frame, batch, REPLIES)


def test_offsets_that_leave_the_data_are_malformed() -> None:
    offsets = pa.array([0, 1 << 40, 3], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.large_binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    batch = pa.RecordBatch.from_arrays([column], schema=ENVELOPE)
    with pytest.raises(pa.ArrowInvalid):
        unpack(MessageBatch([msgspec.msgpack.encode(Say("a"))], [2]), batch, REPLIES)


@pytest.mark.parametrize(
    "wire", [b"", b"\xc1", b"junk", b"\x91\x07", encode_packet(Heartbeat())[:-1]]
)
def test_bytes_that_are_no_frame_are_malformed(wire: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_packet(wire)
