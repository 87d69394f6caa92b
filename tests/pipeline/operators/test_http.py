"""The HTTP operator against a real server that counts what it is paid for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import AccessError, HeadraceError, UnitError, UsageError
from headrace.pipeline.operators.http import HttpOperator, parse_retry_after
from headrace.pipeline.operators.openai import openai_chat, openai_embeddings
from headrace.pipeline.operators.operator import OperatorSpec, operator_spec
from headrace.pipeline.operators.retries import Retries
from headrace.pipeline.rate_limit.state import RateLimitSpec
from headrace.testing.paid_server import PaidServer, embedding
from tests.pipeline.memory_ledger import CountingLimit, MemoryLedger
from tests.pipeline.operator_runs import UNIT, process, rows_of

pytestmark = pytest.mark.long

ROWS: list[dict[str, Any]] = [{"n": n, "name": f"row {n}"} for n in range(6)]
LIMIT = RateLimitSpec(name="provider")
SOON = Retries(attempts_max=4, first_s=0.01, longest_s=0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaidServer]:
    options = ("--honour-keys", "--retry-after-s", "0.2", "--hang-s", "60")
    with PaidServer(tmp_path / "bill", *options) as server:
        yield server


def calling(server: PaidServer, options: dict[str, Any] | None = None, **http: Any) -> OperatorSpec:
    """Return a stage that calls the server for each row."""
    operator = HttpOperator(
        **{
            "url": f"{server.url}/pay",
            "json": lambda row: {"id": str(row["n"])},
            "parse": lambda answer: {"answer": answer["answer"]},
            "cost": 0.5,
            "rate_limit": LIMIT,
            "timeout_s": 10.0,
            **http,
        }
    )
    return operator_spec("map", operator, **{"retries": SOON, **(options or {})})


def refusal(spec: OperatorSpec, ledger: MemoryLedger | None = None) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised:
        process(spec, ROWS, ledger=ledger or MemoryLedger())
    assert "\n" not in str(raised.value)
    assert raised.value.do
    return raised.value


def test_a_request_from_each_row_and_columns_from_each_answer(server: PaidServer) -> None:
    ledger = MemoryLedger()
    processed = process(calling(server), ROWS, ledger=ledger)
    assert rows_of(processed) == [{**row, "answer": f"answer to {row['n']}"} for row in ROWS]
    assert (processed.calls, processed.cost) == (6, 3.0)
    assert server.paid_by_key() == {f"captions@1/{UNIT}/{n}": 1 for n in range(6)}
    again = process(calling(server), ROWS, ledger=ledger)
    assert rows_of(again) == rows_of(processed)
    assert sum(server.paid().values()) == 6


@pytest.mark.parametrize("fault", ["429", "429_date", "503", "500_before"])
def test_a_server_that_refuses_for_now_is_asked_again(server: PaidServer, fault: str) -> None:
    server.ask_faults(fault, fault)
    limit = CountingLimit()
    processed = process(calling(server), ROWS, ledger=MemoryLedger(), rate_limit=limit)
    assert len(rows_of(processed)) == 6
    assert server.paid() == {str(n): 1 for n in range(6)}
    assert limit.acquired == [("provider", 1, 0)] * 8
    if fault.startswith("429"):
        assert len(limit.penalties) == 2
        assert all(0 < seconds <= 1.2 for _, seconds in limit.penalties)


@pytest.mark.parametrize("fault", ["500_after", "cut_after", "hang_after"])
def test_a_call_in_doubt_is_sent_with_its_key_and_paid_once(server: PaidServer, fault: str) -> None:
    server.ask_faults(fault)
    ledger = MemoryLedger()
    spec = calling(server, {"concurrency": 1}, timeout_s=0.5)
    assert len(rows_of(process(spec, ROWS, ledger=ledger))) == 6
    assert server.paid() == {str(n): 1 for n in range(6)}
    assert ledger.claims[UNIT, 0] == 2, "the ledger knows that it was in doubt"


@pytest.mark.parametrize("fault", ["500_after", "cut_after", "hang_after"])
def test_a_call_in_doubt_is_not_sent_again_if_it_is_held(server: PaidServer, fault: str) -> None:
    server.ask_faults(fault)
    options = {"in_doubt": "hold", "on_error": "dead_letter", "concurrency": 1}
    spec = calling(server, options, timeout_s=0.5)
    processed = process(spec, ROWS, ledger=MemoryLedger())
    assert [dead.row for dead in processed.dead] == [0]
    assert server.paid_by_key()[f"captions@1/{UNIT}/0"] == 1


def test_a_server_that_dies_and_comes_back_is_paid_once(server: PaidServer) -> None:
    server.ask_faults("", "", "die_after")
    ledger = MemoryLedger()
    restarted = threading.Thread(target=lambda: (server.wait(), server.start()))
    restarted.start()
    retries = Retries(attempts_max=40, first_s=0.05, longest_s=0.5)
    processed = process(
        calling(server, {"retries": retries, "concurrency": 2}), ROWS, ledger=ledger
    )
    restarted.join()
    assert len(rows_of(processed)) == 6
    assert server.paid() == {str(n): 1 for n in range(6)}


def test_without_honoured_keys_repeats_are_at_most_the_calls_in_doubt(tmp_path: Path) -> None:
    shares = [f"--fault={fault}=0.12" for fault in ("500_after", "cut_after", "429", "500_before")]
    with PaidServer(tmp_path / "bill", "--retry-after-s", "0.01", *shares) as server:
        ledger = MemoryLedger()
        rows = [{"n": n} for n in range(60)]
        spec = calling(server, {"retries": Retries(attempts_max=20, first_s=0, longest_s=0)})
        assert len(rows_of(process(spec, rows, ledger=ledger))) == 60
        doubts = sum(ledger.claims.values()) - 60
        assert 0 < server.repeated <= doubts
        assert len(server.paid()) == 60


def test_a_row_that_the_server_refuses_is_an_error_of_the_row(server: PaidServer) -> None:
    server.ask_faults("", "", "400")
    ledger = MemoryLedger()
    spec = calling(server, {"concurrency": 1, "on_error": "dead_letter"})
    processed = process(spec, ROWS, ledger=ledger)
    assert [(dead.row, dead.attempts) for dead in processed.dead] == [(2, 1)]
    assert f"POST {server.url}/pay answered 400: " in processed.dead[0].error
    assert list(ledger.failed) == [(UNIT, 2)], "it cost nothing"
    server.ask_faults("400")
    error = refusal(calling(server, {"concurrency": 1}))
    assert isinstance(error, UnitError)
    assert str(error).startswith(f"stage 'captions', unit {UNIT}, row 0: POST {server.url}/pay ans")


def test_a_wrong_token_fails_the_stage_and_makes_no_dead_letters(server: PaidServer) -> None:
    server.ask_faults("401")
    error = refusal(calling(server, {"on_error": "dead_letter", "concurrency": 1}))
    assert isinstance(error, AccessError)
    assert "stage 'captions': POST" in str(error)


def test_retries_end(server: PaidServer) -> None:
    server.ask_faults(*["500_before"] * 4)
    error = refusal(calling(server, {"concurrency": 1}))
    assert "answered 500" in str(error)
    assert "(after 4 attempts)" in str(error)


def test_a_server_that_is_not_there_is_an_error_in_one_line(server: PaidServer) -> None:
    server.kill()
    ledger = MemoryLedger()
    error = refusal(calling(server, {"concurrency": 1}), ledger)
    assert "row 0: POST " in str(error)
    assert "no connection" in str(error)
    assert ledger.doubted == [], "nothing was sent"


def test_an_answer_that_cannot_be_parsed_is_in_doubt(server: PaidServer) -> None:
    server.ask_faults("garbage")
    ledger = MemoryLedger()
    error = refusal(calling(server, {"concurrency": 1}), ledger)
    assert "row 0: POST" in str(error)
    assert "which cannot be parsed: JSONDecodeError" in str(error)
    assert ledger.doubted == [(UNIT, 0)], "it was paid"
    error = refusal(calling(server, parse=lambda answer: {"x": answer["missing"]}))
    assert "cannot be parsed: KeyError: 'missing'" in str(error)
    assert "parse must return a dict, not str" in str(
        refusal(calling(server, parse=lambda answer: answer["answer"]))
    )


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"json": lambda row: row["missing"]}, "the request cannot be built: KeyError: 'missing'"),
        ({"json": lambda row: {1, 2}}, "the request cannot be built: TypeError"),
        ({"url": "nonsense"}, "UnsupportedProtocol"),
        ({"url": lambda row: 7}, "the request cannot be built: TypeError"),
    ],
)
def test_a_request_that_cannot_be_built_costs_nothing(
    server: PaidServer, wrong: dict[str, Any], expected: str
) -> None:
    ledger = MemoryLedger()
    assert expected in str(refusal(calling(server, {"concurrency": 1}, **wrong), ledger))
    assert ledger.doubted == []
    assert server.paid() == {}


def test_an_unset_token_is_named(server: PaidServer) -> None:
    error = refusal(calling(server, bearer_env="HEADRACE_TEST_TOKEN_UNSET"))
    assert isinstance(error, UsageError)
    assert "HEADRACE_TEST_TOKEN_UNSET is not set" in str(error)


def test_a_url_and_a_cost_for_each_row(server: PaidServer) -> None:
    url = server.url
    spec = calling(
        server,
        url=lambda row: f"{url}/pay/{row['n']}",
        cost=lambda answer: float(answer["id"]),
        parse=None,
    )
    processed = process(spec, ROWS, ledger=MemoryLedger())
    assert processed.cost == sum(range(6))
    assert [row["id"] for row in rows_of(processed)] == [str(n) for n in range(6)]


def test_calls_run_at_once() -> None:
    """The server answers nobody before it has heard from all."""
    all_are_there = threading.Barrier(40)

    class Patient(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            all_are_there.wait(60)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"answer": "yes"}')

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class PatientServer(ThreadingHTTPServer):
        request_queue_size = 40

    with PatientServer(("127.0.0.1", 0), Patient) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        operator = HttpOperator(
            url=url,
            json=lambda row: {"id": str(row["n"])},
            parse=lambda answer: {"answer": answer["answer"]},
            timeout_s=60.0,
        )
        spec = operator_spec("map", operator, concurrency=40, retries=Retries(attempts_max=1))
        try:
            processed = process(spec, [{"n": n} for n in range(40)], ledger=MemoryLedger())
        finally:
            server.shutdown()
    assert [row["answer"] for row in rows_of(processed)] == ["yes"] * 40


# OpenAI


def test_openai_chat_puts_answers_usage_and_cost(server: PaidServer) -> None:
    operator = openai_chat(
        "Describe {name}.",
        model="small",
        system="Be brief.",
        base_url=f"{server.url}/v1",
        price=(1_000_000, 2_000_000),
        usage_into="tokens",
        max_tokens=50,
        rate_limit=LIMIT,
    )
    limit = CountingLimit()
    spec = operator_spec("map", operator, concurrency=1)
    processed = process(spec, ROWS[:2], ledger=MemoryLedger(), rate_limit=limit)
    found = rows_of(processed)
    assert [row["answer"] for row in found] == [
        "answer to Describe row 0.",
        "answer to Describe row 1.",
    ]
    completion = len("answer to Describe row 0.") // 4
    prompts = sum(row["tokens"] for row in found) - 2 * completion
    assert processed.cost == prompts * 1 + 2 * completion * 2
    expected = len("Be brief." + "Describe row 0.") // 4 + 50
    assert limit.acquired[0] == ("provider", 1, expected)
    used = found[0]["tokens"]
    assert limit.acquired[1] == ("provider", 1, expected + used - expected)


def test_openai_embeddings_ask_for_many_rows_at_once(server: PaidServer) -> None:
    operator = openai_embeddings(
        "{name}", model="small", base_url=f"{server.url}/v1", price=1_000_000, rows_per_request=4
    )
    ledger = MemoryLedger()
    processed = process(operator_spec("map", operator), ROWS, ledger=ledger)
    assert processed.calls == 2
    assert processed.cost > 0
    for row in rows_of(processed):
        assert row["embedding"] == pytest.approx(embedding(row["name"]), abs=1e-6)
    assert rows_of(process(operator_spec("map", operator), ROWS, ledger=ledger)) == rows_of(
        processed
    )
    assert len(server.paid()) == 2


def test_messages_may_come_from_a_function(server: PaidServer) -> None:
    operator = openai_chat(
        lambda row: [{"role": "user", "content": f"What is {row['name']}?"}],
        model="small",
        into="reply",
        base_url=f"{server.url}/v1/",
    )
    (row, *_) = rows_of(process(operator_spec("map", operator), ROWS[:1]))
    assert row["reply"] == "answer to What is row 0?"


def test_openai_itself_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    error = refusal(operator_spec("map", openai_chat("{name}", model="m")))
    assert "OPENAI_API_KEY is not set" in str(error)


def test_what_changes_results_changes_the_fingerprint() -> None:
    def fingerprint(prompt: str, model: str = "m", **more: Any) -> str:
        return operator_spec("map", openai_chat(prompt, model=model, **more)).fingerprint()

    assert fingerprint("{a}") == fingerprint("{a}", price=(1, 1), timeout_s=3)
    assert len({fingerprint("{a}"), fingerprint("{b}"), fingerprint("{a}", "n")}) == 3
    assert fingerprint("{a}", temperature=0.5) != fingerprint("{a}")
    assert fingerprint("{a}", version="1") == fingerprint("{b}", version="1")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:40 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], expected: float | None) -> None:
    assert parse_retry_after(headers, now_s=60.0) == expected
