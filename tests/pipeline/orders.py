"""Rows to group, join and deduplicate, and what plain Python makes of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

ROWS = 200
LANGS = ("de", "en", "fr", None, "it")
NAMES = {"de": "German", "en": "English", "xx": "nobody's"}

Row = dict[str, Any]


def orders(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "n": pa.array(range(rows), pa.int64()),
            "lang": pa.array([LANGS[n * n % len(LANGS)] for n in range(rows)], pa.string()),
            "cents": pa.array([n * 37 % 101 for n in range(rows)], pa.int64()),
        }
    )


def names() -> pa.Table:
    return pa.table({"lang": list(NAMES), "name": list(NAMES.values())})


def totals(rows: int = ROWS) -> list[Row]:
    """The rows of `group_by("lang").agg(n="count", total=("cents", "sum"))`, sorted."""
    found: dict[Any, list[int]] = defaultdict(list)
    for row in orders(rows).to_pylist():
        found[row["lang"]].append(row["cents"])
    return in_order(
        [{"lang": lang, "n": len(each), "total": sum(each)} for lang, each in found.items()]
    )


def named(rows: list[Row], how: str) -> list[Row]:
    """The rows of a join with `names` on `lang`, sorted. Null has no match."""
    matched = [row for row in rows if row["lang"] in NAMES]
    single = [row for row in rows if row["lang"] not in NAMES]
    both = [{**row, "name": NAMES[row["lang"]]} for row in matched]
    others = [
        {**dict.fromkeys(rows[0]), "lang": lang, "name": name}
        for lang, name in NAMES.items()
        if lang not in {row["lang"] for row in rows}
    ]
    alone = [{**row, "name": None} for row in single]
    return in_order(
        {
            "inner": both,
            "left": both + alone,
            "right": both + others,
            "full": both + alone + others,
            "semi": matched,
            "anti": single,
        }[how]
    )


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])
