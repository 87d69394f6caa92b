"""Processes that Spark starts run the driver's version, and do not outlive their parent."""

from __future__ import annotations

import os
import pickle
import select
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.spark import worker_process
from headrace.spark.worker_process import EncodedPartition, for_executors
from headrace.testing.crash import Child

END_S = 90.0
BOUND = """
import sys
from headrace.spark.worker_process import bound_to_parent
with bound_to_parent():
    print("bound", flush=True)
    sys.stdin.readline()
sys.stdin.read()
"""


class Undecodable:
    """Fails when it is decoded, as an object of another version may."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_a_function_that_is_sent_runs_in_its_own_version_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = for_executors(divmod, 17)
    assert sent(5) == (3, 2)
    monkeypatch.setattr(worker_process, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match=r"the driver runs .*, and this executor 0\.0\.0; install"):
        sent(5)


def test_the_version_is_checked_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = for_executors(print, Undecodable())
    with pytest.raises(ValueError, match="no number"):
        sent()
    monkeypatch.setattr(worker_process, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match="install the same version"):
        sent()


def test_an_executor_of_another_version_opens_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(EncodedPartition(b"what", b"how"))
    assert pickle.loads(sent).open() == (b"what", b"how")
    monkeypatch.setattr(worker_process, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match=r"and this executor 0\.0\.0; install the same version"):
        pickle.loads(sent).open()


@pytest.mark.crash
@pytest.mark.parametrize("is_let_go", [False, True], ids=["while it waits", "as it is let go"])
def test_a_process_ends_with_the_one_that_started_it(is_let_go: bool) -> None:
    """The second case: the block ends after the parent has ended and before the process looks."""
    reads, writes = os.pipe()
    with Child("import subprocess, sys") as parent:
        parent.run(
            "started = subprocess.Popen([sys.executable, '-c', bound],"
            " stdin=open(waits_for), stdout=subprocess.PIPE)",
            bound=BOUND,
            waits_for=f"/proc/{os.getpid()}/fd/{reads}",
        )
        assert parent.run("started.stdout.readline()") == b"bound\n"
        bound = os.pidfd_open(parent.run("started.pid"))
        assert not select.select([bound], [], [], 0)[0]
        parent.kill()
        if is_let_go:
            os.write(writes, b"\n")
        assert select.select([bound], [], [], END_S)[0]
    for each in (reads, writes, bound):
        os.close(each)
