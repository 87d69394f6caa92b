"""Publishes transfers to two collections, and knows which documents must be shown."""

from __future__ import annotations

from collections import Counter

import headrace as hr

BINDINGS = [hr.Binding(collection="debits"), hr.Binding(collection="credits")]


class Transfers:
    """Each transfer is one document with the same id in each of the two collections."""

    def __init__(self, workspace: hr.Workspace) -> None:
        self._workspace = workspace
        self._debits = workspace.collection("debits", "id long, note string", key="id", journals=3)
        self._credits = workspace.collection(
            "credits", "id long, note string", key="id", journals=2
        )
        self._next_id = 0
        self.committed: Counter[int] = Counter()
        """How often each id must be shown."""

    def publish(self, count: int) -> None:
        """Commit `count` transfers in one transaction, and roll back as many others."""
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        documents = [{"id": id, "note": "x" * 100} for id in ids]
        with self._workspace.publisher() as kept:
            kept.append(self._debits, documents)
            kept.append(self._credits, documents)
        given_up = self._workspace.publisher().begin()
        given_up.append(self._debits, [{"id": -1, "note": "given up"}] * count)
        given_up.rollback()
        for _ in BINDINGS:
            self.committed.update(ids)
