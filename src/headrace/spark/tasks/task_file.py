"""Finds the tasks that a Python file defines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.python_file import run_python_file
from headrace.spark.tasks.task_definition import Task


def load_tasks(file: Path) -> list[Task]:
    """Return the tasks at the file's top level, in the order of the file; at least one."""
    tasks = find_tasks(run_python_file(file), file)
    if not tasks:
        raise UsageError(
            f"{file} defines no task",
            do="use @hr.derivation or @hr.materialization on a function at its top level",
        )
    return tasks


def find_tasks(defined: Mapping[str, Any], file: Path) -> list[Task]:
    """Return the tasks among what a file defines."""
    found = {id(each): each for each in defined.values() if isinstance(each, Task)}
    names = [task.name for task in found.values()]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{file} defines task {name!r} twice", do="give each its own name")
    return list(found.values())


def choose_tasks(tasks: Sequence[Task], names: Sequence[str]) -> list[Task]:
    """Return the tasks of these names; all tasks if no name is given."""
    known = {task.name: task for task in tasks}
    for name in names:
        if name not in known:
            known_names = ", ".join(known) or "none"
            raise UsageError(f"no task {name!r} is defined", do=f"use one of {known_names}")
    return [known[name] for name in names] or list(tasks)
