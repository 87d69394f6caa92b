"""Which files a place holds, checkpoint by checkpoint.

    <number>-<random>.parquet                                  rows that are committed
    _headrace/owner.json                                       the generation of a task that writes
    _headrace/manifests/<generation>/<group>/<number>.json     a checkpoint: its files and columns
    _headrace/groups/<generation>/<group>.json                 the manifests of a group, together
    _headrace/staged/<generation>/<number>-<random>.parquet.staged    rows that are not visible yet

The order: **put the files, staged → put the manifest, if absent → move its files to where readers
look.** The manifest is the commit. Whoever finds files of a committed checkpoint staged moves them,
so the next run completes what a crash interrupted. The files of whoever comes second are in no
manifest: they stay staged, and as soon as their checkpoint has its manifest, anybody may delete
them. Before that they may still be about to be committed.

Readers that do not know Headrace skip names that begin with an underscore, or look for names that
end with `.parquet`. So they see rows that are committed, each once; those of a checkpoint file by
file.

A place belongs to one generation of one task. Rows of a second, or of the same task after a reset,
would be there beside what they repeat, so it is refused.

Manifests are never deleted: each keeps its number from being written again. When a group of them is
complete it is put once more as one object, so that neither opening nor reading a place takes a
request for every checkpoint that there ever was.

An older layout had all but the rows at the top, and the rows below `data/`. Such a place goes on
with its manifests where they are.
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
_OURS = "_headrace/"
_OWNER = "owner.json"
_STAGED = ".staged"
_DATA = re.compile(r"(\d+)-[0-9a-f]+\.parquet")


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


class _ManifestGroup(msgspec.Struct, frozen=True):
    manifests: tuple[Manifest, ...]
    format: int = _FORMAT


_Stored = TypeVar("_Stored", _Owner, Manifest, _ManifestGroup)


def owned(objects: Objects, place: str, task: str, generation: str) -> Manifests:
    """Take a place for a generation of a task; refused if it is another's."""
    root = _root(objects)
    mine = _Owner(task, generation)
    if not objects.put_if_absent(root + _OWNER, msgspec.json.encode(mine)):
        owner = _get(objects, place, root + _OWNER, _Owner)
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
    return Manifests(objects, place, root, task, generation)


def found(objects: Objects, place: str) -> Manifests:
    """The manifests of a place, for a reader."""
    root = _root(objects)
    try:
        owner = _get(objects, place, root + _OWNER, _Owner)
    except NotFoundError as error:
        raise NotFoundError(
            f"no task has written to {place}", do="check the place, or run the task first"
        ) from error
    return Manifests(objects, place, root, owner.task, owner.generation)


def _root(objects: Objects) -> str:
    """What the keys of manifests begin with; nothing if the place has the older layout."""
    is_older = objects.head(_OWNER) and not objects.head(_OURS + _OWNER)
    return "" if is_older else _OURS


class Manifests:
    """Those of one generation of a task."""

    def __init__(self, objects: Objects, place: str, root: str, task: str, generation: str) -> None:
        self._objects = objects
        self._place = place
        self._root = root
        self._task = task
        self._generation = generation
        self._recent: dict[int, Manifest] = {}
        """Of the group that is not complete."""

    def last(self) -> int:
        """The number of the newest checkpoint, 0 if there is none."""
        together = self._numbers(f"{self._root}groups/{self._generation}")
        group = max(together, default=-1) + 1
        last = group * GROUP
        # A complete group may not have been put together.
        manifests = f"{self._root}manifests/{self._generation}"
        while numbers := self._numbers(f"{manifests}/{group:020d}"):
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

    @property
    def staging(self) -> str:
        """Where files are until their checkpoint is committed: `staged_key` has their keys."""
        return f"{_OURS}staged/{self._generation}"

    def visible(self) -> list[Manifest]:
        """All checkpoints up to the first whose files have not been moved to where readers look."""
        manifests = list(self.all())
        # Listed afterwards: a file that is not staged now has been moved.
        staged = {name for name, _ in self._staged()}
        hidden = (each.number for each in manifests if staged & {file.key for file in each.files})
        end = next(hidden, len(manifests) + 1)
        return manifests[: end - 1]

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

    def show(self, manifest: Manifest) -> None:
        """Move the files of a committed checkpoint to where readers look."""
        for each in manifest.files:
            self._objects.move(staged_key(self.staging, each.key), each.key)

    def close_group(self, number: int) -> None:
        """After the last checkpoint of a group: put it together, and clear up after it."""
        if number % GROUP:
            return
        group = _group(number)
        manifests = tuple(self.get(each) for each in range(number - GROUP + 1, number + 1))
        key = self._group_key(group)
        self._objects.put_if_absent(key, msgspec.json.encode(_ManifestGroup(manifests)))
        self.settle(number)
        self._recent = {number: manifests[-1]}  # the next has its columns

    def settle(self, last: int) -> None:
        """Complete what others began: of checkpoints up to the last, move the files that are
        committed and delete those of attempts that came to nothing."""
        for key, number in self._staged():
            if number > last:
                continue
            staged = staged_key(self.staging, key)
            if any(key == each.key for each in self.get(number).files):
                self._objects.move(staged, key)
            else:
                self._objects.delete(staged)

    def _staged(self) -> Iterator[tuple[str, int]]:
        """The key that a staged file will have, and the number of its checkpoint."""
        for each in self._objects.list(self.staging):
            if name := _DATA.fullmatch(each.key.rpartition("/")[2].removesuffix(_STAGED)):
                yield name[0], int(name[1])

    def _together(self, group: int) -> tuple[Manifest, ...] | None:
        """The manifests of a complete group; None if it was never put together."""
        try:
            return _get(
                self._objects, self._place, self._group_key(group), _ManifestGroup
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
    """For rows of a checkpoint; no other attempt has it."""
    return f"{number:020d}-{secrets.token_hex(16)}.parquet"


def staged_key(staging: str, key: str) -> str:
    """Where a file is before it has its key."""
    return f"{staging}/{key}{_STAGED}"


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
