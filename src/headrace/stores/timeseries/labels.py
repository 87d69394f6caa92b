"""Labels of a series: what is allowed, as bytes, and their fingerprint. Pure.

The bytes give the length of every name and value before it. So two different sets of labels never
have the same bytes, wherever their names end and their values begin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from headrace.errors import DataError, DocumentError
from headrace.stores.timeseries.series import Labels

METRIC = "__name__"
"""The label that holds the name of the metric."""

LABELS_MAX = 128
"""A series with more labels is refused."""
NAME_BYTES_MAX = 256
VALUE_BYTES_MAX = 16 * 1024
LABELS_BYTES_MAX = 60 * 1024
"""All names and values of a series together."""

FINGERPRINT_BYTES = 16

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_SHOWN_CHARACTERS = 80


def make_labels(pairs: Iterable[tuple[str, str]], *, where: str = "a series") -> Labels:
    """Return the labels, sorted, without those whose value is empty: they count as missing.

    Raises DocumentError if a name or value is not allowed, or a name appears twice. `where` tells
    the reader of the error which series it is.
    """
    kept: dict[str, str] = {}
    names: set[str] = set()
    size = 0
    for name, value in pairs:
        check_name(name, where)
        if name in names:
            raise DocumentError(
                f"{where} has the label {name!r} twice", do="give each label one value"
            )
        names.add(name)
        size += len(name) + check_value(name, value, where)
        if value:
            kept[name] = value
        if len(kept) > LABELS_MAX or size > LABELS_BYTES_MAX:
            raise DocumentError(
                f"{where} has {len(kept)} labels of {size} bytes or more",
                do=f"give it at most {LABELS_MAX} labels of {LABELS_BYTES_MAX} bytes together",
            )
    if not kept:
        raise DocumentError(f"{where} has no labels", do=f"name the metric in {METRIC!r}")
    return tuple(sorted(kept.items()))


def check_name(name: str, where: str) -> None:
    """Raise DocumentError if no label may have this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DocumentError(
            f"{where} has the label name {shorten(name)}",
            do="use letters, digits and _, and begin with no digit",
        )
    if len(name) > NAME_BYTES_MAX:
        raise DocumentError(
            f"{where} has a label name of {len(name)} bytes, {shorten(name)}",
            do=f"use at most {NAME_BYTES_MAX} bytes",
        )


def check_value(name: str, value: str, where: str) -> int:
    """Return how many bytes the value has. Raises DocumentError if the label cannot have it."""
    if not isinstance(value, str):
        raise DocumentError(
            f"{where} has a {type(value).__name__} as the value of the label {name!r}",
            do="give a string",
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"{where} has a value of the label {name!r} that is not Unicode, {shorten(value)}",
            do="give text that UTF-8 can encode",
        ) from error
    if size > VALUE_BYTES_MAX:
        raise DocumentError(
            f"{where} has a value of {size} bytes in the label {name!r}, {shorten(value)}",
            do=f"use at most {VALUE_BYTES_MAX} bytes",
        )
    if name == METRIC and value and not _METRIC_NAME.fullmatch(value):
        raise DocumentError(
            f"{where} has the metric name {shorten(value)}",
            do="use letters, digits, _ and :, and begin with no digit",
        )
    return size


def encode_labels(labels: Labels) -> bytes:
    """Return the labels as bytes. Different labels have different bytes."""
    pieces = []
    for pair in labels:
        for text in pair:
            encoded = text.encode()
            pieces.append(len(encoded).to_bytes(2, "little"))
            pieces.append(encoded)
    return b"".join(pieces)


def decode_labels(stored: bytes) -> Labels:
    """Return the labels of which these are the bytes. Raises DataError if they are damaged."""
    texts = []
    begin = 0
    while begin < len(stored):
        end = begin + 2 + int.from_bytes(stored[begin : begin + 2], "little")
        texts.append(stored[begin + 2 : end].decode())
        begin = end
    if begin != len(stored) or len(texts) % 2:
        raise DataError("the stored labels of a series are damaged", do="restore a copy")
    return tuple(zip(texts[::2], texts[1::2], strict=True))


def fingerprint(encoded: bytes) -> bytes:
    """Return what stands for the labels in the dictionary of series.

    It is a cryptographic hash: nobody can make up labels that are taken for those of another.
    """
    return hashlib.blake2b(encoded, digest_size=FINGERPRINT_BYTES).digest()


def shorten(text: object) -> str:
    """Return the text as an error prints it, cut if it is long."""
    printed = repr(text[:_SHOWN_CHARACTERS] if isinstance(text, str) else text)
    return printed + "…" if isinstance(text, str) and len(text) > _SHOWN_CHARACTERS else printed
