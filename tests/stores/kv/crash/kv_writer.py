"""Processes that write batches to a key-value store and are killed in the middle.

`python -m tests.stores.kv.crash.kv_writer BACKEND DIRECTORY SEED ROUNDS` runs that many, one after
another, looks after each at what the store holds, and fails if that is wrong. The processes are
forked from one that has opened no store, so a round takes little time.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from headrace.stores.kv.contract import KeyValueStore, WriteBatch
from headrace.stores.kv.kv_location import open_kv
from headrace.testing.crash import end_uncleanly

HELD = 5
"""So many batches at the end of the history are in the store."""
PAYLOAD_BYTES_MAX = 30_000

_PROGRESS = struct.Struct("<qq")


class Progress:
    """Numbers of batches that processes share, and that outlive a killed one."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _PROGRESS.size)

    def set(self, *, begun: int, durable: int) -> None:
        self._shared[:] = _PROGRESS.pack(begun, durable)

    def get(self) -> tuple[int, int]:
        return _PROGRESS.unpack(self._shared[:])


def payload(number: int) -> bytes:
    return b"%d," % number * (number * 7919 % (PAYLOAD_BYTES_MAX // 5))


def batch(number: int) -> WriteBatch:
    """Put one entry, drop the one that is too old, and count."""
    made = WriteBatch()
    made.put(b"entry/%09d" % number, payload(number))
    made.delete(b"entry/%09d" % (number - HELD))
    made.put(b"last", b"%d" % number)
    return made


def write_until_killed(
    store: KeyValueStore, first: int, progress: Progress, chance: random.Random
) -> None:
    """Die before or after a write or a wait, or at any moment of them."""
    steps = chance.randrange(1, 12)
    moment = chance.choice(["before", "written", "durable", "any"])
    durable = first - 1
    for number in range(first, first + steps):
        is_last = number == first + steps - 1
        progress.set(begun=number, durable=durable)
        if is_last and moment == "before":
            end_uncleanly()
        if is_last and moment == "any":
            threading.Timer(chance.random() * 0.005, end_uncleanly).start()
        sequence = store.write(batch(number))
        if is_last and moment == "written":
            end_uncleanly()
        if moment == "any" or chance.random() < 0.6:
            store.wait_durable(sequence)
            durable = number
            progress.set(begun=number, durable=durable)
    end_uncleanly()


def check(store: KeyValueStore) -> int:
    """Return the number of the last batch; all entries must be those of a history up to it."""
    with store.snapshot() as snapshot:
        found = dict(snapshot.scan(b"", None))
    if not found:
        return 0
    last = int(found[b"last"])
    expected = {
        b"entry/%09d" % number: payload(number)
        for number in range(max(1, last - HELD + 1), last + 1)
    }
    expected[b"last"] = b"%d" % last
    assert found == expected, f"{sorted(found)} after batch {last}"
    return last


def in_process(run: Callable[[], None]) -> int:
    """Run in a forked process; return how that ended, negative if by a signal."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException as error:  # noqa: BLE001  the exit code tells the parent
            traceback.print_exception(error)
        finally:
            os._exit(status)  # A forked process must not go on as its parent.
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(backend: str, path: Path, seed: int, rounds: int) -> None:
    progress, checked = Progress(), Progress()
    progress.set(begun=0, durable=0)
    for number in range(rounds):
        begun, durable = progress.get()

        def look(begun: int = begun, durable: int = durable) -> None:
            store = open_kv(path, backend)
            last = check(store)
            store.close()
            assert durable <= last <= begun, f"{last} is not in {durable}..{begun}"
            checked.set(begun=last, durable=last)

        if in_process(look):
            raise SystemExit(f"round {number} of seed {seed}: the store is wrong")

        def write(number: int = number) -> None:
            chance = random.Random(f"{seed}/{number}")
            store = open_kv(path, backend)
            write_until_killed(store, checked.get()[0] + 1, progress, chance)

        if in_process(write) != -signal.SIGKILL:
            raise SystemExit(f"round {number} of seed {seed}: the writer failed")
    print(f"{rounds} rounds, {progress.get()[0]} batches")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
