"""What Spark started does not outlive it."""

from __future__ import annotations

import os
import select

from headrace.testing.crash import Child

END_S = 20.0
BOUND = """
import sys
from headrace.spark.parent import bound_to_parent
with bound_to_parent():
    print("bound", flush=True)
    sys.stdin.read()
"""


def test_a_process_ends_with_the_one_that_started_it_whatever_it_waits_for() -> None:
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
        assert select.select([bound], [], [], END_S)[0]
    for each in (reads, writes, bound):
        os.close(each)
