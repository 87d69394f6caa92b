"""A changed operator has another hash; what does not matter does not change it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.operators.operator import Operator, OperatorSpec, operator_spec
from headrace.plan.source_hash import source_hash

MODULE = """
import functools
LIMIT = 5

def scale(x):
    return x * 2

def caption(row):
    # what it is worth
    return {"n": scale(row["n"]), "limit": LIMIT}

class Model:
    size = 1
    def __init__(self, name="a"):
        self.name = name
    def process(self, batch):
        return scale(batch)

class Larger(Model):
    def process(self, batch):
        return super().process(batch)

chain = [lambda row: row["a"] > 1, lambda row: row["a"] > 2]
def make(k):
    return lambda row: row[k]
"""


def load(folder: Path, text: str) -> Any:
    """Import a module under one name, again and again with other text."""
    path = folder / f"operators_{abs(hash(text))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("operators_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["operators_under_test"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("# what it is worth", "# priceless", False),
        ("def caption", "\n\n\ndef caption", False),
        (
            '{"n": scale(row["n"]), "limit": LIMIT}',
            '{ "n" : scale(row["n"]), "limit": LIMIT }',
            False,
        ),
        ('"n": scale', '"m": scale', True),
        ("x * 2", "x * 3", True),
        ("LIMIT = 5", "LIMIT = 6", True),
        ("size = 1", "size = 2", False),
    ],
)
def test_a_function_and_what_it_uses(tmp_path: Path, old: str, new: str, changes: bool) -> None:
    before = source_hash(load(tmp_path, MODULE).caption)
    assert (source_hash(load(tmp_path, MODULE.replace(old, new)).caption) != before) is changes


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [("size = 1", "size = 2", True), ("x * 2", "x * 3", True), ("LIMIT = 5", "LIMIT = 6", False)],
)
def test_a_class_its_bases_and_what_it_uses(
    tmp_path: Path, old: str, new: str, changes: bool
) -> None:
    before = load(tmp_path, MODULE)
    hashes = source_hash(before.Model), source_hash(before.Larger), source_hash(before.Larger())
    after = load(tmp_path, MODULE.replace(old, new))
    found = source_hash(after.Model), source_hash(after.Larger), source_hash(after.Larger())
    assert [a != b for a, b in zip(hashes, found, strict=True)] == [changes] * 3


def test_values_that_an_operator_holds(tmp_path: Path) -> None:
    module = load(tmp_path, MODULE)
    assert source_hash(module.Model("a")) == source_hash(module.Model("a"))
    assert source_hash(module.Model("a")) != source_hash(module.Model("b"))
    assert source_hash(module.make("a")) != source_hash(module.make("b"))
    assert source_hash(partial(module.caption, 1)) != source_hash(partial(module.caption, 2))


def test_each_of_many_values_that_an_operator_holds(tmp_path: Path) -> None:
    """Values that are made while they are described, and values that come more than once."""
    module = load(tmp_path, MODULE)
    scale, caption = module.scale, module.caption

    def differ(*values: Any) -> bool:
        return len({source_hash(value) for value in values}) == len(values)

    assert differ(*([partial(scale, 1), partial(scale, n)] for n in range(3)))
    assert differ(*([module.Model("a").process, module.Model(name).process] for name in "abc"))
    assert differ([scale, caption, scale], [scale, caption, caption], [scale, caption])
    first, second = [1], [2]
    assert differ([first, second, first], [first, second, second])
    equal, other = (1, 2), tuple(first + second)
    assert source_hash([scale, equal, equal]) == source_hash([scale, equal, other])
    cycle: list[Any] = [scale]
    cycle.append(cycle)
    assert source_hash(cycle) == source_hash(cycle)


def test_lambdas_of_one_line_differ(tmp_path: Path) -> None:
    module = load(tmp_path, MODULE)
    first, second = module.chain
    assert source_hash(first) != source_hash(second)
    moved = load(
        tmp_path,
        MODULE.replace("chain = [", "other = [len, ").replace(
            "def make", "chain = other[1:]\ndef make"
        ),
    )
    assert source_hash(moved.chain[0]) == source_hash(first)


@pytest.mark.long
def test_a_hash_is_the_same_in_another_process() -> None:
    script = (
        "from headrace.plan.source_hash import source_hash\n"
        'print(source_hash(eval(\'lambda row: {"a": row["b"], "s": {1, 2, "x"}}\')))\n'
        "class Limit:\n    pass\n"
        "limits = {text: Limit() for text in 'abcdef'}\n"
        "for text in limits: limits[text].text = text\n"
        "print(source_hash([set(limits.values()), set(limits.values()), {('a', 1), ('b', 2)}]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


class Versioned(Operator):
    version = "7"


def test_a_declared_version_replaces_the_source() -> None:
    one = operator_spec("map", lambda row: row, version="1")
    two = operator_spec("map", lambda row: {**row}, version="1")
    assert one.fingerprint() == two.fingerprint()
    assert one.fingerprint() != operator_spec("map", lambda row: row, version="2").fingerprint()
    assert (
        operator_spec("map_batches", Versioned).fingerprint()
        == operator_spec("map_batches", Versioned()).fingerprint()
    )


def test_settings_that_change_no_result_do_not_matter() -> None:
    def spec(**options: Any) -> OperatorSpec:
        return operator_spec("map", len, **options)

    assert (
        spec().fingerprint()
        == spec(concurrency=4, timeout_s=9, on_error="dead_letter").fingerprint()
    )
    assert spec().fingerprint() != spec(schema="n long").fingerprint()
    batches = [operator_spec("map_batches", len, batch_size=size) for size in (8, 9)]
    assert batches[0].fingerprint() != batches[1].fingerprint()
