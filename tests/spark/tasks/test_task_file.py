"""Tasks that a file defines. Nothing of Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, StorageError, UsageError
from headrace.python_file import blamed
from headrace.spark.tasks.task_file import choose_tasks, load_tasks

TASK = """
@hr.materialization(None, sources=["debits"], sink=hr.parquet("kept"), name="{name}")
def {name}(cut):
    return cut.debits
"""


def write(directory: Path, text: str, *names: str) -> Path:
    file = directory / "tasks.py"
    file.write_text("import headrace as hr\n" + text + "".join(TASK.format(name=n) for n in names))
    return file


def test_tasks_come_in_the_order_of_the_file_and_once(tmp_path: Path) -> None:
    file = write(tmp_path, "", "moves", "kept", "all")
    file.write_text(file.read_text() + "again = moves\nsome = [kept]\n")
    assert [each.name for each in load_tasks(file)] == ["moves", "kept", "all"]


def test_a_file_may_import_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_tasks.py").write_text("NAME = 'moves'\n")
    before = list(sys.path)
    try:
        tasks = load_tasks(write(tmp_path, "import beside_the_tasks\n", "moves"))
    finally:
        sys.modules.pop("beside_the_tasks", None)
    assert [each.name for each in tasks] == ["moves"]
    assert sys.path == before


def test_a_file_is_not_run_as_a_program(tmp_path: Path) -> None:
    file = write(tmp_path, "if __name__ == '__main__': raise SystemExit\n", "moves")
    assert [each.name for each in load_tasks(file)] == ["moves"]


def test_an_error_of_ours_stays_what_it_is(tmp_path: Path) -> None:
    text = "raise hr.errors.StorageError('the disk is full', do='make room')\n"
    with pytest.raises(StorageError, match="the disk is full; make room"):
        load_tasks(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", "line 2: SyntaxError: '\\(' was never closed"),
        ("\n\nraise KeyError('x')\n", "line 4: KeyError: 'x'"),
        ("import beside\n", "line 2: ZeroDivisionError"),
    ],
)
def test_any_other_is_placed_in_the_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "beside.py").write_text("\n\n\n1 / 0\n")
    file = write(tmp_path, text)
    with pytest.raises(UsageError, match=f"{file}, {said}.*; correct it"):
        load_tasks(file)


def test_what_a_function_raises_is_placed_in_its_file(tmp_path: Path) -> None:
    file = write(tmp_path, "def divide(by):\n    return 1 / by\n")
    file.write_text(file.read_text() + "divide(1)\n" + TASK.format(name="moves"))
    [task] = load_tasks(file)
    with pytest.raises(AttributeError) as raised:
        task.function(None)  # type: ignore[arg-type]
    assert str(blamed(raised.value, [file])) == (
        f"{file}, line 8: AttributeError: 'NoneType' object has no attribute 'debits'; correct it"
    )
    assert blamed(raised.value, [tmp_path / "other.py"]) is None


def test_names_choose_in_their_order(tmp_path: Path) -> None:
    tasks = load_tasks(write(tmp_path, "", "moves", "kept", "all"))
    assert [each.name for each in choose_tasks(tasks, ["all", "moves"])] == ["all", "moves"]
    assert choose_tasks(tasks, []) == tasks
    with pytest.raises(HeadraceError, match="no task 'x' is defined; use one of moves, kept, all"):
        choose_tasks(tasks, ["moves", "x"])
