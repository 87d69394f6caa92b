"""Appends numbers until it is killed: `python -m tests.log.append_process ROOT KILL_AT`.

The process writes each acknowledged number to standard output. It does half of its KILL_AT-th
change of the disk, counted from the opening on, and then kills itself; with -1 it runs until
somebody else kills it.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.log import Directory, Log
from headrace.settings import LogSettings
from tests.log.faulty_disk import Faults, FaultyDisk

SETTINGS = LogSettings(segment_bytes=4000, idle_seal_s=0.001)


class Death(Faults):
    def error(self) -> OSError:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().error()


def main(root: Path, kill_at: int) -> None:
    log = Log(FaultyDisk(Directory(root), Death(kill_at)), SETTINGS)
    number = sum(1 for _ in log.scan())

    def acknowledge(of: int, _: list[int], error: HeadraceError | None) -> None:
        if error is None:
            os.write(1, b"%d\n" % of)

    while True:
        offset = log.append(
            [[payload(number)]],
            partial(acknowledge, number),
        )[0]
        if number % 7 == 0:
            log.wait(offset)
        number += 1


def payload(number: int) -> bytes:
    return b"%d," % number * (1 + number * 37 % 300)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
