"""The processes of a Spark application, found by what they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.testing.crash import eventually

_LISTENS, _IS_OPEN = "0A", "01"


def process_at(address: str) -> int:
    """The process that listens at `grpc://host:port`."""
    port = int(address.rpartition(":")[2])
    sockets = {
        inode for inode, state, ours, _ in _connections() if (state, ours) == (_LISTENS, port)
    }
    for process in _processes():
        if sockets & set(_open_files(process)):
            return process
    raise ProcessLookupError(f"nobody listens at {address}")


def processes_that_call(port: int) -> list[int]:
    """Those with an open connection to the port."""
    sockets = {
        inode for inode, state, _, theirs in _connections() if (state, theirs) == (_IS_OPEN, port)
    }
    return [each for each in _processes() if sockets & set(_open_files(each))]


def descendants(process: int) -> dict[int, str]:
    """Whatever was started by it, and by those, with their command lines."""
    parents: dict[int, int] = {}
    for each in _processes():
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[each] = parent(each)
    found: dict[int, str] = {}
    for each in parents:
        above = each
        while above in parents and above != process:
            above = parents[above]
        if above == process and each != process:
            with suppress(FileNotFoundError, ProcessLookupError):
                found[each] = Path(f"/proc/{each}/cmdline").read_text().replace("\0", " ")
    return found


def kill_all(process: int, patience_s: float) -> None:
    """Kill it and whatever it started; what is stopped first starts nothing anew."""
    processes = [process, *descendants(process)]
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, sent)
    for each in processes:
        eventually(partial(is_gone, each), patience_s, f"the end of process {each}")


def is_stopped(process: int) -> bool:
    return _stat(process)[0] == "T"


def is_gone(process: int) -> bool:
    """Also if nobody has asked yet what became of it."""
    try:
        return _stat(process)[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def parent(process: int) -> int:
    return int(_stat(process)[1])


def directory(process: int) -> str:
    """In which it runs."""
    return os.readlink(f"/proc/{process}/cwd")


def _stat(process: int) -> list[str]:
    """What comes after the name: the state, the parent and so on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _connections() -> Iterator[tuple[str, str, int, int]]:
    """Each socket of this machine as a link, with its state and the ports of both ends."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            ours, theirs = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
            yield f"socket:[{fields[9]}]", fields[3], ours, theirs


def _processes() -> Iterator[int]:
    return (int(each) for each in os.listdir("/proc") if each.isdigit())


def _open_files(process: int) -> Iterator[str]:
    # Others' processes do not show theirs.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with suppress(FileNotFoundError):
                yield os.readlink(f"/proc/{process}/fd/{descriptor}")
