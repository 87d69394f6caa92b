"""How a coordinator ends: in time or not, by Ctrl-C, in a forked process, and with its process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.errors import HeadraceError, InDoubtError, StorageError, UsageError
from headrace.ingest.async_handle import AsyncIngestHandle
from tests.ingest.conftest import LIMIT_S, Handle, Start, until
from tests.ingest.memory_store import ROW_BYTES, MapDelta, MapHandler

FULL = OSError(28, "No space left on device")
SOON_S = 0.05


def test_a_shutdown_that_takes_too_long_is_in_doubt_and_may_be_asked_again(
    handler: MapHandler, start: Start
) -> None:
    handle = start()
    handler.syncs_allowed.clear()
    handle.write(MapDelta({"a": 1}))
    for _ in range(2):
        with pytest.raises(InDoubtError, match="epoch 1 is not durable yet"):
            handle.shutdown(SOON_S)
    with pytest.raises(UsageError, match="the store is closed"):
        handle.write(MapDelta({"b": 1}))
    handler.syncs_allowed.set()
    handle.shutdown(LIMIT_S)
    assert handler.synced == [1]
    assert handle.metrics().phase == "stopped"


def fail_a_flush_while_a_sync_is_held(handler: MapHandler, handle: Handle) -> None:
    handler.syncs_allowed.clear()
    with pytest.raises(InDoubtError):
        handle.write_durable(MapDelta({"a": 1}), 0.0)
    assert handler.sync_began.wait(LIMIT_S)
    handler.flush_error = FULL
    with pytest.raises(StorageError, match="a flush failed"):
        handle.write_durable(MapDelta({"b": 1}), LIMIT_S)


def test_no_shutdown_ends_before_the_handler_has_returned(
    handler: MapHandler, start: Start
) -> None:
    """Whoever closes a file while it is synced brings the process down."""
    handle = start()
    fail_a_flush_while_a_sync_is_held(handler, handle)
    with pytest.raises(InDoubtError, match=r"No space left.*its handler has not returned") as late:
        handle.shutdown(SOON_S)
    assert isinstance(late.value.__cause__, StorageError)
    assert handler.synced == []
    handler.syncs_allowed.set()
    with pytest.raises(StorageError, match="a flush failed"):
        handle.shutdown(LIMIT_S)
    assert handler.synced == [1]


def test_no_shutdown_of_a_task_ends_before_the_handler_has_returned(
    handler: MapHandler, start: Start
) -> None:
    handle = start()
    fail_a_flush_while_a_sync_is_held(handler, handle)

    async def program() -> None:
        with pytest.raises(InDoubtError, match="its handler has not returned"):
            await AsyncIngestHandle(handle).shutdown(SOON_S)
        handler.syncs_allowed.set()
        with pytest.raises(StorageError, match="a flush failed"):
            await AsyncIngestHandle(handle).shutdown(LIMIT_S)

    asyncio.run(program())
    assert handler.synced == [1]


def test_a_cancelled_shutdown_keeps_no_thread(handler: MapHandler, start: Start) -> None:
    """A thread that waits for the handler would keep the process from ending."""
    handle = start()
    handler.syncs_allowed.clear()
    handle.write(MapDelta({"a": 1}))

    async def program() -> None:
        ending = asyncio.create_task(AsyncIngestHandle(handle).shutdown())
        await asyncio.to_thread(until, lambda: handle.metrics().waiters == 1)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

    runs = threading.Thread(target=lambda: asyncio.run(program()), daemon=True)
    runs.start()
    runs.join(LIMIT_S)
    assert not runs.is_alive()
    assert handler.synced == []


@contextmanager
def interrupted_when(handle: Handle, waiters: int) -> Iterator[None]:
    """Press Ctrl-C when that many wait, and expect the block to end by it."""
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: handle.metrics().waiters == waiters)
        signal.pthread_kill(main, signal.SIGINT)

    presser = threading.Thread(target=interrupt)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    presser.join()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_flush_and_nobody_keeps_its_waiter(handler: MapHandler, start: Start) -> None:
    handle = start()
    handler.flushes_allowed.clear()
    handle.write(MapDelta({"a": 1}))
    with interrupted_when(handle, 1):
        handle.flush()
    handle.view()
    assert handle.metrics().waiters == 0
    handler.flushes_allowed.set()
    assert handle.flush(timeout_s=LIMIT_S) == 1


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_shutdown_though_the_handler_hangs(handler: MapHandler, start: Start) -> None:
    handle = start()
    handler.flushes_allowed.clear()
    handle.write(MapDelta({"a": 1}))
    with interrupted_when(handle, 1):
        handle.shutdown()
    assert handler.flushed == []
    handler.flushes_allowed.set()
    handle.shutdown(LIMIT_S)
    assert handler.flushed == [{"a": 1}]


class InterruptedDelta(MapDelta):
    """Presses Ctrl-C in the middle of a merge."""

    def merge(self, other: MapDelta) -> None:
        if "interrupted" in other.rows:
            signal.raise_signal(signal.SIGINT)
        super().merge(other)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_merge_ends_the_coordinator_and_everybody_hears_of_it(
    handler: MapHandler, start: Start
) -> None:
    handle = start(new_delta=InterruptedDelta)
    handle.write(MapDelta({"a": 1}))
    until(lambda: handle.metrics().phase == "accumulating")
    handle.write(MapDelta({"interrupted": 1}))  # One write more wakes nobody.
    with pytest.raises(KeyboardInterrupt):
        handle.view()
    for call in (handle.flush, handle.view, handle.shutdown):
        with pytest.raises(HeadraceError, match="a step was interrupted: KeyboardInterrupt"):
            call()
    assert handler.flushed == []


@pytest.mark.parametrize("effect", ["_flushes", "_syncs"])
def test_ctrl_c_before_the_threads_are_told_to_stop_leaves_them_to_the_next_shutdown(
    handler: MapHandler, start: Start, monkeypatch: pytest.MonkeyPatch, effect: str
) -> None:
    """The step has decided then that they stop."""
    handle = start()
    handle.write_durable(MapDelta({"a": 1}), LIMIT_S)
    queue = getattr(handle.actor, effect)

    class Interrupted:
        get = queue.get

        def put(self, item: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(handle.actor, effect, Interrupted())
    with pytest.raises(KeyboardInterrupt):
        handle.shutdown(LIMIT_S)
    with pytest.raises(HeadraceError, match="a step was interrupted: KeyboardInterrupt"):
        handle.shutdown(LIMIT_S)
    assert handle.actor.join(0.0)
    assert handler.synced == [1]


def test_ctrl_c_before_a_flush_begins_is_told_to_everybody(
    handler: MapHandler, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = start()
    handle.write(MapDelta({"a": 1}))
    until(lambda: handle.metrics().phase == "accumulating")

    class Interrupted:
        def put(self, item: object) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(handle.actor, "_flushes", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            handle.flush()
    for call in (handle.flush, handle.view, lambda: handle.write(MapDelta({"b": 1}), None)):
        with pytest.raises(HeadraceError, match="a step was interrupted: KeyboardInterrupt"):
            call()
    with pytest.raises(HeadraceError, match="a step was interrupted: KeyboardInterrupt"):
        handle.shutdown(LIMIT_S)
    assert handle.actor.join(0.0)
    assert handler.flushed == []


def test_ctrl_c_before_a_writer_stands_in_line_ends_its_write_only(
    handler: MapHandler, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = start(pending_bytes_max=ROW_BYTES)
    handler.syncs_allowed.clear()
    handle.write(MapDelta({"a": 1}))

    def interrupt(ticket: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(handle.actor._queue, "wait_for_room", interrupt)
        with pytest.raises(KeyboardInterrupt):
            handle.write(MapDelta({"b": 1}), None)
    handler.syncs_allowed.set()
    assert handle.flush(timeout_s=LIMIT_S) == 1
    assert handle.write_durable(MapDelta({"c": 1}), LIMIT_S) == 2


def run_program(*lines: str) -> list[str]:
    """Run a program with a coordinator; return the lines that it prints."""
    program = (
        "import os, sys, threading",
        "from headrace.errors import UsageError",
        "from headrace.ingest.ingest_handle import Coordinator",
        "from tests.ingest.memory_store import MapDelta, MapHandler, MapSnapshot",
        "handler = MapHandler()",
        "handle = Coordinator(handler, MapDelta, MapSnapshot(), name='the store').start()",
        *lines,
    )
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout.splitlines()


def test_a_forked_process_is_told_to_open_the_store_again() -> None:
    """It has none of the threads: whoever waited for them would wait for ever."""
    printed = run_program(
        "handle.write(MapDelta({'a': 1}))",
        "calls = [",
        "    lambda: handle.write(MapDelta({'b': 1})),",
        "    lambda: handle.write_all([MapDelta({'b': 1})], None),",
        "    lambda: handle.actor.in_line(None).__enter__(),",
        "    handle.flush, handle.view, handle.metrics, handle.shutdown,",
        "]",
        "with handle.actor._state_lock, handle.actor._queue_lock:",  # as a thread may hold them
        "    child = os.fork()",
        "if child == 0:",
        "    for call in calls:",
        "        try:",
        "            call()",
        "        except UsageError as error:",
        "            print(error, flush=True)",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
        "handle.shutdown()",
        "print(handler.flushed)",
    )
    told = "the store was opened before the process forked; open it again here"
    assert printed == [told] * 7 + ["[{'a': 1}]"]


@pytest.mark.parametrize("held", ["nothing", "flushes_allowed", "syncs_allowed"])
def test_a_process_may_end_without_a_shutdown(held: str) -> None:
    printed = run_program(
        f"getattr(handler, {held!r}, threading.Event()).clear()",
        "handle.write(MapDelta({'a': 1}))",
        "durable = handle.actor.wait_durable(None)",
        "handler.flush_began.wait(30)",
        "print(handle.metrics().epoch)",
    )
    assert printed == ["1"]
