"""Objects in an `obstore` store: in memory or on S3."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import MemoryStore, S3Store

from headrace.errors import StorageError
from headrace.storage.contract import (
    ObjectInfo,
    beyond_end,
    check_key,
    check_prefix,
    check_range,
    is_key,
)
from headrace.storage.object_errors import ObjectErrors

if TYPE_CHECKING:
    from obstore import ObjectMeta  # exists in its type stubs only

_WRITER = "headrace-writer"
_PUTS_AT_ONCE = 8


class ObstoreObjects:
    """The objects of one store; errors name it by its URL."""

    def __init__(self, url: str, store: MemoryStore | S3Store) -> None:
        self._url = url
        self._store = store
        self._errors = ObjectErrors(url, (BaseError, FileNotFoundError), _is_missing, _explain)

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        with self._errors.during(f"put {key}"):
            obstore.put(self._store, check_key(key), _frozen(data))

    def put_all(self, objects: Sequence[tuple[str, bytes | bytearray | memoryview]]) -> None:
        for key, _ in objects:
            check_key(key)
        with ThreadPoolExecutor(_PUTS_AT_ONCE) as threads:
            list(threads.map(lambda each: self.put(*each), objects))

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        # The client repeats a request whose answer was lost, and then finds its own object. So
        # each object records who wrote it.
        writer = secrets.token_hex(16)
        with self._errors.during(f"put {key}"):
            try:
                obstore.put(
                    self._store,
                    check_key(key),
                    _frozen(data),
                    mode="create",
                    attributes={_WRITER: writer},
                )
            except AlreadyExistsError:
                return self._writer(key) == writer
        return True

    def get(self, key: str) -> bytes:
        with self._errors.during_get(key):
            return bytes(obstore.get(self._store, check_key(key)).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        check_key(key)
        if length == 0:
            return b""
        with self._errors.during_get(key):
            try:
                data = bytes(obstore.get_range(self._store, key, start=start, length=length))
            except BaseError as error:
                if not _is_start_beyond_end(error):
                    raise
                size = obstore.head(self._store, key)["size"]
                raise beyond_end(key, start, length, size) from error
        if len(data) < length:
            raise beyond_end(key, start, length, start + len(data))
        return data

    def head(self, key: str) -> ObjectInfo | None:
        with self._errors.during(f"look at {key}"):
            try:
                return _info(obstore.head(self._store, check_key(key)))
            except FileNotFoundError:
                return None

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        prefix = check_prefix(prefix)
        with self._errors.during(f"list {prefix or 'all objects'}"):
            found = obstore.list(self._store, prefix or None).collect()
        infos = (_info(meta) for meta in found if is_key(meta["path"]))
        return sorted(infos, key=lambda info: info.key)

    def move(self, key: str, to: str) -> None:
        with self._errors.during_get(key):
            try:
                obstore.copy(self._store, check_key(key), check_key(to))
            except FileNotFoundError:
                if self.head(to) is None:
                    raise
            obstore.delete(self._store, key)

    def delete(self, key: str) -> None:
        with self._errors.during(f"delete {key}"):
            obstore.delete(self._store, check_key(key))

    def delete_all(self, prefix: str) -> None:
        keys = [info.key for info in self.list(check_key(check_prefix(prefix)))]
        with self._errors.during(f"delete all of {prefix}"):
            obstore.delete(self._store, keys)

    def _writer(self, key: str) -> object:
        try:
            found = obstore.get(self._store, key, options={"head": True})
        except FileNotFoundError as error:
            raise StorageError(
                f"somebody deleted {key} in {self._url} while it was put", do="put it once more"
            ) from error
        return found.attributes.get(_WRITER)


def _explain(error: Exception) -> tuple[str, str]:
    text = str(error)
    if _is_bucket_missing(error):
        return "there is no such bucket", "create it, or correct the URL"
    if "/latest/api/token" in text:  # The store asks the cloud machine when it has nothing else.
        return (
            "no credentials were found",
            "give access_key_id and secret_access_key, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        )
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or "403 Forbidden" in text:
        return "access denied", "check the credentials and what they may do with the bucket"
    return text.partition("\n")[0], "check that the endpoint is right and reachable, then try again"


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) and not _is_bucket_missing(error)


def _is_bucket_missing(error: Exception) -> bool:
    return "NoSuchBucket" in str(error)


def _is_start_beyond_end(error: Exception) -> bool:
    """Return True for the text of S3 or of the memory store that says so."""
    return "416 Range Not Satisfiable" in str(error) or "Wanted range starting at" in str(error)


def _frozen(data: bytes | bytearray | memoryview) -> bytes:
    """Copy what the caller may still change: the memory store keeps the buffer itself."""
    return data if isinstance(data, bytes) else bytes(data)


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])
