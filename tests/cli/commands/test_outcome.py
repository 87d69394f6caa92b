from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.cli.commands import publish as publishing
from headrace.testing.crash import Child
from tests.cli.conftest import Ok, Run, rows

HASTE: dict[str, Any] = {"heartbeat_s": 0.1, "silence_s": 0.8}
SETTINGS = hr.Settings(service=hr.ServiceSettings(**HASTE))


@pytest.fixture
def owning(bank: None, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """A process that owns the workspace; commands do not wait long for it."""
    monkeypatch.setattr(hr, "ServiceSettings", partial(hr.ServiceSettings, **HASTE))
    location = here / "headrace-data"
    with Child("import headrace as hr\nws = hr.open(location, settings=settings)",
               location=location, settings=SETTINGS) as child:  # fmt: skip
        assert child.run("ws.address")
        yield child


# proves G29
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "asked_with"),
    [
        ((), ""),
        (("--name", "job"), ""),
        (("-w", "headrace-data"), " --workspace headrace-data"),
    ],
)
def test_a_publish_in_doubt_says_how_to_ask_and_has_its_own_exit_code(
    run: Run,
    ok: Ok,
    owning: Child,
    options: tuple[str, ...],
    asked_with: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = publishing._append

    def append_and_stop(*given: Any) -> int:
        count = append(*given)
        owning.stop()
        return count

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_append", append_and_stop)
        doubted = run("publish", "bank/credits=credits.ndjson", *options)
    assert (doubted.exit_code, doubted.stdout) == (3, "")
    [line] = doubted.stderr.splitlines()
    assert line.startswith("error: nobody knows yet whether transaction ")
    id = line.split()[6]
    assert f"ask with `headrace outcome {id}{asked_with}` before you repeat it" in line
    still = run("outcome", id, "--timeout", "0.1")
    assert (still.exit_code, still.stdout) == (3, "")
    assert still.stderr.startswith(f"error: nobody knows yet whether {id} committed: ")
    owning.resume()
    found = ok("outcome", id).strip()
    assert found in ("committed", "rolled back")
    assert msgspec.json.decode(ok("outcome", id, "--json")) == {"id": id, "outcome": found}
    assert len(rows(ok("read", "bank/credits"))) == (2 if found == "committed" else 1)


def test_what_is_no_id_or_no_workspace_is_refused(run: Run, bank: None) -> None:
    id = "0a1b2c3d-5d2f9c0e7a11-18a3c5e07b1d2f00-0ce1f0a2b3c4d5e6"
    nowhere = run("outcome", id, "--workspace", "nowhere")
    assert nowhere.exit_code == 1
    assert nowhere.stderr.startswith("error: nowhere is not a workspace; ")
    refused = run("outcome", "nonsense")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "error: 'nonsense' is not the id of a commit; pass the `id` of an InDoubtError\n"
    )
