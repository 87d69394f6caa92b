"""What the service knows of each kind of store: how to open it, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import BaseRoute

from headrace.decoders import decode_msgpack
from headrace.errors import UsageError, VersionError
from headrace.stores.contract import Store
from headrace.stores.service.store_directory import StoreSettings


@dataclass(frozen=True)
class StoreKind:
    """A kind of store. Its requests are `msgspec.Struct`s, with the functions that answer them.

    An answer is anything that msgpack can encode; rows are bytes.
    """

    name: str
    open: Callable[[Path, StoreSettings], Store]
    """Opens the store whose data lie in a directory, or where its settings say."""
    answers: Mapping[type[msgspec.Struct], Callable[[Any, Any], Any]] = field(default_factory=dict)
    """What to call with the store and a request."""
    routes: Callable[[Any], Sequence[BaseRoute]] = lambda store: ()
    """Returns what HTTP serves of an open store."""

    def answer(self, store: Store, request: msgspec.Struct) -> Any:
        found = self.answers.get(type(request))
        if found is None:
            raise UsageError(
                f"a store of {self.name} cannot answer {type(request).__name__}",
                do="ask a store of another kind",
            )
        return found(store, request)

    def decode(self, request: str, given: msgspec.Raw) -> msgspec.Struct:
        """Return a request from its name and its bytes."""
        for each in self.answers:
            if each.__name__ == request:
                return decode_msgpack(given, each)
        raise UsageError(
            f"a store of {self.name} does not know the request {request}",
            do="run the same version of Headrace in all processes",
        )


StoreKinds = Mapping[str, StoreKind]


def find_kind(kinds: StoreKinds, name: str, where: object) -> StoreKind:
    if name not in kinds:
        raise VersionError(
            f"{where} is a store of kind {name!r}, and this Headrace knows {', '.join(kinds)}",
            do="use the Headrace that wrote it, or a newer one",
        )
    return kinds[name]
