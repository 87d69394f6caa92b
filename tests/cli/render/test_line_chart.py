"""Charts: what is drawn where, and that nothing breaks them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.cli.render.line_chart import COLOURS, ChartLine, draw_chart, format_value

STEP = 1000


def line(*values: float, name: str = "a", first: int = 0) -> ChartLine:
    times = (np.arange(len(values)) + first) * STEP
    return ChartLine(name, times.astype(np.int64), np.array(values, dtype=np.float64))


def drawn(
    *lines: ChartLine, end: int = 10, width: int = 40, height: int = 9, in_colour: bool = False
) -> list[str]:
    chart = draw_chart(
        lines,
        start_ms=0,
        end_ms=end * STEP,
        step_ms=STEP,
        width=width,
        height=height,
        in_colour=in_colour,
    )
    assert all(each.cell_len <= width for each in chart)
    return [each.plain for each in chart]


def test_a_line_goes_from_its_first_value_to_its_last() -> None:
    chart = drawn(line(*range(11)))
    assert chart[0].startswith("10 ┤")
    assert chart[8].startswith(" 0 ┤")
    assert chart[4].startswith(" 5 ┤")
    body = [each.partition("┤" if "┤" in each else "│")[2] for each in chart[:9]]
    starts = [len(row) - len(row.lstrip()) for row in body]
    assert starts == sorted(starts, reverse=True)
    assert body[8].strip()
    assert body[8][0] != " "
    assert body[0].rstrip()[-1] != " "
    assert len(body[0]) == 36
    assert chart[-1] == "• a  last 10  min 0  max 10"


def test_series_without_colours_are_letters() -> None:
    chart = drawn(line(*[0.0] * 11), line(*[8.0] * 11, name="b"))
    assert set(chart[0].partition("┤")[2]) == {"b"}
    assert set(chart[8].partition("┤")[2]) == {"a"}
    assert chart[-2:] == ["a a  last 0  min 0  max 0", "b b  last 8  min 8  max 8"]
    crossing = "".join(drawn(line(*range(11)), line(*range(10, -1, -1))))
    assert "*" in crossing


def test_series_in_colour_share_braille() -> None:
    chart = draw_chart(
        [line(*[0.0] * 11), line(*[8.0] * 11, name="b")],
        start_ms=0,
        end_ms=10 * STEP,
        step_ms=STEP,
        width=40,
        height=9,
        in_colour=True,
    )
    assert {str(span.style) for span in chart[0].spans} >= {COLOURS[1]}
    assert COLOURS[0] not in {str(span.style) for span in chart[0].spans}
    assert "⠉" in chart[0].plain
    assert "⣀" in chart[8].plain


def test_a_gap_stays_empty() -> None:
    chart = drawn(line(1, 1), line(1, 1, first=9, name="a"))
    row = next(each for each in chart if "a" in each)
    assert "   " in row.partition("┤")[2] or "   " in row.partition("│")[2]


@pytest.mark.parametrize(
    "values",
    [
        (),
        (float("nan"),),
        (float("inf"), float("-inf")),
        (5.0,),
        (0.0, 0.0),
        (-1e308, 1e308),
        (1e-300, 2e-300),
        (float("nan"), 1.0, float("inf"), 2.0),
    ],
)
def test_values_of_any_kind_make_a_chart(values: tuple[float, ...]) -> None:
    assert len(drawn(line(*values))) == 12
    assert len(drawn(line(*values), in_colour=True)) == 12


def test_the_axis_has_times_in_utc() -> None:
    axis = drawn(line(1.0))[10]
    assert axis.split() == ["00:00:00", "00:00:05", "00:00:10", "UTC"]
    assert drawn(line(1.0), end=3600 * 24 * 3)[10].split()[:2] == ["01-01", "00:00"]
    assert drawn(line(1.0), end=3600 * 24 * 100, width=60)[10].split()[0] == "1970-01-01"
    assert drawn(line(1.0), width=16)[10].split() == ["00:00:00"]


def test_more_series_than_colours_are_counted() -> None:
    many = [line(1, 2, name=f"series {n}") for n in range(11)]
    assert drawn(*many, width=80)[-1].startswith("3 more series are not drawn")
    assert sum("series" in each for each in drawn(*many, width=80)) == 9


def test_long_names_are_cut() -> None:
    chart = drawn(line(1, 2, name="x" * 100))
    assert "…" in chart[-1]
    assert chart[-1].endswith("  last 2  min 1  max 2")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (1234.5, "1.234k"),
        (-2.5e6, "-2.5M"),
        (3e9, "3G"),
        (4e12, "4T"),
        (0.00012345, "0.0001234"),
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_value(value) == text
