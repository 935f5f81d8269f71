"""Models of movement: what follows from what was counted, and their files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfare.core.messages import BrokerId, ClientId
from wayfare.core.prediction import (
    CLIENT_WORTH,
    EVERYBODY,
    PREVIOUS_WORTH,
    START,
    Movement,
    Moves,
    decode,
    encode,
)
from wayfare.errors import ModelError

A, B, C, D = (BrokerId(name) for name in "abcd")
ANNA = ClientId("anna")


def moves(*rows: tuple[str, str, str, int], client: str = EVERYBODY) -> list[Moves]:
    return [
        Moves(ClientId(client), BrokerId(previous), BrokerId(broker), BrokerId(to), count)
        for previous, broker, to, count in rows
    ]


# From b: mostly to c, but who came from c goes back to a. Twice somebody went to d.
SEEN = moves(("a", "b", "c", 60), ("c", "b", "a", 38), ("", "b", "d", 2))


def test_first_order_is_the_share_of_all_moves_from_a_broker() -> None:
    assert Movement(SEEN).likely(B) == [(C, 0.6), (A, 0.38), (D, 0.02)]
    assert Movement(SEEN, order=1).likely(B, previous=C) == Movement(SEEN).likely(B)


def test_second_order_goes_by_the_broker_before_as_far_as_that_was_seen() -> None:
    model = Movement(SEEN)
    assert [model.next_broker(B, previous) for previous in (A, C, START, D, None)] == [
        C,
        A,
        D,
        C,
        C,
    ]
    assert model.likely(B, D) == model.likely(B)  # nobody came from there
    share = dict(model.likely(B, C))
    assert share[A] == pytest.approx((38 + PREVIOUS_WORTH * 0.38) / (38 + PREVIOUS_WORTH))
    assert share[C] == pytest.approx(PREVIOUS_WORTH * 0.6 / (38 + PREVIOUS_WORTH))


def test_clients_have_ways_of_their_own_once_there_are_many_moves() -> None:
    model = Movement(SEEN + moves(("a", "b", "d", 1000), client="anna"))
    assert model.next_broker(B, A, ANNA) == D
    assert dict(model.likely(B, A, ClientId("ben"))) == dict(model.likely(B, A))
    own = Movement(SEEN + moves(("a", "b", "d", 20), client="anna"))
    everybody = dict(own.likely(B, A))[D]
    assert dict(own.likely(B, A, ANNA))[D] == pytest.approx(
        (20 + CLIENT_WORTH * everybody) / (20 + CLIENT_WORTH)
    )
    assert own.next_broker(B, A, ANNA) == C


def test_nobody_knows_where_to_go_from_where_nobody_went() -> None:
    assert Movement(SEEN).next_broker(C) is None
    assert Movement(SEEN).successors(C, 0.95) == []
    assert Movement(SEEN).brokers() == [B]


@pytest.mark.parametrize(
    ("coverage", "expected"),
    [(0.5, [C]), (0.6, [C]), (0.61, [C, A]), (0.98, [C, A]), (1, [C, A, D])],
)
def test_successors_are_the_fewest_that_cover_so_much(
    coverage: float, expected: list[BrokerId]
) -> None:
    assert Movement(SEEN).successors(B, coverage) == expected


def test_successors_may_go_by_the_broker_before() -> None:
    assert Movement(SEEN).successors(B, 0.95, previous=A) == [C]


def test_who_stays_long_begins_another_journey() -> None:
    model = Movement(SEEN, journey_ns=10)
    assert [model.previous(A, stayed) for stayed in (10, 11)] == [A, START]
    assert model.previous(None, 0) == START


names = st.sampled_from(["a", "b", "c", "d", "e"])
rows = st.lists(
    st.builds(
        Moves,
        st.sampled_from(["", "anna", "ben"]).map(ClientId),
        st.one_of(st.just(""), names).map(BrokerId),
        names.map(BrokerId),
        names.map(BrokerId),
        st.integers(1, 1000),
    ),
    max_size=30,
)


@given(rows, names, names, st.floats(0.01, 1))
def test_no_smaller_set_covers_as_much(
    seen: list[Moves], broker: str, previous: str, coverage: float
) -> None:
    model = Movement(seen)
    likely = model.likely(BrokerId(broker), BrokerId(previous), ANNA)
    shares = [share for _, share in likely]
    assert not likely or sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    size = len(model.successors(BrokerId(broker), coverage, BrokerId(previous), ANNA))
    assert not likely or sum(shares[:size]) >= coverage - 1e-6
    assert not size or sum(shares[: size - 1]) < coverage


@given(rows, st.sampled_from([1, 2]), st.integers(0, 10**12))
def test_a_model_is_the_same_when_it_was_written_and_read(
    seen: list[Moves], order: int, journey_ns: int
) -> None:
    model = Movement(seen, order, journey_ns)
    again = decode(encode(model))
    assert (again.moves, again.order, again.journey_ns) == (model.moves, order, journey_ns)
    assert encode(again) == encode(Movement(seen[::-1], order, journey_ns)) == encode(model)


def changed(**how: Any) -> bytes:
    return json.dumps(json.loads(encode(Movement(SEEN))) | how).encode()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "it is no movement model"),
        (b"PAR1", "it is no movement model"),
        (b"[]", "it is no movement model"),
        (encode(Movement(SEEN))[:-10], "it is no movement model"),
        (changed(format="other"), "it is 'other', and not 'wayfare movement'"),
        (changed(version=2), "it is of version 2, but this Wayfare reads version 1"),
        (changed(order=3), "it is no movement model .*order"),
        (changed(journey_ns=-1), "it is no movement model .*journey_ns"),
        (changed(moves=[[-1, -1, 0, 0, 0]]), "it is no movement model .*moves"),
        (changed(moves=[[-1, -1, 0]]), "it is no movement model .*moves"),
        (changed(moves=[[-1, -1, 0, 9, 1]]), "a row of it names number 9, which it has not"),
        (changed(moves=[[0, -1, 0, 1, 1]]), "a row of it names number 0, which it has not"),
    ],
)
def test_what_is_no_model_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ModelError, match=f"{complaint}.*: make one with `wayfare mine"):
        decode(data)
