"""The table of the calls that travel as one request and one answer.

A call is a method of `Journals`. Its request has the method's parameters as fields and the method's
name as tag, so a decoder validates every argument against the types in the contract, and refuses
methods that are not in the table. To add a call, declare it in `Journals`, implement it in
`LocalJournals` and list it in `RemoteCalls`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union, cast, get_type_hints

import msgspec

from headrace.journal.contract import Journals

Method = TypeVar("Method", bound=Callable[..., Any])


class Call(msgspec.Struct, frozen=True):
    """A request to call one method; its fields are the arguments."""

    method: ClassVar[str]
    answer: ClassVar[Any]
    """The type that the method returns."""

    def perform(self, journals: Journals) -> Any:
        return getattr(journals, self.method)(*(getattr(self, f) for f in self.__struct_fields__))


CALLS: dict[str, type[Call]] = {}
"""The type of request for each method of `RemoteCalls`."""


def _request_type(method: Callable[..., Any]) -> type[Call]:
    types = get_type_hints(method)
    _self, *parameters = inspect.signature(method).parameters.values()
    fields: list[Any] = [
        (each.name, types[each.name], *([] if each.default is each.empty else [each.default]))
        for each in parameters
    ]
    request = msgspec.defstruct(
        method.__name__,
        fields,
        bases=(Call,),
        namespace={"method": method.__name__, "answer": types["return"]},
        frozen=True,
        tag=method.__name__,
    )
    return cast(type[Call], request)


def _remote(method: Method) -> Method:
    """Add a method to the table, and return one that sends its request."""
    request = CALLS[method.__name__] = _request_type(method)

    def call(self: RemoteCalls, *arguments: Any, **named: Any) -> Any:
        return self.call(request(*arguments, **named))

    call.__doc__ = method.__doc__
    return call  # type: ignore[return-value]


class RemoteCalls:
    """The methods of `Journals` that only send a request and wait for its answer."""

    put_collection = _remote(Journals.put_collection)
    delete_collection = _remote(Journals.delete_collection)
    collections = _remote(Journals.collections)
    create_journals = _remote(Journals.create_journals)
    delete_journals = _remote(Journals.delete_journals)
    journals = _remote(Journals.journals)
    journals_named = _remote(Journals.journals_named)
    journal_names = _remote(Journals.journal_names)
    open_publisher = _remote(Journals.open_publisher)
    publisher_payloads = _remote(Journals.publisher_payloads)
    close_publisher = _remote(Journals.close_publisher)
    trim = _remote(Journals.trim)
    rollback = _remote(Journals.rollback)
    begin = _remote(Journals.begin)
    join = _remote(Journals.join)
    prepare = _remote(Journals.prepare)
    outcome = _remote(Journals.outcome)
    frame_offsets = _remote(Journals.frame_offsets)

    def call(self, call: Call) -> Any:
        raise NotImplementedError


if TYPE_CHECKING:
    AnyCall = Call
else:
    AnyCall = Union[tuple(CALLS.values())]  # noqa: UP007  the types are known at run time only
