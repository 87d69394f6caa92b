"""How every command ends, and what is said to those who typed something wrong."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import HEADRACE, Running, headrace

TYPES = (
    "use one of the types boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s),"
    " string, binary, date, timestamp, timestamp_ntz, array<...>, map<...>, struct<...>"
)
NO_COLLECTION = (
    "./headrace-data has no collection 'nope', only: bank/credits, bank/debits;"
    " create it with `headrace collections create`"
)
NOT_A_WORKSPACE = (
    "is not a workspace; name one with --workspace (a directory, or grpc://host:port),"
    " or make one with `headrace collections create`"
)
GROUPS = (
    *(("collections",), ("journals",), ("shuffle",), ("store",), ("task",), ("pipeline",)),
    *(("dead-letters",), ("plan",), ("exchange",), ("bench",)),
)
CREATE = ("collections", "create", "orders")

WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("read", "nope"), 1, NO_COLLECTION),
    (("publish", "nope=debits.ndjson"), 1, NO_COLLECTION),
    (("collections", "show", "nope"), 1, NO_COLLECTION),
    (("collections", "delete", "nope", "--yes"), 1, NO_COLLECTION),
    (("journals", "list", "--collection", "nope"), 1, NO_COLLECTION),
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
    (
        (*CREATE, "a long", "--journals", "0"),
        1,
        "journals must be 1 to 1000000, got 0; choose such a number",
    ),
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
        "cannot read missing.ndjson: No such file or directory; name a file that you can read",
    ),
    (
        ("publish", "bank/credits=."),
        1,
        "cannot read .: Is a directory; name a file that you can read",
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
        " choose among account, cents",
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
    (
        ("read", "bank/credits", "--from-offset", f"bank/credits/0000={2**63}"),
        2,
        f"Invalid value for --from-offset: 'bank/credits/0000={2**63}' is beyond any offset:"
        f" {2**63 - 1} is the last; see `headrace read --help`",
    ),
    (
        ("journals", "read", "bank/credits/0000", "--from", str(2**63)),
        2,
        f"Invalid value for '--from': Input should be less than or equal to {2**63 - 1};"
        " see `headrace journals read --help`",
    ),
    (
        ("read", "bank/credits", "--json", "--format", "table"),
        2,
        "Invalid value for --json: cannot be combined with --format; see `headrace read --help`",
    ),
    (
        (*CREATE, "a long", "-w", "s3://bucket/x"),
        2,
        "Invalid value for '--workspace' / '-w': 's3://bucket/x' cannot be a workspace:"
        " name a directory, grpc://host:port or grpc+tls://host:port;"
        " see `headrace collections create --help`",
    ),
    (
        ("read", "x", "-w", "grpc://localhost"),
        2,
        "Invalid value for '--workspace' / '-w': 'grpc://localhost' has no valid host and port:"
        " write it like grpc://localhost:7070; see `headrace read --help`",
    ),
    (
        ("publish", "bank/credits=not-json.ndjson"),
        1,
        "not-json.ndjson line 2 is not JSON: Expecting value at column 13; give one object a line",
    ),
    (
        ("publish", "bank/credits=twice.ndjson"),
        1,
        "twice.ndjson line 2 has field 'account' twice; drop one of them",
    ),
    (
        ("bench", "journal", "-d", "missing"),
        1,
        "cannot measure in missing: No such file or directory;"
        " name a directory that you can write to, with enough free space",
    ),
    (
        ("bench", "journal", "-d", "debits.ndjson"),
        1,
        "cannot measure in debits.ndjson: Not a directory;"
        " name a directory that you can write to, with enough free space",
    ),
    (
        ("bench", "journal", "--mib", "0"),
        2,
        "Invalid value for '--mib': Input should be greater than or equal to 1;"
        " see `headrace bench journal --help`",
    ),
    (
        ("bench", "catalog", "--journals", "-5"),
        2,
        "Invalid value for '--journals': Input should be greater than or equal to 1;"
        " see `headrace bench catalog --help`",
    ),
    (
        ("demo", "--transactions", "-5"),
        2,
        "Invalid value for '--transactions': Input should be greater than or equal to 1;"
        " see `headrace demo --help`",
    ),
    (("serve", "-w", "grpc://x:1"), 1, "grpc://x:1 is served already; name a workspace directory"),
    (
        ("serve", "--tls-cert", "credits.ndjson"),
        1,
        "--tls-cert and --tls-key belong together; give both or neither",
    ),
    *(
        (
            (*command, "--host", host),
            2,
            f"Invalid value for '--host': {host!r} is not a host: name one alone; --port is for its"
            f" port; see `headrace {' '.join(command)} --help`",
        )
        for command, host in [
            (("serve",), "localhost:7070"),
            (("serve",), "grpc://localhost"),
            (("shuffle", "member"), ""),
        ]
    ),
    (
        ("shuffle", "member", "--tls-key", "missing.pem"),
        2,
        "Invalid value for '--tls-key': file 'missing.pem' does not exist;"
        " see `headrace shuffle member --help`",
    ),
    (
        ("shuffle", "member", "--tls-root", "."),
        2,
        "Invalid value for '--tls-root': file '.' is a directory;"
        " see `headrace shuffle member --help`",
    ),
    (
        ("shuffle", "member", "--dir", "credits.ndjson"),
        2,
        "Invalid value for '--dir' / '-d': dir 'credits.ndjson' is a file;"
        " see `headrace shuffle member --help`",
    ),
    (
        ("shuffle", "member", "--dir", "credits.ndjson/x"),
        1,
        "queue files cannot be kept in credits.ndjson/x: Not a directory;"
        " name a directory that you may write to",
    ),
    (("shuffle", "status", "-w", "missing"), 1, f"missing {NOT_A_WORKSPACE}"),
    (
        ("shuffle", "status", "-w", "grpc://h:1"),
        1,
        "the owner at grpc://h:1 does not know the Sessions of its callers;"
        " name the workspace directory, on its machine",
    ),
    (
        ("read", "bank/credits", "--shards", "0"),
        2,
        "Invalid value for '--shards': Input should be greater than or equal to 1;"
        " see `headrace read --help`",
    ),
    (("read", "bank/credits", "--shards"), 2, "Option '--shards' requires an argument; see --help"),
    (
        ("read", "bank/credits", "--shards", "2", "--member", "grpc://h:1"),
        1,
        "2 shards for 1 member; leave --shards out: every member is one",
    ),
    (
        ("read", "bank/credits", "--shards", "2", "--from-offset", "bank/credits/0000=0"),
        1,
        "a shuffle begins at the beginning; leave out --from-offset",
    ),
    (
        ("read", "bank/credits", "bank/credits"),
        1,
        "a collection is named twice; name each collection once",
    ),
    (
        ("read", "bank/credits", "--member", "localhost:7071"),
        2,
        "Invalid value for '--member': 'localhost:7071' is not an address:"
        " write it like grpc://localhost:7071; see `headrace read --help`",
    ),
    (
        ("read", "bank/credits", "--member", "grpc://localhost"),
        2,
        "Invalid value for '--member': 'grpc://localhost' has no valid host and port:"
        " write it like grpc://localhost:7070; see `headrace read --help`",
    ),
    (
        ("read", "bank/credits", "--member", "grpc://h:1", "--member", "grpc://h:1"),
        2,
        "Invalid value for '--member': grpc://h:1 is one member: name it once;"
        " see `headrace read --help`",
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
    Path("not-json.ndjson").write_text('{"account":"ann"}\n{"account": x}\n')
    Path("twice.ndjson").write_text('{"account":"ann"}\n{"account":"a","account":"b"}\n')
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"error: {message}\n")


@pytest.mark.parametrize(
    "location",
    [
        *("http://h:1/x", "s3://bucket/x", "file:///tmp/x", "GRPC://h:1", "grpc+unix://x"),
        *("grpc://", "grpc://h", "grpc://h:", "grpc://:1", "grpc://h:x", "grpc://h:0"),
        *("grpc://h:65536", "grpc://h:1/x", "grpc://h:" + "9" * 5000, "grpc+tls://h"),
    ],
)
@pytest.mark.parametrize("command", ["collections create x 'a long'", "serve", "doctor", "read x"])
def test_a_location_that_is_no_directory_and_no_address_is_refused(
    run: Run, here: Path, location: str, command: str
) -> None:
    result = run(*shlex.split(command), "--workspace", location)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: Invalid value for '--workspace' / '-w': ")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("location", ["grpc://[::1]:1", "grpc+tls://127.0.0.1:1", "./http://x"])
def test_a_location_that_could_be_one_is_tried(run: Run, location: str) -> None:
    assert run("read", "x", "--workspace", location).exit_code == 1


NO_TEXT = os.fsdecode(b"b\xff")


@pytest.mark.long
@pytest.mark.parametrize("serves", [False, True], ids=["alone", "through an owner"])
def test_bytes_that_are_no_text_are_refused_in_one_line(run: Run, bank: None, serves: bool) -> None:
    refused: list[tuple[str, ...]] = [
        ("collections", "create", NO_TEXT, "a long"),
        ("collections", "create", "x", f"a long comment '{NO_TEXT}'"),
        ("collections", "create", "x", "a long", "--partition-by", NO_TEXT),
        ("publish", "bank/credits=credits.ndjson", "--name", NO_TEXT),
        ("publish", f"bank/credits={NO_TEXT}"),
        ("journals", "list", "--where", f"region={NO_TEXT}"),
        ("read", NO_TEXT),
        ("read", "x", "-w", f"grpc://{NO_TEXT}:1"),
    ]
    with ExitStack() as stack:
        if serves:
            stack.enter_context(Running("serve", "--json")).line()
        for arguments in refused:
            result = run(*arguments)
            assert (result.exit_code, result.stdout) == (1, ""), arguments
            assert re.fullmatch(r"error: .*\\udcff.*; .*\n", result.stderr), result.stderr
        # As bytes, which Python decodes to the same.
        process = headrace("read", NO_TEXT)
        assert (process.returncode, process.stdout) == (1, b"")
        assert process.stderr.decode() == run("read", NO_TEXT).stderr
        assert headrace("publish", "bank/credits=credits.ndjson").returncode == 0


@pytest.mark.long
def test_a_directory_whose_name_is_no_text_is_as_good_as_any(here: Path) -> None:
    assert headrace(*CREATE, "a long", "-w", NO_TEXT).returncode == 0
    assert [each.name for each in here.iterdir()] == [NO_TEXT]
    headrace("collections", "delete", "orders", "--yes", "-w", NO_TEXT)
    listed = headrace("collections", "list", "-w", NO_TEXT)
    assert (listed.returncode, listed.stdout) == (0, b"no collections in b\\udcff\n")


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
    for listing in ((), *GROUPS):
        text = CliRunner().invoke(app, [*listing, "--help"]).stdout
        lines = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        found += [(*listing, line.split()[0]) for line in lines]
    return [each for each in found if each not in GROUPS]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_a_help_of_one_screen(ok: Ok, command: tuple[str, ...]) -> None:
    text = ok(*command, "--help")
    assert len(text.splitlines()) <= 40
    assert "\x1b" not in text
    assert "Example:\n    headrace " + " ".join(command) in text


@pytest.mark.long
def test_no_command_is_answered_with_the_help(run: Run) -> None:
    for group in ((), *GROUPS):
        result = run(*group)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == run(*group, "--help").stdout


@pytest.mark.long
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


@pytest.mark.long
def test_a_person_sees_tables_and_colours(bank: None) -> None:
    seen = on_a_terminal("read", "bank/debits")
    assert "account" in seen
    assert "───" in seen
    assert "\x1b[1;31merror: \x1b[0m" in on_a_terminal("read", "nope")
    assert '[\r\n  {\r\n    "name"' in on_a_terminal("collections", "list", "--json")


@pytest.mark.long
def test_no_color_is_respected(bank: None) -> None:
    assert "\x1b[1;31m" not in on_a_terminal("read", "nope", NO_COLOR="1")


@pytest.mark.long
def test_a_pipe_gets_plain_text(bank: None) -> None:
    for arguments in (("collections", "list"), ("doctor",), ("read", "nope"), ("--help",)):
        result = headrace(*arguments)
        assert b"\x1b" not in result.stdout + result.stderr
        assert "─" not in result.stdout.decode()
