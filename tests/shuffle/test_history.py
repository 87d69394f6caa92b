"""Histories of tasks: what they answer, what they keep, and who wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError, NotFoundError, UsageError
from headrace.shuffle import Checkpoint, History, describe_task, list_tasks, reset_task
from headrace.shuffle.stored import Label, decode, parse_key
from headrace.storage import Objects, S3Options, open_objects
from headrace.testing.crash import chosen_seed
from tests.s3 import BUCKET, s3_server
from tests.shuffle.interleaving import Killed, run_interleaved
from tests.shuffle.test_checkpoint import Rows, checkpoint

_prefixes = count()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Options]:
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options


@pytest.fixture(params=["local", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "s3":
        options: S3Options = request.getfixturevalue("s3")
        return open_objects(f"s3://{BUCKET}/history/{next(_prefixes)}", **options)
    return open_objects("memory://" if request.param == "memory" else str(tmp_path / "objects"))


@pytest.fixture
def memory() -> Objects:
    return open_objects("memory://")


START = checkpoint({(0, 0): (5, {9: (1, 2)})}, {0: "a"})


def step(number: int, salt: int = 0) -> Checkpoint:
    """A delta like that of a read: two journals go on, and sometimes a new one appears."""
    rows: Rows = {
        (number % 5, 0): (100 * number + salt, {1 + number % 3: (number, 100 * number - 50)}),
        (7, number % 2): (10 * number + salt, {}),
    }
    return checkpoint(rows, {0: "a", 1: "b"})


def merged(start: Checkpoint, deltas: Sequence[Checkpoint]) -> Checkpoint:
    return reduce(Checkpoint.merge, deltas, start)


def labels(objects: Objects, *kinds: str) -> list[tuple[str, int]]:
    found = filter(None, (parse_key(each.key) for each in objects.list()))
    return sorted((each.kind, each.number) for each in found if each.kind in kinds)


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
    with pytest.raises(NotFoundError, match="27 of task 't' was released: it is kept from 28 on"):
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
    # The one that was opened before may go on, and is refused.
    with pytest.raises(UsageError, match=f"task 't' has no generation {history.generation}"):
        history.append(2, step(2))
    with pytest.raises(UsageError, match="it was reset, or is another workspace's; begin anew"):
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


def test_a_full_checkpoint_is_written_when_the_deltas_outweigh_the_last(memory: Objects) -> None:
    history = History(memory, "t", full_every=1000)
    rng = Random(1)
    written: list[int] = []
    for number in range(1, 60):
        rows: Rows = {(rng.randrange(1 << 20), 0): (rng.getrandbits(60), {}) for _ in range(500)}
        history.append(number, checkpoint(rows, {0: "a"}))
        history.release(number)
        written += [n for _, n in labels(memory, "full") if n and n not in written]
    # Each waits for as many bytes of deltas as the one before has, and those grow.
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
    """Counts requests, by kind."""

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


# -- processes that were given up ----------------------------------------------------------


def given_up(memory: Objects) -> tuple[History, History]:
    """One that stopped at 3, and one that went on to 20 and released 18."""
    old, current = History(memory, "t", full_every=4), History(memory, "t", full_every=4)
    for number in range(1, 4):
        old.append(number, step(number))
    old.load(3)
    for number in range(4, 21):
        assert current.append(number, step(number)) is None
    current.release(18)
    return old, current


def test_it_cannot_append_where_others_have_released(memory: Objects) -> None:
    old, current = given_up(memory)
    before = keys(memory)
    with pytest.raises(UsageError, match="4 of task 't' was appended and released by another"):
        old.append(4, step(4, salt=1))
    with pytest.raises(UsageError, match="has reached 20; end this one, which was replaced"):
        old.append(5, step(5, salt=1))
    assert keys(memory) == before
    assert current.load(20) == merged(Checkpoint(), [step(n) for n in range(1, 21)])


def test_it_reads_what_is_true_or_nothing(memory: Objects) -> None:
    old, _ = given_up(memory)
    assert old.delta(2) == step(2)
    assert old.load(3) == merged(Checkpoint(), [step(n) for n in (1, 2, 3)])
    with pytest.raises(NotFoundError, match="released"):
        old.load(5)
    assert old.load(19) == merged(Checkpoint(), [step(n) for n in range(1, 20)])
    assert old.append(20, step(20, salt=1)) == step(20)
    assert old.append(21, step(21)) is None


def test_its_release_takes_nothing_away(memory: Objects) -> None:
    old, current = given_up(memory)
    before = keys(memory)
    old.release(2)
    old.release(3)
    assert keys(memory) == before
    assert current.last() == 20


# -- any order of calls, against a dict ----------------------------------------------------

Call = tuple[str, int, int, int]
calls: st.SearchStrategy[list[Call]] = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "load", "delta", "release", "open", "reset"]
        ),
        st.integers(0, 2),  # by whom
        st.integers(-4, 3),  # which number, from the last on
        st.integers(0, 3),  # what the delta has
    ),
    max_size=60,
)


class Model:
    """Three processes that use a task, and a dict for each of its generations."""

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


# -- kills ---------------------------------------------------------------------------------


class Mortal:
    """Objects whose user is killed before or after one of its changes."""

    def __init__(self, objects: Objects, change: int, when: str) -> None:
        self._objects = objects
        self._left = change
        self._when = when
        self.get, self.list = objects.get, objects.list

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._pass("before")
        won = self._objects.put_if_absent(key, data)
        self._pass("after")
        return won

    def delete(self, key: str) -> None:
        self._pass("before")
        self._objects.delete(key)
        self._pass("after")

    def _pass(self, when: str) -> None:
        if when == self._when:
            if self._left == 0:
                raise Killed
            self._left -= 1


def killed_everywhere(life: Callable[[Objects], None]) -> Iterator[Objects]:
    """What is left of a life that was ended before or after each of its changes."""
    for change in count():
        for when in ("before", "after"):
            objects = open_objects("memory://")
            try:
                life(Mortal(objects, change, when))  # type: ignore[arg-type]
            except Killed:
                yield objects
            else:
                assert change > 10
                return


def check_tidy(objects: Objects) -> None:
    """Nothing is there that no load needs."""
    assert len(labels(objects, "generations")) == 1
    ((_, floor),) = labels(objects, "full")
    assert all(number > floor for _, number in labels(objects, "delta"))


def test_a_process_may_be_killed_between_any_two_changes() -> None:
    deltas = [step(n) for n in range(1, 12)]
    acknowledged = 0

    def live(objects: Objects) -> None:
        nonlocal acknowledged
        acknowledged = 0
        history = History(objects, "t", start=START, full_every=3)
        acknowledged = history.last()
        for number in range(acknowledged + 1, len(deltas) + 1):
            assert history.append(number, deltas[number - 1]) is None
            acknowledged = number
            history.release(number - 1)

    for objects in killed_everywhere(live):
        survivor = History(objects, "t", start=START)
        check_tidy(objects)
        last = survivor.last()
        assert acknowledged <= last <= acknowledged + 1
        for number in range(max(acknowledged - 1, 0), last + 1):
            assert survivor.load(number) == merged(START, deltas[:number])
        assert [survivor.delta(n) for n in range(max(acknowledged, 1), last + 1)] == (
            deltas[max(acknowledged, 1) - 1 : last]
        )
        live(objects)
        assert History(objects, "t").load(11) == merged(START, deltas)
        check_tidy(objects)


def test_a_reset_that_is_killed_is_done_or_not() -> None:
    outcomes = Counter[int]()

    def live(objects: Objects) -> None:
        history = History(objects, "t", start=START, full_every=2)
        for number in range(1, 6):
            history.append(number, step(number))
        history.release(2)
        for salt in range(3):
            reset_task(objects, "t", step(9, salt))

    for objects in killed_everywhere(live):
        if not labels(objects, "generations"):
            continue
        (_, generation), *_ = reversed(labels(objects, "generations"))
        outcomes[generation] += 1
        survivor = History(objects, "t")
        check_tidy(objects)
        if generation:
            assert survivor.last() == 0
            assert survivor.load(0) == step(9, generation - 1)
        else:
            last = survivor.last()
            assert survivor.load(last) == merged(START, [step(n) for n in range(1, last + 1)])
        assert survivor.append(survivor.last() + 1, step(10)) is None
    assert outcomes.keys() == {0, 1, 2, 3}


# -- processes at the same time ------------------------------------------------------------


class Witness:
    """Objects that remember what was first put under each key, also after it is deleted."""

    def __init__(self) -> None:
        self._objects = open_objects("memory://")
        self.first: dict[str, bytes] = {}
        self.put_again = 0
        self.get, self.list, self.delete = (
            self._objects.get,
            self._objects.list,
            self._objects.delete,
        )

    def put_if_absent(self, key: str, data: bytes) -> bool:
        won = self._objects.put_if_absent(key, data)
        if won and key in self.first:
            self.put_again += "/delta/" in key
        elif won:
            self.first[key] = data
        return won

    def delta(self, generation: str, number: int) -> Checkpoint:
        label = Label("t", generation, "delta", number)
        return decode(label, self.first[label.key])[1]

    def whole(self, generation: str, number: int) -> Checkpoint:
        deltas = [self.delta(generation, each) for each in range(1, number + 1)]
        return merged(START, deltas)


class User:
    """Does this and that with a task, and holds every answer against what was first put."""

    def __init__(self, witness: Witness, rng: Random, seen: Counter[str]) -> None:
        self._witness = witness
        self._rng = rng
        self._seen = seen

    def __call__(self, objects: Objects) -> None:
        try:
            if self._rng.random() < 0.05:
                reset_task(objects, "t", START)
            history = History(objects, "t", start=START, full_every=self._rng.choice([1, 2, 4]))
            self._last = history.last()
        except UsageError:
            return
        for _ in range(self._rng.randrange(12)):
            do = self._rng.choice([self._append, self._append, self._load, self._delta])
            try:
                do(history)
                if self._rng.random() < 0.5:
                    history.release(max(0, self._last - self._rng.randrange(3)))
            except UsageError:
                self._seen["refused"] += 1

    def _append(self, history: History) -> None:
        number = self._last + 1
        mine = step(number, self._rng.randrange(1 << 30))
        winner = history.append(number, mine)
        assert (winner or mine) == self._witness.delta(history.generation, number)
        self._last = number
        self._seen["lost" if winner else "won"] += 1

    def _load(self, history: History) -> None:
        number = self._rng.randint(max(0, self._last - 3), self._last)
        assert history.load(number) == self._witness.whole(history.generation, number)
        self._seen["loaded"] += 1

    def _delta(self, history: History) -> None:
        number = self._rng.randint(max(1, self._last - 3), max(1, self._last))
        assert history.delta(number) == self._witness.delta(history.generation, number)


def check_interleavings(seeds: Iterator[int] | range) -> Counter[str]:
    seen = Counter[str]()
    for seed in seeds:
        rng = Random(seed)
        witness = Witness()
        users = [User(witness, rng, seen) for _ in range(5)]
        try:
            seen["killed"] += run_interleaved(witness, users, rng, kills=0.003)  # type: ignore[arg-type]
            final = History(witness, "t", start=START)  # type: ignore[arg-type]
            last = final.last()
            assert final.load(last) == witness.whole(final.generation, last)
            check_tidy(witness)  # type: ignore[arg-type]
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen["put again"] += witness.put_again
    return seen


def test_nobody_is_told_anything_but_what_was_first_appended() -> None:
    seen = check_interleavings(range(250))
    assert min(seen[what] for what in ("won", "lost", "refused", "loaded", "killed")) > 20, seen
    # Some did append where others had released, and were refused.
    assert seen["put again"] > 5


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_nobody_is_told_anything_else_in_many_orders() -> None:
    first = chosen_seed()
    check_interleavings(range(first, first + 20_000))


def keys(objects: Objects) -> list[str]:
    return [each.key for each in objects.list()]
