"""What a broker learns of where its clients go."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfare.core.learning import (
    CLIENT_CONTEXTS_MAX,
    CONTEXTS_MAX,
    COUNT_MAX,
    LEAST,
    NEXT_MAX,
    Learner,
    Saved,
)
from wayfare.core.messages import LISTENERS_MAX, BrokerId, ClientId
from wayfare.core.prediction import EVERYBODY, START, Movement, Moves

A, B, C, D, E = (BrokerId(name) for name in "abcde")
ANNA, BEN = ClientId("anna"), ClientId("ben")


def go(learner: Learner, previous: BrokerId, client: ClientId, to: BrokerId, times: int = 1) -> int:
    """How often it was expected."""
    hits = 0
    for _ in range(times):
        foreseen = to in learner.expected(previous, client)
        learner.went(previous, client, to, foreseen)
        hits += foreseen
    return hits


def test_nothing_is_expected_before_a_client_went() -> None:
    learner = Learner()
    assert learner.expected(A, ANNA) == []
    assert go(learner, A, ANNA, C, 2) == 1
    assert learner.expected(A, BEN) == [C]


def test_the_broker_before_decides_once_it_was_seen() -> None:
    learner = Learner()
    for _ in range(100):
        go(learner, A, ANNA, C)
        go(learner, C, BEN, A)
    assert learner.expected(A, ANNA) == [C]
    assert learner.expected(C, ANNA) == [A]
    assert learner.expected(D, ANNA) == learner.expected(START, BEN) == [A, C]


def test_a_map_is_what_is_expected_first() -> None:
    learner = Learner()
    learner.begin_near([A, C])
    assert learner.expected(START, ANNA) == [A, C]


def test_a_mined_model_is_taken_over_in_its_proportions() -> None:
    rows = [("a", "c", 60_000), ("a", "d", 30_000), ("a", "e", 10_000), ("c", "a", 100_000)]
    moves = [Moves(EVERYBODY, BrokerId(one), B, BrokerId(to), count) for one, to, count in rows]
    elsewhere = [Moves(EVERYBODY, A, D, E, 100)]
    learner = Learner(0.85)
    learner.begin(Movement([*moves, *elsewhere]), B, 0.2)
    assert learner.expected(A, ANNA) == [C, D]
    assert learner.expected(C, ANNA) == [A]
    (counts,) = (counts for _, previous, counts in learner.save().rows if previous == A)
    assert sum(counts.values()) <= COUNT_MAX
    assert counts[C] == pytest.approx(2 * counts[D], abs=2)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_as_much_is_expected_as_was_wanted_however_clients_move(coverage: float) -> None:
    random = Random(7)
    learner = Learner(coverage)
    names = [BrokerId(f"b{i}") for i in range(12)]
    hits = 0
    for number in range(6_000):
        if number % 2_000 == 0:  # new habits
            random.shuffle(names)
        to = names[min(int(random.expovariate(0.4)), 11)]
        hits += go(learner, A, ANNA, to)
    assert hits / 6_000 == pytest.approx(coverage, abs=0.02)


def test_the_ways_of_single_clients_are_used_where_they_foretell_more() -> None:
    learner = Learner()
    for _ in range(300):
        go(learner, A, ANNA, C)
        go(learner, A, BEN, D)
    assert learner.gain > 0
    assert learner.expected(A, ANNA)[0] == C
    assert learner.expected(A, BEN)[0] == D
    random, mixed = Random(3), Learner()
    for _ in range(300):
        go(mixed, A, random.choice([ANNA, BEN]), random.choice([C, D, E]))
    assert mixed.gain < 1  # nothing, but for chance


def test_what_is_learnt_is_bounded() -> None:
    learner = Learner()
    random = Random(1)
    for number in range(3 * CLIENT_CONTEXTS_MAX):
        client, previous = ClientId(f"c{number}"), BrokerId(f"p{number % (2 * CONTEXTS_MAX)}")
        go(learner, previous, client, BrokerId(f"b{random.randrange(10 * NEXT_MAX)}"))
    go(learner, A, ANNA, C, 3 * COUNT_MAX)
    rows = learner.save().rows
    assert sum(not client for client, _, _ in rows) == CONTEXTS_MAX
    assert sum(bool(client) for client, _, _ in rows) == CLIENT_CONTEXTS_MAX
    assert all(len(counts) <= NEXT_MAX for _, _, counts in rows)
    assert all(sum(counts.values()) <= COUNT_MAX for _, _, counts in rows)
    assert LEAST[0] <= learner.least <= LEAST[1]
    assert len(learner.expected(D, BEN)) <= LISTENERS_MAX
    assert (EVERYBODY, None) in {(client, previous) for client, previous, _ in rows}


departures = st.lists(
    st.tuples(
        st.sampled_from([START, A, C]), st.sampled_from([ANNA, BEN]), st.sampled_from([C, D, E])
    ),
    max_size=60,
)


@given(departures, departures)
def test_a_learner_that_was_saved_goes_on_as_it_would_have(
    before: list[tuple[BrokerId, ClientId, BrokerId]],
    after: list[tuple[BrokerId, ClientId, BrokerId]],
) -> None:
    learner, again = Learner(), Learner()
    for one in before:
        go(learner, *one)
    data = msgspec.msgpack.encode(learner.save())
    again.load(msgspec.msgpack.decode(data, type=Saved))
    for one in after:
        assert go(learner, *one) == go(again, *one)
    assert learner.save() == again.save()
