"""Finds the pipelines that a Python file defines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.pipeline.builder import Pipeline
from headrace.python_file import run_python_file

_DEFINE = "begin one with hr.pipeline(...) at its top level, and give it a name there"


def load_pipelines(file: Path) -> list[Pipeline]:
    """Return the pipelines at the file's top level, in the order of the file; at least one."""
    pipelines = find_pipelines(run_python_file(file), file)
    if not pipelines:
        raise UsageError(f"{file} defines no pipeline", do=_DEFINE)
    return pipelines


def find_pipelines(defined: Mapping[str, Any], file: Path) -> list[Pipeline]:
    """Return the pipelines among what a file defines, but for those that are parts of others."""
    pipelines = [each for each in defined.values() if isinstance(each, Pipeline)]
    found = {id(each): each for each in pipelines if not each.is_joined}
    names = [each.name for each in found.values()]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{file} defines pipeline {name!r} twice", do="give each its own name")
    return list(found.values())


def choose_pipelines(pipelines: Sequence[Pipeline], names: Sequence[str]) -> list[Pipeline]:
    """Return the pipelines of these names; all of them if no name is given."""
    known = {each.name: each for each in pipelines}
    for name in names:
        if name not in known:
            known_names = ", ".join(known) or "none"
            raise UsageError(f"no pipeline {name!r} is defined", do=f"use one of {known_names}")
    return [known[name] for name in names] or list(pipelines)
