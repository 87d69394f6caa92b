"""`headrace plan show`: the stages of the queries that a file defines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ok, Run

SHOP = """
import pyarrow as pa
from headrace.plan.query import Query


class Orders:
    schema = pa.schema([("country", pa.string()), ("cents", pa.int64())])

    def units(self):
        raise AssertionError("the query is run")

    def __str__(self):
        return "orders"


def is_paid(batch):
    raise AssertionError("the query is run")


orders = Query.scan(Orders())
revenue = (
    orders.filter(is_paid)
    .group_by("country", partitions=8)
    .agg(orders="count", revenue=("cents", "sum"))
)
same = revenue
grouped = orders.group_by("country")
"""
REVENUE = """\
query revenue

stage 0: a task for each unit
  ShuffleWrite(country; 8 partitions)
    PartialHashAggregate(country: orders=count, revenue=sum(cents))
      Filter(is_paid)
        Scan(orders)

stage 1, after stage 0: 8 tasks
  FinalHashAggregate(country: orders=count, revenue=sum(cents))
    ShuffleRead(8 partitions) of stage 0
"""


@pytest.fixture(autouse=True)
def shop(here: Path) -> None:
    Path("shop.py").write_text(SHOP)


def error(run: Run, *arguments: str, code: int = 1) -> str:
    result = run("plan", "show", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    [line] = result.stderr.splitlines()
    return line.removeprefix("error: ")


def test_the_stages_of_one_query_and_of_all(ok: Ok, here: Path) -> None:
    assert ok("plan", "show", "shop.py", "revenue") == REVENUE
    orders = "query orders\n\nstage 0: a task for each unit\n  Scan(orders)\n"
    assert ok("plan", "show", "shop.py", "--format", "text") == f"{orders}\n{REVENUE}"
    assert [each.name for each in here.iterdir()] == ["shop.py"], "nothing is written"


def test_the_stages_as_diagrams(ok: Ok) -> None:
    mermaid = ok("plan", "show", "shop.py", "revenue", "--format", "mermaid").splitlines()
    assert (mermaid[0], mermaid[-1]) == ("flowchart LR", "  s0 --> s1")
    assert mermaid[1].startswith('  s0["stage 0<br/>Scan(orders)<br/>Filter(is_paid)<br/>')
    dot = ok("plan", "show", "shop.py", "revenue", "--format", "dot").splitlines()
    assert (dot[0], dot[-2:]) == ("digraph plan {", ["  s0 -> s1;", "}"])


def test_the_stages_as_json(ok: Ok) -> None:
    orders, revenue = json.loads(ok("plan", "show", "shop.py", "--json"))
    assert orders["query"] == "orders"
    assert orders["columns"] == {"country": "string", "cents": "int64"}
    assert revenue["columns"] == {"country": "string", "orders": "int64", "revenue": "int64"}
    first, last = revenue["stages"]
    assert (first["stage"], first["after"], first["tasks"]) == (0, [], None)
    assert (last["stage"], last["after"], last["tasks"]) == (1, [0], 8)
    assert first["operators"][:2] == ["Scan(orders)", "Filter(is_paid)"]
    assert last["operators"][0] == "ShuffleRead(8 partitions)"


def test_columns_that_no_function_declares_are_not_known(ok: Ok) -> None:
    Path("shop.py").write_text(f"{SHOP}\nmapped = orders.map(is_paid)\n")
    [mapped] = json.loads(ok("plan", "show", "shop.py", "mapped", "--json"))
    assert mapped["columns"] is None


@pytest.mark.long
def test_whoever_asks_for_what_is_not_there_is_told(run: Run) -> None:  # proves G27
    Path("empty.py").write_text("orders = 1\n")
    assert error(run, "no.py") == "there is no file no.py; name a Python file that exists"
    assert error(run, "empty.py") == (
        "empty.py defines no query;"
        " begin one with hr.scan(...) at its top level, and give it a name there"
    )
    assert error(run, "shop.py", "grouped") == (
        "no query 'grouped' is defined; use one of orders, revenue"
    )
    for format in ("mermaid", "dot"):
        assert error(run, "shop.py", "--format", format) == (
            f"shop.py defines 2 queries, and {format} draws one; name one of orders, revenue"
        )
    assert error(run, "shop.py", "--json", "--format", "text", code=2) == (
        "Invalid value for --json: cannot be combined with --format;"
        " see `headrace plan show --help`"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "orders.select('cent')",
            "Project(cent): there is no column 'cent'; use one of country, cents",
        ),
        (
            "orders.group_by('country').agg(total=('country', 'sum'))",
            "total=sum(country): column 'country' has type string, which has no sum;"
            " use another column, or change its type in a map before",
        ),
        (
            "Query(orders.sink(print).filter(is_paid).root)",
            "Sink(print) is read by another operator; put the sink last",
        ),
        (
            "orders.nope()",
            "shop.py, line 29: AttributeError: 'Query' object has no attribute 'nope'; correct it",
        ),
    ],
)
def test_a_plan_that_cannot_run_is_told_with_operator_and_column(
    run: Run, line: str, message: str
) -> None:  # proves G27
    Path("shop.py").write_text(f"{SHOP}\nwrong = {line}\n")
    assert error(run, "shop.py") == message


def test_a_source_that_cannot_tell_its_name_is_blamed(run: Run) -> None:
    Path("shop.py").write_text(SHOP.replace('return "orders"', "return 1 / 0"))
    assert error(run, "shop.py") == (
        "shop.py, line 13: ZeroDivisionError: division by zero; correct it"
    )
