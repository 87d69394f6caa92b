from __future__ import annotations

import io
import json
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.cli.line_chunks import CHUNK_BYTES, chunks
from tests.cli.conftest import Ok, Run, rows
from tests.cli.headrace_process import Running, headrace

pytestmark = pytest.mark.long


def test_several_files_become_one_transaction(ok: Ok, bank: None) -> None:
    [debits, credits] = [
        [frame for frame in rows(ok("journals", "read", name, "--raw")) if frame["flags"] == "ACK"]
        for name in ("bank/debits/region=eu/0000", "bank/debits/region=us/0000")
    ]
    assert len(debits) == len(credits) == 1
    assert debits[0]["clock"] == credits[0]["clock"]
    assert len(rows(ok("read", "bank/credits"))) == 1


def test_documents_come_from_stdin_with_or_without_a_dash(ok: Ok, bank: None) -> None:
    said = ok("publish", "bank/credits", input='{"account":"dan"}\n{"account":"eve"}')
    assert said == "published 2 documents into bank/credits\n"
    said = ok("publish", "bank/credits=-", "--json", input='\r\n{"account":"fay"}\r\n')
    assert json.loads(said) == {"documents": {"bank/credits": 1}}
    accounts = {row["account"] for row in rows(ok("read", "bank/credits"))}
    assert accounts == {"cay", "dan", "eve", "fay"}


def test_nothing_from_stdin_publishes_nothing(ok: Ok, bank: None) -> None:
    assert ok("publish", "bank/credits") == "published 0 documents into bank/credits\n"


def test_a_collection_may_have_several_files(ok: Ok, bank: None) -> None:
    source = "bank/credits=credits.ndjson"
    assert ok("publish", source, source) == "published 2 documents into bank/credits\n"


def test_a_bad_line_in_the_last_file_undoes_the_first(run: Run, ok: Ok, bank: None) -> None:
    # proves G2
    Path("bad.ndjson").write_text('{"account":"a"}\n\n{"account":"b","cents":"many"}\n')
    before = ok("read", "bank/debits")
    result = run("publish", "bank/debits=debits.ndjson", "bank/credits=bad.ndjson")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: bad.ndjson line 3, field 'cents': \"many\" does not fit bigint;"
        " change the value, or the type of the field\n"
    )
    assert ok("read", "bank/debits") == before
    assert len(rows(ok("read", "bank/credits"))) == 1


def test_line_numbers_stay_right_and_nothing_is_visible_across_chunks(
    run: Run, ok: Ok, bank: None
) -> None:
    # proves G2
    line = b'{"account":"%07d","cents":1}\n'
    count = 2 * CHUNK_BYTES // len(line % 0) + 10
    with open("large.ndjson", "wb") as file:
        file.writelines(line % number for number in range(count))
        file.write(b"oops\n")
    result = run("publish", "bank/credits=large.ndjson")
    assert result.stderr.startswith(f"error: large.ndjson line {count + 1} is not JSON")
    assert len(rows(ok("read", "bank/credits"))) == 1
    with open("large.ndjson", "r+b") as file:
        file.truncate(count * len(line % 0))
    assert ok("publish", "bank/credits=large.ndjson").startswith(f"published {count} documents")
    with hr.open("headrace-data", create=False) as ws:
        assert ws.table("bank/credits").num_rows == count + 1


def test_a_line_longer_than_any_document_is_refused_by_its_number(run: Run, bank: None) -> None:
    most = hr.JournalSettings().document_bytes_max
    with open("long.ndjson", "wb") as file:
        file.write(b'{"account":"a"}\n')
        file.writelines([b'{"account":"', b"x" * (most + CHUNK_BYTES), b'"}\n'])
    result = run("publish", "bank/credits=long.ndjson")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: long.ndjson line 2 has about ")
    assert f"over document_bytes_max = {most}" in result.stderr


@given(st.lists(st.sampled_from([b"", b"a", b"bb", b"\n", b"ccc\n"])), st.integers(1, 9))
def test_chunks_are_whole_lines_with_the_right_numbers(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    found = list(chunks(io.BytesIO(data), 1000, size))
    assert b"".join(chunk.data for chunk in found) == data
    assert all(chunk.data.endswith(b"\n") for chunk in found[:-1])
    at = 0
    for chunk in found:
        assert chunk.lines_before == data[:at].count(b"\n")
        at += len(chunk.data)


def test_a_named_publisher_takes_over_from_the_one_before(ok: Ok, bank: None) -> None:
    with hr.open("headrace-data") as ws:
        previous = ws.publisher("loader")
        ok("publish", "bank/credits=credits.ndjson", "--name", "loader")
        with pytest.raises(hr.errors.FencedError), previous as tx:
            tx.append("bank/credits", [{"account": "late"}])
    assert len(rows(ok("read", "bank/credits"))) == 2


def test_an_interrupted_publish_leaves_nothing_visible(ok: Ok, bank: None) -> None:
    # proves G3
    with Running("publish", "bank/credits", stdin=subprocess.PIPE) as publishing:
        assert publishing.process.stdin
        publishing.process.stdin.write(b'{"account":"zoe"}\n' * (2 * CHUNK_BYTES // 16))
        publishing.process.stdin.flush()
        assert publishing.end(signal.SIGINT) == (130, "", "")
    assert len(rows(ok("read", "bank/credits"))) == 1


def test_processes_publish_at_the_same_time(ok: Ok, bank: None) -> None:
    with Running("publish", "bank/credits", stdin=subprocess.PIPE) as waiting:
        done = headrace("publish", "bank/credits=credits.ndjson")
        assert (done.returncode, done.stderr) == (0, b"")
        assert waiting.process.stdin
        waiting.process.stdin.write(b'{"account":"dan"}\n')
        waiting.process.stdin.close()
        waiting.process.stdin = None
        assert waiting.line() == "published 1 document into bank/credits\n"
    assert len(rows(ok("read", "bank/credits"))) == 3
