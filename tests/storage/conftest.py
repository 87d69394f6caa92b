from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from headrace.storage import Objects, S3Options, open_objects
from tests.s3 import BUCKET

_prefixes = count()


@pytest.fixture
def local_objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "objects"))


@pytest.fixture
def s3_objects(s3: S3Options) -> Objects:
    return open_objects(f"s3://{BUCKET}/test/{next(_prefixes)}", **s3)


@pytest.fixture(params=["local", "memory", "s3"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """Empty objects of every kind; each test has its own."""
    return _open(request)


@pytest.fixture(params=["local", "s3"])
def shared_objects(request: pytest.FixtureRequest) -> Objects:
    """Empty objects of the kinds that other processes can open."""
    return _open(request)


@pytest.fixture(autouse=True)
def no_aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)


def _open(request: pytest.FixtureRequest) -> Objects:
    if request.param == "memory":
        return open_objects("memory://")
    opened: Objects = request.getfixturevalue(f"{request.param}_objects")
    return opened
