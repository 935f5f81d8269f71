"""Models of movement, judged on moves that they have not learnt from."""

import pytest

from wayfare.core.messages import BrokerId, ClientId
from wayfare.pipeline.judging import Counted, Move, judge, learn, play


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
    first, second = (one for one in sets if (one.sized, one.coverage) == ("context", 0.9))
    # From b to c is enough, and from c to b; who came to b from y went to d or e.
    assert (first.covered, first.mean_per_broker, first.largest) == (10 / 200, 1, 1)
    assert first.mean_per_move == 100 / 200
    assert second.covered == 90 / 200
    assert second.mean_per_broker == pytest.approx(((900 * 1 + 100 * 2) / 1000 + 1) / 2)
    assert second.mean_per_move == pytest.approx((10 * 1 + 90 * 2) / 200)


def test_sets_by_share_cover_as_much_together_with_less() -> None:
    """From half of the brokers clients go two ways, from the others anywhere."""
    rows = [counted("", "b", to, 500, 500) for to in "cd"]
    rows += [counted("", "z", to, 100, 100) for to in "cdefghijkl"]
    _, sets = judge({"all": rows}, 1, 1, False, 0.9)
    context, share = (one for one in sets if one.coverage == 0.9)
    assert (context.sized, context.covered, context.mean_per_move) == ("context", 0.95, 5.5)
    assert (share.sized, share.covered, share.mean_per_move) == (
        "share",
        1.0,
        6.0,
    )  # all are as likely
    rows[-1] = counted("", "z", "l", 99, 99)
    rows[-2] = counted("", "z", "k", 101, 101)
    _, sets = judge({"all": rows}, 1, 1, False, 0.95)
    context, share = (one for one in sets if one.coverage == 0.95)
    assert share.mean_per_move <= context.mean_per_move
    assert share.covered >= 0.95


def moved(rounds: int) -> list[Move]:
    """Round and round; at b, clients that came from a go on to c, the others to a."""
    way = [("c", "a", "b"), ("a", "b", "c"), ("b", "c", "b"), ("c", "b", "a"), ("b", "a", "c")]
    return [
        (second, ClientId("anna"), *(BrokerId(one) for one in way[second % len(way)]))
        for second in range(rounds * len(way))
    ]


def test_brokers_that_learn_are_judged_after_the_split() -> None:
    found = play(moved(400), 1000, 0.95, "the log")
    assert found.moves == 1000
    assert found.covered > 0.94 and found.least_covered > 0.93
    assert found.mean_per_move < 1.2  # the broker before decides
    first = play(moved(400), 1000, 0.95, "the log", order=1)
    assert first.covered > 0.94 and first.mean_per_move > found.mean_per_move


def test_a_mined_model_is_a_head_start() -> None:
    rows = [counted(*(str(one) for one in move[2:]), 1, 0) for move in moved(100)]
    model = learn(rows, 2, 1, lambda one: one.train)
    later = moved(10)
    cold = play(later, 0, 0.95, "nothing")
    warm = play(later, 0, 0.95, "the model", model=model)
    assert cold.covered < 0.95 < warm.covered == 1
