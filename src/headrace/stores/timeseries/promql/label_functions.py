"""label_replace and label_join. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.step_matrix import StepMatrix
from headrace.stores.timeseries.series import Labels

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\((?:\?P?<(\w+)>|(\?))?", re.ASCII | re.DOTALL)
_GROUPS_MAX = 9


def label_replace(
    matrix: StepMatrix, target: str, replacement: str, source: str, expression: str
) -> StepMatrix:
    """Set a label from groups of an expression, where it matches the whole of another label."""
    check_label_name(target, "destination label name in label_replace()")
    pattern = f"^(?:{expression})$"
    values = pa.array([_value(labels, source) for labels in matrix.labels], pa.string())
    try:
        # Where there are no labels, it is an error all the same.
        pc.match_substring_regex(pa.array([""], pa.string()), pattern)
        matches = pc.match_substring_regex(values, pattern).to_pylist()
        rewritten = pc.replace_substring_regex(
            values,
            # A ")" in the expression can close our group: then it may match a part of the value.
            rf"\A(?s:.*?)(?:{pattern})(?s:.*)\z",
            _rewrite(replacement, expression),
            max_replacements=1,
        ).to_pylist()
    except pa.ArrowInvalid as error:
        raise QueryError(
            f"invalid regular expression in label_replace(): {expression}",
            do=f"mend it: {error}",
        ) from None
    labels = [
        _with_label(own, target, text) if matched else own
        for own, matched, text in zip(matrix.labels, matches, rewritten, strict=True)
    ]
    return StepMatrix(labels, matrix.values, matrix.present).merged()


def label_join(matrix: StepMatrix, target: str, separator: str, *sources: str) -> StepMatrix:
    """Set a label to the values of others, with a separator between them."""
    check_label_name(target, "destination label name in label_join()")
    for source in sources:
        check_label_name(source, "source label name in label_join()")
    labels = [
        _with_label(own, target, separator.join(_value(own, source) for source in sources))
        for own in matrix.labels
    ]
    return StepMatrix(labels, matrix.values, matrix.present).merged()


def check_label_name(name: str, what: str) -> None:
    """Raise QueryError if no label may have this name."""
    if not _LABEL_NAME.fullmatch(name):
        raise QueryError(f"invalid {what}: {name}", do="use letters, digits and _")


def _value(labels: Labels, name: str) -> str:
    return next((value for own, value in labels if own == name), "")


def _with_label(labels: Labels, name: str, value: str) -> Labels:
    others: Sequence[tuple[str, str]] = [pair for pair in labels if pair[0] != name]
    return tuple(sorted([*others, (name, value)])) if value else tuple(others)


def _rewrite(replacement: str, expression: str) -> str:
    """Write `$1`, `${1}` and `${name}` as RE2 wants them. Groups that are not there are empty."""
    names: dict[str, int] = {}
    count = 0
    for found in _GROUP.finditer(expression):
        if found[0].startswith("(") and not found[2]:
            count += 1
            names[str(count)] = count
            if found[1]:
                names[found[1]] = count
    return _REFERENCE.sub(_reference(names), replacement.replace("\\", "\\\\"))


def _reference(names: dict[str, int]) -> Callable[[re.Match[str]], str]:
    def rewritten(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name == "0":
            return r"\0"
        group = names.get(name, 0)
        if group > _GROUPS_MAX:
            raise QueryError(
                f"label_replace() cannot use group {group}", do=f"use at most {_GROUPS_MAX} groups"
            )
        return f"\\{group}" if group else ""

    return rewritten
