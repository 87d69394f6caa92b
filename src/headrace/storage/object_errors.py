"""Translates the errors of an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import NotFoundError, StorageError


class ObjectErrors:
    """Translates the errors of one store, and names it by its path or URL."""

    def __init__(
        self,
        store: object,
        raised: tuple[type[Exception], ...],
        is_missing: Callable[[Exception], bool],
        explain: Callable[[Exception], tuple[str, str]],
    ) -> None:
        """Translate errors of the types `raised`.

        `is_missing` returns True if an error means that there is no such object; `explain` returns
        the reason and the remedy of an error.
        """
        self._store = store
        self._raised = raised
        self._is_missing = is_missing
        self._explain = explain

    @contextmanager
    def during(self, action: str) -> Iterator[None]:
        """Raise StorageError if the store refuses the block, which does `action`."""
        try:
            yield
        except self._raised as error:
            reason, remedy = self._explain(error)
            raise StorageError(f"cannot {action} in {self._store}: {reason}", do=remedy) from error

    @contextmanager
    def during_get(self, key: str) -> Iterator[None]:
        """Raise also NotFoundError if there is no such object."""
        with self.during(f"get {key}"):
            try:
                yield
            except self._raised as error:
                if not self._is_missing(error):
                    raise
                raise NotFoundError(
                    f"{self._store} has no object {key}", do="check the key, or put it first"
                ) from error
