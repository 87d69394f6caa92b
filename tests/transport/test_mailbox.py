from __future__ import annotations

import threading

import pytest

from headrace.transport.mailbox import Mailbox


def test_items_leave_in_the_order_they_came() -> None:
    box: Mailbox[int] = Mailbox(100)
    for number in range(5):
        assert box.put(number, 1)
    assert [box.take()[0] for _ in range(5)] == [0, 1, 2, 3, 4]


def test_a_group_ends_before_its_limit_but_is_never_empty() -> None:
    box: Mailbox[str] = Mailbox(1000)
    for name, size in (("a", 4), ("b", 4), ("c", 4), ("large", 100), ("d", 1)):
        box.put(name, size)
    assert [box.take(group_bytes=8) for _ in range(3)] == [["a", "b"], ["c"], ["large"]]


def test_what_fits_leaves_without_waiting_up_to_the_first_that_does_not() -> None:
    box: Mailbox[str] = Mailbox(10)
    assert box.take_while(str.islower, 100) == []
    for name, size in (("a", 4), ("b", 4), ("C", 1), ("d", 1)):
        box.put(name, size)
    assert box.take_while(str.islower, 7) == ["a"]
    assert box.put("e", 4), "there is room again"
    assert box.take_while(str.islower, 100) == ["b"]
    assert box.take_while(str.islower, 100) == []
    assert [box.take()[0] for _ in range(3)] == ["C", "d", "e"]


def test_a_full_mailbox_makes_senders_wait_until_there_is_room() -> None:
    box: Mailbox[str] = Mailbox(10)
    box.put("first", 8)
    sender = threading.Thread(target=box.put, args=("second", 8))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    assert box.take() == ["first"]
    sender.join(10)
    assert box.take(timeout_s=0) == ["second"]


def test_an_item_larger_than_the_mailbox_is_let_in_alone() -> None:
    box: Mailbox[str] = Mailbox(10)
    assert box.put("large", 1000)
    assert box.take() == ["large"]


def test_closing_frees_a_waiting_sender_and_keeps_what_is_inside() -> None:
    box: Mailbox[str] = Mailbox(1)
    box.put("kept", 1)
    accepted: list[bool] = []
    sender = threading.Thread(target=lambda: accepted.append(box.put("late", 1)))
    sender.start()
    box.close()
    sender.join(10)
    assert accepted == [False]
    assert box.take() == ["kept"]
    assert box.take() == []


def test_closing_frees_a_waiting_taker() -> None:
    box: Mailbox[str] = Mailbox(1)
    taken: list[list[str]] = []
    taker = threading.Thread(target=lambda: taken.append(box.take()))
    taker.start()
    box.close()
    taker.join(10)
    assert taken == [[]]


def test_discarding_drops_what_is_inside() -> None:
    box: Mailbox[str] = Mailbox(10)
    box.put("dropped", 1)
    box.close(discard=True)
    assert box.take() == []


def test_lifting_the_limit_frees_a_waiting_sender() -> None:
    box: Mailbox[str] = Mailbox(1)
    box.put("first", 1)
    sender = threading.Thread(target=box.put, args=("second", 1))
    sender.start()
    box.lift_limit()
    sender.join(10)
    assert box.take(group_bytes=2) == ["first", "second"]


def test_a_taker_whose_time_is_up_is_told() -> None:
    with pytest.raises(TimeoutError):
        Mailbox[str](1).take(timeout_s=0.01)
