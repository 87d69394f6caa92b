"""Opens stores of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.decoders import convert
from headrace.errors import UsageError
from headrace.settings import ServiceSettings
from headrace.stores.service import store_directory
from headrace.stores.service.shared_store import SharedStore, is_store_address
from headrace.stores.service.shared_timeseries import TIMESERIES_KIND, SharedTimeSeries
from headrace.stores.service.shared_vectors import VECTORS_KIND, SharedVectors
from headrace.stores.service.store_directory import (
    TIMESERIES,
    VECTORS,
    StoreDirectory,
    StoreSettings,
)
from headrace.stores.service.store_kinds import find_kind
from headrace.stores.service.store_ref import StoreRef

KINDS = {TIMESERIES: TIMESERIES_KIND, VECTORS: VECTORS_KIND}
_SHARED: dict[str, type[SharedStore]] = {TIMESERIES: SharedTimeSeries, VECTORS: SharedVectors}


def create_store(
    location: str | Path,
    kind: str,
    *,
    dimension: int | None = None,
    metric: str = "cosine",
    metadata: Mapping[str, str] = {},
    retention_s: float | None = None,
    backend: str = "lmdb",
    objects: str = "",
) -> None:
    """Create an empty store of the kind `timeseries` or `vectors`, which keeps these settings.

    Vectors have a `dimension`, a `metric` (cosine, l2 or dot), and `metadata`: names of columns and
    their types. Time series forget samples that are older than `retention_s`. With the backend
    `slatedb`, `objects` may be a place such as s3://bucket/prefix.

    Does nothing if a store of the same kind with the same settings is there already.
    """
    settings = {
        "dimension": dimension,
        "metric": metric,
        "metadata": metadata,
        "retention_s": retention_s,
        "backend": backend,
        "objects": objects,
    }
    try:
        chosen = convert(settings, StoreSettings)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the settings of a store cannot be used: {error}", do="give it what it expects"
        ) from error
    store_directory.create_store(location, kind, chosen)


def open_store(
    location: str | Path,
    service: ServiceSettings | None = None,
    *,
    token: str = "",
    kind: str = "",
    may_own: bool = True,
) -> SharedStore:
    """Open the store in a directory, or at the address of its owner, which wants the token.

    With a `kind`, raises UsageError if it is a store of another kind. With `may_own` False this
    process only works through an owner.
    """
    service = service or ServiceSettings()
    if token:
        service = msgspec.structs.replace(service, token=token)
    found = _kind_at(location, service)
    find_kind(KINDS, found, location)
    if kind and kind != found:
        raise UsageError(
            f"{location} is a store of {found}, not of {kind}", do="name a store of that kind"
        )
    return _SHARED[found](location, service, KINDS, may_own=may_own)


def open_reference(reference: StoreRef, service: ServiceSettings | None = None) -> SharedStore:
    """Open the store of a reference, in a process that never becomes its owner."""
    return reference.open(service or ServiceSettings(), KINDS)


def open_timeseries(
    location: str | Path, service: ServiceSettings | None = None, *, token: str = ""
) -> SharedTimeSeries:
    """Open a store of time series: see `open_store`."""
    store = open_store(location, service, token=token, kind=TIMESERIES)
    assert isinstance(store, SharedTimeSeries)
    return store


def open_vectors(
    location: str | Path, service: ServiceSettings | None = None, *, token: str = ""
) -> SharedVectors:
    """Open a store of vectors: see `open_store`."""
    store = open_store(location, service, token=token, kind=VECTORS)
    assert isinstance(store, SharedVectors)
    return store


def _kind_at(location: str | Path, service: ServiceSettings) -> str:
    if is_store_address(location):
        with SharedStore(location, service, KINDS) as store:
            return store.kind
    return StoreDirectory(Path(location).absolute()).identity.kind
