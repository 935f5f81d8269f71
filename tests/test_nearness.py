"""Which broker is near, and when a client moves to it: without sockets, and without a clock."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wayfare.core.nearness import DOUBLED_MAX, IN_A_ROW, MARGIN_NS, STAY, Nearness

MS = 1_000_000


def near(*brokers):
    one = Nearness()
    one.known(brokers)
    return one


def play(nearness, current, rounds, moves=None):
    """Go through rounds of milliseconds by broker, as a client does: where it is after each."""
    places = []
    for rtts in rounds:
        ns = {name: None if ms is None else int(ms * MS) for name, ms in rtts.items()}
        nearness.measured(current, ns)
        if (there := nearness.nearer()) is not None:
            current = there
        places.append(current)
    return places


def test_the_client_moves_to_a_clearly_nearer_broker_once_it_has_stayed():
    places = play(near("far", "near"), "far", [{"far": 40, "near": 1}] * (STAY + 5))
    assert places == ["far"] * STAY + ["near"] * 5


def test_a_broker_that_comes_later_has_to_be_nearer_several_times():
    rounds = [{"far": 40, "near": None}] * (STAY + 2) + [{"far": 40, "near": 1}] * IN_A_ROW
    assert play(near("far", "near"), "far", rounds)[-2:] == ["far", "near"]


def test_one_good_measurement_is_not_enough():
    rounds = [{"far": 40, "near": 40}] * STAY
    rounds += [{"far": 40, "near": 1}, {"far": 40, "near": 80}] * 10
    assert {*play(near("far", "near"), "far", rounds)} == {"far"}


@given(st.lists(st.tuples(st.floats(20, 26), st.floats(20, 26)), max_size=60))
def test_between_equal_brokers_nobody_moves(times):
    rounds = [{"a": a, "b": b} for a, b in times]
    assert {*play(near("a", "b"), "a", rounds)} <= {"a"}


@given(st.lists(st.tuples(st.floats(0, MARGIN_NS / MS), st.floats(0, MARGIN_NS / MS)), max_size=60))
def test_a_few_milliseconds_are_not_worth_a_move(times):
    rounds = [{"a": a, "b": b} for a, b in times]
    assert {*play(near("a", "b"), "a", rounds)} <= {"a"}


@given(st.lists(st.tuples(*[st.one_of(st.none(), st.floats(0, 500))] * 3), max_size=120))
def test_whatever_is_measured_a_client_stays_for_a_while(times):
    places = play(near("a", "b", "c"), "a", [dict(zip("abc", one, strict=True)) for one in times])
    moves = [at for at in range(1, len(places)) if places[at] != places[at - 1]]
    assert all(later - earlier >= STAY for earlier, later in pairwise(moves))


def test_the_nearest_of_several_is_chosen():
    rounds = [{"a": 90, "b": 30, "c": 20, "d": None}] * (STAY + 1)
    assert play(near(*"abcd"), "a", rounds)[-1] == "c"


def test_who_is_nowhere_or_at_a_broker_of_unknown_distance_does_not_move():
    assert {*play(near("a", "b"), None, [{"a": 90, "b": 1}] * 20)} == {None}
    assert {*play(near("a", "b"), "a", [{"a": None, "b": 1}] * 20)} == {"a"}
    assert {*play(near("b"), "elsewhere", [{"b": 1}] * 20)} == {"elsewhere"}


def test_a_broker_that_failed_has_to_be_nearer_for_longer():
    for failures in (1, 2, DOUBLED_MAX + 3):
        nearness = near("far", "near")
        for _ in range(failures):
            nearness.failed("near")
        nearness.failed("gone")
        needed = IN_A_ROW * 2 ** min(failures, DOUBLED_MAX)
        places = play(nearness, "far", [{"far": 40, "near": 1}] * (max(needed, STAY + 1) + 1))
        assert places.index("near") == max(needed - 1, STAY)
    nearness.welcomed("near")
    nearness.welcomed("gone")
    assert nearness.ordered() == ["near", "far"]


def test_failed_and_unknown_brokers_are_tried_last():
    nearness = near("far", "unknown", "near", "nearest")
    nearness.measured("far", {"far": 40 * MS, "near": 2 * MS, "nearest": MS})
    nearness.failed("nearest")
    assert nearness.ordered() == ["near", "far", "unknown", "nearest"]


def test_the_oldest_measurement_is_repeated_first():
    nearness, seen = near(*"abcdef"), []
    for _ in range(5):
        seen.append(nearness.due("c", 3))
        nearness.measured("c", dict.fromkeys(seen[-1], MS))
    assert all(one[0] == "c" and len({*one}) == 3 for one in seen)
    assert {*seen[0][1:], *seen[1][1:], *seen[2][1:]} == {*"abdef"}
    assert len(nearness.due(None, 3)) == len(nearness.due("elsewhere", 3)) == 3


def test_a_broker_that_is_gone_is_forgotten():
    nearness = near("far", "near")
    nearness.measured("far", {"far": 40 * MS, "near": MS})
    nearness.known(["far"])
    nearness.measured("far", {"far": 40 * MS, "near": MS})
    assert nearness.ordered() == ["far"]
    nearness.known(["far", "near"])
    assert nearness.rtt_ns("near") == nearness.rtt_ns("other") == float("inf")
