"""The backlog: its numbers, its limits, and that a client always knows exactly what it misses."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.core.filters import Filter
from wayfare.core.history import (
    ATTRIBUTE_BYTES,
    MAY_BE_NONE,
    Backlog,
    Limits,
    Loss,
    Marks,
    Stored,
    in_order_with_losses,
    size_of,
    with_loss_between,
    with_values_behind,
)
from wayfare.core.messages import Deliver, Gap, Notification, Nullify, Terms
from wayfare.core.thinning import past_wanted, thinned
from wayfare.errors import ProtocolError, UsageError

ROOMY = Limits()
WINDOW = ROOMY.window


def note(number):
    return Notification("ticker", number, {"n": number})


def store(number, size=1):
    return Stored(note(number), size)


def put(backlog, count, limits=ROOMY, size=1, now=0):
    """Put the next so many notifications; notification n is delivery n."""
    for _ in range(count):
        backlog.put(store(backlog.last + 1, size), now, limits)


def filled(count, limits=ROOMY, size=1):
    backlog = Backlog()
    put(backlog, count, limits, size)
    return backlog


def deliveries(first, last):
    return [Deliver(number, note(number)) for number in range(first, last + 1)]


def test_a_new_backlog_is_empty():
    backlog = Backlog()
    assert not backlog
    assert len(backlog) == 0
    assert backlog.take(WINDOW, 0) == []


def test_deliveries_are_numbered_from_one():
    assert filled(3).take(WINDOW, 0) == deliveries(1, 3)


def test_numbering_goes_on_where_the_client_is():
    backlog = Backlog(start=7)
    put(backlog, 2)
    assert backlog.take(WINDOW, 0) == deliveries(8, 9)


def doubtful(count, limits):
    """A backlog that may keep what its client got before."""
    backlog = Backlog()
    backlog.may_repeat = True
    put(backlog, count, limits)
    return backlog


def test_what_may_be_a_duplicate_is_not_counted_when_it_is_dropped():
    backlog = doubtful(5, Limits(backlog_count=2))
    assert backlog.take(WINDOW, 0) == [Gap(3, "backlog_count", False), *deliveries(4, 5)]


def test_drops_that_are_not_counted_take_no_room():
    backlog = doubtful(3, Limits(backlog_count=2))
    backlog.take(WINDOW, 0)
    put(backlog, 100, Limits(backlog_count=2))
    assert len(backlog.holes) <= 2
    assert not any(one.exact for one in backlog.holes)
    assert backlog.take(WINDOW, 0) == [Gap(101, "backlog_count", False), *deliveries(102, 103)]


def test_nothing_is_sent_twice():
    backlog = filled(2)
    backlog.take(WINDOW, 0)
    put(backlog, 1)
    assert backlog.take(WINDOW, 0) == deliveries(3, 3)
    assert backlog.take(WINDOW, 0) == []


def test_what_is_sent_is_kept_until_it_is_acknowledged():
    backlog = filled(3)
    backlog.take(WINDOW, 0)
    assert (len(backlog), backlog.bytes) == (3, 3)
    backlog.acknowledge(2)
    assert (len(backlog), backlog.bytes) == (1, 1)
    backlog.acknowledge(3)
    assert (len(backlog), backlog.bytes, bool(backlog)) == (0, 0, False)


def test_an_old_acknowledgement_changes_nothing():
    backlog = filled(3)
    backlog.take(WINDOW, 0)
    backlog.acknowledge(2)
    backlog.acknowledge(1)
    assert (backlog.acked, len(backlog)) == (2, 1)


def test_nobody_acknowledges_what_was_not_sent():
    backlog = filled(3)
    backlog.take(window=2, now=0)
    with pytest.raises(ProtocolError, match="acknowledged 3, but only 2 were sent"):
        backlog.acknowledge(3)
    assert (backlog.acked, len(backlog)) == (0, 3)


# The window


def test_only_a_window_of_deliveries_is_on_its_way():
    backlog = filled(5)
    assert backlog.take(window=2, now=0) == deliveries(1, 2)
    assert backlog.take(window=2, now=0) == []
    backlog.acknowledge(1)
    assert backlog.take(window=2, now=0) == deliveries(3, 3)
    backlog.acknowledge(3)
    assert backlog.take(window=2, now=0) == deliveries(4, 5)


def test_dropping_does_not_widen_the_window():
    limits = Limits(backlog_count=2, window=2)
    backlog, sent = Backlog(), []
    for _ in range(10):
        put(backlog, 1, limits)
        sent += backlog.take(limits.window, 0)
    assert sent == deliveries(1, 2)  # a client that reads nothing gets no more


# Limits


def test_beyond_the_count_the_oldest_go():
    backlog = filled(5, Limits(backlog_count=3))
    assert (len(backlog), backlog.bytes) == (3, 3)
    assert backlog.take(WINDOW, 0) == [Gap(2, "backlog_count"), *deliveries(3, 5)]


def test_beyond_the_bytes_the_oldest_go():
    backlog = filled(5, Limits(backlog_bytes=25), size=10)
    assert (len(backlog), backlog.bytes) == (2, 20)
    assert backlog.take(WINDOW, 0) == [Gap(3, "backlog_bytes"), *deliveries(4, 5)]


def test_what_is_larger_than_all_limits_is_lost_itself():
    limits = Limits(backlog_bytes=25)
    backlog = filled(2, limits, size=10)
    put(backlog, 1, limits, size=26)
    assert (len(backlog), backlog.bytes) == (0, 0)
    assert backlog.take(WINDOW, 0) == [Gap(3, "backlog_bytes")]


def test_beyond_the_age_the_oldest_go():
    limits = Limits(backlog_age_ns=100)
    backlog = Backlog()
    for now in (0, 10, 20):
        put(backlog, 1, limits, now=now)
    backlog.expire(99, limits)
    assert (len(backlog), backlog.oldest()) == (3, 0)
    backlog.expire(110, limits)
    assert (len(backlog), backlog.oldest()) == (1, 20)
    assert backlog.take(WINDOW, 0) == [Gap(2, "backlog_age"), *deliveries(3, 3)]


def test_the_oldest_may_be_one_that_was_sent():
    limits = Limits(backlog_age_ns=100)
    backlog = filled(1)
    backlog.take(WINDOW, 0)
    put(backlog, 1, now=50)
    assert backlog.oldest() == 0
    backlog.expire(100, limits)
    assert backlog.oldest() == 50


def test_all_that_is_dropped_in_a_row_is_one_gap_with_the_last_reason():
    limits = Limits(backlog_count=2, backlog_age_ns=100)
    backlog = filled(3, limits)
    backlog.expire(100, limits)
    assert backlog.take(WINDOW, 0) == [Gap(3, "backlog_age")]
    assert backlog.take(WINDOW, 0) == []


def test_no_gap_for_what_was_dropped_after_it_was_sent():
    limits = Limits(backlog_count=2)
    backlog = filled(2, limits)
    backlog.take(WINDOW, 0)
    put(backlog, 2, limits)
    assert backlog.take(WINDOW, 0) == deliveries(3, 4)


def test_a_gap_may_be_acknowledged():
    backlog = filled(3, Limits(backlog_count=1))
    backlog.take(WINDOW, 0)
    backlog.acknowledge(2)
    assert (backlog.acked, len(backlog)) == (2, 1)


def test_no_limit_is_below_zero_and_none_may_be_kept_of_the_past():
    assert Limits(past_count=0).past_count == 0
    with pytest.raises(UsageError, match="the limit past_count is -1; it is at least 0"):
        Limits(past_count=-1)


@pytest.mark.parametrize(
    "name", [one for one in Limits.__struct_fields__ if one not in MAY_BE_NONE]
)
def test_no_other_limit_is_zero(name):
    with pytest.raises(UsageError, match=f"the limit {name} is 0; it is at least 1"):
        Limits(**{name: 0})


def test_the_size_of_a_notification_is_that_of_its_payload_texts_and_attributes():
    attributes = {"ab": "xyz", "n": 1, "f": 1.5, "t": True}
    sized = size_of(Notification("ticker", 1, attributes, b"1234"))
    assert sized == 4 + 3 + 4 * ATTRIBUTE_BYTES


# Passing on at once


def test_where_nothing_waits_passing_on_is_putting_and_taking():
    slow, fast = Backlog(), Backlog()
    for number in (1, 2, 3):
        stored = store(number)
        slow.put(stored, number, ROOMY)
        assert [fast.pass_on(stored, number, ROOMY)] == slow.take(WINDOW, 0)
    for name in {*Backlog.__slots__} - {"_memory"}:
        assert getattr(fast, name) == getattr(slow, name)
    assert fast.kept_bytes() == slow.kept_bytes()


@pytest.mark.parametrize("limits", [Limits(backlog_count=2), Limits(backlog_bytes=2)])
def test_what_is_passed_on_counts_towards_the_limits(limits):
    backlog = Backlog()
    for number in (1, 2, 3):
        assert backlog.pass_on(store(number), 0, limits) == Deliver(number, note(number))
    assert (len(backlog), backlog.bytes) == (2, 2)
    backlog.resume(0)
    gap, *rest = backlog.take(WINDOW, 0)
    assert (gap.number, rest) == (1, deliveries(2, 3))


# Resuming


@pytest.mark.parametrize("delivered", range(2, 6))
def test_a_client_resumes_behind_any_delivery_that_was_sent(delivered):
    backlog = filled(8)
    backlog.take(window=5, now=0)
    backlog.acknowledge(2)
    backlog.resume(delivered)
    assert backlog.bytes == len(backlog) == 8 - delivered
    assert backlog.take(WINDOW, 0) == deliveries(delivered + 1, 8)


def test_what_was_dropped_after_it_was_sent_is_a_gap_for_who_did_not_get_it():
    limits = Limits(backlog_count=3)
    backlog = filled(3, limits)
    backlog.take(WINDOW, 0)
    put(backlog, 2, limits)
    backlog.resume(1)
    assert backlog.take(WINDOW, 0) == [Gap(2, "backlog_count"), *deliveries(3, 5)]


@pytest.mark.parametrize("delivered", [2, 3])
def test_what_was_dropped_after_it_was_sent_is_no_gap_for_who_got_it(delivered):
    limits = Limits(backlog_count=3)
    backlog = filled(3, limits)
    backlog.take(WINDOW, 0)
    put(backlog, 2, limits)
    backlog.resume(delivered)
    assert backlog.take(WINDOW, 0) == deliveries(delivered + 1, 5)


@pytest.mark.parametrize("delivered", [0, 1, 4, 6])
def test_numbers_of_elsewhere_are_not_resumed_and_change_nothing(delivered):
    backlog = filled(5)
    backlog.take(window=3, now=0)
    backlog.acknowledge(2)
    assert not backlog.resume(delivered)
    assert (backlog.acked, backlog.sent, len(backlog), backlog.bytes) == (2, 3, 3, 3)
    assert backlog.take(WINDOW, 0) == deliveries(4, 5)


# Losses elsewhere


def test_what_was_lost_elsewhere_is_a_gap_in_its_place():
    backlog = filled(2)
    backlog.lose(3, "backlog_age")
    put(backlog, 1)
    assert backlog.take(WINDOW, 0) == [*deliveries(1, 2), Gap(5, "backlog_age"), *deliveries(6, 6)]


def test_a_loss_is_told_to_a_client_that_gets_nothing_else():
    backlog = Backlog(start=7)
    backlog.lose(1, "gone")
    assert backlog.take(WINDOW, 0) == [Gap(8, "gone")]
    assert backlog.take(WINDOW, 0) == []


def test_where_nobody_knows_how_many_the_gap_says_so_until_all_is_acknowledged():
    backlog = Backlog()
    backlog.lose(1, "gone", exact=False)
    backlog.lose(2, "backlog_age")
    assert backlog.take(WINDOW, 0) == [Gap(3, "gone", exact=False)]
    backlog.resume(0)
    assert backlog.take(WINDOW, 0) == [Gap(3, "gone", exact=False)]
    backlog.acknowledge(3)
    backlog.lose(2, "backlog_count")
    assert backlog.take(WINDOW, 0) == [Gap(5, "backlog_count")]


def test_a_loss_counts_in_the_window():
    backlog = Backlog()
    backlog.lose(5, "gone")
    put(backlog, 1)
    assert backlog.take(window=2, now=0) == [Gap(5, "gone")]
    backlog.acknowledge(5)
    assert backlog.take(window=2, now=0) == deliveries(6, 6)


# Losses of what nobody matched


DOUBT = Loss(1, "forgotten", exact=False)


def doubted(*queue):
    """Letters are notifications of that publisher, numbers are losses."""
    queued = [
        (Loss(one, "lost") if type(one) is int else Stored(Notification(one, 1, {}), 1), 7)
        for one in queue
    ]
    return [
        one if isinstance(one, Loss) else one.notification.publisher
        for one, _ in with_loss_between(queued, DOUBT)
    ]


def test_behind_the_first_loss_anything_may_be_missing_between_two_of_one_publisher():
    lost = Loss(1, "lost")
    assert doubted("a", "a", 1, "a", "a", "b") == ["a", "a", lost, "a", DOUBT, "a", "b", DOUBT]
    assert doubted(1, "a", "b", "a", "b") == [lost, "a", "b", DOUBT, "a", "b", DOUBT]


def in_order(*queue):
    """Numbers are notifications of one publisher, texts are losses."""
    queued = [
        (Loss(1, one) if type(one) is str else Stored(Notification("a", one, {}), 1), 7)
        for one in queue
    ]
    return [
        (one.why, one.exact) if isinstance(one, Loss) else one.notification.number
        for one, _ in in_order_with_losses(queued)
    ]


def test_what_is_sorted_in_front_of_a_notification_leaves_the_loss_in_front_of_it():
    lost, doubt = ("lost", True), ("lost", False)
    assert in_order(1, "lost", 4, 5) == [1, lost, 4, 5]
    assert in_order(4, 2, 3) == [2, 3, 4]
    assert in_order("lost", 4, 5, 2, 3) == [lost, 2, 3, doubt, 4, 5]
    assert in_order(1, 4, "lost", 2, 5) == [1, doubt, 2, lost, doubt, 4, doubt, 5]


def test_a_loss_with_a_number_does_not_stand_for_another_one():
    """Next to each other, both are one gap of unknown size."""
    lost = Loss(1, "lost")
    assert doubted(1, "a", 1, "a") == [lost, "a", lost, DOUBT, "a", DOUBT]


@pytest.mark.parametrize("queue", [[], [1], ["a", "a"], ["a", "a", 1]])
def test_where_nothing_is_queued_behind_the_first_loss_there_is_no_other_one(queue):
    assert doubted(*queue) == [Loss(1, "lost") if one == 1 else one for one in queue]


# What is left, to be continued elsewhere


def told(left):
    """The numbers of the notifications that are left, and when they were put there."""
    return [(one.notification.number, at) for one, at in left if not isinstance(one, Loss)]


def lost(left):
    return [one for one, _ in left if isinstance(one, Loss)]


@pytest.mark.parametrize("delivered", range(2, 6))
def test_what_comes_behind_any_delivery_is_left(delivered):
    backlog = filled(8)
    backlog.take(window=5, now=0)
    backlog.acknowledge(2)
    left = backlog.left(delivered)
    assert told(left) == [(number, 0) for number in range(delivered + 1, 9)]
    assert lost(left) == []


@pytest.mark.parametrize("delivered", [1, 6])
def test_nothing_is_left_for_numbers_of_elsewhere(delivered):
    backlog = filled(8)
    backlog.take(window=5, now=0)
    backlog.acknowledge(2)
    assert backlog.left(delivered) is None


def test_what_was_dropped_and_not_told_is_left_as_a_number():
    backlog = filled(5, Limits(backlog_count=2))
    left = backlog.left(0)
    assert told(left) == [(4, 0), (5, 0)]
    assert left[0][0] == Loss(3, "backlog_count")


def test_losses_are_left_in_their_places():
    backlog = filled(2)
    backlog.lose(1, "gone", exact=False)
    put(backlog, 1)
    backlog.lose(2, "backlog_age")
    backlog.lose(3, "backlog_count")
    put(backlog, 1)
    backlog.lose(1, "late")
    left = [one if isinstance(one, Loss) else one.notification.number for one, _ in backlog.left(0)]
    inexact, both, last = Loss(1, "gone", False), Loss(5, "backlog_count"), Loss(1, "late")
    assert left == [1, 2, inexact, 4, both, 10, last]
    assert backlog.take(WINDOW, 0)[2::2] == [
        Gap(3, "gone", exact=False),
        Gap(9, "backlog_count"),
        Gap(11, "late"),
    ]


def test_a_loss_behind_a_gap_that_was_sent_is_another_one():
    backlog = Backlog()
    backlog.lose(1, "gone", exact=False)
    assert backlog.take(WINDOW, 0) == [Gap(1, "gone", exact=False)]
    backlog.lose(2, "backlog_age")
    assert backlog.take(WINDOW, 0) == [Gap(3, "backlog_age")]
    backlog.resume(0)  # neither has arrived
    assert backlog.take(WINDOW, 0) == [Gap(3, "gone", exact=False)]


def test_holes_are_never_more_than_what_is_kept_by_much():
    backlog = Backlog()
    for _ in range(50):
        put(backlog, 1, limits=Limits(backlog_count=3))
        backlog.lose(1, "gone", exact=False)
        assert len(backlog.holes) <= 4
    assert lost(backlog.left(0))[0] == Loss(94, "gone", exact=False)


def test_what_is_taken_back_leaves_its_losses():
    backlog = filled(2)
    backlog.lose(3, "gone", exact=False)
    put(backlog, 1)
    assert [one.notification.number for one, _ in backlog.take_back()] == [1, 2, 6]
    assert backlog.take(WINDOW, 0) == [Gap(3, "gone", exact=False)]


def test_a_loss_that_the_client_knows_of_is_not_left():
    backlog = filled(5, Limits(backlog_count=2))
    backlog.take(WINDOW, 0)
    assert lost(backlog.left(3)) == []


def test_that_nobody_knows_how_many_were_lost_is_left_too():
    backlog = Backlog()
    backlog.lose(1, "gone", exact=False)
    assert lost(backlog.left(0)) == [Loss(1, "gone", exact=False)]


# Marks


def heard(marks, publisher, number, now=0):
    return marks.pass_on(Notification(publisher, number, {}), now)


def test_the_same_notification_is_news_once():
    marks = Marks(age_ns=100)
    assert heard(marks, "ticker", 1)
    assert not heard(marks, "ticker", 1)
    assert heard(marks, "ticker", 2)


def test_what_is_older_than_the_last_is_no_news():
    marks = Marks(age_ns=100)
    assert heard(marks, "ticker", 5)
    assert not heard(marks, "ticker", 3)
    assert heard(marks, "tom", 3)
    assert marks.known() == {"ticker": 5, "tom": 3}


@pytest.mark.parametrize("first", [0, 1, 99, 100, 250])
def test_a_mark_lives_for_one_to_two_times_its_age(first):
    marks = Marks(age_ns=100)
    assert heard(marks, "tom", 1, now=0)
    assert heard(marks, "ticker", 1, now=first)
    for now in range(first, first + 101):
        assert heard(marks, f"another {now}", 1, now)
        assert not heard(marks, "ticker", 1, now)
    for now in range(first + 101, first + 201):
        heard(marks, f"another {now}", 1, now)
    assert "ticker" not in marks.known()


def test_marks_of_the_same_publishers_stay_until_there_are_others():
    """They take no more room, and so need not be forgotten."""
    marks = Marks(age_ns=100)
    for number, now in enumerate(range(0, 1_000, 50), 1):
        heard(marks, "tom", number, now)
        heard(marks, "ticker", 1, now)
    assert marks.known() == {"tom": 20, "ticker": 1}


def test_a_publisher_that_is_heard_again_is_not_forgotten():
    marks = Marks(age_ns=100)
    for number, now in enumerate(range(0, 1_000, 90), 1):
        assert heard(marks, "ticker", number, now)
        assert not heard(marks, "ticker", number, now)


def test_publishers_long_unheard_take_no_room():
    marks = Marks(age_ns=100)
    for number in range(1_000):
        heard(marks, f"publisher {number}", 1, now=10 * number)
    assert len(marks.known()) <= 20


def test_marks_of_elsewhere_only_raise():
    marks = Marks(age_ns=100)
    heard(marks, "ticker", 5)
    heard(marks, "tom", 5)
    marks.raise_to({"ticker": 7, "tom": 3, "ann": 1})
    assert marks.known() == {"ticker": 7, "tom": 5, "ann": 1}
    assert not heard(marks, "ticker", 7)
    assert heard(marks, "ticker", 8)


def test_marks_of_elsewhere_do_not_lower_one_that_is_about_to_be_forgotten():
    marks = Marks(age_ns=100)
    heard(marks, "ticker", 5, now=0)
    heard(marks, "tom", 1, now=100)  # the mark of ticker is an older one now
    marks.raise_to({"ticker": 3})
    assert not heard(marks, "ticker", 4, now=100)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 30)), max_size=60)
)
def test_within_their_age_marks_pass_each_publisher_in_order_and_once(story):
    marks, now, last = Marks(age_ns=10_000), 0, {}
    for publisher, number, pause in story:
        now += pause
        assert heard(marks, publisher, number, now) == (number > last.get(publisher, 0))
        last[publisher] = max(number, last.get(publisher, 0))
    assert marks.known() == last


# Terms: what of what it missed a client wants to have

PRICE, GAS = Filter.parse("exists price"), Filter.parse("topic = 'gas'")


def waiting(*attributes):
    """One notification each, put into the backlog at 0, 10, 20 ..."""
    return [
        (Stored(Notification("ticker", number, one), 1), 10 * (number - 1))
        for number, one in enumerate(attributes, 1)
    ]


def chosen(kept, wanted, now=100, moved=False):
    return [one[0].notification.number for one in thinned(kept, wanted, now, moved=moved)]


PRICES = waiting(*({"price": price} for price in (1, 2, 1, 3, 2)))


def test_without_terms_a_client_wants_all():
    assert thinned(PRICES, {PRICE: None}, 100, moved=True) == PRICES


@pytest.mark.parametrize(("last", "numbers"), [(0, []), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_last_ones(last, numbers):
    assert chosen(PRICES, {PRICE: Terms(last=last)}) == numbers


@pytest.mark.parametrize(("age", "numbers"), [(59, []), (60, [5]), (80, [3, 4, 5])])
def test_those_that_are_not_too_old(age, numbers):
    assert chosen(PRICES, {PRICE: Terms(younger_ns=age)}) == numbers


def test_the_newest_for_every_value_of_a_key():
    assert chosen(PRICES, {PRICE: Terms(key="price")}) == [3, 4, 5]


def test_a_key_of_several_attributes():
    kept = waiting(*({"price": 1, "topic": topic} for topic in (1, 2, True, 1)), {"price": 1})
    assert chosen(kept, {PRICE: Terms(key=("price", "topic"))}) == [2, 3, 4, 5]


FREE = Nullify(Filter.parse("free = false"), ("topic",))
FREED = waiting(
    {"price": 1, "topic": "a", "free": True},
    {"price": 2, "topic": "b", "free": True},
    {"price": 3, "topic": "a", "free": False},
    {"price": 4, "topic": "a", "free": True},
    {"price": 5, "free": False},
    {"price": 6, "topic": "b", "free": False},
)


def test_what_is_nullified_is_not_wanted_but_the_client_hears_of_it():
    """It may have had an earlier one before it was away."""
    assert chosen(FREED, {PRICE: Terms(nullify=FREE)}) == [3, 4, 5, 6]
    assert chosen(FREED, {PRICE: Terms(nullify=Nullify(FREE.when))}) == [6]


def test_of_the_past_a_client_gets_nothing_that_nullifies():
    def wanted(**terms):
        return [one[0].notification.number for one in past_wanted(FREED, Terms(**terms), 100)]

    assert wanted(nullify=FREE) == [4]
    assert wanted(nullify=FREE, last=0) == []
    assert wanted(last=2) == [5, 6]
    assert wanted(last=1, nullify=Nullify(Filter.parse("price = 6"), ("topic",))) == [5]
    assert past_wanted(FREED, None, 100) == FREED


def test_what_has_no_such_key_is_like_nothing_else():
    assert chosen(PRICES, {PRICE: Terms(key="topic")}) == [1, 2, 3, 4, 5]


def test_terms_together_want_the_last_of_the_newest_of_the_young():
    assert chosen(PRICES, {PRICE: Terms(last=2, younger_ns=80, key="price")}) == [4, 5]
    assert chosen(PRICES, {PRICE: Terms(last=1, younger_ns=95, key="price")}) == [5]


@pytest.mark.parametrize(("moved", "numbers"), [(False, [1, 2, 3, 4, 5]), (True, [])])
def test_a_local_subscription_wants_nothing_from_elsewhere(moved, numbers):
    assert chosen(PRICES, {PRICE: Terms(local=True)}, moved=moved) == numbers


def test_what_one_subscription_does_not_want_another_one_may():
    kept = waiting({"price": 1}, {"price": 2, "topic": "gas"}, {"price": 3}, {"topic": "gas"})
    assert chosen(kept, {PRICE: Terms(last=1), GAS: None}) == [2, 3, 4]
    assert chosen(kept, {PRICE: Terms(last=1), GAS: Terms(last=1)}) == [3, 4]


# Whatever happens, in any order


class Reader:
    """The client's side: every number arrives, or is counted as lost, exactly once and in order."""

    def __init__(self):
        self.delivered = self.lost = 0
        self.unknown = False  # there was a gap of nobody knows how many
        self.got = []  # numbers of notifications

    def read(self, message):
        match message:
            case Deliver(number, notification):
                assert number == self.delivered + 1
                assert notification.number > max(self.got, default=0)
                self.got.append(notification.number)
                self.delivered = number
            case Gap(number, _, exact):
                assert number > self.delivered
                self.lost += number - self.delivered
                self.unknown |= not exact
                self.delivered = number


def moved(backlog, delivered, limits):
    """What goes on at another broker."""
    left = backlog.left(delivered)
    there = Backlog(delivered)
    for one, put_at in left:
        if isinstance(one, Loss):
            there.lose(one.count, one.why, exact=one.exact)
        else:
            there.put(one, put_at, limits)
    assert (there.last, len(there), there.bytes) == (backlog.last, len(backlog), backlog.bytes)
    return there


def may_pass_on(backlog, limits):
    return backlog.last == backlog.sent < backlog.acked + limits.window


def run(steps, limits):
    """Drive a backlog through the steps; what was sent waits on a wire, until read or cut."""
    backlog, reader, wire, now, online = Backlog(), Reader(), [], 0, True
    unknown = False
    for action, amount in steps:
        match action:
            case "put" if online and amount % 2 and may_pass_on(backlog, limits):
                wire.append(backlog.pass_on(store(backlog.last + 1, amount), now, limits))
            case "put":
                backlog.put(store(backlog.last + 1, amount), now, limits)
            case "expire":
                now += amount
                backlog.expire(now, limits)
            case "read":
                for message in wire[:amount]:
                    reader.read(message)
                del wire[:amount]
            case "acknowledge":
                backlog.acknowledge(reader.delivered)
            case "cut":
                wire, online = [], False
            case "resume":
                assert backlog.resume(reader.delivered)
                wire, online = [], True
            case "move":
                backlog = moved(backlog, reader.delivered, limits)
                wire, online = [], True
            case "lose":
                backlog.lose(amount, "elsewhere", exact=amount > 1)
                unknown |= amount == 1
        if online:
            wire += backlog.take(limits.window, 0)
        kept = [*backlog.unacked, *backlog.waiting]
        assert backlog.bytes == sum(stored.size for _, stored, _ in kept)
        assert backlog.bytes <= limits.backlog_bytes
        assert len(backlog) == len(kept) <= limits.backlog_count
        assert backlog.acked <= backlog.sent <= backlog.last
        assert [item[0] for item in kept] == sorted(item[0] for item in kept)
    # At last the client comes back and reads everything.
    backlog.resume(reader.delivered)
    while messages := backlog.take(limits.window, 0):
        for message in messages:
            reader.read(message)
        backlog.acknowledge(reader.delivered)
    assert reader.delivered == backlog.last
    assert len(reader.got) + reader.lost == backlog.last
    assert reader.unknown == unknown
    assert (len(backlog), backlog.bytes) == (0, 0)
    return reader


amounts = st.integers(1, 4)
ACTIONS = ["put", "put", "put", "read", "acknowledge", "expire", "cut", "resume", "move"]
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), amounts), max_size=40)
with_losses = st.lists(st.tuples(st.sampled_from([*ACTIONS, "lose"]), amounts), max_size=40)
limits = st.builds(
    Limits,
    backlog_count=st.integers(1, 6),
    backlog_bytes=st.integers(1, 12),
    backlog_age_ns=st.integers(1, 10),
    window=st.integers(1, 4),
)


@given(with_losses, limits)
@settings(max_examples=400)
def test_a_client_gets_each_number_once_or_counts_it_lost(steps, limits):
    run(steps, limits)


@given(steps)
def test_within_the_limits_nothing_is_lost(steps):
    assert run(steps, Limits(window=2)).lost == 0


def test_long_runs_keep_the_promise_too():
    random = Random(1)
    actions = ["put"] * 8 + ["read", "acknowledge"] * 3 + ["expire", "cut", "resume", "move"]
    for window in (1, 3, 20):
        story = [(random.choice(actions), random.randint(1, 5)) for _ in range(3_000)]
        limits = Limits(15, 30, backlog_age_ns=40, window=window)
        reader = run(story, limits)
        assert reader.got
        assert reader.lost


def test_current_values_are_behind_what_their_publishers_said_before():
    def value(number):
        return Stored(note(number), 1, ask=1)

    other = Stored(Notification("other", 1, {}), 1)
    loss = Loss(1, "lost")
    queue = [store(1), value(9), value(2), store(3), loss, store(7), other, store(10)]
    ordered = [one for one, _ in with_values_behind([(one, 0) for one in queue])]
    assert [
        one if isinstance(one, Loss) else (one.notification.number, one.ask) for one in ordered
    ] == [(1, 0), (2, 1), (3, 0), loss, (7, 0), (9, 1), (1, 0), (10, 0)]
