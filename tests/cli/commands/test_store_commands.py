"""`headrace store`: with the store open in another process or in none."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.testing.crash import Child
from tests.certificate import make_certificate
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import Running

OWNER = """
from headrace.stores.service.store_access import open_store
opened = [open_store(each) for each in places]
"""


def samples(count: int = 100) -> str:
    """Return a line for each sample of two series, 15 s apart until now."""
    now_ms = time.time_ns() // 1_000_000
    lines = [
        {
            "labels": {"__name__": "visits", "job": job},
            "timestamp": now_ms - (count - n) * 15_000,
            "value": n * factor,
        }
        for job, factor in (("api", 2), ("web", 1))
        for n in range(count)
    ]
    return "\n".join(map(json.dumps, lines))


def vectors(count: int) -> str:
    return "\n".join(json.dumps({"id": f"v{n}", "vector": [1, n, 2]}) for n in range(count))


VECTORS = "\n".join(
    json.dumps(each)
    for each in (
        {"id": "a", "vector": [0, 0, 1], "name": "ann", "year": 2001},
        {"id": "b", "vector": [0, 1, 0], "name": "bob"},
        {"id": "c", "vector": [1, 1, 0]},
    )
)
CREATE_VECTORS = (
    *("store", "create", "texts", "--kind", "vectors", "--dimension", "3", "--metric", "l2"),
    *("--metadata", "name:string", "--metadata", "year:int"),
)


@pytest.fixture(params=["none", "another process"])
def filled(request: pytest.FixtureRequest, here: Path, ok: Ok) -> Iterator[None]:
    """`metrics` and `texts`, which no process or another one has open."""
    ok("store", "create", "metrics", "--kind", "timeseries")
    ok(*CREATE_VECTORS)
    ok("store", "write", "metrics", input=samples())
    ok("store", "write", "texts", input=VECTORS)
    if request.param == "none":
        yield
        return
    with Child() as owner:
        places = [str(here / "metrics"), str(here / "texts")]
        owner.run(OWNER, places=places)
        yield


def test_stores_are_created_once(ok: Ok, run: Run) -> None:
    for _ in range(2):
        assert ok(*CREATE_VECTORS) == "texts is a store of vectors\n"
    other = run("store", "create", "texts", "--kind", "timeseries")
    assert other.exit_code == 1
    assert "texts is a store already: vectors dimension=3 metric=l2 metadata=" in other.stderr


def test_a_query_answers_in_a_table_or_in_json(ok: Ok, filled: None) -> None:
    table = ok("store", "query", "metrics", "visits").split()
    assert table == ["series", "value", 'visits{job="api"}', "198", 'visits{job="web"}', "99"]
    answer = json.loads(ok("store", "query", "metrics", "sum(visits)", "--json"))
    assert answer["resultType"] == "vector"
    assert answer["result"][0]["value"][1] == "297"
    assert ok("store", "query", "metrics", "1 + 2") == "3\n"
    assert ok("store", "query", "metrics", '"text"') == "text\n"
    assert ok("store", "query", "metrics", "nothing") == "no series match\n"
    past = ok("store", "query", "metrics", "visits", "--at", "now-10m").split()
    assert past[2::2] == ['visits{job="api"}', 'visits{job="web"}']
    assert 120 <= int(past[3]) == 2 * int(past[5]) <= 180
    window = ok("store", "query", "metrics", "visits{job='web'}[10m]")
    assert len(window.splitlines()) > 20


def test_a_query_of_a_range_is_a_chart(ok: Ok, filled: None) -> None:
    lines = ok("store", "query", "metrics", "visits", "--start", "now-20m").splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[-2].startswith('a visits{job="api"}  last 198  min ')
    assert lines[-1].startswith('b visits{job="web"}  last 99  min ')
    assert lines[0].startswith("  198 ┤")
    asked = ("--start", "now-20m", "--end", "now", "--step", "5m", "--json")
    answer = json.loads(ok("store", "query", "metrics", "visits", *asked))
    assert answer["resultType"] == "matrix"
    assert len(answer["result"][0]["values"]) == 5
    assert ok("store", "query", "metrics", "none", "--start", "now-1h") == "no series match\n"


def test_a_search_is_near_a_vector_or_an_id(ok: Ok, filled: None) -> None:
    near = ok("store", "search", "texts", "--vector", "0, 1, 0.1").splitlines()
    assert near[0].split() == ["id", "name", "year", "distance"]
    assert [line.split()[0] for line in near[1:]] == ["b", "c", "a"]
    [other] = json.loads(ok("store", "search", "texts", "--id", "c", "-k", "1", "--json"))
    assert (other["id"], other["distance"]) == ("b", 1.0)
    kept = ("--filter", '{"field": "year", "gt": 2000}', "--exact")
    found = ok("store", "search", "texts", "--vector", "[0, 0, 0]", *kept)
    assert [line.split()[0] for line in found.splitlines()[1:]] == ["a"]
    none = ("--filter", '{"field": "year", "gt": 3000}')
    assert ok("store", "search", "texts", "--id", "a", *none) == "nothing is found\n"


def test_written_rows_are_there_for_everybody(ok: Ok, filled: None) -> None:
    more = '\n{"id": "d", "vector": [9, 9, 9]}\n\n{"id": "a", "_deleted": true}\n'
    assert ok("store", "write", "texts", input=more) == "2 rows stored in texts\n"
    assert json.loads(ok("store", "stat", "texts", "--json"))["rows"] == 3
    assert json.loads(ok("store", "write", "texts", "--json", input=b"")) == {"rows": 0}


def test_stat_says_what_a_store_holds(ok: Ok, filled: None) -> None:
    figures = dict(line.split(maxsplit=1) for line in ok("store", "stat", "metrics").splitlines())
    assert figures["kind"].strip() == "timeseries"
    assert figures["samples"].strip() == "200"
    told = json.loads(ok("store", "stat", "metrics", "--json"))
    assert (told["kind"], told["backend"], told["samples"]) == ("timeseries", "lmdb", 200)


WRONG = [
    (("create", "x", "--kind", "graph"), "'graph' is no kind of store; choose timeseries or"),
    (("create", "x", "--kind", "vectors"), "a store of vectors needs its dimension"),
    (("create", "x", "--kind", "timeseries", "--dimension", "3"), "are settings of vectors"),
    (("create", "x", "--kind", "timeseries", "--backend", "csv"), "'csv' is no backend"),
    (("create", "x", "--kind", "timeseries", "--retention", "soon"), "'soon' is not a time"),
    (("create", "x", "--kind", "vectors", "--dimension", "3", "--metadata", "name"), "names no"),
    (("create", "metrics/store.json/x", "--kind", "timeseries"), "metrics/store.json/x"),
    (("query", "missing", "up"), "there is no store at "),
    (("query", "texts", "up"), "texts is a store of vectors, not of timeseries"),
    (("query", "metrics", "sum("), "parse error: unexpected end of input"),
    (("query", "metrics", "nosuch(visits)"), "unknown function"),
    (("query", "metrics", "up", "--at", "soon"), "'soon' is not a time: write it like now-1h"),
    (("query", "metrics", "up", "--end", "now"), "--end and --step are for a chart"),
    (("query", "metrics", "up", "--at", "now", "--start", "now"), "exclude each other"),
    (("query", "metrics", "up", "--start", "now", "--end", "now-1h"), "no range: from"),
    (("search", "metrics", "--id", "a"), "metrics is a store of timeseries, not of vectors"),
    (("search", "texts"), "a search needs --vector or --id"),
    (("search", "texts", "--id", "zz"), "texts has no vector 'zz'"),
    (("search", "texts", "--vector", "1,x"), "--vector '1,x' is no list of numbers"),
    (("search", "texts", "--vector", "1,2"), "the vector has 2 numbers"),
    (("search", "texts", "--id", "a", "--filter", "{"), "--filter '{' cannot be read"),
    (("search", "texts", "--vector", "1,2,3", "--filter", '{"field": "x", "eq": 1}'), "'x'"),
    (("serve", "grpc://127.0.0.1:1"), "grpc://127.0.0.1:1 is served already; name the directory"),
    (("serve", "metrics", "--http", "nonsense"), "'nonsense' is not an address"),
    (("serve", "metrics", "--http", "a:b:90"), "'a:b:90' is not an address"),
    (("serve", "metrics", "--http", "127.0.0.1:70000"), "is not an address"),
    (("stat", "grpc://127.0.0.1:1"), "127.0.0.1:1"),
]


def test_errors_are_one_line(run: Run, ok: Ok) -> None:
    ok("store", "create", "metrics", "--kind", "timeseries")
    ok(*CREATE_VECTORS)
    for arguments, message in WRONG:
        result = run("store", *arguments)
        assert result.exit_code in (1, 2), arguments
        assert message in result.stderr, (arguments, result.stderr)
        assert result.stderr.startswith("error: "), arguments
        assert result.stderr.count("\n") == 1, arguments
        assert result.stdout == "", arguments


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("{}", "line 1 cannot be read"),
        ('{"labels": {"a": "b"}, "timestamp": 1, "value": "x"}', "line 1 has the value 'x'"),
        (samples(3) + "\nrubbish", "line 7 cannot be read"),
    ],
)
def test_a_line_that_is_wrong_is_named(run: Run, ok: Ok, lines: str, message: str) -> None:
    ok("store", "create", "metrics", "--kind", "timeseries")
    result = run("store", "write", "metrics", input=lines)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    stored = json.loads(ok("store", "stat", "metrics", "--json"))["samples"]
    assert (f"{stored} rows before it are stored" in result.stderr) == (stored > 0)


def test_a_long_input_says_how_much_of_it_is_stored(
    run: Run, ok: Ok, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.store_rows._CHUNK_BYTES", 100)
    ok(*CREATE_VECTORS)
    result = run("store", "write", "texts", input=VECTORS + "\nrubbish")
    assert "line 4 cannot be read" in result.stderr
    assert "3 rows before it are stored" in result.stderr
    assert json.loads(ok("store", "stat", "texts", "--json"))["rows"] == 3
    result = run("store", "write", "texts", input=VECTORS + '\n{"id": "e", "vector": [1]}')
    assert "after line 3: row 0, column 'vector'" in result.stderr


# -- serving -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_store_is_served_until_it_is_told_to_stop(
    here: Path, ok: Ok, run: Run, number: signal.Signals
) -> None:
    ok("store", "create", "metrics", "--kind", "timeseries")
    with Running("store", "serve", "metrics", "--json") as serving:
        said = json.loads(serving.line())
        assert said["process"] == serving.process.pid
        assert "token" not in said
        ok("store", "write", "metrics", input=samples())
        url = f"{said['http']}/api/v1/query"
        answer = httpx.get(url, params={"query": "sum(visits)"}, trust_env=False).json()
        assert answer["data"]["result"][0]["value"][1] == "297"
        second = run("store", "serve", "metrics")
        assert second.exit_code == 1
        assert "is open in another process, which alone can serve it over HTTP" in second.stderr
        assert serving.end(number) == (0, "", "")
    assert not (here / "metrics" / "owner.json").exists()
    assert json.loads(ok("store", "stat", "metrics", "--json"))["samples"] == 200


# proves G25
@pytest.mark.long
@pytest.mark.parametrize("kind", ["timeseries", "vectors"])
def test_a_process_that_serves_a_store_ends_with_the_error_of_a_write_that_failed(
    here: Path, ok: Ok, run: Run, kind: str
) -> None:
    """A supervisor starts it again, which is what the store needs."""
    is_vectors = kind == "vectors"
    ok("store", "create", "full", "--kind", kind, *(("--dimension", "3") if is_vectors else ()))
    figure, stored = ("rows", 3) if is_vectors else ("samples", 2)
    few, many = (vectors(3), vectors(20_000)) if is_vectors else (samples(1), samples(10_000))
    with Running("store", "serve", "full", "--json") as serving:
        serving.line()
        ok("store", "write", "full", input=few)
        size = (here / "full" / "data" / "data.mdb").stat().st_size
        resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE, (size, size))
        refused = run("store", "write", "full", input=many)
        assert (refused.exit_code, refused.stdout) == (1, "")
        code, _, said = serving.wait()
    assert code == 1
    assert (said[:7], said.count("\n")) == ("error: ", 1)
    assert "a flush failed" in said
    assert "then open the store again" in said
    assert json.loads(ok("store", "stat", "full", "--json"))[figure] == stored


# proves G28
@pytest.mark.long
def test_a_token_and_a_certificate_guard_a_served_store(
    here: Path, ok: Ok, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("store", "create", "metrics", "--kind", "timeseries")
    made = make_certificate(here)
    monkeypatch.setenv("HEADRACE_TOKEN", "a-secret-of-the-tests")
    secure = ("--tls-cert", made.certificate, "--tls-key", made.key)
    with Running("store", "serve", "metrics", *secure) as serving:
        shown = [serving.line().split() for _ in range(4)]
        place = dict(line[:2] for line in shown)
        assert [line[0] for line in shown] == ["store", "kind", "http", "address"]
        assert place["http"].startswith("https://127.0.0.1:")
        trusted = ("--tls-root", made.certificate)
        told = json.loads(ok("store", "stat", place["address"], *trusted, "--json"))
        assert told["samples"] == 0
        monkeypatch.delenv("HEADRACE_TOKEN")
        refused = run("store", "stat", place["address"], *trusted, "--token", "wrong")
        assert refused.exit_code == 1
        assert "a-secret" not in refused.stderr
        assert serving.end(signal.SIGTERM)[0] == 0


# proves G28
def test_other_machines_are_not_served_without_a_token(run: Run, ok: Ok) -> None:
    ok("store", "create", "metrics", "--kind", "timeseries")
    result = run("store", "serve", "metrics", "--http", "0.0.0.0:0")
    assert result.exit_code == 1
    assert "listening on 0.0.0.0 without a token would let anyone in" in result.stderr
