"""The options of `format("headrace")`: parses and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from headrace.decoders import decode_json
from headrace.errors import UsageError
from headrace.shuffle.binding import Binding
from headrace.spark.source.workspace_option import WorkspaceLocation

_POLL_S = 1.0
_KNOWN = {
    "workspace": "the directory of the workspace, or the address of its owner",
    "path": "the same, as the argument of `load(…)`",
    "token": "the token that the owner asks for",
    "task": "the name under which progress is stored",
    "collections": "names, separated by commas",
    "bindings": "JSON: a list of objects with the fields of headrace.Binding",
    "shards": "how many members read",
    "members": "their addresses, separated by commas, if they run elsewhere",
    "membersToken": "the token that those members ask for",
    "maxDocumentsPerTrigger": "about how many documents a micro-batch has at most",
    "pollSeconds": "how long to wait for documents before Spark hears that there are none",
    "partitions": "into how many partitions a batch is divided at most",
    "fromCheckpoint": "a batch of what a task read begins after this checkpoint",
    "toCheckpoint": "and ends with this checkpoint",
    "meta": "true: with _journal, _clock, _producer and _binding",
}
_ONLY = {
    "stream": {"shards", "members", "membersToken", "maxDocumentsPerTrigger", "pollSeconds"},
    "batch": {"partitions", "fromCheckpoint", "toCheckpoint"},
}
_PARTITIONS = 8
_WRITES = {
    "workspace": "the directory of the workspace, or the address of its owner",
    "path": "the same, as the argument of `save(…)`",
    "token": "the token that the owner asks for",
    "collection": "the collection to publish to",
}
_STREAM_WRITES = {
    **_WRITES,
    "publisher": "the name under which the last micro-batch is stored with its documents",
}
_OF_SPARK = {"checkpointlocation", "queryname"}
"""Options of Spark itself, which it passes on with those of a stream."""


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, by which members, and how much at once."""

    location: WorkspaceLocation
    task: str = ""
    bindings: tuple[Binding, ...]
    shards: int = 2
    members: tuple[str, ...] = ()
    members_token: str = ""
    documents_max: int | None = None
    poll_s: float = _POLL_S
    partitions: int = _PARTITIONS
    first: int | None = None
    last: int | None = None
    """A batch of what a task read has the checkpoints after `first` up to `last`."""
    meta: bool = False


def parse_stream(options: Mapping[str, str]) -> Reads:
    _check_form(options, "stream", "batch")
    reads = parse_reads(options)
    if not reads.task:
        raise UsageError(
            "a stream of format 'headrace' needs a task to store its progress under",
            do='add .option("task", "…")',
        )
    return reads


def parse_batch(options: Mapping[str, str]) -> Reads:
    _check_form(options, "batch", "stream")
    reads = parse_reads(options)
    if not reads.task and not (reads.first is reads.last is None):
        raise UsageError(
            "fromCheckpoint and toCheckpoint need a task", do='add .option("task", "…")'
        )
    return reads


def _check_form(options: Mapping[str, str], form: str, other: str) -> None:
    if wrong := _ONLY[other] & _spelled(options, _KNOWN).keys():
        raise UsageError(
            f"option {min(wrong)!r} is for a {other}, and this is a {form}",
            do=f"leave it out, or use {'readStream' if other == 'stream' else 'read'}",
        )


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """The collection that is written to, and the publisher that writes."""

    location: WorkspaceLocation
    collection: str
    publisher: str = ""
    """The publisher of a stream."""


def parse_reads(options: Mapping[str, str]) -> Reads:
    given = _given(options, _KNOWN)
    members = tuple(_list(given.get("members", "")))
    return Reads(
        location=_location(given, "load()"),
        task=given.get("task", ""),
        bindings=_bindings(given),
        shards=len(members) or _whole(given, "shards", 2),
        members=members,
        members_token=given.get("membersToken", ""),
        documents_max=_whole(given, "maxDocumentsPerTrigger", None),
        poll_s=_seconds(given, "pollSeconds"),
        partitions=_whole(given, "partitions", _PARTITIONS),
        first=_whole(given, "fromCheckpoint", None, least=0),
        last=_whole(given, "toCheckpoint", None, least=0),
        meta=_flag(given, "meta"),
    )


def parse_writes(options: Mapping[str, str], *, is_stream: bool) -> Writes:
    if is_stream:
        options = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    given = _given(options, _STREAM_WRITES if is_stream else _WRITES)
    writes = Writes(
        location=_location(given, "save()"),
        collection=given.get("collection", ""),
        publisher=given.get("publisher", ""),
    )
    if not writes.collection:
        raise UsageError(
            "format 'headrace' needs a collection to write to",
            do='add .option("collection", "…")',
        )
    if is_stream and not writes.publisher:
        raise UsageError(
            "a stream to format 'headrace' needs a publisher to store its last micro-batch under",
            do='add .option("publisher", "…"), a name that no other query has',
        )
    return writes


def _given(options: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    given = _spelled(options, known)
    for unknown in sorted(given.keys() - known.keys()):
        alike = get_close_matches(unknown.lower(), {name.lower() for name in known}, n=1)
        meant = [name for name in known if name.lower() in alike]
        raise UsageError(
            f"format 'headrace' has no option {unknown!r}",
            do=f"use {meant[0]}" if meant else f"use one of {', '.join(sorted(known))}",
        )
    return given


def _spelled(options: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return options by their documented names: Spark ignores case and passes on lower case."""
    names = {name.lower(): name for name in known}
    return {names.get(name.lower(), name): value for name, value in options.items()}


def _location(given: Mapping[str, str], method: str) -> WorkspaceLocation:
    workspace = given.get("workspace") or given.get("path")
    if not workspace:
        raise UsageError(
            "format 'headrace' needs a workspace",
            do=f'add .option("workspace", "…"), or pass it to {method}',
        )
    return WorkspaceLocation.parse(workspace, given.get("token", ""))


def _bindings(given: Mapping[str, str]) -> tuple[Binding, ...]:
    names = _list(given.get("collections", ""))
    text = given.get("bindings", "")
    if bool(names) == bool(text):
        raise UsageError(
            "format 'headrace' needs either collections or bindings",
            do='add .option("collections", "first,second")',
        )
    if names:
        return tuple(Binding(collection=name) for name in names)
    try:
        return decode_json(text, tuple[Binding, ...])
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"option 'bindings' cannot be read: {error}",
            do='write it like [{"collection": "a", "priority": 1}]',
        ) from error


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(given: Mapping[str, str], name: str, default: Any, *, least: int = 1) -> Any:
    if name not in given:
        return default
    try:
        number = int(given[name])
    except ValueError:
        number = least - 1
    if number < least:
        raise _wrong(name, given[name], f"a whole number from {least} on")
    return number


def _seconds(given: Mapping[str, str], name: str) -> float:
    try:
        seconds = float(given.get(name, _POLL_S))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise _wrong(name, given[name], "seconds, 0 to 3600")
    return seconds


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise _wrong(name, given[name], "true or false")
    return text == "true"


def _wrong(name: str, value: str, wanted: str) -> UsageError:
    return UsageError(f"option {name!r} is {value!r}", do=f"write {wanted}")
