"""Runs a Python file of a user for what it defines, and names the line of it that fails."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, UsageError

_NAME = "__headrace__"
"""The `__name__` of the file, which tells it that it is not the main program."""


def run_python_file(file: Path) -> dict[str, Any]:
    """Return what the file defines at its top level. Raises UsageError if it fails."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}", do="name a Python file that exists")
    beside = str(file.absolute().parent)
    sys.path.insert(0, beside)
    try:
        return runpy.run_path(str(file), run_name=_NAME)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        where = _where(error, [file]) or str(file)
        raise UsageError(f"{where}: {_described(error)}", do="correct it") from error
    finally:
        sys.path.remove(beside)


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
