"""Labels: what is refused, and that different labels never look the same."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError, DocumentError
from headrace.stores.timeseries.labels import (
    LABELS_MAX,
    NAME_BYTES_MAX,
    VALUE_BYTES_MAX,
    decode_labels,
    encode_labels,
    fingerprint,
    make_labels,
)

names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,3}", fullmatch=True).filter(
    lambda name: name != "__name__"
)
values = st.text(max_size=4)
label_sets = st.dictionaries(names, values, min_size=1, max_size=4).filter(
    lambda labels: any(labels.values())
)


def test_labels_are_sorted_and_empty_values_count_as_missing() -> None:
    assert make_labels([("b", "2"), ("a", "1"), ("c", "")]) == (("a", "1"), ("b", "2"))


# proves G26
def test_where_a_name_ends_and_its_value_begins_matters() -> None:
    series = [
        make_labels(each)
        for each in (
            [("ab", "c")],
            [("a", "bc")],
            [("a", "b"), ("c", "d")],
            [("a", "bcd")],
            [("a", "\x01b")],
            [("a", "b\x01\x00c")],
        )
    ]
    for one, other in itertools.combinations(series, 2):
        assert encode_labels(one) != encode_labels(other)
        assert fingerprint(encode_labels(one)) != fingerprint(encode_labels(other))


@given(label_sets, label_sets)
def test_labels_have_the_same_fingerprint_only_if_they_are_equal(
    one: Mapping[str, str], other: Mapping[str, str]
) -> None:
    first, second = make_labels(one.items()), make_labels(other.items())
    same = fingerprint(encode_labels(first)) == fingerprint(encode_labels(second))
    assert same == (first == second)


@given(label_sets)
def test_labels_survive_their_bytes(labels: Mapping[str, str]) -> None:
    made = make_labels(labels.items())
    assert decode_labels(encode_labels(made)) == made


@pytest.mark.parametrize("damaged", [b"\x01", b"\x01\x00", b"\x01\x00a", b"\x01\x00a\x05\x00b"])
def test_damaged_bytes_are_refused(damaged: bytes) -> None:
    with pytest.raises(DataError, match="damaged"):
        decode_labels(damaged)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "row 3 has no labels"),
        ([("a", "")], "row 3 has no labels"),
        ([("a", "1"), ("a", "1")], "row 3 has the label 'a' twice"),
        ([("a", ""), ("a", "1")], "row 3 has the label 'a' twice"),
        ([("0a", "1")], "row 3 has the label name '0a'"),
        ([("a b", "1")], "row 3 has the label name 'a b'"),
        ([("a\n", "1")], "row 3 has the label name 'a.n'"),
        ([("é", "1")], "row 3 has the label name 'é'"),
        ([("", "1")], "row 3 has the label name ''"),
        ([("__name__", "a-b")], "row 3 has the metric name 'a-b'"),
        ([("__name__", "a\n")], "row 3 has the metric name 'a.n'"),
        ([("a", "\ud800")], "not Unicode"),
        ([("a" * (NAME_BYTES_MAX + 1), "1")], f"a label name of {NAME_BYTES_MAX + 1} bytes"),
        ([("a", "é" * VALUE_BYTES_MAX)], f"a value of {2 * VALUE_BYTES_MAX} bytes in the label"),
        ([("a", "x" * (10 << 20))], "a value of 10485760 bytes in the label 'a'"),
        ([(f"a{n}", "1") for n in range(LABELS_MAX + 1)], f"{LABELS_MAX + 1} labels"),
        ([(f"a{n}", "x" * VALUE_BYTES_MAX) for n in range(4)], "4 labels of 65544 bytes"),
    ],
)
def test_labels_that_cannot_be_stored_are_refused(
    pairs: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(DocumentError, match=message) as caught:
        make_labels(pairs, where="row 3")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [None, 1, b"x"])
def test_values_of_other_types_are_refused(value: object) -> None:
    with pytest.raises(DocumentError, match=f"has a {type(value).__name__} as the value"):
        make_labels([("a", value)])  # type: ignore[list-item]


def test_the_largest_labels_are_accepted() -> None:
    pairs = [("a" * NAME_BYTES_MAX, "x" * VALUE_BYTES_MAX), ("__name__", "a:b")]
    pairs += [(f"a{n}", "1") for n in range(LABELS_MAX - 2)]
    made = make_labels(pairs)
    assert len(made) == LABELS_MAX
    assert decode_labels(encode_labels(made)) == made
