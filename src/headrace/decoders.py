"""Decodes JSON and MessagePack into types, from any thread.

msgspec works out the fields of a Struct when it is first decoded, and keeps them half done in the
class meanwhile: a second thread that decodes the same Struct in that moment crashes the process. So
one thread at a time makes the decoder of a type, once.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.RLock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_converted: set[Any] = set()


def decode_json(data: Any, kind: type[T]) -> T:
    """Return `data`, which is JSON, as a value of the type `kind`."""
    if (decoder := _json.get(kind)) is None:
        with _lock:
            decoder = _json[kind] = msgspec.json.Decoder(kind)
    found: T = decoder.decode(data)
    return found


def decode_msgpack(data: Any, kind: type[T]) -> T:
    """Return `data`, which is MessagePack, as a value of the type `kind`."""
    if (decoder := _msgpack.get(kind)) is None:
        with _lock:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    found: T = decoder.decode(data)
    return found


def convert(value: Any, kind: type[T]) -> T:
    """Return a value of plain types, such as a dict, as one of the type `kind`."""
    if kind not in _converted:
        with _lock:
            msgspec.json.Decoder(kind)  # Works out the fields.
            _converted.add(kind)
    return msgspec.convert(value, kind)
