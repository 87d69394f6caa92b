"""The ledger as workers use it, in the driver's process and in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import BudgetError, DataError, StorageError, UsageError
from headrace.pipeline.contract import CallTerms, Claimed, ClaimStatus, Ledger, RecordedCall
from headrace.pipeline.ledger import ledger_store
from headrace.pipeline.ledger.actor import LedgerActor
from headrace.pipeline.ledger.handle import LedgerHandle
from headrace.pipeline.ledger.keys import content_hash
from headrace.pipeline.ledger.ledger_service import LedgerService
from headrace.pipeline.ledger.local_ledger import LocalLedger
from headrace.pipeline.ledger.messages import LEDGER
from headrace.pipeline.ledger.remote_ledger import RemoteLedger
from headrace.settings import MIB, ServiceSettings
from headrace.transport import Server

RESULT, CALL, IN_DOUBT = ClaimStatus.RESULT, ClaimStatus.CALL, ClaimStatus.IN_DOUBT
HELD, LATER = ClaimStatus.HELD, ClaimStatus.LATER

OpenHandle = Callable[[], LedgerHandle]


def calls(*numbers: int, content: bytes | None = None) -> list[tuple[int, bytes]]:
    return [(number, content_hash("1", content or b"%d" % number)) for number in numbers]


def statuses(claimed: Sequence[Claimed]) -> list[ClaimStatus]:
    return [each.status for each in claimed]


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[LedgerActor]:
    actor = LedgerActor.open(tmp_path / "ledger", "g")
    yield actor
    actor.validate()
    actor.close()


@pytest.fixture(params=["local", "remote"])
def handle(actor: LedgerActor, request: pytest.FixtureRequest) -> Iterator[OpenHandle]:
    if request.param == "local":
        yield lambda: LocalLedger(actor)
        return
    with Server({LEDGER: LedgerService(actor)}, ServiceSettings()) as server:
        yield lambda: RemoteLedger(server.address)


def run(test: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(test, 60)

    return asyncio.run(bounded())


def check_type(handle: LedgerHandle) -> Ledger:
    """mypy sees that a handle keeps the contract."""
    return handle


# proves G17
def test_a_recorded_result_is_found_instead_of_called(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            claimed = await ledger.claim("s", "u", calls(0, 1), owner="a")
            assert statuses(claimed) == [CALL, CALL]
            assert len({each.idempotency_key for each in claimed}) == 2
            await ledger.record("s", "u", [RecordedCall(1, b"one", 0.25), RecordedCall(0, b"", 0)])
        async with handle() as ledger:
            found = await ledger.claim("s", "u", calls(0, 1), owner="b")
            assert [(each.status, each.result) for each in found] == [
                (RESULT, b""),
                (RESULT, b"one"),
            ]
            for stage, unit in [("t", "u"), ("s", "v")]:
                other = await ledger.claim(stage, unit, calls(0), owner="b")
                assert statuses(other) == [CALL]
            totals = (await ledger.totals())["s"]
            assert (totals.results, totals.reused, totals.cost) == (2, 2, 0.25)

    run(test())


def test_the_other_owner_waits_for_the_result(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as one, handle() as two:
            await one.claim("s", "u", calls(0), owner="a")
            waiting = asyncio.ensure_future(two.claim("s", "u", calls(0), owner="b"))
            assert statuses(await two.claim("s", "u", calls(0, 1), owner="b")) == [LATER, CALL]
            assert not waiting.done()
            await one.record("s", "u", [RecordedCall(0, b"x", 0)])
            assert await waiting == [Claimed(RESULT, "", b"x")]

    run(test())


@pytest.mark.parametrize(
    ("policy", "status"), [("resend", IN_DOUBT), ("retry", IN_DOUBT), ("hold", HELD)]
)
def test_a_lost_owner_leaves_its_calls_in_doubt(
    handle: OpenHandle, policy: Any, status: ClaimStatus
) -> None:
    async def test() -> None:
        async with handle() as two:
            await two.declare("s", CallTerms(in_doubt=policy, cost=1))
            async with handle() as one:
                [before] = await one.claim("s", "u", calls(0), owner="a")
            [after] = await two.claim("s", "u", calls(0), owner="b")
            assert after == Claimed(status, before.idempotency_key)
            totals = (await two.totals())["s"]
            assert totals.doubts == 1
            assert (totals.resends, totals.retries) == (policy == "resend", policy == "retry")
            held = [(each.unit, each.call) for each in await two.calls_in_doubt()]
            assert held == ([("u", 0)] if policy == "hold" else [])

    run(test())


def test_calls_that_are_given_up_can_be_claimed_again(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            await ledger.claim("s", "u", calls(0, 1, 2), owner="a")
            await ledger.fail("s", "u", [0], "refused")
            await ledger.doubt("s", "u", [1])
            await ledger.release("s", "u", [2])
            again = await ledger.claim("s", "u", calls(0, 1, 2), owner="a")
            assert statuses(again) == [CALL, IN_DOUBT, CALL]
            totals = (await ledger.totals())["s"]
            assert (totals.failures, totals.doubts, totals.releases) == (1, 1, 1)

    run(test())


def test_equal_calls_are_made_once_if_the_terms_say_so(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            await ledger.declare("s", CallTerms(reuse_equal=True))
            equal = calls(0, 1, content=b"same")
            assert statuses(await ledger.claim("s", "u", equal, owner="a")) == [CALL, LATER]
            await ledger.record("s", "u", [RecordedCall(0, b"x", 0)])
            found = await ledger.claim("s", "u", equal, owner="a")
            assert [each.result for each in found] == [b"x", b"x"]
            found = await ledger.claim("s", "other", calls(7, content=b"same"), owner="a")
            assert found[0].result == b"x"
            assert (await ledger.totals())["s"].calls == 1

    run(test())


def test_a_budget_is_spent_to_its_last_call_and_resumes(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            await ledger.declare("s", CallTerms(cost=0.1))
            await ledger.set_budget(0.3)
            claimed = await ledger.claim("s", "u", calls(0, 1, 2, 3), owner="a")
            assert statuses(claimed) == [CALL, CALL, CALL, LATER]
            await ledger.record("s", "u", [RecordedCall(call, b"", 0.1) for call in range(3)])
            with pytest.raises(
                BudgetError,
                match=r"the job's budget of 0.3 is spent at stage 's': 0.3 is paid or in doubt",
            ):
                await ledger.claim("s", "u", calls(3), owner="a")
            await ledger.set_budget(0.4)
            assert statuses(await ledger.claim("s", "u", calls(3), owner="a")) == [CALL]

    run(test())


def test_a_budget_of_zero_makes_no_call(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            await ledger.set_budget(0)
            with pytest.raises(BudgetError):
                await ledger.claim("s", "u", calls(0), owner="a")
            assert await ledger.totals() == {}

    run(test())


def test_large_results_come_in_several_answers(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            large = [bytes([call]) * (6 * MIB) for call in range(5)]
            await ledger.claim("s", "u", calls(*range(6)), owner="a")
            await ledger.record(
                "s", "u", [RecordedCall(i, data, 0) for i, data in enumerate(large)]
            )
            found = await ledger.claim("s", "u", calls(*range(5)), owner="b")
            assert [each.result for each in found] == large

    run(test())


def test_a_claim_that_is_cancelled_is_given_back(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            claiming = asyncio.ensure_future(ledger.claim("s", "u", calls(0), owner="a"))
            await asyncio.sleep(0)
            claiming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claiming
            assert statuses(await ledger.claim("s", "u", calls(0), owner="b")) == [CALL]
            totals = (await ledger.totals())["s"]
            assert totals.doubts == 0

    run(test())


@asynccontextmanager
async def refused(match: str) -> AsyncIterator[None]:
    with pytest.raises(UsageError, match=match):
        yield


@pytest.mark.long
def test_wrong_calls_are_refused_and_change_nothing(handle: OpenHandle) -> None:
    async def test() -> None:
        async with handle() as ledger:
            async with refused(r"a content hash has 3 bytes, not 16"):
                await ledger.claim("s", "u", [(0, b"abc")], owner="a")
            async with refused(r"a call's number is not between 0 and 4294967295"):
                await ledger.claim("s", "u", [(-1, content_hash(""))], owner="a")
            async with refused(r"call 0 of unit 'u' in stage 's' is not claimed here"):
                await ledger.record("s", "u", [RecordedCall(0, b"", 0)])
            async with refused(r"the budget of stage 's' must be a number from 0 on, got -1"):
                await ledger.declare("s", CallTerms(budget=-1))
            await ledger.claim("s", "u", calls(0), owner="a")
            async with refused(r"the cost of a call of stage 's' must be a number .* got nan"):
                await ledger.record("s", "u", [RecordedCall(0, b"", float("nan"))])
            async with refused(r"has 67108865 bytes, more than 67108864"):
                await ledger.record("s", "u", [RecordedCall(0, bytes(64 * MIB + 1), 0)])
            await ledger.record("s", "u", [RecordedCall(0, b"x", 0)])
            assert await ledger.claim("s", "u", calls(0), owner="a") == [Claimed(RESULT, "", b"x")]

    run(test())


def test_a_reopened_ledger_continues(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "ledger"
        async with LocalLedger.open(path, "g") as ledger:
            await ledger.claim("s", "u", calls(0, 1, 2), owner="a")
            await ledger.record("s", "u", [RecordedCall(0, b"x", 1.5)])
            await ledger.release("s", "u", [2])
        async with LocalLedger.open(path, "g") as ledger:
            again = await ledger.claim("s", "u", calls(0, 1, 2), owner="a")
            assert statuses(again) == [RESULT, IN_DOUBT, CALL]
            totals = (await ledger.totals())["s"]
            assert (totals.results, totals.doubts, totals.cost) == (1, 1, 1.5)
        async with LocalLedger.open(path, "another generation") as ledger:
            assert await ledger.totals() == {}
            assert statuses(await ledger.claim("s", "u", calls(0), owner="a")) == [CALL]

    run(test())


def test_one_process_has_a_ledger_open(actor: LedgerActor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"another process has the ledger in .* open"):
        LedgerActor.open(tmp_path / "ledger", "g")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    LedgerActor.open(path, "g").close()
    (path / "data.mdb").write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=str(path)):
        LedgerActor.open(path, "g")


def test_a_closed_ledger_refuses(tmp_path: Path) -> None:
    actor = LedgerActor.open(tmp_path / "ledger", "g")
    actor.close()
    actor.close()
    with pytest.raises(UsageError, match="the ledger is closed"):
        actor.totals()


def test_a_ledger_whose_thread_ends_first_gives_its_directory_back(tmp_path: Path) -> None:
    actor = LedgerActor.open(tmp_path / "ledger", "g")
    actor._requests.put(None)
    actor._thread.join()
    actor.close()
    LedgerActor.open(tmp_path / "ledger", "g").close()


def test_a_write_that_fails_ends_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_store, "MAP_BYTES", 256 * 1024)

    async def test() -> None:
        path = tmp_path / "ledger"
        actor = LedgerActor.open(path, "g")
        ledger = LocalLedger(actor)
        await ledger.claim("s", "u", calls(0, 1), owner="a")
        await ledger.record("s", "u", [RecordedCall(0, b"small", 0)])
        with pytest.raises(StorageError, match=r"the ledger in .* failed"):
            await ledger.record("s", "u", [RecordedCall(1, bytes(MIB), 0)])
        with pytest.raises(StorageError):
            await ledger.totals()
        actor.close()
        async with LocalLedger.open(path, "g") as again:
            claimed = await again.claim("s", "u", calls(0, 1), owner="a")
            assert statuses(claimed) == [RESULT, IN_DOUBT]

    run(test())
