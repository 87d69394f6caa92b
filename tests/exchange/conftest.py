from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from headrace.storage import Objects, S3Options, open_objects
from tests.s3 import BUCKET

_prefixes = count()


@pytest.fixture(params=["local", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Empty objects of every kind; each test has its own."""
    if request.param == "memory":
        return open_objects("memory://")
    if request.param == "local":
        return open_objects(str(tmp_path / "objects"))
    options: S3Options = request.getfixturevalue("s3")
    return open_objects(f"s3://{BUCKET}/exchange/{next(_prefixes)}", **options)


@pytest.fixture
def local_objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "objects"))
