"""What holds for the whole run: the same examples every time, and nothing left behind."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from headrace.storage import S3Options
from tests.kinds import Part, add_kinds, kinds
from tests.processor_time import LongTests
from tests.s3 import s3_server
from tests.spark.class_archive import jvm_environment

_LEAVE_TIMEOUT_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36

settings.register_profile("same", derandomize=True, database=None, print_blob=True, deadline=None)
settings.register_profile("fast", settings.get_profile("same"), max_examples=10)
settings.register_profile("deep", max_examples=2_000, database=None, print_blob=True, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the files that tests compare with again, instead of failing where they differ",
    )
    parser.addoption(
        "--part", type=Part, default="1/1", help="run one part of the tests, as in 2/5"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile") == "fast":
        config.pluginmanager.register(LongTests())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Python would search thousands of collected tests for garbage, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each with its kind; put the longest first, so that both workers end together."""
    part: Part = config.getoption("--part")
    others = [item for item in items if not part.has(item.nodeid)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if part.has(item.nodeid)]
    for item in items:
        add_kinds(item)
    items.sort(key=_expected_length)


def _expected_length(item: pytest.Item) -> int:
    """Sort what crashes Spark first, then what crashes or starts it, then the rest."""
    return -len(kinds(item) & {"crash", "spark"})


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run if a process, a thread or a temporary file outlives the tests."""
    temporary = tmp_path_factory.mktemp("temporary")
    _adopt_orphans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))  # for the processes that tests start
        patch.setattr(tempfile, "tempdir", str(temporary))
        for name, value in jvm_environment(tmp_path_factory.mktemp("java")).items():
            patch.setenv(name, value)
        yield
    deadline = time.monotonic() + _LEAVE_TIMEOUT_S
    while (left := _left_behind(temporary)) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not left, "the tests left behind:\n" + "\n".join(left)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt the test, even if the shell that started it ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Options]:
    """A real S3 server, one for all tests of this process."""
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options


def _left_behind(temporary: Path) -> list[str]:
    threads = [
        f"thread {each.name}"
        for each in threading.enumerate()
        if each is not threading.main_thread() and not each.daemon
    ]
    files = [f"file {each}" for each in temporary.iterdir()]
    return threads + files + [f"process {each}" for each in _living_children()]


def _adopt_orphans() -> None:
    """What a killed child had started becomes a child of this process, and so is seen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _living_children() -> Iterator[str]:
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat = (directory / "stat").read_text()
            command = (
                (directory / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        state, parent = stat.rpartition(")")[2].split()[:2]
        if int(parent) != os.getpid() or state == "Z":
            continue
        if "multiprocessing.resource_tracker" not in command:  # ends with this process
            yield f"{directory.name}: {command}"
