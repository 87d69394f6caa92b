"""The ledger's decisions, event by event. Each line of a table is one event and its outcome."""

from __future__ import annotations

import pytest

from headrace.pipeline.contract import InDoubtPolicy
from headrace.pipeline.ledger.keys import CallKey, call_keys, content_hash, unit_prefix
from headrace.pipeline.ledger.state import Lease, LedgerState, StageTerms, Verdict, WantedCall
from headrace.pipeline.ledger.totals import Nanos, StageTotals
from headrace.testing.pipeline.memory_results import MemoryResults

STAGE = "caption"


def key_of(call: int, content: str = "") -> CallKey:
    contents = content_hash("1", (content or f"row {call}").encode())
    return call_keys(unit_prefix("g", STAGE, "unit"), [(call, contents)])[0]


class Script:
    """Runs events such as `a claims 1` on a state; a store would hold the recorded results."""

    def __init__(self, terms: StageTerms, budget: int | None = None) -> None:
        self.state = LedgerState()
        self.state.declare(STAGE, terms)
        self.state.budget = None if budget is None else Nanos(budget)
        self.results = MemoryResults()
        self.keys: dict[tuple[str, int], CallKey] = {}

    def run(self, event: str) -> str:
        outcome = self._run(*event.split())
        self.state.validate()
        return outcome

    def _run(self, who: str, verb: str, number: str = "0", extra: str = "") -> str:
        lease, call = Lease(who), int(number)
        match verb:
            case "claims":
                wanted = WantedCall(key_of(call, extra), STAGE, "unit", call)
                decision = self.state.claim(wanted, lease, self.results)
                self.keys[who, call] = decision.key
                return "again" if decision.verdict == Verdict.CALL_AGAIN else decision.verdict
            case "records":
                key, before = self.keys[who, call], self.totals.repeats
                cost = Nanos(int(extra or 0))
                self.state.record(STAGE, key, cost, who.encode(), self.results)
                return "first" if self.totals.repeats == before else "repeated"
            case "fails":
                self.state.fail(self.keys[who, call], lease, in_doubt=extra == "unknown")
            case "releases":
                self.state.release(self.keys[who, call], lease)
            case "dies":
                self.state.end_lease(lease)
            case "restarts":
                state = LedgerState.recover(self.state.intents.items(), self.state.totals)
                state.declare(STAGE, self.state.terms(STAGE))
                state.budget = self.state.budget
                self.state = state
        return ""

    @property
    def totals(self) -> StageTotals:
        return self.state.totals.get(STAGE, StageTotals())


def check(script: Script, events: str, **totals: int) -> None:
    """Run each line of `events`: an event, and after `->` its outcome."""
    for line in events.strip().splitlines():
        event, _, outcome = (part.strip() for part in line.partition("->"))
        assert script.run(event) == outcome, line
    found = {name: getattr(script.totals, name) for name in totals}
    assert found == totals


# proves G17
@pytest.mark.parametrize(
    ("events", "totals"),
    [
        ("a claims 1 -> call\na records 1 -> first\na claims 1 -> result", {"calls": 1}),
        ("a claims 1 -> call\nb claims 1 -> wait\na records 1 -> first\nb claims 1 -> result", {}),
        ("a claims 1 -> call\na fails 1\nb claims 1 -> call", {"failures": 1, "doubts": 0}),
        ("a claims 1 -> call\na releases 1\nb claims 1 -> call", {"releases": 1, "doubts": 0}),
        ("a claims 1 -> call\na fails 1 unknown\nb claims 1 -> again", {"doubts": 1, "resends": 1}),
        ("a claims 1 -> call\na dies\nb claims 1 -> again", {"doubts": 1, "resends": 1}),
        ("a claims 1 -> call\nx restarts\nb claims 1 -> again", {"doubts": 1, "resends": 1}),
        ("a claims 1 -> call\nx restarts\nx restarts", {"doubts": 1}),
        ("a claims 1 -> call\na claims 1 -> again", {"doubts": 1, "resends": 1}),
        ("a claims 1 -> call\na claims 1 other -> call", {"doubts": 0, "calls": 2}),
        ("a claims 1 row -> call\nb claims 2 row -> call", {"calls": 2}),
        ("a claims 1 -> call\na dies\na records 1 -> first\nb claims 1 -> result", {"doubts": 1}),
        (
            "a claims 1 -> call\na dies\nb claims 1 -> again\na fails 1\nc claims 1 -> wait",
            {"failures": 0},
        ),
        (
            "a claims 1 -> call\na dies\nb claims 1 -> again\na releases 1\nc claims 1 -> wait",
            {"releases": 0},
        ),
        (
            "a claims 1 -> call\na dies\nb claims 1 -> again\na records 1 -> first\n"
            "b records 1 -> repeated\nc claims 1 -> result",
            {"results": 1, "repeats": 1, "doubts": 1},
        ),
        (
            "a claims 1 -> call\na dies\nb claims 1 -> again\nb releases 1\nc claims 1 -> again",
            {"doubts": 1, "releases": 1, "resends": 2},
        ),
    ],
)
def test_a_claim_is_answered_once(events: str, totals: dict[str, int]) -> None:
    check(Script(StageTerms()), events, **totals)


@pytest.mark.parametrize(
    ("policy", "answer", "totals"),
    [
        ("resend", "again", {"resends": 1, "retries": 0, "spent_in_doubt": 0}),
        ("retry", "again", {"resends": 0, "retries": 1, "spent_in_doubt": 5}),
        ("hold", "held", {"resends": 0, "retries": 0, "spent_in_doubt": 0}),
    ],
)
def test_the_terms_decide_about_a_call_in_doubt(
    policy: InDoubtPolicy, answer: str, totals: dict[str, int]
) -> None:
    script = Script(StageTerms(in_doubt=policy, cost=Nanos(5)))
    check(script, f"a claims 1 -> call\na dies\nb claims 1 -> {answer}", doubts=1, **totals)


def test_every_attempt_has_the_same_key() -> None:
    script = Script(StageTerms())
    check(script, "a claims 1 -> call\na dies\nb claims 1 -> again\nb fails 1\nc claims 1 -> again")
    assert len({script.keys[who, 1] for who in "abc"}) == 1


@pytest.mark.parametrize(
    "events",
    [
        "a claims 1 row -> call\nb claims 2 row -> wait\na claims 3 row -> wait",
        "a claims 1 row -> call\na dies\nb claims 2 row -> again\na claims 1 row -> wait",
        "a claims 1 row -> call\na fails 1\nb claims 2 row -> call",
        "a claims 1 row -> call\nx restarts\nb claims 2 row -> again\na records 1 -> first\n"
        "b records 2 -> repeated",
    ],
)
def test_equal_calls_are_one_call_if_the_terms_say_so(events: str) -> None:
    check(Script(StageTerms(reuse_equal=True)), events)


def test_a_call_in_doubt_is_sent_again_under_its_own_key_beside_an_equal_one() -> None:
    """Both may be paid, since the terms did not say that equal calls are one."""
    script = Script(StageTerms())
    check(script, "a claims 1 row -> call\na claims 2 row -> call\na dies")
    script.state.declare(STAGE, StageTerms(reuse_equal=True))
    check(script, "b claims 1 row -> again\nc claims 2 row -> again")
    assert script.keys["b", 1] == key_of(1, "row")
    assert script.keys["c", 2] == key_of(2, "row")


@pytest.mark.parametrize(
    ("terms", "budget", "events"),
    [
        ({"cost": 5}, 0, "a claims 1 -> paused"),
        ({"cost": 0}, 0, "a claims 1 -> call"),
        ({}, 0, "a claims 1 -> paused"),
        ({"cost": 5}, 9, "a claims 1 -> call\na claims 2 -> wait\na records 1 5 -> first"),
        (
            {"cost": 5},
            9,
            "a claims 1 -> call\na records 1 5 -> first\na claims 2 -> paused\n"
            "a claims 1 -> result",
        ),
        ({"cost": 5}, 10, "a claims 1 -> call\na claims 2 -> call\na claims 3 -> wait"),
        ({"cost": 5}, 5, "a claims 1 -> call\na fails 1\na claims 2 -> call"),
        ({"cost": 5}, 5, "a claims 1 -> call\na releases 1\na claims 2 -> call"),
        ({"cost": 5}, 5, "a claims 1 -> call\na dies\na claims 2 -> paused\na claims 1 -> again"),
        (
            {"cost": 5, "in_doubt": "retry"},
            9,
            "a claims 1 -> call\na dies\na claims 1 -> paused",
        ),
        (
            {"cost": 5, "in_doubt": "retry"},
            10,
            "a claims 1 -> call\na dies\na claims 1 -> again\na claims 2 -> wait",
        ),
        (
            {"cost": 5, "in_doubt": "retry"},
            10,
            "a claims 1 -> call\na dies\na claims 1 -> again\na fails 1\na claims 1 -> again",
        ),
        (
            {},
            9,
            "a claims 1 -> call\na claims 2 -> wait\na records 1 4 -> first\na claims 2 -> call",
        ),
        (
            {},
            9,
            "a claims 1 -> call\na records 1 4 -> first\na claims 2 -> call\n"
            "a records 2 5 -> first\na claims 3 -> paused",
        ),
        (
            {},
            13,
            "a claims 1 -> call\na records 1 6 -> first\na claims 2 -> call\n"
            "a records 2 2 -> first\na claims 3 -> paused",
        ),
        (
            {},
            13,
            "a claims 1 -> call\na dies\na claims 2 -> call\na records 2 6 -> first\n"
            "a claims 3 -> paused\na claims 1 -> again",
        ),
        (
            {"in_doubt": "retry"},
            18,
            "a claims 1 -> call\na dies\na claims 2 -> call\na records 2 6 -> first\n"
            "a claims 1 -> again\na claims 3 -> wait\na records 1 6 -> first\n"
            "a claims 3 -> paused",
        ),
    ],
)
@pytest.mark.parametrize("scope", ["stage", "job"])
def test_no_call_exceeds_the_budget(
    terms: dict[str, int], budget: int, events: str, scope: str
) -> None:
    limit = {"budget": Nanos(budget)} if scope == "stage" else {}
    script = Script(StageTerms(**terms, **limit), budget if scope == "job" else None)  # type: ignore[arg-type]
    check(script, events)


def test_a_larger_budget_resumes() -> None:
    script = Script(StageTerms(cost=Nanos(5)), budget=5)
    check(script, "a claims 1 -> call\na records 1 5 -> first\na claims 2 -> paused")
    script.state.budget = Nanos(10)
    check(script, "a claims 2 -> call\na claims 1 -> result", spent=5, calls=2)


def test_an_attempt_that_proves_to_be_paid_is_no_longer_in_doubt() -> None:
    script = Script(StageTerms(in_doubt="retry", cost=Nanos(5)))
    events = "a claims 1 -> call\na dies\nb claims 1 -> again\nb records 1 5 -> first"
    check(script, events, spent=5, spent_in_doubt=5)
    check(script, "a records 1 5 -> repeated", spent=10, spent_in_doubt=0)


def test_a_run_that_stops_pays_nothing_more_and_finds_what_is_paid() -> None:
    script = Script(StageTerms())
    check(script, "a claims 1 -> call\na records 1 -> first")
    script.state.is_stopping = True
    check(script, "a claims 1 -> result\na claims 2 -> paused", calls=1)


def test_the_budget_of_the_job_counts_what_other_stages_spent() -> None:
    script = Script(StageTerms(cost=Nanos(5)), budget=9)
    script.state.record("other", key_of(9), Nanos(5), b"", script.results)
    check(script, "a claims 1 -> paused")
    script.state.budget = Nanos(10)
    check(script, "a claims 1 -> call")
