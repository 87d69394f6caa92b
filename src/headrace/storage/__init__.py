"""Objects by key for bulk bytes, in a local directory, in memory or on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack
from urllib.parse import unquote

from obstore.store import MemoryStore

from headrace.errors import UsageError
from headrace.storage.contract import ObjectInfo, Objects
from headrace.storage.local_objects import LocalObjects
from headrace.storage.obstore_objects import ObstoreObjects
from headrace.storage.s3_objects import S3Objects, S3Options

__all__ = ["ObjectInfo", "Objects", "S3Options", "open_objects"]


def open_objects(url: str, **options: Unpack[S3Options]) -> Objects:
    """Open the objects at `url`; only S3 takes options.

    The URL is a path or `file:///path`, `memory://` (new and empty every time) or
    `s3://bucket/prefix`.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "s3":
        return S3Objects(url, options)
    if options:
        raise UsageError(
            f"{url} has no option {next(iter(options))}", do="give options to s3:// only"
        )
    if not separator and url:
        return LocalObjects(Path(url))
    if scheme == "file" and rest.startswith("/"):
        return LocalObjects(Path(unquote(rest)))
    if url == "memory://":
        return ObstoreObjects(url, MemoryStore())
    raise UsageError(
        f"{url!r} cannot hold objects",
        do="use a path, file:///path, memory:// or s3://bucket/prefix",
    )
