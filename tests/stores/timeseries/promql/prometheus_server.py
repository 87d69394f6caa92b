"""A real Prometheus on loopback, filled by remote write."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Written = Sequence[tuple[Mapping[str, str], Sequence[tuple[int, float]]]]
"""Series, as labels and samples; times in milliseconds, ascending."""

MISSING = "prometheus is not installed: apt-get install prometheus"

OWN_ADDRESS = "OWN_ADDRESS"
"""Stands in a configuration for the address at which the server will listen."""

_CONFIGURATION = "global: {evaluation_interval: 1m}\n"
_START_TIMEOUT_S = 60.0
_STARTS = 3
_POLL_S = 0.02


def is_installed() -> bool:
    return shutil.which("prometheus") is not None


class PrometheusServer:
    def __init__(self, url: str) -> None:
        self.url = url

    def write(self, series: Written) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v1/write",
            data=snappy_literals(write_request(series)),
            headers={"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 204

    def get(self, path: str, **parameters: object) -> Any:
        """Return the JSON of an answer, whatever its status."""
        try:
            form = urllib.parse.urlencode(parameters)
            with urllib.request.urlopen(f"{self.url}/{path}?{form}", timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def query(self, query: str, at_ms: int) -> Any:
        return self.get("api/v1/query", query=query, time=at_ms / 1000)

    def query_range(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> Any:
        return self.get(
            "api/v1/query_range",
            query=query,
            start=start_ms / 1000,
            end=end_ms / 1000,
            step=step_ms / 1000,
        )


@contextmanager
def prometheus_server(
    directory: Path, configuration: str = _CONFIGURATION
) -> Iterator[PrometheusServer]:
    for _ in range(_STARTS):  # Another process may take the free port before the server does.
        with _running(directory, configuration) as (process, server):
            if _is_ready(process, server):
                yield server
                return
    raise RuntimeError(f"prometheus did not start; see {directory / 'prometheus.log'}")


@contextmanager
def _running(
    directory: Path, configuration: str
) -> Iterator[tuple[subprocess.Popen[bytes], PrometheusServer]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    configured = configuration.replace(OWN_ADDRESS, address)
    (directory / "prometheus.yml").write_text(configured)
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--storage.tsdb.retention.time=100y",
        "--web.enable-remote-write-receiver",
        f"--web.listen-address={address}",
        "--log.level=warn",
        "--enable-feature=promql-at-modifier,promql-negative-offset",
    ]
    with (directory / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory
        )
    try:
        yield process, PrometheusServer(f"http://{address}")
    finally:
        process.kill()
        process.wait()


def _is_ready(process: subprocess.Popen[bytes], server: PrometheusServer) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{server.url}/-/ready", timeout=5):
                return True
        except OSError:
            pass
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        return False
    return False


def write_request(series: Written) -> bytes:
    """Encode a `prometheus.WriteRequest`."""
    return b"".join(_field(1, _time_series(labels, samples)) for labels, samples in series)


def _time_series(labels: Mapping[str, str], samples: Sequence[tuple[int, float]]) -> bytes:
    encoded = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(labels.items())
    )
    return encoded + b"".join(
        _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(time_ms))
        for time_ms, value in samples
    )


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def snappy_literals(payload: bytes) -> bytes:
    """Return the block format of snappy, without looking for anything that repeats."""
    pieces = [_varint(len(payload))]
    for start in range(0, len(payload), 1 << 16):
        part = payload[start : start + (1 << 16)]
        pieces.append(b"\xf4" + struct.pack("<H", len(part) - 1) + part)
    return b"".join(pieces)
