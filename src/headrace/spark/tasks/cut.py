"""A cut: one checkpoint as DataFrames, one for each source, all of the same moment."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from headrace.errors import UsageError
from headrace.shuffle.binding import Binding
from headrace.spark.sinks.contract import CheckpointId


class Cut:
    """One checkpoint. `cut.debits` or `cut["bank/debits"]` has the new documents of that source.

    All sources are columns of the same rows. So the rows are cached when a second source is used.
    """

    def __init__(
        self, rows: DataFrame, bindings: Sequence[Binding], checkpoint: CheckpointId
    ) -> None:
        self.checkpoint = checkpoint
        """The id of the checkpoint. It stays the same however often the micro-batch is run."""
        self._rows = rows
        self._uses = 0
        self._names = [each.name or each.collection for each in bindings]

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._names:
            raise UsageError(
                f"this cut has no source {name!r}", do=f"use one of {', '.join(self._names)}"
            )
        if len(self._names) == 1:
            return self._rows
        self._uses += 1
        if self._uses == 2:
            # The first DataFrame uses the cache, too: Spark looks for it when it executes.
            self._rows.persist()
        quoted = f"`{name.replace('`', '``')}`"
        return self._rows.where(col(quoted).isNotNull()).select(f"{quoted}.*")

    def __getattr__(self, name: str) -> DataFrame:
        found = [each for each in self._names if each.rpartition("/")[2] == name]
        if len(found) != 1:
            raise AttributeError(
                f"this cut has {'no' if not found else 'more than one'} source {name!r}:"
                f" use cut[…] with one of {', '.join(self._names)}"
            )
        return self[found[0]]

    def close(self) -> None:
        """Free the cache. The DataFrames of the cut are not used any more."""
        if self._uses > 1:
            self._rows.unpersist()
