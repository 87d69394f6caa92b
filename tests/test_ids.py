from __future__ import annotations

import pytest

from headrace.ids import PRODUCER_BITS, Producer, format_producer, new_producer


def test_new_producers_differ_and_none_is_zero_or_wider_than_48_bits() -> None:
    producers = {new_producer() for _ in range(1000)}
    assert len(producers) == 1000
    assert all(0 < each < 1 << PRODUCER_BITS for each in producers)


@pytest.mark.parametrize("drawn", [0, (1 << PRODUCER_BITS) - 2])
def test_the_least_and_the_greatest_draw_are_producers(
    drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[int] = []

    def draw(bound: int) -> int:
        bounds.append(bound)
        return drawn

    monkeypatch.setattr("secrets.randbelow", draw)
    assert 0 < new_producer() < 1 << PRODUCER_BITS
    assert bounds == [(1 << PRODUCER_BITS) - 1]  # so `drawn` covers the ends of the range


@pytest.mark.parametrize(
    ("producer", "text"),
    [(1, "000000000001"), (0xABC, "000000000abc"), ((1 << PRODUCER_BITS) - 1, "f" * 12)],
)
def test_a_producer_is_written_as_twelve_hex_digits(producer: int, text: str) -> None:
    assert format_producer(Producer(producer)) == text
