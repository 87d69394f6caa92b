"""Lists the sockets of this process."""

from __future__ import annotations

import os
from contextlib import suppress


def sockets() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # Another thread closed it meanwhile.
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {each for each in found if each.startswith("socket:")}
