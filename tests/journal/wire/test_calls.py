"""The table of remote calls: what it takes from the contract, and what a decoder refuses."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import msgspec
import pytest

from headrace.journal.contract import Journals
from headrace.journal.wire import messages
from headrace.journal.wire.calls import CALLS
from headrace.journal.wire.messages import Ask, FetchRequest
from headrace.journal.write.commit_id import CommitId

UNCALLED = {"write", "read", "fetch", "watch", "at_most_bytes", "close"}
"""Methods that are streams, carry bodies, or need no owner."""


def decode(call: dict[str, Any]) -> Any:
    """Decode a call as it arrives at the owner."""
    return messages.requests.decode(msgspec.msgpack.encode(["ask", 7, call])).call  # type: ignore[union-attr]


def test_every_method_of_the_contract_is_a_call_or_known_not_to_be_one() -> None:
    methods = {name for name, _ in inspect.getmembers(Journals, inspect.isfunction)}
    assert set(CALLS) == {name for name in methods if not name.startswith("_")} - UNCALLED


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_request_has_the_parameters_and_the_answer_of_its_method(name: str) -> None:
    method = getattr(Journals, name)
    _, *parameters = inspect.signature(method).parameters
    assert CALLS[name].__struct_fields__ == tuple(parameters)
    assert CALLS[name].answer == get_type_hints(method)["return"]


def test_a_request_arrives_as_it_was_sent_and_calls_its_method() -> None:
    sent = CALLS["outcome"](CommitId("0a1b2c3d", 1, 2, 3))  # type: ignore[arg-type]
    arrived = messages.requests.decode(msgspec.msgpack.encode(Ask(7, sent)))
    assert arrived == Ask(7, sent)

    class Recorder:
        def outcome(self, *arguments: object) -> object:
            return arguments

    assert sent.perform(Recorder()) == (CommitId("0a1b2c3d", 1, 2, 3), True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        {"type": "join", "transaction": "seven"},
        {"type": "delete_journals", "names": [1]},
        {"type": "create_journals", "collection": "c", "incarnation": 1, "partitions": [[1]]},
        {"type": "rollback", "producer": 1},
        {"type": "open_publisher", "name": None},
    ],
    ids=lambda call: call["type"],
)
def test_an_argument_that_the_contract_does_not_allow_is_refused(call: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(call)


@pytest.mark.parametrize("name", ["close", "_attach", "__init__", "perform", "call", ""])
def test_a_method_that_is_not_in_the_table_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode({"type": name})


def test_fetches_and_writes_travel_beside_the_calls() -> None:
    fetch = {"type": "fetch", "journal": 1, "offset": 0, "through": 9, "bytes_max": 5}
    assert decode(fetch) == FetchRequest(1, 0, 9, 5)  # type: ignore[arg-type]
