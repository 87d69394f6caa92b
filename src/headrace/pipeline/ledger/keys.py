"""How calls are named in the store. Pure.

A key begins with its stage and unit, so the calls of a unit lie side by side in the tree, and the
calls of a generation's stage can be removed as one range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NewType

from headrace.errors import UsageError

CallKey = NewType("CallKey", bytes)
"""Identifies a call and its content, among all stages and generations."""

ContentKey = NewType("ContentKey", bytes)
"""Identifies the content of a call in a stage of a generation."""

CONTENT_BYTES = 16
STAGE_BYTES = 8
_UNIT_BYTES = 16
_CALL_BYTES = 4
CALLS_MAX = 1 << (8 * _CALL_BYTES)
"""A unit has fewer calls than this."""


def content_hash(version: str, *parts: bytes) -> bytes:
    """Return the content of a call: a hash of the operator's version and of the call's input."""
    return _hash((version.encode(), *parts), CONTENT_BYTES)


def stage_prefix(generation: str, stage: str) -> bytes:
    return _hash((generation.encode(), stage.encode()), STAGE_BYTES)


def unit_prefix(generation: str, stage: str, unit: str) -> bytes:
    return stage_prefix(generation, stage) + _hash((unit.encode(),), _UNIT_BYTES)


def call_keys(unit: bytes, calls: Sequence[tuple[int, bytes]]) -> list[CallKey]:
    """Return the keys of a unit's calls, each with its content hash."""
    try:
        keys = [unit + number.to_bytes(_CALL_BYTES, "big") + content for number, content in calls]
    except OverflowError as error:
        raise UsageError(
            f"a call's number is not between 0 and {CALLS_MAX - 1}", do="make units smaller"
        ) from error
    expected = len(unit) + _CALL_BYTES + CONTENT_BYTES
    for key in keys:
        if len(key) != expected:
            raise UsageError(
                f"a content hash has {len(key) - expected + CONTENT_BYTES} bytes, not "
                f"{CONTENT_BYTES}",
                do="make it with ledger.keys.content_hash",
            )
    return [CallKey(key) for key in keys]


def content_key(key: CallKey) -> ContentKey:
    """Return the key of what the call has in common with equal calls of its stage."""
    return ContentKey(key[:STAGE_BYTES] + key[-CONTENT_BYTES:])


def idempotency_key(key: CallKey) -> str:
    return hashlib.blake2b(key, digest_size=16).hexdigest()


def _hash(parts: Sequence[bytes], size: int) -> bytes:
    """Return a hash that tells ("ab", "c") from ("a", "bc")."""
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
