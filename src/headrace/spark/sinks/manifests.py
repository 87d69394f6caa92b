"""Which files a place holds, checkpoint by checkpoint.

    owner.json                                           the generation of a task that writes here
    manifests/<generation>/<group>/<number>.json         a checkpoint: its files and its columns
    groups/<generation>/<group>.json                     the manifests of a group, together
    data/<generation>/<group>/<number>-<random>.parquet  rows

The order: **put the files → put the manifest, if absent.** The manifest is the commit. The files of
whoever comes second are in no manifest: nobody reads them, and as soon as their checkpoint has its
manifest, anybody may delete them. Before that they may still be about to be committed.

A place belongs to one generation of one task. Rows of a second, or of the same task after a reset,
would be there beside what they repeat, so it is refused.

Manifests are never deleted: each keeps its number from being written again. When a group of them is
complete it is put once more as one object, so that neither opening nor reading a place takes a
request for every checkpoint that there ever was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.errors import DataError, ExistsError, NotFoundError, SchemaError, VersionError
from headrace.storage import Objects

GROUP = 64
"""Checkpoints in a group."""

_FORMAT = 1
_OWNER = "owner.json"
_DATA = re.compile(r"data/[^/]+/\d+/(\d+)-[0-9a-f]+\.parquet")


class Written(msgspec.Struct, frozen=True):
    """A file with rows."""

    key: str
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is committed."""

    format: int = _FORMAT
    task: str
    generation: str
    number: int
    files: tuple[Written, ...]
    schema: bytes
    """The columns of this and all earlier checkpoints, as Arrow writes a schema."""

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


class _Owner(msgspec.Struct, frozen=True):
    task: str
    generation: str
    format: int = _FORMAT


class _Group(msgspec.Struct, frozen=True):
    manifests: tuple[Manifest, ...]
    format: int = _FORMAT


_Stored = TypeVar("_Stored", _Owner, Manifest, _Group)


def owned(objects: Objects, place: str, task: str, generation: str) -> Manifests:
    """Take a place for a generation of a task; refused if it is another's."""
    mine = _Owner(task, generation)
    if not objects.put_if_absent(_OWNER, msgspec.json.encode(mine)):
        owner = _get(objects, place, _OWNER, _Owner)
        if owner.task != task:
            raise ExistsError(
                f"task {owner.task!r} writes to {place}", do=f"give task {task!r} another place"
            )
        if owner.generation != generation:
            raise ExistsError(
                f"{place} holds what generation {owner.generation} of task {task!r} wrote, and this"
                f" is generation {generation}, which would write it again",
                do="give the task another place, or delete this one",
            )
    return Manifests(objects, place, task, generation)


def found(objects: Objects, place: str) -> Manifests:
    """For who reads."""
    try:
        owner = _get(objects, place, _OWNER, _Owner)
    except NotFoundError as error:
        raise NotFoundError(
            f"no task has written to {place}", do="check the place, or run the task first"
        ) from error
    return Manifests(objects, place, owner.task, owner.generation)


class Manifests:
    """Those of one generation of a task."""

    def __init__(self, objects: Objects, place: str, task: str, generation: str) -> None:
        self._objects = objects
        self._place = place
        self._task = task
        self._generation = generation
        self._recent: dict[int, Manifest] = {}
        """Of the group that is not complete."""

    def last(self) -> int:
        """The number of the newest checkpoint, 0 if there is none."""
        together = self._numbers(f"groups/{self._generation}")
        group = max(together, default=-1) + 1
        last = group * GROUP
        # A complete group may not have been put together.
        while numbers := self._numbers(f"manifests/{self._generation}/{group:020d}"):
            last = max(numbers)
            group += 1
        return last

    def get(self, number: int) -> Manifest:
        if number not in self._recent:
            try:
                manifest = _get(self._objects, self._place, self._key(number), Manifest)
            except NotFoundError as error:
                raise DataError(
                    f"{self._key(number)} in {self._place} is missing, and later ones are there",
                    do="restore it, or reset the task and give it another place",
                ) from error
            if (manifest.generation, manifest.number) != (self._generation, number):
                raise DataError(
                    f"{self._key(number)} in {self._place} is of checkpoint {manifest.number},"
                    f" generation {manifest.generation}",
                    do="restore it from a backup",
                )
            self._recent[number] = manifest
        return self._recent[number]

    def all(self) -> Iterator[Manifest]:
        """Every checkpoint up to the last, in order."""
        last = self.last()
        for group in range(_group(last) + 1 if last else 0):
            together = self._together(group) if last >= (group + 1) * GROUP else None
            numbers = range(group * GROUP + 1, min((group + 1) * GROUP, last) + 1)
            yield from together or (self.get(number) for number in numbers)
            self._recent.clear()

    def data_prefix(self, number: int) -> str:
        """What the keys of the checkpoint's files begin with; `data_key` completes it."""
        return f"data/{self._generation}/{_group(number):020d}/{number:020d}-"

    def commit(self, number: int, files: Iterable[Written], columns: pa.Schema) -> Manifest:
        """Whoever commits a number first wins, and everybody is given what the winner committed."""
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
        """The columns of a checkpoint and of all before it; a column keeps its type."""
        if number == 1:
            return columns
        before = self.get(number - 1).columns
        spelled = {name.lower(): name for name in before.names}
        for field in columns:
            if (name := spelled.get(field.name.lower(), field.name)) != field.name:
                raise SchemaError(
                    f"column {field.name!r} is {name!r} in {self._place}",
                    do="rename it: readers do not tell upper case from lower",
                )
            if field.name in before.names and before.field(field.name).type != field.type:
                raise SchemaError(
                    f"column {field.name!r} is {field.type} in checkpoint {number} of task"
                    f" {self._task!r}, and {before.field(field.name).type} in {self._place}",
                    do="cast it, or reset the task and give it another place",
                )
        return pa.schema([*before, *(each for each in columns if each.name not in before.names)])

    def close_group(self, number: int) -> None:
        """After the last checkpoint of a group: put it together, and clear up after it."""
        if number % GROUP:
            return
        group = _group(number)
        manifests = tuple(self.get(each) for each in range(number - GROUP + 1, number + 1))
        key = self._group_key(group)
        self._objects.put_if_absent(key, msgspec.json.encode(_Group(manifests)))
        self._sweep(group, number)
        self._recent = {number: manifests[-1]}  # the next has its columns

    def sweep(self, last: int) -> None:
        """Delete the files of attempts that came to nothing, of this group and the one before."""
        for group in range(max(0, _group(last) - 1), _group(last) + 1) if last else ():
            self._sweep(group, last)

    def _sweep(self, group: int, last: int) -> None:
        listed = self._objects.list(f"data/{self._generation}/{group:020d}")
        keys = {each.key: int(name[1]) for each in listed if (name := _DATA.fullmatch(each.key))}
        decided = {key for key, number in keys.items() if number <= last}
        manifests = self._together(group) or map(self.get, {keys[key] for key in decided})
        for key in decided.difference(each.key for one in manifests for each in one.files):
            self._objects.delete(key)

    def _together(self, group: int) -> tuple[Manifest, ...] | None:
        """The manifests of a complete group; None if it was never put together."""
        try:
            return _get(self._objects, self._place, self._group_key(group), _Group).manifests
        except NotFoundError:
            return None

    def _numbers(self, prefix: str) -> list[int]:
        listed = (each.key.rpartition("/")[2] for each in self._objects.list(prefix))
        return [int(name.removesuffix(".json")) for name in listed]

    def _key(self, number: int) -> str:
        return f"manifests/{self._generation}/{_group(number):020d}/{number:020d}.json"

    def _group_key(self, group: int) -> str:
        return f"groups/{self._generation}/{group:020d}.json"


def data_key(prefix: str) -> str:
    """No other attempt has it."""
    return f"{prefix}{secrets.token_hex(16)}.parquet"


def _group(number: int) -> int:
    return (number - 1) // GROUP


def _get(objects: Objects, place: str, key: str, kind: type[_Stored]) -> _Stored:
    data = objects.get(key)
    try:
        stored = msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{key} in {place} is damaged: {error}", do="restore it from a backup"
        ) from error
    if stored.format != _FORMAT:
        raise VersionError(
            f"{key} in {place} has format {stored.format}, this Headrace reads {_FORMAT}",
            do="use the Headrace that wrote it, or a newer one",
        )
    return stored
