"""Money moves between accounts in different journals; nobody may ever see it on its way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import headrace as hr
from headrace.ids import Offset
from headrace.journal.contract import Frame
from headrace.shuffle.slice.state import SliceState
from headrace.testing.crash import chosen_seed

ACCOUNTS = 50
JOURNALS = 4
MEMBERS = 2
CHECKPOINTS = 50
CLERKS = 3
PAUSE_S = 0.002
BINDINGS = [hr.Binding(collection="bank/debits"), hr.Binding(collection="bank/credits")]
WAIT_S = 60.0


@contextmanager
def bank(root: Path, seed: int) -> Iterator[hr.Shuffle]:
    """Clerks move money for as long as it is open; some of them change their minds."""
    with ExitStack() as stack:
        workspace = stack.enter_context(hr.open(root / "workspace"))
        for binding in BINDINGS:
            schema = "account string, cents long"
            workspace.collection(binding.collection, schema, key="account", journals=JOURNALS)
        members = [stack.enter_context(hr.Member(root / f"{n}")) for n in range(MEMBERS)]
        addresses = [member.address for member in members]
        shuffle = stack.enter_context(hr.Shuffle(workspace, BINDINGS, addresses))
        closing = threading.Event()
        clerks = [
            threading.Thread(target=move_money, args=(workspace, random.Random(seed + n), closing))
            for n in range(CLERKS)
        ]
        for clerk in clerks:
            clerk.start()
            stack.callback(clerk.join)
        stack.callback(closing.set)
        yield shuffle


def move_money(workspace: hr.Workspace, chance: random.Random, closing: threading.Event) -> None:
    publisher = workspace.publisher()
    while not closing.wait(PAUSE_S):
        transaction = publisher.begin()
        for _ in range(chance.randrange(1, 4)):
            payer, payee = (f"account {n}" for n in chance.sample(range(ACCOUNTS), 2))
            cents = chance.randrange(1, 10_000)
            transaction.append("bank/debits", [{"account": payer, "cents": -cents}])
            transaction.append("bank/credits", [{"account": payee, "cents": cents}])
        if chance.random() < 0.1:
            transaction.rollback()
        else:
            transaction.commit()


def balances(shuffle: hr.Shuffle) -> Iterator[int]:
    """The sum of all accounts over all members, after each checkpoint."""
    total = 0
    while True:
        found = shuffle.next_checkpoint(WAIT_S)
        assert found, "nothing became visible"
        for member in range(shuffle.members):
            for _, batch in shuffle.read(member, found):
                total += sum(batch["cents"].to_pylist())
        shuffle.release(found)
        yield total


# proves G2, G9
@pytest.mark.long
def test_all_accounts_sum_to_zero_at_every_checkpoint(tmp_path: Path) -> None:
    with bank(tmp_path, chosen_seed(default=5)) as shuffle:
        for number, total in zip(range(CHECKPOINTS), balances(shuffle), strict=False):
            assert total == 0, f"checkpoint {number + 1} has money on its way"


def test_without_hints_money_is_seen_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above can be seen to fail."""
    fetched = SliceState.fetched

    def without_hints(
        self: SliceState, number: int, place: int, frames: Sequence[Frame], through: Offset
    ) -> None:
        fetched(self, number, place, [frame._replace(hints=None) for frame in frames], through)

    monkeypatch.setattr(SliceState, "fetched", without_hints)
    deadline = time.monotonic() + WAIT_S
    with bank(tmp_path, chosen_seed(default=5)) as shuffle:
        for total in balances(shuffle):
            if total != 0:
                return
            assert time.monotonic() < deadline, "hints make no difference"
