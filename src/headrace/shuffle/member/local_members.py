"""Members on this machine, in threads of this process or as processes of their own.

A member process is started anew, never forked: Flight and its threads do not survive a fork. It
reads its token from standard input, where nobody else sees it. Its standard input ends with the
process that started it, however that ends, and the member process ends then.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec

from headrace.decoders import decode_json
from headrace.errors import PeerLostError, UsageError
from headrace.settings import MIB, LogSettings, ServiceSettings
from headrace.shuffle.member.member import Member

_END_S = 10.0
_KEEPS_MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TRIM_THRESHOLD_": str(512 * MIB),
}
"""So a member process uses the memory of a block for the next one. By default Arrow and the C
library give it back and get other pages, which takes the kernel a third of the member's time."""
_CHILD = (sys.executable, "-c", "from headrace.shuffle.member.local_members import run; run()")


class _Given(msgspec.Struct):
    """What a member process reads from standard input: one line of JSON."""

    root: str
    service: ServiceSettings
    log: LogSettings


class LocalMembers:
    """Runs members on this machine until it is closed.

    `with LocalMembers(2) as members: Shuffle(…, members.addresses, service=members.service)`
    """

    def __init__(
        self,
        count: int,
        directory: Path | None = None,
        *,
        processes: bool = False,
        service: ServiceSettings | None = None,
        log: LogSettings | None = None,
    ) -> None:
        """Queue files lie in `directory`, by default where temporary files do.

        If `service` has no token, the members get a random one, which `self.service` has.
        """
        if count < 1:
            raise UsageError(
                f"there must be at least 1 member, got {count}", do="ask for 1 or more"
            )
        base = service or ServiceSettings()
        token = base.token or secrets.token_urlsafe(32)
        self.service = msgspec.structs.replace(base, token=token)
        self.addresses: list[str] = []
        self.processes: list[int] = []
        """The ids of the member processes; empty if members run in threads."""
        self._members: list[Member] = []
        self._children: list[subprocess.Popen[bytes]] = []
        with ExitStack() as stack:
            scratch = tempfile.TemporaryDirectory(
                prefix="headrace-members-", dir=directory, ignore_cleanup_errors=True
            )
            root = Path(stack.enter_context(scratch))
            given = _Given(str(root), self.service, log or LogSettings())
            if processes:
                self._start(count, given, stack)
            else:
                for _ in range(count):
                    member = stack.enter_context(Member(root, given.service, given.log))
                    self._members.append(member)
                    self.addresses.append(member.address)
            self._running = stack.pop_all()

    def _start(self, count: int, given: _Given, stack: ExitStack) -> None:
        for _ in range(count):
            child = subprocess.Popen(
                _CHILD,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_KEEPS_MEMORY | os.environ,
            )
            self._children.append(child)
            stack.callback(_end, child)
            _tell(child, msgspec.json.encode(given))
        for child in self._children:
            address = _answer(child)
            if not address:
                raise PeerLostError(
                    "a member process ended while it started", do="see what it printed"
                )
            self.addresses.append(address)
            self.processes.append(child.pid)

    def streams(self) -> int:
        """Return how many streams all members serve now."""
        for child in self._children:
            _tell(child, b"")
        counts = [int(_answer(child) or 0) for child in self._children]
        return sum(counts) + sum(member.streams for member in self._members)

    def close(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def opened_members(
    members: int | Sequence[str], service: ServiceSettings | None = None, *, processes: bool
) -> Iterator[tuple[list[str], ServiceSettings]]:
    """Yield addresses of members, and how to reach them.

    `members` is the addresses of running members, or how many to start while the block runs.
    """
    if not isinstance(members, int):
        yield list(members), service or ServiceSettings()
        return
    with LocalMembers(members, processes=processes, service=service) as started:
        yield started.addresses, started.service


def _tell(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin
    # A process that has ended gives no answer, which `_answer` returns as nothing.
    with suppress(BrokenPipeError):
        child.stdin.write(line + b"\n")
        child.stdin.flush()


def _answer(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout
    return child.stdout.readline().decode().strip()


def _end(child: subprocess.Popen[bytes]) -> None:
    # This closes both pipes, also if the process was stopped or killed before.
    with child:
        assert child.stdin
        with suppress(BrokenPipeError):
            child.stdin.close()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()


def run() -> None:
    """Run a member process: print its address, then for every line how many streams it serves."""
    # Ctrl-C on a terminal is for the process that started this one, and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = decode_json(sys.stdin.buffer.readline(), _Given)
    with Member(Path(given.root), given.service, given.log) as member:
        _say(member.address)
        for _ in sys.stdin.buffer:
            _say(str(member.streams))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
