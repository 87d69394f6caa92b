"""Decodes JSON and MessagePack into types, from any thread.

msgspec works out the fields of a Struct when it is first decoded, and keeps them half done in the
class meanwhile: a second thread that decodes the same Struct in that moment crashes the process. So
one thread at a time lets msgspec look at a type that is new.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_known: set[Any] = set()
"""The types whose fields msgspec has worked out."""


def decode_json(data: Any, kind: type[T]) -> T:
    """Return `data`, which is JSON, as a value of the type `kind`."""
    _learn(kind)
    return msgspec.json.decode(data, type=kind)


def decode_msgpack(data: Any, kind: type[T]) -> T:
    """Return `data`, which is MessagePack, as a value of the type `kind`."""
    _learn(kind)
    return msgspec.msgpack.decode(data, type=kind)


def convert(value: Any, kind: type[T]) -> T:
    """Return a value of plain types, such as a dict, as one of the type `kind`."""
    _learn(kind)
    return msgspec.convert(value, kind)


def _learn(kind: Any) -> None:
    if kind not in _known:
        with _lock:
            msgspec.msgpack.Decoder(kind)  # Works out the fields, also of what is within.
            _known.add(kind)
