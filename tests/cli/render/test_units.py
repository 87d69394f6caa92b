from __future__ import annotations

import pytest
import typer

from headrace.cli.render.units import (
    counted,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("1.5h", 5400), ("7d", 604800), ("2W", 1209600), ("3 m", 180)],
)
def test_a_time_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("100B", 100), ("1KiB", 1024), ("1kb", 1000), ("1.5MiB", 3 << 19), ("10GiB", 10 << 30)],
)
def test_a_size_is_a_number_with_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7dd", "7 days", "1e3s", "７x"])
def test_anything_else_is_refused(text: str) -> None:
    for parse in (parse_duration, parse_size):
        with pytest.raises(typer.BadParameter, match="write it like"):
            parse(text)


def test_more_than_there_can_be_is_refused() -> None:
    for parse, unit in ((parse_duration, "w"), (parse_size, "TiB")):
        with pytest.raises(typer.BadParameter, match="is too large"):
            parse("9" * 400 + unit)


@pytest.mark.parametrize(
    ("seconds", "text"), [(604800, "7d"), (5400, "90m"), (45, "45s"), (0.5, "0.5s"), (61, "61s")]
)
def test_a_time_is_shown_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (10 << 30, "10.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_a_size_is_shown_in_a_unit_that_fits(size: int, text: str) -> None:
    assert format_size(size) == text


def test_one_thing_is_not_many() -> None:
    assert [counted(n, "journal") for n in (0, 1, 2)] == ["0 journals", "1 journal", "2 journals"]
