"""`append` takes anything with the Arrow PyCapsule interface, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import DocumentError, PublishError
from headrace.journal.contract import CommitRequest
from headrace.journal.documents import arrow_stream
from headrace.journal.write import write_buffer
from headrace.journal.write.write_buffer import SealedFrames, WriteBuffer
from tests.journal.conftest import SETTINGS, column

BUFFER_BYTES = SETTINGS.journal.transaction_buffer_bytes
NUMBERED = pa.schema([("n", pa.int64()), ("text", pa.string())])


@dataclass
class Streamed:
    """Has nothing but the interface, as objects of other libraries."""

    reader: pa.RecordBatchReader

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


@dataclass
class Single:
    batch: pa.RecordBatch

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        found: tuple[object, object] = self.batch.__arrow_c_array__(requested_schema)
        return found


@pytest.fixture(autouse=True)
def collection(owner: hr.Workspace) -> None:
    owner.collection("c", "n long NOT NULL, text string", key="n", journals=2)


def batch(*numbers: int, text: str = "") -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [text] * len(numbers)], schema=NUMBERED)


def numbers(workspace: hr.Workspace) -> list[int]:
    return sorted(column(workspace, "c", "n"))


FORMS: dict[str, Any] = {
    "stream": lambda: Streamed(pa.Table.from_batches([batch(1), batch(2, 3)]).to_reader()),
    "array": lambda: Single(batch(1, 2, 3)),
    "reader": lambda: pa.Table.from_batches([batch(1, 2), batch(3)]).to_reader(),
    "table": lambda: pa.Table.from_batches([batch(1, 2), batch(3)]),
    "pandas": lambda: pd.DataFrame({"n": [1, 2, 3], "text": ["", "", ""]}),
    "pandas with an index": lambda: pd.DataFrame(
        {"n": [1, 2, 3], "text": ["", "", ""]}, index=["a", "b", "c"]
    ),
    "pandas with named levels": lambda: pd.DataFrame(
        {"n": [1, 2, 3], "text": ""}, index=pd.MultiIndex.from_product([[1], [1, 2, 3]])
    ),
}


@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
def test_every_form_can_be_appended(workspace: hr.Workspace, given: Any) -> None:
    assert workspace.append("c", given()) == 3
    with workspace.publisher() as tx:
        assert tx.append("c", given()) == 3
    assert numbers(workspace) == [1, 1, 2, 2, 3, 3]
    assert set(column(workspace, "c", "text")) == {""}


@pytest.mark.parametrize("index", [[7], range(7, 8)], ids=["values", "range"])
def test_an_index_of_pandas_that_is_named_like_a_field_is_not_left_out(
    workspace: hr.Workspace, index: Any
) -> None:
    # proves G27
    workspace.collection("nullable", "n long, text string")
    frame = pd.DataFrame({"text": ["a"]}, index=pd.Index(index, name="n"))
    for collection in ("c", "nullable"):
        with pytest.raises(DocumentError, match=r"index 'n'.*reset_index\(\)"):
            workspace.append(collection, frame)
        workspace.append(collection, frame.reset_index())
        assert column(workspace, collection, "n") == [7]
    workspace.append("c", frame.reset_index().set_index(pd.Index([1], name="other")))
    assert numbers(workspace) == [7, 7]


def test_no_documents_are_appended_as_none(workspace: hr.Workspace) -> None:
    assert workspace.append("c", Streamed(NUMBERED.empty_table().to_reader())) == 0
    assert workspace.append("c", pd.DataFrame({"n": pd.Series([], dtype="int64")})) == 0
    assert numbers(workspace) == []


def test_layouts_of_other_libraries_are_cast(workspace: hr.Workspace) -> None:
    ddl = "s string, l array<string>, d string, e string, b binary, m decimal(5,2), t timestamp"
    workspace.collection("wide", ddl)
    now = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    columns = {
        "s": pa.array(["x", None], pa.string_view()),
        "l": pa.array([["x", None], None], pa.large_list(pa.string_view())),
        "d": pa.array(["x", None]).dictionary_encode(),
        "e": pa.DictionaryArray.from_arrays(
            pa.array([0, None], pa.uint32()), pa.array(["x", "y"], pa.string_view())
        ),
        "b": pa.array([b"x", None], pa.binary_view()),
        "m": pa.array([1, None], pa.decimal128(38, 2)),
        "t": pa.array([now, None], pa.timestamp("ns", "UTC")),
    }
    workspace.append("wide", Streamed(pa.table(columns).to_reader()))
    first, second = workspace.table("wide").to_pylist()
    assert first == {
        "s": "x", "l": ["x", None], "d": "x", "e": "x", "b": b"x", "m": 1, "t": now
    }  # fmt: skip
    assert second == dict.fromkeys(first)


def test_lists_as_views_are_refused_which_arrow_would_change(workspace: hr.Workspace) -> None:
    # proves G27
    workspace.collection("wide", "v array<long>")
    views = pa.array([[1], None, [2, 3]], pa.list_view(pa.int64()))
    with pytest.raises(DocumentError, match="field 'v' is list_view"):
        workspace.append("wide", Streamed(pa.table({"v": views}).to_reader()))


def test_a_stream_is_one_transaction_and_is_not_kept(owner: hr.Workspace) -> None:
    # proves G2
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(50):
            seen.append(len(numbers(owner)))
            yield batch(n, text="x" * BUFFER_BYTES)
            assert pa.total_allocated_bytes() - before < 30 * BUFFER_BYTES

    before = pa.total_allocated_bytes()
    reader = pa.RecordBatchReader.from_batches(NUMBERED, batches())
    assert owner.append("c", Streamed(reader)) == 50
    assert seen == [0] * 50
    assert numbers(owner) == list(range(50))


def test_a_large_table_is_read_in_pieces(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_stream, "PIECE_BYTES", 10_000)
    table = pa.Table.from_batches([batch(*range(1_000), text="x" * 100)])
    pieces = list(arrow_stream.read_pieces(table))
    assert len(pieces) > 10
    assert pa.Table.from_batches(pieces).equals(table)
    assert owner.append("c", table) == 1_000
    assert numbers(owner) == list(range(1_000))
    bad = pa.concat_tables([table, pa.table({"n": [None], "text": ["x"]}, NUMBERED)])
    with pytest.raises(DocumentError, match="document 1000 has no value in 'n'"):
        owner.append("c", bad)
    assert numbers(owner) == list(range(1_000))


def test_a_piece_has_few_documents_however_small_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "_PIECE_DOCUMENTS", 10)
    pieces = list(arrow_stream.read_pieces(Streamed(pa.table(batch(*range(25))).to_reader())))
    assert [len(each) for each in pieces] == [10, 10, 5]


def test_a_column_of_a_table_is_kept_although_pandas_called_it_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_stream, "PIECE_BYTES", 10)
    frame = pd.DataFrame({"n": [1, 2], "text": ["", ""]}).set_index("n")
    table = pa.Table.from_pandas(frame)
    pieces = pa.Table.from_batches(arrow_stream.read_pieces(table))
    assert pieces["n"].to_pylist() == [1, 2]


def test_a_stream_waits_while_many_messages_are_under_way(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Future[Any]] = []
    awaited: list[Future[Any]] = []

    class Awaited(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            awaited.append(self)
            return super().result(timeout)

    send = WriteBuffer.send

    def send_and_tell(
        self: WriteBuffer, sealed: SealedFrames, commit: CommitRequest | None = None
    ) -> Any:
        done = Awaited()
        send(self, sealed, commit).add_done_callback(lambda _: done.set_result(None))
        sent.append(done)
        return done

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(12):
            yield batch(n, text="x" * BUFFER_BYTES)
            assert len(sent) - len(awaited) <= write_buffer._SENDS_AHEAD

    monkeypatch.setattr(WriteBuffer, "send", send_and_tell)
    assert owner.append("c", Streamed(pa.RecordBatchReader.from_batches(NUMBERED, batches()))) == 12
    assert len(sent) >= 12


def test_a_document_larger_than_a_piece_is_one_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "PIECE_BYTES", 10)
    pieces = list(arrow_stream.read_pieces(Single(batch(1, 2, 3, text="x" * 100))))
    assert [len(each) for each in pieces] == [1, 1, 1]


def test_a_small_stream_that_fails_leaves_the_transaction_as_it_was(
    workspace: hr.Workspace,
) -> None:
    # proves G27
    bad = pa.record_batch([[None], ["x"]], schema=NUMBERED)
    with workspace.publisher() as tx:
        tx.append("c", batch(1))
        before = tx._buffer._savepoint()
        stream = pa.RecordBatchReader.from_batches(NUMBERED, [batch(2, 3, 4), bad])
        with pytest.raises(DocumentError, match="document 3 has no value in 'n'"):
            tx.append("c", Streamed(stream))
        assert tx._buffer._savepoint() == before
        tx.append("c", batch(5))
    assert numbers(workspace) == [1, 5]


def test_a_stream_that_fails_after_a_part_was_sent_ends_the_transaction(
    workspace: hr.Workspace,
) -> None:
    # proves G2, G27
    def batches() -> Iterator[pa.RecordBatch]:
        yield from (batch(n, text="x" * BUFFER_BYTES) for n in range(5))
        raise OSError("the source is broken")

    tx = workspace.publisher().begin()
    with pytest.raises(OSError, match="the source is broken"):
        tx.append("c", Streamed(pa.RecordBatchReader.from_batches(NUMBERED, batches())))
    with pytest.raises(PublishError, match="failed half-way; roll the transaction back"):
        tx.append("c", batch(9))
    tx.rollback()
    with pytest.raises(OSError, match="the source is broken"):
        workspace.append("c", Streamed(pa.RecordBatchReader.from_batches(NUMBERED, batches())))
    assert numbers(workspace) == []


@pytest.mark.parametrize("given", [object(), pd.Series([1]), 5], ids=["object", "series", "number"])
def test_what_has_no_columns_is_refused(workspace: hr.Workspace, given: Any) -> None:
    # proves G27
    with pytest.raises(DocumentError) as raised:
        workspace.append("c", given)
    assert "\n" not in str(raised.value)
    assert type(given).__name__ in raised.value.what


def test_what_was_sent_of_a_stream_that_failed_is_no_part_of_the_next_transaction(
    workspace: hr.Workspace,
) -> None:
    # proves G2
    def batches() -> Iterator[pa.RecordBatch]:
        yield from (batch(n, text="x" * BUFFER_BYTES) for n in range(5))
        raise OSError("the source is broken")

    publisher = workspace.publisher("etl")
    tx = publisher.begin()
    with pytest.raises(OSError, match="the source is broken"):
        tx.append("c", Streamed(pa.RecordBatchReader.from_batches(NUMBERED, batches())))
    with pytest.raises(PublishError, match="failed half-way; roll the transaction back"):
        tx.append("c", batch(9))
    tx.rollback()
    with publisher as tx:
        tx.append("c", batch(10))
    assert numbers(workspace) == [10]
