"""Loads the tasks that a Python file defines."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

from headrace.errors import HeadraceError, UsageError
from headrace.spark.tasks.task_definition import Task

_NAME = "__headrace__"
"""The `__name__` of the loaded file, which tells it that it is not the main program."""


def load_tasks(file: Path) -> list[Task]:
    """Return the tasks at the file's top level, in the order of the file."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}", do="name a Python file that defines tasks")
    beside = str(file.absolute().parent)
    sys.path.insert(0, beside)
    try:
        found = runpy.run_path(str(file), run_name=_NAME)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        where = _where(error, [file]) or str(file)
        raise UsageError(f"{where}: {_described(error)}", do="correct it") from error
    finally:
        sys.path.remove(beside)
    tasks = list({id(each): each for each in found.values() if isinstance(each, Task)}.values())
    if not tasks:
        raise UsageError(
            f"{file} defines no task",
            do="use @hr.derivation or @hr.materialization on a function at its top level",
        )
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{file} defines task {name!r} twice", do="give each its own name")
    return tasks


def choose_tasks(tasks: Sequence[Task], names: Sequence[str]) -> list[Task]:
    """Return the tasks of these names; all tasks if no name is given."""
    known = {task.name: task for task in tasks}
    for name in names:
        if name not in known:
            raise UsageError(f"no task {name!r} is defined", do=f"use one of {', '.join(known)}")
    return [known[name] for name in names] or list(tasks)


def blamed(error: BaseException, files: Collection[Path]) -> UsageError | None:
    """Return an error that names the line which raised, if it is in one of the files."""
    if where := _where(error, files):
        return UsageError(f"{where}: {_described(error)}", do="correct it")
    return None


def _where(error: BaseException, files: Collection[Path]) -> str:
    """Return the last line of the files that ran."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    known = {file.absolute() for file in files}
    lines = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).absolute() in known
    ]
    return lines[-1] if lines else ""


def _described(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
