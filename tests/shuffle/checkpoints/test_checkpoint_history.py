"""A History answers and keeps what a dict would, and refuses what cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError, NotFoundError, UsageError
from headrace.shuffle import Checkpoint, History, describe_task, list_tasks, reset_task
from headrace.storage import Objects, S3Options, open_objects
from tests.s3 import BUCKET
from tests.shuffle.sample_deltas import START, keys, labels, merged, step
from tests.shuffle.test_checkpoint import Rows, checkpoint

_prefixes = count()


@pytest.fixture(params=["local", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "s3":
        options: S3Options = request.getfixturevalue("s3")
        return open_objects(f"s3://{BUCKET}/history/{next(_prefixes)}", **options)
    return open_objects("memory://" if request.param == "memory" else str(tmp_path / "objects"))


@pytest.fixture
def memory() -> Objects:
    return open_objects("memory://")


# -- on every kind of objects --------------------------------------------------------------


def test_what_was_appended_is_loaded_by_whoever_opens_the_task(objects: Objects) -> None:
    history = History(objects, "bank/totals", start=START)
    assert history.last() == 0
    assert history.load(0) == START
    deltas = [step(n) for n in range(1, 8)]
    for number, delta in enumerate(deltas, 1):
        assert history.append(number, delta) is None
    again = History(objects, "bank/totals", start=step(99))
    assert again.generation == history.generation
    for each in (history, again):
        assert each.last() == 7
        for number in (7, 3, 0, 5):
            assert each.load(number) == merged(START, deltas[:number])
        assert [each.delta(n) for n in range(1, 8)] == deltas


def test_the_first_to_append_a_number_wins_and_the_others_are_told_what_it_wrote(
    objects: Objects,
) -> None:
    one, other = History(objects, "t"), History(objects, "t")
    assert one.append(1, step(1)) is None
    assert other.append(1, step(1, salt=1)) == step(1)
    assert other.append(2, step(2, salt=1)) is None
    assert one.append(2, step(2)) == step(2, salt=1)
    assert one.load(2) == other.load(2) == merged(Checkpoint(), [step(1), step(2, salt=1)])


def test_what_was_released_is_deleted_and_the_rest_stays_as_it_was(objects: Objects) -> None:
    history = History(objects, "t", start=START, full_every=4)
    deltas = [step(n) for n in range(1, 31)]
    for number, delta in enumerate(deltas, 1):
        history.append(number, delta)
        history.release(number - 1)
        assert len(objects.list()) <= 1 + 1 + 4
    assert labels(objects, "full", "delta") == [("delta", 29), ("delta", 30), ("full", 28)]
    again = History(objects, "t", full_every=4)
    for each in (history, again):
        for number in (29, 30):
            assert each.load(number) == merged(START, deltas[:number])
            assert each.delta(number) == deltas[number - 1]
        with pytest.raises(NotFoundError, match="checkpoint 28 of task 't' was released"):
            each.delta(28)
    with pytest.raises(
        NotFoundError, match="27 of task 't' was released: the task keeps those from 28 on"
    ):
        again.load(27)
    assert again.last() == 30


def test_a_reset_task_begins_anew_and_nothing_is_left_of_it(objects: Objects) -> None:
    history = History(objects, "t", start=START)
    history.append(1, step(1))
    generation = reset_task(objects, "t", step(5))
    assert generation != history.generation
    again = History(objects, "t", generation=generation)
    assert again.last() == 0
    assert again.load(0) == step(5)
    assert labels(objects, "generations", "full", "delta") == [("full", 0), ("generations", 1)]
    # The History that was opened before the reset cannot go on.
    with pytest.raises(UsageError, match=f"task 't' has no generation {history.generation}"):
        history.append(2, step(2))
    with pytest.raises(
        UsageError, match="it was reset, or belongs to another workspace; begin anew"
    ):
        History(objects, "t", generation=history.generation)
    assert labels(objects, "full", "delta") == [("full", 0)]


def test_tasks_are_listed_with_what_they_take(objects: Objects) -> None:
    assert list_tasks(objects) == []
    one, other = History(objects, "b/x"), History(objects, ".a")
    one.append(1, step(1))
    objects.put("tasks/readme", b"of somebody else")
    found = list_tasks(objects)
    assert [each.task for each in found] == [".a", "b/x"]
    assert [each.generation for each in found] == [other.generation, one.generation]
    assert [(each.last, each.objects) for each in found] == [(0, 2), (1, 3)]
    assert found[1].bytes == sum(each.bytes for each in objects.list("tasks/b%2Fx"))
    assert describe_task(objects, "b/x") == found[1]


# -- refusals ------------------------------------------------------------------------------


def test_tasks_share_nothing(memory: Objects) -> None:
    one, other = History(memory, "a"), History(memory, "a/b")
    one.append(1, step(1))
    assert other.last() == 0
    reset_task(memory, "a")
    assert other.append(1, step(2)) is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda h: h.append(4, step(4)), UsageError, "4 of task 't' cannot follow 2, its last; "),
        (lambda h: h.append(0, step(1)), UsageError, "checkpoint 0 of task 't' cannot follow 2"),
        (lambda h: h.append(-1, step(1)), UsageError, "append 3"),
        (lambda h: h.load(3), NotFoundError, "task 't' has no checkpoint 3: its last is 2; "),
        (lambda h: h.load(-1), NotFoundError, "task 't' has no checkpoint -1"),
        (lambda h: h.delta(3), NotFoundError, "task 't' has no checkpoint 3"),
        (lambda h: h.delta(-1), NotFoundError, "task 't' has no checkpoint -1"),
        (lambda h: h.delta(0), UsageError, "checkpoint 0 of task 't' is no delta"),
        (lambda h: h.release(3), NotFoundError, "task 't' has no checkpoint 3"),
        (lambda h: h.release(-1), NotFoundError, "task 't' has no checkpoint -1"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    memory: Objects, call: Callable[[History], object], error: type[Exception], message: str
) -> None:
    history = History(memory, "t")
    for number in (1, 2):
        history.append(number, step(number))
    before = memory.list()
    with pytest.raises(error, match=message):
        call(history)
    assert memory.list() == before


def test_tasks_that_are_not_there_are_not_made_by_asking(memory: Objects) -> None:
    for ask in (
        lambda: History(memory, "t", generation="0123"),
        lambda: reset_task(memory, "t"),
        lambda: describe_task(memory, "t"),
    ):
        with pytest.raises(NotFoundError, match="there is no task 't'; check its name"):
            ask()
    for ask in (
        lambda: History(memory, "a b"),
        lambda: reset_task(memory, "a b"),
        lambda: describe_task(memory, "a b"),
        lambda: History(memory, "t", full_every=0),
    ):
        with pytest.raises(UsageError):
            ask()
    assert memory.list() == []


def test_a_delta_that_contradicts_what_is_before_it_is_named(memory: Objects) -> None:
    history = History(memory, "t")
    history.append(1, checkpoint({(0, 0): (1, {})}, {0: "a"}))
    history.append(2, checkpoint({(0, 0): (2, {})}, {0: "b"}))
    with pytest.raises(DataError, match=r"delta/0+2 does not fit .* stands for a and for b; reset"):
        history.load(2)


@pytest.mark.parametrize("lost", ["delta", "full"])
def test_an_object_that_is_lost_or_another_is_named_and_the_rest_can_be_read(
    memory: Objects, lost: str
) -> None:
    history = History(memory, "t", full_every=2)
    for number in range(1, 6):
        history.append(number, step(number))
    history.release(2)
    (key,) = (k for k in keys(memory) if k.endswith(f"{lost}/{4 if lost == 'delta' else 2:020d}"))
    data = memory.get(key)
    memory.put(key, data[:-1])
    with pytest.raises(DataError, match=f"{key} is damaged"):
        History(memory, "t").load(4)
    memory.put(key, memory.get(next(k for k in keys(memory) if k.endswith(f"{5:020d}"))))
    with pytest.raises(DataError, match=f"{key} holds delta 5 of generation"):
        History(memory, "t").load(4)
    memory.delete(key)
    with pytest.raises(DataError, match=rf"{lost}/\d+ is missing; restore it from a backup"):
        History(memory, "t").load(4)
    if lost == "delta":
        assert History(memory, "t").load(3) == merged(Checkpoint(), [step(n) for n in (1, 2, 3)])
    memory.put(key, data)
    assert History(memory, "t").load(5) == merged(Checkpoint(), [step(n) for n in range(1, 6)])
    memory.put(key, b"")
    assert History(memory, "t", generation=reset_task(memory, "t")).last() == 0


# -- full checkpoints ----------------------------------------------------------------------


@pytest.mark.long
def test_a_full_checkpoint_is_written_when_the_deltas_outweigh_the_last(memory: Objects) -> None:
    history = History(memory, "t", full_every=1000)
    rng = Random(1)
    written: list[int] = []
    for number in range(1, 60):
        rows: Rows = {(rng.randrange(1 << 20), 0): (rng.getrandbits(60), {}) for _ in range(500)}
        history.append(number, checkpoint(rows, {0: "a"}))
        history.release(number)
        written += [n for _, n in labels(memory, "full") if n and n not in written]
    # Each waits until the deltas have more bytes than the one before, and these grow.
    gaps = [later - earlier for earlier, later in pairwise(written)]
    assert 3 <= len(written) <= 8
    assert gaps == sorted(gaps)


def test_small_deltas_wait_for_their_number(memory: Objects) -> None:
    history = History(memory, "t", full_every=30)
    for number in range(1, 30):
        history.append(number, step(number))
        history.release(number)
    assert labels(memory, "full") == [("full", 0)]
    history.append(30, step(30))
    history.release(30)
    assert labels(memory, "full", "delta") == [("full", 30)]


class Counting:
    """Counts the requests of each kind."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        self.requests[name] += 1
        return getattr(self._objects, name)


def test_going_on_reads_no_object(memory: Objects) -> None:
    counting = Counting(memory)
    history = History(counting, "t", full_every=10)  # type: ignore[arg-type]
    history.load(0)
    counting.requests.clear()
    for number in range(1, 101):
        history.append(number, step(number))
        history.release(number - 1)
    assert counting.requests["get"] == 0
    assert counting.requests["put_if_absent"] <= 100 + 10
    assert counting.requests["list"] <= 100 + 10


# -- any order of calls, against a dict ----------------------------------------------------

Call = tuple[str, int, int, int]
calls: st.SearchStrategy[list[Call]] = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "load", "delta", "release", "open", "reset"]
        ),
        st.integers(0, 2),  # the process
        st.integers(-4, 3),  # the number, relative to the last
        st.integers(0, 3),  # the salt of the delta
    ),
    max_size=60,
)


class Model:
    """Three processes that use one task, and a dict for each of its generations."""

    def __init__(self, full_every: int) -> None:
        self._objects = open_objects("memory://")
        self._full_every = full_every
        self._deltas: dict[str, dict[int, Checkpoint]] = {}
        self._released: Counter[str] = Counter()
        self._histories = [self._open() for _ in range(3)]

    def do(self, call: Call) -> None:
        what, who, offset, salt = call
        if what == "reset":
            reset_task(self._objects, "t", START)
        if what in ("open", "reset"):
            self._histories[who] = self._open()
            return
        history = self._histories[who]
        deltas = self._deltas[history.generation]
        number = len(deltas) + offset
        try:
            if what == "append":
                winner = history.append(number, step(abs(number), salt))
                assert winner == deltas.get(number)
                assert number <= len(deltas) + 1
                deltas.setdefault(number, step(abs(number), salt))
            elif what == "load":
                assert history.load(number) == self._whole(deltas, number)
            elif what == "delta":
                assert history.delta(number) == deltas.get(number)
            else:
                history.release(number)
                self._released[history.generation] = max(self._released[history.generation], number)
        except UsageError:
            assert not self._must_answer(history, what, number)

    def _open(self) -> History:
        history = History(self._objects, "t", start=START, full_every=self._full_every)
        self._deltas.setdefault(history.generation, {})
        return history

    def _whole(self, deltas: dict[int, Checkpoint], number: int) -> Checkpoint | None:
        if not 0 <= number <= len(deltas):
            return None
        return merged(START, [deltas[each] for each in range(1, number + 1)])

    def _must_answer(self, history: History, what: str, number: int) -> bool:
        last, released = len(self._deltas[history.generation]), self._released[history.generation]
        first = {"load": released, "release": 0}.get(what, released + 1)
        is_current = history.generation == list(self._deltas)[-1]
        return is_current and first <= number <= last + (what == "append")


@given(calls, st.integers(1, 5))
def test_a_history_behaves_like_a_dict(script: list[Call], full_every: int) -> None:
    model = Model(full_every)
    for call in script:
        model.do(call)
