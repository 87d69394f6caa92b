"""What every object store promises: objects under keys, each written whole."""

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

    A write that returned is durable (in memory, as long as the process lives). A write that raised
    `StorageError` may or may not have happened. Any thread may use the objects. Those on a disk or
    S3 travel to other processes by pickle, with their credentials.
    """

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Store `data` and replace any object of that key. Readers see all old or all new bytes."""

    def put_all(self, objects: Sequence[tuple[str, bytes | bytearray | memoryview]]) -> None:
        """Store many objects as `put` does, faster than one by one.

        All of them are durable when this returns. If it raises, or the process dies, each of them
        is stored or not.
        """

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        """Store `data` unless the key exists.

        Of any number of callers, in any threads and processes, exactly one gets True. When a caller
        gets False, the winner's object is there and durable.
        """

    def get(self, key: str) -> bytes:
        """Return the whole object. Raises NotFoundError if there is none."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from `start`. Raises NotFoundError if there is no object.

        Raises UsageError if the range does not lie within the object. A `length` of 0 returns
        nothing and asks nobody.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Return the object's size and time, or None if there is none."""

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """List the objects below a directory by key. The directory `a` holds `a/b`, not `ab`.

        The list holds every object that exists from before the call until after it.
        """

    def move(self, key: str, to: str) -> None:
        """Give an object another key, and replace any object of that key.

        Many callers may move the same object: it is no error if somebody has moved it already.
        Raises NotFoundError if neither key has an object. On S3 both keys have it for a moment.
        """

    def delete(self, key: str) -> None:
        """Remove the object. It is no error if there is none."""

    def delete_all(self, prefix: str) -> None:
        """Remove every object below a directory, faster than one by one.

        Nobody may put objects there meanwhile. It is no error if there are none.
        """


def check_key(key: str) -> str:
    """Return the key. Raises UsageError unless every kind of storage can hold it."""
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
    """Return a directory of keys without its trailing slash; empty stands for all keys."""
    return check_key(prefix.removesuffix("/")) if prefix else prefix


def is_key(name: str) -> bool:
    """Return False for a file that something else left among the objects."""
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
