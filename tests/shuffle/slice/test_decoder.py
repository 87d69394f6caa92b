"""A frame's documents under the schema of a source."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.clock import Clock
from headrace.errors import OutdatedError
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.documents import schema as schemas
from headrace.journal.local.records import CollectionPut
from headrace.journal.sequencer import Flags
from headrace.shuffle.binding import Sources, document_schema
from headrace.shuffle.slice.decoder import Decoder
from tests.shuffle.builders import source


def frame(batch: pa.RecordBatch, version: int) -> Frame:
    body = batch.serialize()
    return Frame(
        JournalId(1),
        Offset(0),
        Offset(10),
        Producer(1),
        Clock(10),
        batch.num_rows,
        version,
        Flags.OUTSIDE,
        body,
        len(body),
    )


def decoded(opened: str, *versions: str, rows: list[dict[str, object]]) -> pa.RecordBatch:
    """Decode rows of the last version for a Session that was opened under another schema."""
    parsed = [schemas.parse_schema(version) for version in versions]
    read = source(schema=schemas.parse_schema(opened))
    put = CollectionPut("c", tuple(schemas.serialize(each) for each in parsed))
    batch = pa.RecordBatch.from_pylist(rows, parsed[-1])
    found = Decoder(Sources([read]), lambda: [put])(frame(batch, len(parsed) - 1), read)
    assert found.schema.equals(document_schema(read), check_metadata=True)
    return found


@pytest.mark.parametrize(
    "newest",
    [
        "n long not null, m long",
        "n long, m long",
        "n long not null, m long, more long",
        "n long not null comment 'x', m long, more long",
    ],
    ids=["the same", "may be null", "a column more", "a comment"],
)
def test_documents_of_later_versions_have_the_schema_of_the_opening(newest: str) -> None:
    rows: list[dict[str, object]] = [{"n": 1, "m": 2}, {"n": 3, "m": None}]
    opened = "n long not null, m long"
    assert decoded(opened, opened, newest, rows=rows).to_pylist() == rows


# proves G13
@pytest.mark.parametrize(
    ("newest", "row", "how"),
    [
        ("n long, m long", {"n": None}, "column 'n' is null in a document, and was NOT NULL"),
        ("n long not null, m string", {"n": 1}, "column 'm' is of type string, and was of type"),
        ("n long not null, k long", {"n": 1}, "column 'm' is gone, and was of type int64"),
    ],
)
def test_documents_that_do_not_fit_the_schema_of_the_opening_are_refused(
    newest: str, row: dict[str, object], how: str
) -> None:
    with pytest.raises(OutdatedError, match=f"collection 'c': {how}.*open the Session again"):
        decoded("n long not null, m long", newest, rows=[row])


def test_collections_are_listed_once_for_any_number_of_journals_that_start() -> None:
    read = source(schema=schemas.parse_schema("n long"))
    put = CollectionPut("c", (read.schema,))
    batch = pa.RecordBatch.from_pylist([{"n": 1}], document_schema(read))
    listed = []
    decode = Decoder(Sources([read]), lambda: [listed.append(1) or put])  # type: ignore[func-returns-value]
    for times in (1, 2):
        for _ in range(10):
            decode.journals_started()
        for _ in range(10):
            decode(frame(batch, 0), read)
        assert len(listed) == times
