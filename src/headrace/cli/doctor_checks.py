"""The checks of `headrace doctor`. Each says what it found, and what to do if that is bad."""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from headrace.cli.options.workspace_options import check_is_workspace, open_workspace
from headrace.cli.render.units import counted, format_size
from headrace.errors import HeadraceError
from headrace.journal.location.workspace_directory import FORMAT, WorkspaceDirectory
from headrace.journal.location.workspace_ref import is_address
from headrace.log import Directory
from headrace.settings import MIB

PYTHON_LEAST = (3, 11)
JAVA_LEAST = 17
_FREE_BYTES_WARN = 1024 * MIB
_FREE_BYTES_FAIL = 64 * MIB
_SYNC_MS_WARN = 20.0
_SYNCS = 15
_HOLE_BYTES = 1 * MIB


class Check(msgspec.Struct, frozen=True):
    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""


def check_python() -> Check:
    found = platform.python_version()
    if sys.version_info >= PYTHON_LEAST:
        return Check("python", "ok", found)
    least = ".".join(map(str, PYTHON_LEAST))
    return Check("python", "fail", found, f"use Python {least} or newer")


def check_java() -> Check:
    """Check the Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    install = f"install Java {JAVA_LEAST} or newer, or set JAVA_HOME to one; Spark needs it"
    if command is None:
        return Check("java", "fail", "not found", install)
    try:
        printed = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Check("java", "fail", f"{command} does not run: {error}", install)
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', printed)
    if version is None:
        return Check("java", "warn", f"{command} does not print its version", install)
    enough = int(version[2]) >= JAVA_LEAST
    found = f"{version[1]} ({command})"
    return Check("java", "ok", found) if enough else Check("java", "fail", found, install)


def check_packages() -> Iterator[Check]:
    """Check the packages that Headrace needs to run."""
    needed = [each for each in metadata.requires("headrace") or () if "extra ==" not in each]
    names = [match[0] for each in needed if (match := re.match(r"[A-Za-z0-9._-]+", each))]
    for name in names:
        try:
            yield Check(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, "fail", "not installed", "install headrace again: pip install -U")


def check_disk(location: Path) -> Iterator[Check]:
    """Check the file system that holds `location`, or would hold it."""
    directory = next(each for each in (location, *location.parents) if each.is_dir())
    yield _check_space(directory)
    try:
        with tempfile.TemporaryDirectory(prefix=".headrace-doctor-", dir=directory) as scratch:
            yield _check_sync(Path(scratch))
            yield _check_holes(Path(scratch))
    except OSError as error:
        do = "choose a directory that you can write to"
        yield Check("disk", "fail", f"{directory}: {error.strerror or error}", do)


def _check_space(directory: Path) -> Check:
    free = shutil.disk_usage(directory).free
    found = f"{format_size(free)} free at {directory}"
    if free >= _FREE_BYTES_WARN:
        return Check("disk space", "ok", found)
    status: Literal["warn", "fail"] = "fail" if free < _FREE_BYTES_FAIL else "warn"
    return Check("disk space", status, found, "free some space, or give collections a retention")


def _check_sync(scratch: Path) -> Check:
    file = Directory(scratch).create("sync")
    try:
        times = []
        for _ in range(_SYNCS):
            file.write([bytes(4096)])
            begin = time.perf_counter()
            file.sync()
            times.append((time.perf_counter() - begin) * 1000)
    finally:
        file.close()
    found = f"{statistics.median(times):.2f} ms, at worst {max(times):.2f} ms"
    if statistics.median(times) <= _SYNC_MS_WARN:
        return Check("disk sync", "ok", found)
    return Check("disk sync", "warn", found, "use a faster disk: every commit waits that long")


def _check_holes(scratch: Path) -> Check:
    directory = Directory(scratch)
    file = directory.create("hole")
    try:
        file.write([bytes(range(256)) * (_HOLE_BYTES // 256)])
        file.sync()
        before = os.stat(directory.path("hole")).st_blocks
        file.punch(0, _HOLE_BYTES)
        freed = os.stat(directory.path("hole")).st_blocks < before
    finally:
        file.close()
    if freed:
        return Check("hole punching", "ok", "the file system frees space inside of segments")
    do = "use ext4, xfs or btrfs if you can; here disk space comes back a segment at a time"
    return Check("hole punching", "warn", "the file system cannot do it", do)


def check_workspace(location: str, token: str, tls_root: str) -> Iterator[Check]:
    """Check the format of a workspace, and whether its owner answers."""
    owner = None
    try:
        check_is_workspace(location)
        if not is_address(location):
            workspace = WorkspaceDirectory(Path(location).absolute())
            workspace.prepare(create=False)
            yield Check("workspace", "ok", f"{workspace.root}, format {FORMAT}")
            owner = workspace.owner()
        with open_workspace(location, token, tls_root) as ws:
            known = counted(len(ws.collections()), "collection")
            if is_address(location):
                yield Check("owner", "ok", f"{location} answers; {known}")
            elif ws.address is None and owner is not None:
                found = f"process {owner.process} at {owner.address} answers; {known}"
                yield Check("owner", "ok", found)
            else:
                yield Check("owner", "ok", f"no process owns it now; {known}")
    except HeadraceError as error:
        yield Check("workspace", "fail", error.what, error.do)
