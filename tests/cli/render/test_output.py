"""How tables and JSON are printed: in a pipe, and on a terminal when they are long."""

from __future__ import annotations

import io
import sys
import time
from contextlib import redirect_stdout

import pytest
from rich.text import Text

from headrace.cli.render.output import print_fields, print_json, print_table

MANY = 20_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def journals(count: int) -> list[tuple[object, ...]]:
    return [(f"bank/debits/{number:04d}", number, "x" * 100) for number in range(count)]


def test_a_long_field_pads_no_other_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"query": "q", "held by": "x" * 200, "nothing": ""})
    assert capsys.readouterr().out == f"query    q\nheld by  {'x' * 200}\nnothing\n"


def test_columns_are_aligned_and_every_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", 1, "first\nsecond"), ("日本", 22, Text("\x1b[31mred", "red")), ("", 333, "")]
    print_table(rows, ("name", "size", "note"), numbers=("size",))
    assert capsys.readouterr().out.splitlines() == [
        "name  size  note",
        "a        1  first second",
        "日本    22   [31mred",
        "       333",
    ]


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([], ("name", "size"))
    assert capsys.readouterr().out == "name  size\n"


def test_a_short_table_is_laid_out_for_a_terminal() -> None:
    with redirect_stdout(Terminal()) as terminal:
        print_table(journals(2), ("journal", "head", "note"))
    assert "───" in terminal.getvalue().splitlines()[1]
    assert "x" * 81 not in terminal.getvalue()


def test_a_long_one_is_printed_fast_as_it_is() -> None:
    rows = journals(MANY)
    begin = time.process_time()
    with redirect_stdout(Terminal()) as terminal:
        print_table(rows, ("journal", "head", "note"), numbers=("head",))
    assert time.process_time() - begin < 1
    lines = terminal.getvalue().splitlines()
    assert len(lines) == MANY + 1
    assert lines[0] == "journal             head  note"
    assert lines[8] == "bank/debits/0007       7  " + "x" * 100
    assert not any("\x1b" in line or "─" in line for line in lines)


def test_a_json_line_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks beside each other print from their own threads."""
    written: list[str] = []

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stdout", Pipe())
    print_json({"rows": 1})
    assert written == ['{"rows":1}\n']
