"""Identifies an operator by its source, so that a changed operator is noticed.

The hash covers the functions and classes that a target refers to, in its own modules, with the
plain values that they close over. Comments and formatting do not matter, because the source is
parsed and printed again. What a library does is not covered: give a `version` for that, and also
for an operator that refers to a global list or dict that changes while it runs, such as a cache.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

_PLAIN = (str, int, float, complex, bool, bytes, type(None), type(...))
_REFERRED = (
    *(types.FunctionType, type, functools.partial),
    *(list, tuple, dict, set, frozenset),
    *_PLAIN,
)
_LIBRARIES = tuple(
    str(Path(path).resolve())
    for name, path in sysconfig.get_paths().items()
    if name in {"stdlib", "platstdlib", "purelib", "platlib"}
)
_HERE = str(Path(__file__).resolve().parent.parent)


def source_hash(target: Any) -> str:
    """Return a hash of everything known about what `target` does."""
    digest = hashlib.sha256()
    for text in _describe(target, {}):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


class _Place(NamedTuple):
    """Where a value was described first."""

    number: int
    value: Any
    """Kept, because the id of a value that is gone may be that of another."""


_Seen = dict[int, _Place]
"""By id, the values that are described or being described: a value may refer to itself."""


def _describe(value: Any, seen: _Seen) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    if isinstance(value, tuple):
        # Not among `seen`: whether equal tuples are one object is up to the compiler.
        yield f"{type(value).__name__} of {len(value)}"
        for each in value:
            yield from _describe(each, seen)
        return
    if place := seen.get(id(value)):
        yield f"value {place.number} again"
        return
    seen[id(value)] = _Place(len(seen), value)
    match value:
        case functools.partial():
            yield from _describe((value.func, value.args, value.keywords), seen)
        case types.MethodType():
            yield from _describe((value.__func__, value.__self__), seen)
        case types.FunctionType():
            yield from _describe_function(value, seen)
        case type():
            yield from _describe_class(value, seen)
        case Mapping():
            for key, held in value.items():
                yield from _describe(key, seen)
                yield from _describe(held, seen)
        case Set():
            # A set has no order, so none of its members refers to what another has described.
            yield from sorted("\0".join(_describe(each, dict(seen))) for each in value)
        case list():
            yield f"{type(value).__name__} of {len(value)}"
            for each in value:
                yield from _describe(each, seen)
        case types.ModuleType():
            yield value.__name__
        case _:
            yield from _describe_object(value, seen)


def _describe_object(value: Any, seen: _Seen) -> Iterator[str]:
    kind = type(value)
    if kind.__module__ == "pyarrow.lib":
        yield str(value)
        return
    yield from _describe(kind, seen)
    described = getattr(value, "__headrace_identity__", None)
    yield from _describe(described() if described else getattr(value, "__dict__", {}), seen)


def _describe_class(kind: type, seen: _Seen) -> Iterator[str]:
    yield f"{kind.__module__ if _is_library(kind) else ''}.{kind.__qualname__}"
    if _is_library(kind):
        return
    for base in kind.__bases__:
        yield from _describe(base, seen)
    yield _source(kind) or ""
    for held in vars(kind).values():
        function = held.__func__ if isinstance(held, classmethod | staticmethod) else held
        if isinstance(function, types.FunctionType):
            yield from _describe_references(function, seen)


def _describe_function(function: types.FunctionType, seen: _Seen) -> Iterator[str]:
    if _is_library(function):
        yield f"{function.__module__}.{function.__qualname__}"
        return
    yield _source(function) or _code(function.__code__)
    yield from _describe(function.__defaults__ or (), seen)
    yield from _describe(function.__kwdefaults__ or {}, seen)
    yield from _describe_references(function, seen)


def _describe_references(function: types.FunctionType, seen: _Seen) -> Iterator[str]:
    """Describe what a function closes over and which globals it names."""
    found = inspect.getclosurevars(inspect.unwrap(function))
    for name, value in sorted({**found.globals, **found.nonlocals}.items()):
        if isinstance(value, _REFERRED):
            yield name
            yield from _describe(value, seen)


def _is_library(value: Any) -> bool:
    """True if it comes with Python, with a package, or with Headrace."""
    module = sys.modules.get(value.__module__)
    if module is None or value.__module__ in {"builtins", "__main__"}:
        return bool(value.__module__ == "builtins")
    file = getattr(module, "__file__", None)
    return file is None or str(Path(file).resolve()).startswith((*_LIBRARIES, _HERE))


def _source(value: Any) -> str | None:
    """Return the source without comments, or None if there is none."""
    if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>":
        return _lambda_source(value)
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(value))))
    except (OSError, TypeError, SyntaxError):
        return None


def _lambda_source(function: types.FunctionType) -> str | None:
    """Find a lambda in its file by its position: the line alone may belong to a whole chain."""
    code = function.__code__
    positions = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line and end_line and column and end_column
    ]
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError):
        return None
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    for node in lambdas:
        body = node.body
        begin = (body.lineno, body.col_offset)
        end = (body.end_lineno or 0, body.end_col_offset or 0)
        is_inside = all(begin <= first and last <= end for first, last in positions)
        if positions and is_inside and _is_of(node, code):
            return ast.unparse(node)
    return None


def _is_of(node: ast.Lambda, code: types.CodeType) -> bool:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return node.lineno == code.co_firstlineno and [each.arg for each in named] == list(
        code.co_varnames[: len(named)]
    )


def _constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _code(code: types.CodeType) -> str:
    """Describe compiled code, where its source is not to be had: a prompt, `exec`."""
    constants = [_constant(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
