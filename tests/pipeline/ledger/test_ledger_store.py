"""The tables on disk, against the same history in memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.errors import VersionError
from headrace.pipeline.contract import InDoubtPolicy
from headrace.pipeline.ledger import ledger_store
from headrace.pipeline.ledger.keys import CallKey, call_keys, content_hash, unit_prefix
from headrace.pipeline.ledger.ledger_store import LedgerStore
from headrace.pipeline.ledger.state import (
    Lease,
    LedgerState,
    Results,
    StageTerms,
    Verdict,
    WantedCall,
)
from headrace.pipeline.ledger.totals import Nanos
from headrace.testing.crash import Child
from headrace.testing.pipeline.memory_results import MemoryResults
from tests.kinds import seeds

STAGE = "s"


def wanted(call: int, generation: str = "g") -> WantedCall:
    content = content_hash("1", b"%d" % (call % 5))
    [key] = call_keys(unit_prefix(generation, STAGE, "u"), [(call, content)])
    return WantedCall(key, STAGE, "u", call)


class StoredLedger:
    """A state whose changes are stored, and which is opened again whenever it is told to."""

    def __init__(self, path: Path, terms: StageTerms) -> None:
        self._path = path
        self._terms = terms
        self.open()

    def open(self) -> None:
        self.store = LedgerStore(self._path, "g")
        self.state = LedgerState.recover(*self.store.load())
        self.state.declare(STAGE, self._terms)
        with self.store.write() as txn:
            txn.put_changes(self.state.take_changes())

    def reopen(self) -> None:
        self.store.close()
        self.open()


@pytest.mark.property
@pytest.mark.parametrize("seed", seeds(5, deep=100))
def test_a_store_opened_again_at_any_point_is_like_memory(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    policy: InDoubtPolicy = chance.choice(["resend", "hold", "retry"])
    terms = StageTerms(policy, chance.random() < 0.5, Nanos(3))
    stored = StoredLedger(tmp_path / "ledger", terms)
    results, state = MemoryResults(), LedgerState()
    state.declare(STAGE, terms)
    claimed: list[tuple[CallKey, Lease]] = []
    for _ in range(80):
        lease = Lease(chance.choice("ab"))
        with stored.store.write() as txn:
            if claimed and chance.random() < 0.6:
                key, owner = claimed.pop(chance.randrange(len(claimed)))
                _end_call(chance.random(), key, owner, [(state, results), (stored.state, txn)])
            else:
                call = wanted(chance.randrange(12))
                decision = state.claim(call, lease, results)
                assert stored.state.claim(call, lease, txn) == decision
                if decision.verdict in {Verdict.CALL, Verdict.CALL_AGAIN}:
                    claimed.append((decision.key, lease))
            txn.put_changes(stored.state.take_changes())
        if chance.random() < 0.2:
            stored.reopen()
            state = LedgerState.recover(state.intents.items(), state.totals)
            state.declare(STAGE, terms)
        assert stored.state.intents == state.intents
        assert stored.state.totals == state.totals
        stored.state.validate()
    stored.store.close()


def _end_call(
    how: float, key: CallKey, owner: Lease, both: list[tuple[LedgerState, Results]]
) -> None:
    for state, results in both:
        if how < 0.6:
            state.record(STAGE, key, Nanos(3), owner.encode(), results)
        elif how < 0.8:
            state.fail(key, owner, in_doubt=how < 0.7)
        elif how < 0.9:
            state.release(key, owner)
        else:
            state.end_lease(owner)


def test_a_generation_can_be_forgotten(tmp_path: Path) -> None:
    for generation in ("g", "h"):
        opened = LedgerStore(tmp_path / "ledger", generation)
        state = LedgerState()
        with opened.write() as txn:
            for call in range(3):
                decision = state.claim(wanted(call, generation), Lease("a"), txn)
                if call:
                    state.record(STAGE, decision.key, Nanos(1), b"result", txn)
            txn.put_changes(state.take_changes())
        opened.close()
    old = LedgerStore(tmp_path / "ledger", "g")
    old.forget_generation()
    assert old.load() == ([], {})
    assert old.find_results([wanted(1).key], 100) == [None]
    old.close()
    kept = LedgerStore(tmp_path / "ledger", "h")
    intents, totals = kept.load()
    assert [intent.call for _, intent in intents] == [0]
    assert totals[STAGE].results == 2
    assert kept.find_results([wanted(1, "h").key], 100) == [b"result"]
    kept.close()


@pytest.mark.long
def test_another_process_reads_the_totals_of_a_ledger_that_is_open(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    code = "from headrace.pipeline.ledger.ledger_store import read_totals"
    with Child(code) as reader:
        assert reader.run("read_totals(path, 'g')", path=path) == {}
        opened = LedgerStore(path, "g")
        state = LedgerState()
        with opened.write() as txn:
            state.claim(wanted(0), Lease("a"), txn)
            txn.put_changes(state.take_changes())
        found = reader.run("read_totals(path, 'g')", path=path)
        assert found == state.totals
        assert reader.run("read_totals(path, 'h')", path=path) == {}
        opened.close()


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LedgerStore(tmp_path / "ledger", "g").close()
    monkeypatch.setattr(ledger_store, "FORMAT", 0)
    with pytest.raises(VersionError, match="has format 1, not 0"):
        LedgerStore(tmp_path / "ledger", "g")
    monkeypatch.undo()
    LedgerStore(tmp_path / "ledger", "g").close()
