"""What a task says of itself. Each run stores it in the workspace."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.decoders import decode_json
from headrace.errors import NotFoundError, UsageError
from headrace.shuffle import Binding
from headrace.shuffle.checkpoints.task_keys import RECORDS, parse_record_key, record_key
from headrace.storage import Objects


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    file: str
    """The file that defines the task's function."""
    sources: tuple[str, ...]
    sink: str
    is_exactly_once: bool
    shards: int
    bindings: tuple[Binding, ...] = ()


def put_task_record(objects: Objects, record: TaskRecord) -> None:
    objects.put(record_key(record.task), msgspec.json.encode(record))


def get_task_record(objects: Objects, task: str) -> TaskRecord | None:
    """Return None if no task has the name: a stream may store its progress under it."""
    try:
        return decode_json(objects.get(record_key(task)), TaskRecord)
    except NotFoundError:
        return None


def list_task_records(objects: Objects) -> list[TaskRecord]:
    """Return the records of all tasks that were registered or run."""
    tasks = (parse_record_key(each.key) for each in objects.list(RECORDS))
    return [record for task in tasks if (record := get_task_record(objects, task))]


def delete_task_record(objects: Objects, task: str) -> None:
    objects.delete(record_key(task))


def file_of(objects: Objects, task: str) -> Path:
    """Return the file that defines a task; raise UsageError if there is none."""
    do = "run it with `headrace run FILE.py`"
    record = get_task_record(objects, task)
    if record is None:
        raise UsageError(f"the workspace knows no file that defines task {task!r}", do=do)
    if not Path(record.file).is_file():
        raise UsageError(f"task {task!r} was defined in {record.file}, which does not exist", do=do)
    return Path(record.file)
