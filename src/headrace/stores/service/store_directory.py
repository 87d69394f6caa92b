"""The directory of a store: what kind of store it is, its lock, and where its data are.

store.json    format, kind, id and settings, with a checksum; never changes
owner.json    where to call the process that has the store open
data/         the key-value store, if it lies on this disk
staged/       parts of checkpoints that are not applied yet
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from headrace.decoders import decode_json
from headrace.errors import (
    DataError,
    ExistsError,
    NotFoundError,
    SchemaError,
    UsageError,
    VersionError,
)
from headrace.files import UNFINISHED, create_durably, make_directory, storage_errors
from headrace.journal.documents.schema import parse_schema
from headrace.stores.vectors.vector_rows import VectorSchema
from headrace.transport.owned_directory import OwnedDirectory

FORMAT = 1
TIMESERIES = "timeseries"
VECTORS = "vectors"
BACKENDS = ("lmdb", "slatedb")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a store is created with. It keeps this for ever."""

    backend: str = "lmdb"
    """`lmdb` keeps data in the directory; `slatedb` there or at `objects`."""
    objects: str = ""
    """Where slatedb keeps its data, such as s3://bucket/prefix; the directory if it is empty."""
    retention_s: float | None = None
    """A time series forgets samples that are older; None keeps all."""
    dimension: int | None = None
    """How many numbers a vector has."""
    metric: str = "cosine"
    """What a search of vectors orders by: cosine, l2 or dot."""
    metadata: dict[str, str] = {}
    """The columns beside each vector: names, and types as in DDL."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """What a store is."""

    kind: str
    id: str
    """A random id that tells this store from every other."""
    settings: StoreSettings = StoreSettings()


class _Format(msgspec.Struct):
    """What every format of `store.json` has."""

    format: int


class _StoreFile(msgspec.Struct):
    """The contents of `store.json`. A wrong retention would remove samples for good."""

    format: int
    store: msgspec.Raw
    """A StoreIdentity."""
    checksum: str

    @staticmethod
    def of(identity: StoreIdentity) -> _StoreFile:
        store = msgspec.Raw(msgspec.json.encode(identity))
        return _StoreFile(FORMAT, store, _checksum(FORMAT, store))

    @property
    def is_whole(self) -> bool:
        return self.checksum == _checksum(self.format, self.store)


def _checksum(format: int, store: msgspec.Raw) -> str:
    return xxh3_64_hexdigest(b"%d %b" % (format, bytes(store)))


class StoreDirectory(OwnedDirectory):
    """The directory of a store, and its lock while this process holds it."""

    noun = "store"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._identity: StoreIdentity | None = None

    @property
    def identity(self) -> StoreIdentity:
        """Return what `store.json` says. Raises NotFoundError if the directory is no store."""
        if self._identity is None:
            self._identity = _read(self.root)
            self.id = self._identity.id
        return self._identity

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def staged(self) -> Path:
        return self.root / "staged"


def create_store(path: str | Path, kind: str, settings: StoreSettings | None = None) -> None:
    """Create an empty store in a new or empty directory.

    Does nothing if a store of the same kind with the same settings is there already.
    """
    root = Path(path).absolute()
    settings = settings or StoreSettings()
    check_settings(kind, settings)
    identity = StoreIdentity(kind, secrets.token_hex(16), settings)
    with storage_errors(f"{root}", do="choose a directory that can be written to"):
        make_directory(root)
        if not (root / "store.json").exists() and _holds_foreign_files(root):
            raise UsageError(
                f"{root} holds files that are not a store's", do="choose an empty or new directory"
            )
        with suppress(FileExistsError):
            create_durably(root / "store.json", msgspec.json.encode(_StoreFile.of(identity)))
    found = _read(root)
    if (found.kind, found.settings) != (kind, settings):
        raise ExistsError(
            f"{root} is a store already: {_described(found)}",
            do="open that one, or choose another directory",
        )


def check_settings(kind: str, settings: StoreSettings) -> None:
    """Raise UsageError if no store can have these settings."""
    problem = _backend_problem(settings)
    if kind not in (TIMESERIES, VECTORS):
        problem = f"{kind!r} is no kind of store", f"choose {TIMESERIES} or {VECTORS}"
    elif problem is None:
        check = _timeseries_problem if kind == TIMESERIES else _vectors_problem
        problem = check(settings)
    if problem:
        raise UsageError(problem[0], do=problem[1])


def _backend_problem(settings: StoreSettings) -> tuple[str, str] | None:
    if settings.backend not in BACKENDS:
        return f"{settings.backend!r} is no backend", f"choose one of {', '.join(BACKENDS)}"
    if settings.objects and settings.backend != "slatedb":
        return f"{settings.backend} keeps no data at {settings.objects}", "choose backend slatedb"
    if settings.objects and not settings.objects.startswith("s3://"):
        return f"{settings.objects!r} is no place for objects", "write it like s3://bucket/prefix"
    return None


def _timeseries_problem(settings: StoreSettings) -> tuple[str, str] | None:
    if settings.dimension is not None or settings.metadata or settings.metric != "cosine":
        return (
            "dimension, metric and metadata are settings of vectors, not of time series",
            "leave them out, or choose kind vectors",
        )
    if settings.retention_s is not None and not settings.retention_s > 0:
        return f"retention must be more than 0 s, got {settings.retention_s:g}", "write like 30d"
    return None


def _vectors_problem(settings: StoreSettings) -> tuple[str, str] | None:
    if settings.retention_s is not None:
        return "vectors have no retention", "leave it out, or choose kind timeseries"
    if settings.dimension is None:
        return "a store of vectors needs its dimension", "say how many numbers a vector has"
    vector_schema(settings)
    return None


def vector_schema(settings: StoreSettings) -> VectorSchema:
    """Return the columns of a store of vectors. Raises SchemaError if it cannot have them."""
    assert settings.dimension is not None
    return VectorSchema.of(settings.dimension, settings.metric, metadata_schema(settings.metadata))


def metadata_schema(metadata: dict[str, str]) -> pa.Schema:
    """Return the columns beside vectors. Raises SchemaError if there is no such type."""
    fields = []
    for name, kind in metadata.items():
        quoted = name.replace("`", "``")
        parsed = list(parse_schema(f"`{quoted}` {kind}"))
        if len(parsed) > 1:
            raise SchemaError(
                f"{kind!r} is not the type of a metadata column",
                do="write one name and one type for each column",
            )
        fields += parsed
    return pa.schema(fields)


def _read(root: Path) -> StoreIdentity:
    path = root / "store.json"
    try:
        with storage_errors(f"{root}", do="choose a directory that you may read"):
            stored = path.read_bytes() if path.exists() else None
        if stored is None:
            raise NotFoundError(
                f"there is no store at {root}", do="create one with `headrace store create`"
            )
        found = decode_json(stored, _Format).format
        if found > FORMAT:
            raise VersionError(
                f"{root} has format {found}, and this Headrace knows up to {FORMAT}",
                do="use the Headrace that wrote it, or a newer one",
            )
        file = decode_json(stored, _StoreFile)
        if not file.is_whole:
            raise DataError(f"{path} is damaged", do="restore it from a backup")
        return decode_json(file.store, StoreIdentity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}", do="restore it from a backup") from error


def _holds_foreign_files(root: Path) -> bool:
    """Return True if other files are there than those that a dying process left unfinished."""
    return any(not each.name.endswith(UNFINISHED) for each in root.iterdir())


def _described(found: StoreIdentity) -> str:
    kept = msgspec.to_builtins(found.settings)
    said = {name: value for name, value in kept.items() if value != _DEFAULTS[name]}
    return " ".join([found.kind, *(f"{name}={value}" for name, value in said.items())])


_DEFAULTS = msgspec.to_builtins(StoreSettings())
