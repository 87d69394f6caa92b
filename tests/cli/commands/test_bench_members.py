"""`headrace bench members`, at its smallest size, and the picture of its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.bench import bench_members
from headrace.bench.members_picture import draw_members
from tests.cli.conftest import Ok, Run

SVG = "{http://www.w3.org/2000/svg}"
CURVES = ("", "_unsynced", "_large_frames")


@pytest.mark.long
def test_it_measures_each_number_of_members_and_the_disk_in_the_same_run(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_members, "_ROUNDS", 1)
    monkeypatch.setattr(bench_members, "_JOURNALS", 2)
    found = json.loads(
        ok("bench", "members", "--mib", "1", "--members", "3", "--picture", "m.svg", "--json")
    )
    assert (found["bench"], found["documents"]) == ("members", 10_000)
    for members in (1, 2):
        for curve in CURVES:
            for figure in ("docs_per_s", "cpu_us", "read_s", "release_s"):
                assert found[f"{figure}_{members}{curve}"] > 0
        moved = found[f"docs_per_s_{members}"] * found["document_bytes"]
        assert found[f"ratio_to_disk_{members}"] == pytest.approx(
            moved / (found["disk_mib_per_s"] * 2**20)
        )
    for curve in CURVES:
        rates = [found[f"docs_per_s_{members}{curve}"] for members in (1, 2)]
        assert found[f"speedup_2{curve}"] == pytest.approx(rates[1] / rates[0])
    assert found["cpu_growth"] == pytest.approx(found["cpu_us_2"] / found["cpu_us_1"])
    assert not any("_3" in name or "_4" in name for name in found), "there is no such member count"
    drawn = draw_members({name: found[name] for name in found if name not in {"bench", "cpus"}})
    assert Path("m.svg").read_text() == drawn
    assert [path.name for path in here.iterdir()] == ["m.svg"]


@pytest.mark.parametrize(
    ("cores", "most", "measured"),
    [(1, None, [1]), (3, None, [1, 2]), (16, None, [1, 2, 4, 8, 16]), (2, 8, [1, 2, 4, 8])],
)
def test_it_measures_as_many_members_as_there_are_cores_unless_told(
    monkeypatch: pytest.MonkeyPatch, cores: int, most: int | None, measured: list[int]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert bench_members.members_to_measure(most) == measured


FIGURES = {
    "document_bytes": 100.0,
    "disk_mib_per_s": 1000.0,
    **{
        f"docs_per_s_{members}{curve}": 1e6 * members**0.5 * (number + 1)
        for members in (1, 2, 4)
        for number, curve in enumerate(CURVES)
    },
}


def test_the_picture_has_a_point_for_each_rate_and_a_line_for_the_disk() -> None:
    root = ElementTree.fromstring(draw_members(FIGURES))
    assert len(root.findall(f"{SVG}circle")) == len(CURVES) * 3
    told = {text.text for text in root.findall(f"{SVG}text")}
    assert {"1", "2", "4", "members", "frames of 1 000", "the disk's sequential rate"} <= told
    colours = {line.get("stroke") for line in root.findall(f"{SVG}polyline")}
    heights = [
        [float(circle.get("cy", "")) for circle in root.findall(f"{SVG}circle[@fill='{colour}']")]
        for colour in colours
    ]
    assert all(found == sorted(found, reverse=True) for found in heights), "more is higher"
    view = [float(side) for side in root.get("viewBox", "").split()]
    assert all(0 < height < view[3] for found in heights for height in found)


def test_the_picture_can_be_drawn_from_figures_that_another_machine_printed(
    ok: Ok, run: Run, here: Path
) -> None:
    printed = json.dumps({"bench": "members", "cpus": 16, "load": 0.1, **FIGURES})
    (here / "figures").write_text(f"a note\n{printed}\n")
    ok("bench", "members", "--figures", "figures", "--picture", "m.svg")
    assert (here / "m.svg").read_text() == draw_members(FIGURES)
    alone = run("bench", "members", "--figures", "figures")
    assert (alone.exit_code, "add --picture FILE" in alone.stderr) == (1, True)
    for text in ("", "{}", json.dumps({"bench": "scale", **FIGURES})):
        (here / "other").write_text(text)
        refused = run("bench", "members", "--figures", "other", "--picture", "n.svg")
        assert refused.exit_code == 1
        assert "other has no figures of this benchmark; write the output of" in refused.stderr
    missing = run("bench", "members", "--figures", "missing", "--picture", "n.svg")
    assert (missing.exit_code, "cannot read missing" in missing.stderr) == (1, True)
    assert not (here / "n.svg").exists()
