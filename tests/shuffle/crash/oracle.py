"""What the committed checkpoints must have shown, given what is committed in the journals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import headrace as hr
from tests.shuffle.crash.coordinator import COHORTS, Document, Yielded
from tests.shuffle.crash.writers import COLLECTIONS, NAMED, OUTSIDE


def committed_documents(workspace: hr.Workspace) -> list[Document]:
    return [
        (name, row["label"], row["tx"], row["part"])
        for name in COLLECTIONS
        for row in workspace.table(name).to_pylist()
    ]


def check(yielded: Sequence[Yielded], expected: Sequence[Document]) -> None:
    """Everything once; each transaction within one checkpoint of its cohort; in order."""
    seen: Counter[Document] = Counter()
    where: dict[tuple[int, str, int], set[int]] = defaultdict(set)
    newest: dict[tuple[str, int], int] = {}
    for number, checkpoint in enumerate(yielded, 1):
        for member in checkpoint.members:
            seen.update(member)
            for name, label, tx, part in member:
                where[COHORTS[name], _transaction(label), tx].add(number)
                if label == NAMED:
                    assert tx > newest.get((name, part), 0), f"{part} of {tx} in {name} is late"
                    newest[name, part] = tx
    twice = [document for document, times in seen.items() if times > 1]
    assert not twice, f"{len(twice)} were shown twice: {sorted(twice)[:5]}"
    lost, made_up = set(expected) - seen.keys(), seen.keys() - set(expected)
    assert not lost, f"{len(lost)} were not shown: {sorted(lost)[:5]}"
    assert not made_up, f"{len(made_up)} were never committed: {sorted(made_up)[:5]}"
    torn = [tx for tx, numbers in where.items() if len(numbers) > 1 and tx[1] != OUTSIDE]
    assert not torn, f"{len(torn)} transactions were shown in parts: {sorted(torn)[:5]}"


def _transaction(label: str) -> str:
    """Those who join one write under labels of their own."""
    return label.partition(" ")[0]
