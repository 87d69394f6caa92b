"""What Spark started does not outlive it."""

from __future__ import annotations

import os
import select

import pytest

from headrace.testing.crash import Child

END_S = 20.0
BOUND = """
import sys
from headrace.spark.parent_process import bound_to_parent
with bound_to_parent():
    print("bound", flush=True)
    sys.stdin.readline()
sys.stdin.read()
"""


@pytest.mark.parametrize("is_let_go", [False, True], ids=["while it waits", "as it is let go"])
def test_a_process_ends_with_the_one_that_started_it(is_let_go: bool) -> None:
    """Also if what it waited for comes before it has looked."""
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
