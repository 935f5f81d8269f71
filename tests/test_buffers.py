"""What virtual clients keep: ids of one store, as far as terms say so."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfare.bench import ahead
from wayfare.core import buffers
from wayfare.core.buffers import Buffer, Ids, Store
from wayfare.core.filters import EVERYTHING, Filter
from wayfare.core.history import Limits, Stored
from wayfare.core.messages import ClientId, Notification, Nullify, Terms

GONE = Filter.parse("gone = true")
LIMITS = Limits(buffer_count=5, buffer_age_ns=100)


@given(st.lists(st.one_of(st.none(), st.integers(1, 50), st.sampled_from([2**32, 2**33 + 1]))))
def test_ids_are_a_queue(steps: list[int | None]) -> None:
    """None takes one off; a number says how much larger the next one is."""
    ids, queue, last = Ids(), deque[int](), 0
    for step in steps:
        if step is not None and (not queue or last + step - queue[0] < 2**32):
            last += step
            ids.append(last)
            queue.append(last)
        elif queue:
            assert ids.popleft() == queue.popleft()
        assert (list(ids), len(ids)) == (list(queue), len(queue))


def test_what_was_taken_off_a_queue_takes_no_room() -> None:
    ids = Ids()
    for number in range(10_000):
        ids.append(number)
        if number >= 10:
            ids.popleft()
    assert len(ids._offsets) <= 2 * buffers.EMPTY + 20


# Key, time since the last, whether it nullifies what has the same key, and when it expires.
notifications = st.tuples(
    st.integers(0, 3), st.integers(0, 30), st.booleans(), st.sampled_from([0, 0, 20, 60])
)
terms = st.none() | st.builds(
    Terms,
    last=st.none() | st.integers(0, 4),
    younger_ns=st.none() | st.integers(0, 80),
    key=st.none() | st.sampled_from(["key", ("key", "other")]),
    nullify=st.none()
    | st.sampled_from([Nullify(GONE, ("key",)), Nullify(GONE), Nullify(GONE, ("missing",))]),
)


@given(st.lists(notifications, max_size=30), terms)
def test_a_buffer_keeps_what_its_terms_say_and_has_not_expired(
    came: list[tuple[int, int, bool, int]], asked: Terms | None
) -> None:
    """Those that expire are counted by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "SCAN_NS", 0)  # all are looked at again at once
        store = Store()
        buffer = Buffer(EVERYTHING, asked, store, LIMITS)
        kept: list[tuple[int, int, int, int]] = []  # id, key, when, for how long
        now = 0
        for key, later, gone, expires in came:
            now += later
            attributes = {"key": key, "other": 1, "gone": gone}
            stored = Stored(Notification(ClientId("p"), 1, attributes, expires_ns=expires), 10)
            number = store.put(stored, now)
            store.hold(number)
            buffer.put(number, now)
            store.let_go(number)
            kept.append((number, key, now, expires))
            one = asked or Terms()
            if one.nullify is not None and gone:
                same = one.nullify.same
                kept = [
                    was for was in kept[:-1] if same and (was[1] != key or same == ("missing",))
                ]
            elif one.key is not None:
                kept = [*(was for was in kept[:-1] if was[1] != key), kept[-1]]
            age = 100 if one.younger_ns is None else one.younger_ns
            kept = [was for was in kept if was[2] + age >= now]
            kept = [was for was in kept if not was[3] or was[2] + was[3] > now]
            most = 5 if one.last is None else one.last
            by_kind = [[was for was in kept if bool(was[3]) is expire] for expire in (False, True)]
            kept = sorted(was for some in by_kind for was in some[max(0, len(some) - most) :])
            assert list(buffer.ids()) == [number for number, *_ in kept]
            assert store.kept.keys() == {number for number, *_ in kept}
            assert not kept or buffer.expires_at() <= min(was[2] for was in kept) + age + 1
        buffer.clear()
        assert store.kept == {}


def test_many_who_wait_for_the_same_take_little_more_than_one() -> None:
    rows = {row["case"]: row for row in ahead.run(clients=40, notifications=400)}
    assert rows["same"]["times_one"] < 1.1
    assert rows["different"]["times_one"] < 1.5
