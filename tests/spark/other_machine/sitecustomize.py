"""A Python process that has this directory on its path believes to be on another machine.

Machines are told apart by what their kernels say at this path: see `headrace.files`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_KERNEL = Path("/proc/sys/kernel/random/boot_id")
_read_text = Path.read_text


def _read(path: Path, *args: Any, **named: Any) -> str:
    return os.environ["TEST_MACHINE"] if path == _KERNEL else _read_text(path, *args, **named)


Path.read_text = _read  # type: ignore[method-assign, assignment]
