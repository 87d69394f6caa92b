"""Prometheus and VictoriaMetrics, where they are installed: servers that take remote write."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_START_TIMEOUT_S = 60.0
_POLL_S = 0.05


class RemoteWritePeer(NamedTuple):
    name: str
    """As figures name it."""
    program: str
    arguments: tuple[str, ...]
    """`{directory}` and `{address}` stand for where it keeps data, and where it listens."""
    ready: str
    """A path that answers when it is ready."""

    @property
    def is_installed(self) -> bool:
        return shutil.which(self.program) is not None


PEERS = (
    RemoteWritePeer(
        "prometheus",
        "prometheus",
        (
            "--config.file={directory}/prometheus.yml",
            "--storage.tsdb.path={directory}/data",
            "--web.enable-remote-write-receiver",
            "--web.listen-address={address}",
            "--log.level=warn",
        ),
        "/-/ready",
    ),
    RemoteWritePeer(
        "victoriametrics",
        "victoria-metrics",
        (
            "-storageDataPath={directory}/data",
            "-httpListenAddr={address}",
            "-retentionPeriod=100y",
            "-loggerLevel=WARN",
        ),
        "/health",
    ),
)


@contextmanager
def serving_peer(peer: RemoteWritePeer, directory: Path) -> Iterator[str]:
    """Run a peer on loopback; yield its URL."""
    directory.mkdir()
    (directory / "prometheus.yml").write_text("global: {}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    arguments = [each.format(directory=directory, address=address) for each in peer.arguments]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [peer.program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_ready(process, f"http://{address}{peer.ready}", directory)
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str, directory: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(_POLL_S)
    raise RuntimeError(f"{url} did not answer; see {directory / 'log'}")
