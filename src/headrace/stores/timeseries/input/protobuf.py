"""The wire format of protocol buffers: fields, one after the other. Pure."""

from __future__ import annotations

from headrace.errors import DocumentError

VARINT, I64, BYTES, I32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


def malformed(position: int, what: str) -> DocumentError:
    return DocumentError(
        f"byte {position} of the request: {what}",
        do="send a prometheus.WriteRequest, version 1, packed by snappy",
    )


def read_varint(data: bytes, position: int, end: int, base: int = 0) -> tuple[int, int]:
    """Return an unsigned number of at most 64 bits, and where it ends."""
    found = shift = 0
    begin = position
    while position < end:
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found >> 64:
                break
            return found, position
        shift += 7
        if position - begin >= _VARINT_BYTES_MAX:
            break
    raise malformed(base + begin, "a number that does not end, or is too large")


def write_varint(number: int) -> bytes:
    """Return the bytes of a number; a negative one as 64 bits of two's complement."""
    number &= (1 << 64) - 1
    pieces = bytearray()
    while number >= 0x80:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def write_bytes(field: int, value: bytes) -> bytes:
    """Return a field that holds bytes, text or a message."""
    return write_varint(field << 3 | BYTES) + write_varint(len(value)) + value


class FieldReader:
    """Reads the fields of one message. `base` is where `data` begins in the request."""

    def __init__(self, data: bytes, what: str, base: int = 0) -> None:
        self._data = data
        self._what = what
        self._base = base

    def next(self, position: int, end: int) -> tuple[int, int, int, int]:
        """Return number and wire type of a field, and where its value begins and ends."""
        tag, begin = read_varint(self._data, position, end, self._base)
        kind = tag & 7
        last = begin
        if kind == VARINT:
            _, last = read_varint(self._data, begin, end, self._base)
        elif kind == I64:
            last = begin + 8
        elif kind == I32:
            last = begin + 4
        elif kind == BYTES:
            length, begin = read_varint(self._data, begin, end, self._base)
            last = begin + length
        else:
            raise malformed(self._base + position, f"a field of wire type {kind} in {self._what}")
        if not tag >> 3:
            raise malformed(self._base + position, f"a field without a number in {self._what}")
        if last > end:
            raise malformed(self._base + position, f"a field ends beyond the end of {self._what}")
        return tag >> 3, kind, begin, last
