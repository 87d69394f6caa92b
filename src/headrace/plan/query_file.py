"""Finds the queries that a Python file defines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.plan.query import Query
from headrace.python_file import run_python_file

_DEFINE = "begin one with hr.scan(...) at its top level, and give it a name there"


def load_queries(file: Path) -> dict[str, Query]:
    """Return the queries at the file's top level by their names, in the order of the file."""
    queries = find_queries(run_python_file(file))
    if not queries:
        raise UsageError(f"{file} defines no query", do=_DEFINE)
    return queries


def find_queries(defined: Mapping[str, Any]) -> dict[str, Query]:
    """Return the queries among what a file defines; one of several names has its first."""
    found: dict[int, tuple[str, Query]] = {}
    for name, value in defined.items():
        if isinstance(value, Query):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def choose_query(queries: Mapping[str, Query], name: str) -> Query:
    """Return the query of this name. Raises UsageError if there is none."""
    if name not in queries:
        raise UsageError(f"no query {name!r} is defined", do=f"use one of {', '.join(queries)}")
    return queries[name]
