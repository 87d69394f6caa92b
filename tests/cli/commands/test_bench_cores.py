"""The cores of the processes that `headrace bench spark` measures."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from headrace.bench.processes import child, divide_cores, keep_on_cores, on_cores

CORES = os.sched_getaffinity(0)

several_cores = pytest.mark.skipif(len(CORES) < 2, reason="there is one core only")


@pytest.mark.parametrize(
    ("cores", "first", "second"),
    [
        (range(1), {0}, {0}),
        (range(3), {0, 1, 2}, {0, 1, 2}),
        ([7, 3, 5, 1], {1, 3}, {5, 7}),
        (range(16), set(range(8)), set(range(8, 16))),
    ],
)
def test_each_half_has_two_cores_or_there_are_no_halves(
    cores: Iterable[int], first: set[int], second: set[int]
) -> None:
    assert divide_cores(cores) == (first, second)


@several_cores
def test_what_is_started_on_cores_stays_there_and_whoever_started_it_does_not() -> None:
    last = {max(CORES)}
    with on_cores(last), child("-c", "input()") as process:
        assert os.sched_getaffinity(process.pid) == last
    assert os.sched_getaffinity(0) == CORES


@several_cores
def test_every_thread_of_a_process_is_moved_and_those_that_it_starts_later() -> None:
    program = """
import os, threading
started, go_on = threading.Event(), threading.Event()
def later():
    started.set()
    go_on.wait()
    print(sorted(os.sched_getaffinity(0)), flush=True)
thread = threading.Thread(target=later)
thread.start()
started.wait()
print(flush=True)
input()
go_on.set()
thread.join()
threading.Thread(target=later).start()
"""
    last = {max(CORES)}
    with child("-c", program) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        keep_on_cores([process.pid], last)
        process.stdin.write("\n")
        process.stdin.flush()
        assert [process.stdout.readline().strip() for _ in range(2)] == [str(sorted(last))] * 2
