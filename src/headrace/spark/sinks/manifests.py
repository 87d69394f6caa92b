"""Manifests: they say which Parquet files belong to each checkpoint.

    <number>-<random>.parquet                                  rows that are committed
    _headrace/owner.json                                       the task and generation that write
    _headrace/manifests/<generation>/<group>/<number>.json     a checkpoint: its files and columns
    _headrace/groups/<generation>/<group>.json                 the manifests of a group, together
    _headrace/staged/<generation>/<number>-<random>.parquet.staged    rows that are not visible yet

The order: **put the files, staged → put the manifest, if absent → move its files to where readers
look.** The manifest is the commit. A run that finds staged files of a committed checkpoint moves
them, so the next run completes what a crash interrupted. The files of an attempt that came second
are in no manifest. They stay staged, and once their checkpoint has its manifest any run may delete
them. Before that, another process may still be about to commit them.

Readers other than Headrace skip names that begin with an underscore, or look for names that end
with `.parquet`. So they see committed rows only, and each row once. The files of a checkpoint
become visible one after the other.

A directory belongs to one generation of one task. A second task, or the same task after a reset,
would repeat the rows that are there, so it is refused.

Manifests are never deleted: each keeps its number from being written again. When a group of them is
complete, it is put once more as one object, so that opening and reading do not take a request for
every checkpoint that there ever was.

In an older layout, Headrace's own objects were at the top and the rows below `data/`. A directory
of that layout keeps its manifests where they are.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.decoders import decode_json
from headrace.errors import DataError, ExistsError, NotFoundError, SchemaError, VersionError
from headrace.storage import Objects

GROUP = 64
"""Checkpoints in a group."""

_FORMAT = 1
_OURS = "_headrace/"
_OWNER = "owner.json"
_STAGED = ".staged"
_DATA = re.compile(r"(\d+)-[0-9a-f]+\.parquet")


class Written(msgspec.Struct, frozen=True):
    """A file of rows."""

    key: str
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint."""

    format: int = _FORMAT
    task: str
    generation: str
    number: int
    files: tuple[Written, ...]
    schema: bytes
    """The columns of this and all earlier checkpoints, as a schema in Arrow's format."""

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


class _Owner(msgspec.Struct, frozen=True):
    task: str
    generation: str
    format: int = _FORMAT


class _ManifestGroup(msgspec.Struct, frozen=True):
    manifests: tuple[Manifest, ...]
    format: int = _FORMAT


_Stored = TypeVar("_Stored", _Owner, Manifest, _ManifestGroup)


def owned(objects: Objects, location: str, task: str, generation: str) -> Manifests:
    """Take a directory for a generation of a task; raise ExistsError if another one has it."""
    root = _root(objects)
    mine = _Owner(task, generation)
    if not objects.put_if_absent(root + _OWNER, msgspec.json.encode(mine)):
        owner = _get(objects, location, root + _OWNER, _Owner)
        if owner.task != task:
            raise ExistsError(
                f"task {owner.task!r} writes to {location}",
                do=f"give task {task!r} another location",
            )
        if owner.generation != generation:
            raise ExistsError(
                f"{location} holds what generation {owner.generation} of task {task!r} wrote, and"
                f" this is generation {generation}, which would write it again",
                do="give the task another location, or delete this one",
            )
    return Manifests(objects, location, root, task, generation)


def found(objects: Objects, location: str) -> Manifests:
    """Return the manifests of a directory, for a reader."""
    root = _root(objects)
    try:
        owner = _get(objects, location, root + _OWNER, _Owner)
    except NotFoundError as error:
        raise NotFoundError(
            f"no task has written to {location}", do="check the location, or run the task first"
        ) from error
    return Manifests(objects, location, root, owner.task, owner.generation)


def _root(objects: Objects) -> str:
    """Return the prefix of the manifests' keys, which is empty in the older layout."""
    is_older = objects.head(_OWNER) and not objects.head(_OURS + _OWNER)
    return "" if is_older else _OURS


class Manifests:
    """The manifests of one generation of a task."""

    def __init__(
        self, objects: Objects, location: str, root: str, task: str, generation: str
    ) -> None:
        self._objects = objects
        self._location = location
        self._root = root
        self._task = task
        self._generation = generation
        self._recent: dict[int, Manifest] = {}
        """Manifests of the group that is not complete, by number."""

    def last(self) -> int:
        """Return the number of the newest checkpoint; 0 if there is none."""
        together = self._numbers(f"{self._root}groups/{self._generation}")
        group = max(together, default=-1) + 1
        last = group * GROUP
        # A group may be complete and not yet be one object.
        manifests = f"{self._root}manifests/{self._generation}"
        while numbers := self._numbers(f"{manifests}/{group:020d}"):
            last = max(numbers)
            group += 1
        return last

    def get(self, number: int) -> Manifest:
        if number not in self._recent:
            try:
                manifest = _get(self._objects, self._location, self._key(number), Manifest)
            except NotFoundError as error:
                raise DataError(
                    f"{self._key(number)} in {self._location} is missing, and later ones exist",
                    do="restore it, or reset the task and give it another location",
                ) from error
            if (manifest.generation, manifest.number) != (self._generation, number):
                raise DataError(
                    f"{self._key(number)} in {self._location} is of checkpoint {manifest.number},"
                    f" generation {manifest.generation}",
                    do="restore it from a backup",
                )
            self._recent[number] = manifest
        return self._recent[number]

    def all(self) -> Iterator[Manifest]:
        """Yield every checkpoint up to the last, in order."""
        last = self.last()
        for group in range(_group(last) + 1 if last else 0):
            together = self._together(group) if last >= (group + 1) * GROUP else None
            numbers = range(group * GROUP + 1, min((group + 1) * GROUP, last) + 1)
            yield from together or (self.get(number) for number in numbers)
            self._recent.clear()

    @property
    def staging(self) -> str:
        """The prefix of files whose checkpoint is not committed: `staged_key` makes their keys."""
        return f"{_OURS}staged/{self._generation}"

    def visible(self) -> list[Manifest]:
        """Return all checkpoints before the first that has files which readers do not see yet."""
        manifests = list(self.all())
        # Staged files are listed after the manifests: a file that is not staged now was moved.
        staged = {name for name, _ in self._staged()}
        hidden = (each.number for each in manifests if staged & {file.key for file in each.files})
        end = next(hidden, len(manifests) + 1)
        return manifests[: end - 1]

    def commit(self, number: int, files: Iterable[Written], columns: pa.Schema) -> Manifest:
        """Commit a checkpoint, unless another process was first. Return what is committed."""
        manifest = Manifest(
            task=self._task,
            generation=self._generation,
            number=number,
            files=tuple(files),
            schema=self.merged(number, columns).serialize().to_pybytes(),
        )
        if not self._objects.put_if_absent(self._key(number), msgspec.json.encode(manifest)):
            manifest = self.get(number)
        self._recent[number] = manifest
        return manifest

    def merged(self, number: int, columns: pa.Schema) -> pa.Schema:
        """Return the columns of a checkpoint and of all before it.

        Raises SchemaError if a column has another type or spelling than before.
        """
        if number == 1:
            return columns
        before = self.get(number - 1).columns
        spelled = {name.lower(): name for name in before.names}
        for field in columns:
            if (name := spelled.get(field.name.lower(), field.name)) != field.name:
                raise SchemaError(
                    f"column {field.name!r} is spelled {name!r} in {self._location}",
                    do="rename it: readers do not tell upper case from lower case",
                )
            if field.name in before.names and before.field(field.name).type != field.type:
                raise SchemaError(
                    f"column {field.name!r} is {field.type} in checkpoint {number} of task"
                    f" {self._task!r}, and {before.field(field.name).type} in {self._location}",
                    do="cast it, or reset the task and give it another location",
                )
        return pa.schema([*before, *(each for each in columns if each.name not in before.names)])

    def show(self, manifest: Manifest) -> None:
        """Move the files of a committed checkpoint to where readers look."""
        for each in manifest.files:
            self._objects.move(staged_key(self.staging, each.key), each.key)

    def close_group(self, number: int) -> None:
        """If the checkpoint is the last of its group, put the group as one object, and settle."""
        if number % GROUP:
            return
        group = _group(number)
        manifests = tuple(self.get(each) for each in range(number - GROUP + 1, number + 1))
        key = self._group_key(group)
        self._objects.put_if_absent(key, msgspec.json.encode(_ManifestGroup(manifests)))
        self.settle(number)
        self._recent = {number: manifests[-1]}  # `merged` needs it for the next checkpoint

    def settle(self, last: int) -> None:
        """Complete the checkpoints up to `last`: move their committed files to where readers look,
        and delete the files of attempts that lost."""
        for key, number in self._staged():
            if number > last:
                continue
            staged = staged_key(self.staging, key)
            if any(key == each.key for each in self.get(number).files):
                self._objects.move(staged, key)
            else:
                self._objects.delete(staged)

    def _staged(self) -> Iterator[tuple[str, int]]:
        """Yield, for each staged file, its key once it is moved and its checkpoint's number."""
        for each in self._objects.list(self.staging):
            if name := _DATA.fullmatch(each.key.rpartition("/")[2].removesuffix(_STAGED)):
                yield name[0], int(name[1])

    def _together(self, group: int) -> tuple[Manifest, ...] | None:
        """Return the manifests of a complete group; None if it is not one object."""
        try:
            return _get(
                self._objects, self._location, self._group_key(group), _ManifestGroup
            ).manifests
        except NotFoundError:
            return None

    def _numbers(self, prefix: str) -> list[int]:
        listed = (each.key.rpartition("/")[2] for each in self._objects.list(prefix))
        return [int(name.removesuffix(".json")) for name in listed]

    def _key(self, number: int) -> str:
        group = f"{self._root}manifests/{self._generation}/{_group(number):020d}"
        return f"{group}/{number:020d}.json"

    def _group_key(self, group: int) -> str:
        return f"{self._root}groups/{self._generation}/{group:020d}.json"


def data_key(number: int) -> str:
    """Return a key for rows of a checkpoint that no other attempt has."""
    return f"{number:020d}-{secrets.token_hex(16)}.parquet"


def staged_key(staging: str, key: str) -> str:
    """Return the key of a file while it is staged."""
    return f"{staging}/{key}{_STAGED}"


def _group(number: int) -> int:
    return (number - 1) // GROUP


def _get(objects: Objects, location: str, key: str, kind: type[_Stored]) -> _Stored:
    data = objects.get(key)
    try:
        stored = decode_json(data, kind)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{key} in {location} is damaged: {error}", do="restore it from a backup"
        ) from error
    if stored.format != _FORMAT:
        raise VersionError(
            f"{key} in {location} has format {stored.format}, this Headrace reads {_FORMAT}",
            do="use the Headrace that wrote it, or a newer one",
        )
    return stored
