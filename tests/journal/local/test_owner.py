"""An owner whose decision fails between the state and the log, by Ctrl-C or an encoder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import WorkspaceError
from headrace.journal.collection import define
from headrace.journal.contract import Lease
from headrace.journal.local import records
from headrace.journal.names import Selector
from tests.journal.interruption import Interruption
from tests.journal.local.bare_owner import BareOwner, in_both

Fault = Callable[[pytest.MonkeyPatch, BareOwner, BaseException], None]


def before_queueing(patch: pytest.MonkeyPatch, owned: BareOwner, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    patch.setattr(owned.owner, "_queue", fail)


def encoding(number: int) -> Fault:
    """Fail at the record of that number, counted from 0."""

    def break_it(patch: pytest.MonkeyPatch, _: BareOwner, error: BaseException) -> None:
        encode, left = records.encode, iter(range(number))

        def fail(record: records.Record) -> bytes:
            if next(left, None) is None:
                raise error
            return encode(record)

        patch.setattr(records, "encode", fail)

    return break_it


def before_appending(patch: pytest.MonkeyPatch, owned: BareOwner, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    patch.setattr(owned.owner.log, "append", fail)


def after_appending(patch: pytest.MonkeyPatch, owned: BareOwner, error: BaseException) -> None:
    append = owned.owner.log.append

    def fail(*given: Any) -> None:
        append(*given)
        raise error

    patch.setattr(owned.owner.log, "append", fail)


FAULTS = [before_queueing, encoding(0), encoding(2), before_appending, after_appending]
NAMES = ["queueing", "first record", "third record", "appending", "appended"]
ERRORS = [TypeError("a str"), OverflowError("too large"), KeyboardInterrupt()]


# proves G1, G2
@pytest.mark.parametrize("error", ERRORS, ids=[type(each).__name__ for each in ERRORS])
@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_decision_that_is_not_queued_whole_ends_the_writing(
    tmp_path: Path, fault: Fault, error: BaseException
) -> None:
    with BareOwner(tmp_path) as owned:
        owned.add("kept")
        lease, other = owned.journals.open_publisher("job"), owned.journals.open_publisher("")
        owned.write(lease, ["sent"], commit=False).result()
        with pytest.MonkeyPatch.context() as patch:
            fault(patch, owned, error)
            with pytest.raises(type(error)):
                owned.write(lease, ["last"])
        assert_ended(owned, other)
        if fault is not after_appending:
            assert owned.seen() == in_both("kept")
    with BareOwner(tmp_path) as again:
        whole = ("kept", "sent", "last") if fault is after_appending else ("kept",)
        assert again.seen() == in_both(*whole)
        again.add("next")
        assert again.seen() == in_both(*whole, "next")


def assert_ended(owned: BareOwner, other: Lease) -> None:
    for use in (
        lambda: owned.write(other, ["after"]),
        lambda: owned.journals.put_collection(define("d", "x long")),
        lambda: owned.journals.open_publisher("job"),
        lambda: owned.owner.write_moved([]),
        owned.owner.save_snapshot,
    ):
        with pytest.raises(WorkspaceError, match=r"stopped writing after .*; open the workspace"):
            use()
    assert owned.owner.snapshots.positions() == []


# proves G2
@pytest.mark.parametrize("fault", FAULTS[:-1], ids=NAMES[:-1])
def test_a_collection_that_is_not_queued_whole_is_gone_after_opening_again(
    tmp_path: Path, fault: Fault
) -> None:
    with BareOwner(tmp_path) as owned:
        other = owned.journals.open_publisher("")
        with pytest.MonkeyPatch.context() as patch:
            fault(patch, owned, OverflowError())
            with suppress(OverflowError):
                owned.journals.put_collection(define("e", "x long"))
                owned.journals.put_collection(define("f", "x long"))
        assert_ended(owned, other)
    with BareOwner(tmp_path) as again:
        journals = {journal.name for journal in again.owner.journals(Selector())}
        there = {each.name for each in again.owner.collections()}
        assert journals == {"c/0000", "c/0001"} | {f"{name}/0000" for name in there - {"c"}}
        assert "f" not in there


def test_a_refused_decision_ends_nothing(tmp_path: Path) -> None:
    with BareOwner(tmp_path) as owned:
        with pytest.raises(WorkspaceError, match="refused"):
            owned.owner.decide(refuse)
        owned.add("kept")
        assert owned.seen() == in_both("kept")


def refuse(_: object) -> Any:
    raise WorkspaceError("refused")


OWNER = ("journal/local/owner.py",)
BELOW = ("journal/local/state.py", "log/log.py", "log/group.py", "contextlib.py")


def commit(owned: BareOwner, lease: Lease) -> None:
    owned.write(lease, ["middle", "last"]).result()


def take_over(owned: BareOwner, _: Lease) -> None:
    owned.journals.open_publisher("job")


def roll_back(owned: BareOwner, lease: Lease) -> None:
    owned.journals.rollback(lease.producer, lease.holder)


# proves G1, G2
@pytest.mark.parametrize("decision", [commit, take_over, roll_back])
@pytest.mark.parametrize(
    "files", [OWNER, pytest.param(BELOW, marks=pytest.mark.deep)], ids=["owner", "below"]
)
def test_an_interruption_at_any_line_leaves_a_transaction_whole_or_gone(
    tmp_path: Path, decision: Callable[[BareOwner, Lease], None], files: tuple[str, ...]
) -> None:
    """Ctrl-C can interrupt at any line."""
    ended = went_on = 0
    lines = lines_of(tmp_path / "whole", decision, files)
    for at in range(1, lines + 1):
        root = tmp_path / f"{at}"
        with BareOwner(root) as owned:
            owned.add("kept")
            lease, other = owned.journals.open_publisher("job"), owned.journals.open_publisher("")
            owned.write(lease, ["first"], commit=False).result()
            with pytest.raises(KeyboardInterrupt), Interruption(files, at):
                decision(owned, lease)
            try:
                owned.write(other, ["after"]).result()
                owned.write(owned.journals.open_publisher("job"), ["next"]).result()
                after, went_on = ["after", "next"], went_on + 1
            except WorkspaceError:
                after, ended = [], ended + 1
        with BareOwner(root) as again:
            transaction = ["first", "middle", "last"]
            expected = [in_both("kept", *after)]
            if decision is commit:
                expected.append(in_both("kept", *transaction, *after))
            assert again.seen() in expected, f"line {at} of {lines}"
    assert ended > 5
    assert ended + went_on == lines


def lines_of(
    root: Path, decision: Callable[[BareOwner, Lease], None], files: tuple[str, ...]
) -> int:
    """Return how many lines it runs."""
    with BareOwner(root) as owned:
        lease = owned.journals.open_publisher("job")
        owned.write(lease, ["first"], commit=False).result()
        with Interruption(files) as counted:
            decision(owned, lease)
        return counted.lines
