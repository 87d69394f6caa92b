"""What workers in other processes ask of the ledger."""

from __future__ import annotations

import msgspec

from headrace.pipeline.contract import CallTerms
from headrace.pipeline.ledger.keys import CallKey
from headrace.pipeline.ledger.totals import Nanos

LEDGER = "ledger"
"""The kind of service that `transport` finds it by."""


class Declare(msgspec.Struct, frozen=True, tag="declare"):
    stage: str
    terms: CallTerms


class SetBudget(msgspec.Struct, frozen=True, tag="budget"):
    budget: Nanos | None


class Find(msgspec.Struct, frozen=True, tag="find"):
    stage: str
    unit: str
    calls: list[tuple[int, bytes]]


class ClaimCalls(msgspec.Struct, frozen=True, tag="claim"):
    stage: str
    unit: str
    calls: list[tuple[int, bytes]]
    owner: str


class RecordResults(msgspec.Struct, frozen=True, tag="record"):
    stage: str
    outcomes: list[tuple[CallKey, bytes, Nanos]]
    """The key, result and cost of each call."""


class FailCalls(msgspec.Struct, frozen=True, tag="fail"):
    keys: list[CallKey]
    owner: str
    in_doubt: bool


class ReleaseCalls(msgspec.Struct, frozen=True, tag="release"):
    keys: list[CallKey]
    owner: str


class AskTotals(msgspec.Struct, frozen=True, tag="totals"):
    pass


class AskInDoubt(msgspec.Struct, frozen=True, tag="in_doubt"):
    pass


LedgerCall = (
    Declare
    | SetBudget
    | Find
    | ClaimCalls
    | RecordResults
    | FailCalls
    | ReleaseCalls
    | AskTotals
    | AskInDoubt
)

requests = msgspec.msgpack.Decoder(tuple[int, LedgerCall])
