"""What executors are told to read."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import UsageError
from headrace.spark import versions
from headrace.spark.source.input_partition import Part


def test_an_executor_of_another_version_refuses_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = pickle.dumps(Part(b"what", b"how"))
    assert pickle.loads(told).open() == (b"what", b"how")
    monkeypatch.setattr(versions, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match=r"and this executor 0\.0\.0; install the same version"):
        pickle.loads(told).open()
