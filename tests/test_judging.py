"""Models of movement, judged on moves that they have not learnt from."""

import pytest

from wayfare.core.messages import BrokerId, ClientId
from wayfare.pipeline.judging import Counted, judge, learn


def counted(previous: str, broker: str, to: str, train: int, test: int) -> Counted:
    return Counted(
        ClientId(""), BrokerId(previous), BrokerId(broker), BrokerId(to), train=train, test=test
    )


ROWS = [
    counted("x", "b", "c", 900, 10),
    counted("y", "b", "d", 50, 30),
    counted("y", "b", "e", 50, 50),
    counted("y", "b", "f", 0, 10),  # nobody had gone there before
    counted("b", "c", "b", 7, 0),
    counted("", "z", "b", 0, 100),  # nor from there
]


def test_what_was_never_seen_is_not_learnt() -> None:
    model = learn(ROWS, 2, 1, lambda one: one.train)
    assert model.successors(BrokerId("b"), 1) == ["c", "d", "e"]
    assert model.brokers() == ["c", "b"]
    assert all(one.count for one in model.moves)


def test_every_move_counts_also_if_nothing_could_be_known_of_it() -> None:
    (first, second), _ = judge({"all": ROWS}, 2, 1, False, 0.95)
    assert first.moves == second.moves == 200
    assert first.top == {1: 10 / 200, 3: 90 / 200, 5: 90 / 200}
    assert second.top == {1: 40 / 200, 3: 90 / 200, 5: 90 / 200}


def test_sets_are_weighed_by_brokers_and_by_moves() -> None:
    _, sets = judge({"all": ROWS}, 2, 1, False, 0.9)
    first, second = (one for one in sets if one.coverage == 0.9)
    # From b to c is enough, and from c to b; who came to b from y went to d or e.
    assert (first.covered, first.mean_per_broker, first.largest) == (10 / 200, 1, 1)
    assert first.mean_per_move == 100 / 200
    assert second.covered == 90 / 200
    assert second.mean_per_broker == pytest.approx(((900 * 1 + 100 * 2) / 1000 + 1) / 2)
    assert second.mean_per_move == pytest.approx((10 * 1 + 90 * 2) / 200)
