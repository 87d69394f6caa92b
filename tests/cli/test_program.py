"""How every command ends, and what is said to those who typed something wrong."""

from __future__ import annotations

import os
import pty
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from tests.cli.conftest import Ok, Run
from tests.cli.processes import HEADRACE, headrace

TYPES = (
    "the types are boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string,"
    " binary, date, timestamp, timestamp_ntz, array<...>, map<...>, struct<...>"
)
KNOWN = "there are: bank/credits, bank/debits"
NO_COLLECTION = (
    "no collection 'nope' in ./headrace-data; create it with `headrace collections create`; "
)
NOT_A_WORKSPACE = (
    "is not a workspace; name one with --workspace (a directory, or grpc://host:port),"
    " or make one with `headrace collections create`"
)
CREATE = ("collections", "create", "orders")

WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("read", "nope"), 1, NO_COLLECTION + KNOWN),
    (("publish", "nope=debits.ndjson"), 1, NO_COLLECTION + KNOWN),
    (("collections", "show", "nope"), 1, NO_COLLECTION + KNOWN),
    (("collections", "delete", "nope", "--yes"), 1, NO_COLLECTION + KNOWN),
    (("journals", "list", "--collection", "nope"), 1, NO_COLLECTION + KNOWN),
    (
        (*CREATE, "a string, b strng"),
        1,
        f"DDL: expected a type at position 12, found 'strng'; {TYPES}",
    ),
    ((*CREATE, ""), 1, "the schema has no fields; name at least one field"),
    ((*CREATE, "a long", "--key", "b"), 1, "key field 'b' is not in the schema; choose among a"),
    (
        (*CREATE, "a long", "--partition-by", "b"),
        1,
        "partition field 'b' is not in the schema; add it, or leave it out",
    ),
    ((*CREATE, "a long", "--journals", "0"), 1, "0 journals; choose 1 to 1000000"),
    (
        (*CREATE, "a long", "--retention", "7x"),
        2,
        "Invalid value for '--retention': '7x' is not a time: write it like 7d; the units are"
        " s, m, h, d, w; see `headrace collections create --help`",
    ),
    (
        ("collections", "create", "or ders", "a long"),
        1,
        "'or ders' cannot name a collection;"
        " use parts of letters, digits, '.', '_' and '-', joined by '/'",
    ),
    (
        ("collections", "create", "bank/credits", "account string", "--key", "account"),
        1,
        "collection bank/credits exists with journals 2, not 1; use the same, or another name",
    ),
    (
        ("publish", "bank/credits=missing.ndjson"),
        1,
        "cannot read missing.ndjson: No such file or directory; name a file that can be read",
    ),
    (
        ("publish", "bank/credits=."),
        1,
        "cannot read .: Is a directory; name a file that can be read",
    ),
    (
        ("publish", "bank/credits", "bank/debits"),
        1,
        "stdin is named more than once; give each collection its own file",
    ),
    (
        ("publish", "bank/credits=debits.ndjson"),
        1,
        "debits.ndjson line 1 has field 'region', which is not in the schema;"
        " the fields are account, cents",
    ),
    (
        ("publish", "bank/credits=no-key.ndjson"),
        1,
        "no-key.ndjson line 2 has no value in 'account', which is a key or NOT NULL field;"
        " give it a value",
    ),
    (("read", "x", "-w", "."), 1, f". {NOT_A_WORKSPACE}"),
    (("read", "x", "-w", "debits.ndjson"), 1, f"debits.ndjson {NOT_A_WORKSPACE}"),
    (("publish", "x", "-w", "localhost:7070"), 1, f"localhost:7070 {NOT_A_WORKSPACE}"),
    (
        ("read", "bank/credits", "--where", "account=ann"),
        1,
        "'account' is not a partition field of bank/credits;"
        " select by partition fields; there are: none",
    ),
    (
        ("read", "bank/debits", "--where", "region"),
        2,
        "Invalid value for --where: 'region' is not FIELD=VALUE; see `headrace read --help`",
    ),
    (
        ("read", "bank/debits", "--from-offset", "region"),
        2,
        "Invalid value for --from-offset: 'region' is not JOURNAL=OFFSET;"
        " see `headrace read --help`",
    ),
    (
        ("read", "bank/credits", "--from-offset", "bank/credits/0009=1"),
        1,
        "bank/credits has no journal 'bank/credits/0009';"
        " see `headrace journals list --collection bank/credits`",
    ),
    (
        ("journals", "stat", "bank/credits/0009"),
        1,
        "no journal 'bank/credits/0009' in ./headrace-data; see `headrace journals list`",
    ),
    (
        ("journals", "read", "bank/credits"),
        1,
        "'bank/credits' is not a journal's name; see `headrace journals list`",
    ),
    (("serve", "-w", "grpc://x:1"), 1, "grpc://x:1 is served already; name a directory"),
    (
        ("serve", "--tls-cert", "cert.pem"),
        1,
        "tls_certificate and tls_key belong together; set both of them, or none",
    ),
    (("frobnicate",), 2, "No such command 'frobnicate'; see `headrace --help`"),
    (("read",), 2, "Missing argument 'COLLECTION'; see `headrace read --help`"),
    (("journals", "stat", "a", "b"), 2, "Got unexpected extra argument(s) (b); see"
     " `headrace journals stat --help`"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "message"), WRONG, ids=[" ".join(each[0]) for each in WRONG]
)
def test_whoever_types_something_wrong_is_told_in_one_line(
    run: Run, bank: None, arguments: tuple[str, ...], code: int, message: str
) -> None:
    # proves G27
    Path("no-key.ndjson").write_text('{"account":"ann"}\n{"cents":1}\n')
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"error: {message}\n")


@pytest.mark.parametrize(
    "arguments", ["read x", "collections list", "journals list", "publish x", "journals read x/0"]
)
def test_only_creating_and_serving_make_a_workspace(run: Run, here: Path, arguments: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 1
    assert result.stderr == f"error: ./headrace-data {NOT_A_WORKSPACE}\n"
    assert list(here.iterdir()) == []


def test_a_directory_with_other_files_does_not_become_a_workspace(run: Run, here: Path) -> None:
    (here / "photo.jpg").touch()
    result = run(*CREATE, "a long", "--workspace", ".")
    assert result.exit_code == 1
    assert "holds files that are not a workspace's; choose an empty or a new" in result.stderr


def test_the_version_is_that_of_the_package(ok: Ok) -> None:
    assert ok("--version") == f"headrace {metadata.version('headrace')}\n"


def commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for listing in ((), ("collections",), ("journals",)):
        text = CliRunner().invoke(app, [*listing, "--help"]).stdout
        lines = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        found += [(*listing, line.split()[0]) for line in lines]
    return [each for each in found if each not in {("collections",), ("journals",), ("bench",)}]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_a_help_of_one_screen(ok: Ok, command: tuple[str, ...]) -> None:
    text = ok(*command, "--help")
    assert len(text.splitlines()) <= 40
    assert "\x1b" not in text
    if command != ("demo",):
        assert "Example:\n    headrace " + " ".join(command) in text


def test_no_command_is_answered_with_the_help(run: Run) -> None:
    for group in ((), ("collections",), ("journals",)):
        result = run(*group)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == run(*group, "--help").stdout


def test_an_error_of_no_known_kind_keeps_its_traceback(here: Path) -> None:
    (here / "sitecustomize.py").write_text(
        "import headrace\ndef broken(*args, **options): raise ZeroDivisionError('a bug')\n"
        "headrace.open = broken\n"
    )
    headrace(*CREATE, "a long")
    result = subprocess.run(
        [HEADRACE, "collections", "list"],
        env=os.environ | {"PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("ZeroDivisionError: a bug\n")


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a person would see: colours and all."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"} | environment
    with subprocess.Popen(
        [HEADRACE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ):
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:  # how a terminal says that its last program is gone
            pass
        os.close(ours)
    return seen.decode()


def test_a_person_sees_tables_and_colours(bank: None) -> None:
    seen = on_a_terminal("read", "bank/debits")
    assert "account" in seen
    assert "───" in seen
    assert "\x1b[1;31merror: \x1b[0m" in on_a_terminal("read", "nope")
    assert '[\r\n  {\r\n    "name"' in on_a_terminal("collections", "list", "--json")


def test_no_color_is_respected(bank: None) -> None:
    assert "\x1b[1;31m" not in on_a_terminal("read", "nope", NO_COLOR="1")


def test_a_pipe_gets_plain_text(bank: None) -> None:
    for arguments in (("collections", "list"), ("doctor",), ("read", "nope"), ("--help",)):
        result = headrace(*arguments)
        assert b"\x1b" not in result.stdout + result.stderr
        assert "─" not in result.stdout.decode()
