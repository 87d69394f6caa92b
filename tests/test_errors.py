from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from headrace import errors
from headrace.errors import REPORT, HeadraceError, UsageError, from_wire, to_wire


def kinds(root: type[HeadraceError] = HeadraceError) -> Iterator[type[HeadraceError]]:
    yield root
    for child in root.__subclasses__():
        yield from kinds(child)


def drawn(root: type[HeadraceError], indent: str = "") -> Iterator[str]:
    """Return the lines under a class as the docstring draws them, without their meanings."""
    children = root.__subclasses__()
    for child in children:
        is_last = child is children[-1]
        yield f"{indent}{'└── ' if is_last else '├── '}{child.__name__}"
        yield from drawn(child, indent + ("    " if is_last else "│   "))


every_kind = pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    pictured = re.findall(r"^    ([│├└─ ]*\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert pictured == ["HeadraceError", *drawn(HeadraceError)]


def test_every_line_of_the_tree_says_what_the_error_means() -> None:
    lines = re.findall(r"── \w+Error.*", errors.__doc__ or "")
    assert len(lines) == len(list(kinds())) - 1
    assert [line for line in lines if not re.search(r"Error {2,}\S", line)] == []


def test_every_error_is_defined_in_the_module() -> None:
    assert [kind for kind in kinds() if getattr(errors, kind.__name__, None) is not kind] == []


@every_kind
def test_an_error_crosses_the_wire_as_itself(kind: type[HeadraceError]) -> None:
    # proves G27
    sent = kind("journal bank/debits/0: offset 7", do="read from 9")
    received = from_wire(*to_wire(sent))
    assert type(received) is kind
    assert (received.what, received.do) == (sent.what, sent.do)


@every_kind
def test_an_error_is_pickled_as_itself(kind: type[HeadraceError]) -> None:
    sent = kind("journal bank/debits/0: offset 7", do="read from 9")
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is kind
    assert (received.what, received.do, str(received)) == (sent.what, sent.do, str(sent))


def test_a_message_is_the_thing_then_the_remedy() -> None:
    assert str(UsageError("no key", do="name one")) == "no key; name one"
    assert str(UsageError("no key")) == "no key"


def test_an_error_of_another_library_crosses_the_wire_with_a_request_to_report_it() -> None:
    received = from_wire(*to_wire(KeyError("lost")))
    assert type(received) is HeadraceError
    assert (received.what, received.do) == ("KeyError: 'lost'", REPORT)


def test_an_error_of_a_newer_headrace_is_received_as_the_root() -> None:
    received = from_wire("TomorrowError", "what", "do")
    assert type(received) is HeadraceError
    assert str(received) == "what; do"
