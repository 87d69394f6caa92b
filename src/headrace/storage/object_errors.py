"""What a place for objects raises, in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import NotFoundError, StorageError


class ObjectErrors:
    """Of one place, which they name."""

    def __init__(
        self,
        place: object,
        raised: tuple[type[Exception], ...],
        is_missing: Callable[[Exception], bool],
        explain: Callable[[Exception], tuple[str, str]],
    ) -> None:
        """Of what is `raised`: does it mean that there is no such object? Why, and what to do?"""
        self._place = place
        self._raised = raised
        self._is_missing = is_missing
        self._explain = explain

    @contextmanager
    def during(self, action: str) -> Iterator[None]:
        """A StorageError if the block, which does `action`, is refused."""
        try:
            yield
        except self._raised as error:
            reason, remedy = self._explain(error)
            raise StorageError(f"cannot {action} in {self._place}: {reason}", do=remedy) from error

    @contextmanager
    def during_get(self, key: str) -> Iterator[None]:
        """Also a NotFoundError if there is no such object."""
        with self.during(f"get {key}"):
            try:
                yield
            except self._raised as error:
                if not self._is_missing(error):
                    raise
                raise NotFoundError(
                    f"no object {key} in {self._place}", do="check the key, or put it first"
                ) from error
