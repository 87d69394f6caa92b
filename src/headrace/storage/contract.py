"""What every place for bulk bytes promises: objects under keys, each written whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headrace.errors import UsageError

KEY_BYTES_MAX = 768
"""Leaves room for a prefix under the 1024 bytes that S3 allows."""
COMPONENT_BYTES_MAX = 255
"""What a file system allows for one name."""

_COMPONENT = re.compile(r"[A-Za-z0-9_%=+,@:-][A-Za-z0-9_.%=+,@:-]*")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    bytes: int
    modified: datetime


class Objects(Protocol):
    """Objects by key.

    A key is a relative path such as `attempts/7/index.json`. No key is a directory of another:
    where `a/b` is an object, `a` must not be one.

    A write that returned is durable (in memory: as long as the process). A write that raised
    `StorageError` may or may not have happened. Objects are safe to use from many threads, and
    those on a disk or S3 travel to other processes by pickle, with their credentials.
    """

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Store `data`, replacing what was there. A reader sees the old or the new whole."""

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        """Store `data` unless the key exists. The first wins: of any number of callers, in any
        threads and processes, one gets True. Who gets False finds the winner's object, durable.
        """

    def get(self, key: str) -> bytes:
        """The whole object, or `NotFoundError`."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`, or `NotFoundError`.

        A range that does not lie within the object is a `UsageError`. No bytes at all may be
        asked for, and then nobody is asked.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """What is known about the object, or None if there is none."""

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """The objects below a directory (whole components: `a` holds `a/b`, not `ab`), by key.

        An object that was there before the call and is there after it is listed.
        """

    def move(self, key: str, to: str) -> None:
        """Give an object another key; what was there is replaced.

        That somebody has moved it already is no error, so many may move the same object. If
        neither key has an object: `NotFoundError`. On S3 both have it for a moment.
        """

    def delete(self, key: str) -> None:
        """Remove the object; that there is none is no error."""


def check_key(key: str) -> str:
    """The key, if it means the same object on every kind of storage."""
    components = key.split("/")
    if len(key) > KEY_BYTES_MAX or any(len(each) > COMPONENT_BYTES_MAX for each in components):
        raise UsageError(
            f"the key {key[:40]!r}... has {len(key)} characters",
            do=f"use at most {KEY_BYTES_MAX}, and {COMPONENT_BYTES_MAX} between slashes",
        )
    if not all(_COMPONENT.fullmatch(each) for each in components):
        raise UsageError(
            f"{key!r} is not a key",
            do="use names of letters, digits and _%=+,@:-. joined by single slashes, "
            "none beginning with a dot; quote other characters as in a URL",
        )
    return key


def check_prefix(prefix: str) -> str:
    """A directory of keys, without its trailing slash; empty for all of them."""
    return check_key(prefix.removesuffix("/")) if prefix else prefix


def is_key(name: str) -> bool:
    """False for what somebody else left where objects are."""
    return all(_COMPONENT.fullmatch(each) for each in name.split("/"))


def check_range(key: str, start: int, length: int) -> None:
    if start < 0 or length < 0:
        raise UsageError(
            f"{length} bytes from {start} of {key} are not a range",
            do="give a start and a length that are not negative",
        )


def beyond_end(key: str, start: int, length: int, size: int) -> UsageError:
    return UsageError(
        f"{length} bytes from {start} of {key} go beyond its {size} bytes",
        do="ask for a range within the object",
    )
