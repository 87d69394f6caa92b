"""Reads every published output of a query, and says what of it is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.errors import DamagedOutputError, VersionError
from headrace.exchange.format.layout import PUBLISHED, MapTask, numbers_of, query_directory
from headrace.exchange.format.publication import PublishedOutput
from headrace.exchange.map_output_reader import MapOutputReader
from headrace.exchange.output_registry import OutputRegistry
from headrace.storage import Objects


class QueryCheck(NamedTuple):
    """What `verify` found."""

    outputs: int
    """How many published outputs it read."""
    rows: int
    damages: list[DamagedOutputError]
    """One for each file that is damaged or missing."""
    unreadable: list[VersionError]
    """One for each file that a newer Headrace wrote: nobody here can tell whether it is damaged."""


def verify(objects: Objects, query_id: int) -> QueryCheck:
    """Check every file of the latest output of every map task of a query, and its record."""
    registry, reader = OutputRegistry(objects), MapOutputReader(objects)
    outputs = rows = 0
    damages: list[DamagedOutputError] = []
    unreadable: list[VersionError] = []
    for task in published_tasks(objects, query_id):
        try:
            output = registry.latest(task)
        except DamagedOutputError as error:
            damages.append(error)
            continue
        except VersionError as error:
            unreadable.append(error)
            continue
        if output is not None:
            outputs += 1
            rows += output.rows
            for found in _problems(reader, output):
                if isinstance(found, DamagedOutputError):
                    damages.append(found)
                else:
                    unreadable.append(found)
    return QueryCheck(outputs, rows, damages, unreadable)


def published_tasks(objects: Objects, query_id: int) -> list[MapTask]:
    """Return the map tasks of a query that have a record."""
    found = set()
    for info in objects.list(query_directory(query_id)):
        match info.key.split("/"):
            case [_, _, stage, kind, name] if kind == PUBLISHED and stage.isdecimal():
                if numbers := numbers_of(name):
                    found.add(MapTask(query_id, int(stage), numbers[0]))
    return sorted(found)


def _problems(
    reader: MapOutputReader, output: PublishedOutput
) -> Iterator[DamagedOutputError | VersionError]:
    index = None
    for read in (reader.index_json, reader.index_bin):
        try:
            index = read(output)
        except (DamagedOutputError, VersionError) as error:
            yield error
    if index is None:
        return
    for meta in index.partitions:
        try:
            reader.read(index, meta.reduce_partition)
        except DamagedOutputError as error:
            yield error
