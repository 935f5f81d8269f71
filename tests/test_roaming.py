"""Clients that roam: the experiment's figures, and the command that prints them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wayfare.cli import main
from wayfare.core.broker import RELOCATIONS
from wayfare.core.filters import Filter
from wayfare.core.messages import AnyMessage, Tunnel, Update
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.deliveries import Deliveries, judge, percentile
from wayfare.sim.links import MS_NS
from wayfare.sim.oracle import check
from wayfare.sim.roaming import Figures, Parameters, Roaming, comparison, run
from wayfare.sim.topology import path
from wayfare.sim.world import World

SMALL = Parameters(height=3, degree=2, publishers=4, movers=6, moves=4, dwell_ns=300 * MS_NS)


def small(**how: Any) -> Parameters:
    return Parameters(**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__} | how)


# ---- what moving costs -------------------------------------------------------------------------


@pytest.mark.parametrize("routing", [one for one in STRATEGIES if one != "merging"])
def test_handoff_costs_two_messages_a_hop_and_none_off_the_path(routing: str) -> None:
    alone = Roaming(small(routing=routing, one_at_a_time=True, away_ns=100 * MS_NS))
    figures = alone.run()
    assert [move.control for move in alone.moves] == [2 * len(move.path) for move in alone.moves]
    assert (figures.control_per_hop, figures.control_off_path) == (2.0, 0)
    assert figures.moves == len(alone.moves) == 24
    assert figures.lost == figures.duplicates == figures.order_violations == figures.gaps == 0


def test_handoff_under_merging_costs_more_where_tables_are_worded_anew() -> None:
    """What was merged cannot be taken apart, so the same subscriptions give other entries."""
    alone = Roaming(small(routing="merging", one_at_a_time=True, movers=10, away_ns=100 * MS_NS))
    on_errands: dict[int, int] = {}

    def count(sender: str, receiver: str, message: AnyMessage) -> None:
        if type(message) is Update and message.errands:
            on_errands[len(alone.moves)] = on_errands.get(len(alone.moves), 0) + 1

    alone.world.watchers.append(count)
    figures = alone.run()
    assert list(on_errands.values()) == [2 * len(move.path) for move in alone.moves]
    assert figures.control_off_path, "if that has become 0: merging goes with the others, above"
    assert figures.lost == figures.duplicates == figures.order_violations == 0


@pytest.mark.parametrize(
    ("routing", "off_path"), [("simple", 0), ("identity", 0), ("covering", 0), ("merging", 1)]
)
def test_what_a_wider_filter_hid_from_merging_shows_when_it_moves(
    routing: str, off_path: int
) -> None:
    """At a, t0 >= 25 is covered; at b it merges with t1 >= 25, and n has to hear of the merge."""
    world = World(routing=routing)
    world.add_brokers([("a", "x"), ("x", "b"), ("x", "n")])
    world.add_client("p", "n").advertise("topic in ('t0', 't1') and value >= 0")
    world.add_client("wide", "a").subscribe("topic = 't0' and value >= 0")
    mover = world.add_client("mover", "a")
    mover.subscribe("topic = 't0' and value >= 25")
    world.add_client("other", "b").subscribe("topic = 't1' and value >= 25")
    world.settle()
    told: list[str] = []
    world.watchers.append(lambda sender, receiver, _: told.append(f"{sender} {receiver}"))
    mover.attach("b")
    world.settle()
    assert sorted({*told} & {"b x", "x a", "a x", "x b"}) == ["a x", "b x", "x a", "x b"]
    assert told.count("x n") == off_path
    assert check(world).violations == ()


def test_moves_that_overlap_have_no_path_of_their_own() -> None:
    figures = run(SMALL)
    assert figures.control_off_path is None
    assert figures.control_per_hop == pytest.approx(2.0, abs=0.1)


def test_home_tunnels() -> None:
    figures = run(small(relocation="home"))
    assert 0 < figures.tunnelled < figures.notifications
    assert figures.acknowledgements > 0
    assert run(SMALL).tunnelled == run(SMALL).acknowledgements == 0


def test_acknowledgements_in_a_tunnel_are_no_price_of_moving() -> None:
    alone = Roaming(small(relocation="home", one_at_a_time=True, moves=1))
    tunnels = 0

    def count(sender: str, receiver: str, message: AnyMessage) -> None:
        nonlocal tunnels
        tunnels += type(message) is Tunnel

    alone.world.watchers.append(count)
    figures = alone.run()
    assert tunnels == figures.control + figures.tunnelled + figures.acknowledgements


# ---- what is lost ------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", STRATEGIES)
def test_handoff_loses_nothing(routing: str) -> None:
    roaming = Roaming(small(routing=routing))
    figures = roaming.run()
    assert figures.delivered == figures.expected > 300
    assert figures.lost == figures.duplicates == figures.order_violations == figures.gaps == 0
    assert figures.moves == 24
    verdict = check(roaming.world)
    assert verdict.violations == ()
    assert (verdict.published, verdict.delivered) == (figures.published, figures.delivered)


def test_naive_loses_what_is_published_while_nobody_is_there() -> None:
    figures = run(small(relocation="naive"))
    assert figures.lost > figures.expected // 10
    assert figures.delivered - figures.duplicates + figures.lost == figures.expected


def test_naive_delivers_twice_in_a_hurry() -> None:
    hurry = small(relocation="naive", away_ns=0, moves=20, rate=40.0)
    figures = run(hurry)
    assert figures.lost > 0
    assert figures.duplicates > 0


def test_every_strategy_sees_the_same_publications_and_moves() -> None:
    figures = [run(small(relocation=relocation)) for relocation in RELOCATIONS]
    seen = {(one.published, one.expected, one.moves, one.hops) for one in figures}
    assert len(seen) == 1


def test_same_seed_same_figures() -> None:
    assert run(SMALL) == run(SMALL)
    assert run(small(seed=1)) != run(SMALL)


def test_the_log_is_judged_by_definition() -> None:
    want, ms = Filter.parse("v > 0"), MS_NS

    def attached(at: int, broker: str) -> Event:
        return Event(at * ms, "attached", client="m", broker=broker)

    def published(at: int, number: int, value: int = 1) -> Event:
        return Event(at * ms, "published", client="p", number=number, attributes={"v": value})

    def delivered(at: int, number: int) -> Event:
        return Event(at * ms, "delivered", client="m", publisher="p", number=number)

    events = [
        attached(0, "a"),
        Event(0, "subscribed", client="m", filter=want),
        published(1, 1),
        published(2, 2),
        published(3, 3, value=0),  # not wanted
        published(4, 4),
        published(5, 5),
        delivered(6, 1),
        attached(10, "b"),
        published(11, 6),
        delivered(12, 1),  # twice
        delivered(13, 4),
        delivered(14, 2),  # out of order; 5 never comes
        Event(15 * ms, "lost", client="m", count=1, reason="backlog_count"),
        delivered(16, 6),
        attached(20, "b"),  # no move
        attached(30, "a"),
        Event(31 * ms, "delivered", client="x", publisher="p", number=5),  # somebody else
    ]
    assert judge(events, ["m"]) == Deliveries(
        published=6,
        expected=5,
        delivered=5,
        lost=1,
        duplicates=1,
        order_violations=1,
        gaps=1,
        moves=[("a", "b"), ("b", "a")],
        live_ns=[6 * ms],
        first_ns=[2 * ms],
    )


def test_a_session_is_there_one_round_trip_after_the_attachment() -> None:
    figures = run(small(one_at_a_time=True, link_latency_ns=20 * MS_NS, rate=100.0))
    # 2 or 4 hops there and back, and 2 ms between a client and its broker, both ways.
    assert figures.first_p50_ms == 4 * 20 * 2 + 4
    assert figures.first_p50_links == pytest.approx(8.2)
    assert figures.live_p50_ms is not None
    assert figures.live_p50_ms >= figures.first_p50_ms
    assert run(small(link_latency_ns=0)).live_p50_links is None


def test_the_path_between_two_brokers() -> None:
    edges = topology.balanced(3, 2)
    assert path(edges, "b3", "b4") == [("b1", "b3"), ("b1", "b4")]
    assert len(path(edges, "b3", "b6")) == 4
    assert path(edges, "b3", "b3") == []


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([7], 99) == 7


def test_a_comparison_is_every_strategy_on_every_tree() -> None:
    points = list(comparison(routing="simple", moves=1))
    assert [one.relocation for one in points] == [*RELOCATIONS] * 3
    assert all(one.one_at_a_time and one.routing == "simple" and one.moves == 1 for one in points)
    assert [one.movers for one in comparison([341], ["naive"], movers=2)] == [2]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"movers": 0}, "movers is at least 1"),
        ({"height": 1}, "height is at least 2"),
        ({"height": 9, "degree": 9}, "more than 1365 brokers"),
        ({"height": 2000, "degree": 1}, "more than 1365 brokers"),
        ({"away_ns": -1}, "away is a time, and not negative"),
        ({"rate": 0.0}, "rate is a number of publications per second"),
        ({"rate": float("nan")}, "rate is a number of publications per second"),
        ({"silent": 1.5}, "silent is a share from 0 to 1"),
    ],
)
def test_parameters_that_make_no_sense(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Parameters(**wrong)


def test_a_tree_that_has_no_name() -> None:
    with pytest.raises(UsageError, match="brokers is one of 7, 85, 341"):
        SMALL.for_brokers(8)


# ---- the command -------------------------------------------------------------------------------

QUICK = ["--publishers", "2", "--movers", "2", "--moves", "1", "--dwell", "200", "--away", "50"]


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sim", "roaming", "--brokers", "7", "--relocation", "naive", "--seed", "3", "--json"]
    assert main([*command, *QUICK]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == list(Figures.__struct_fields__)
    assert (figures["relocation"], figures["routing"]) == ("naive", "covering")
    assert (figures["seed"], figures["brokers"], figures["moves"]) == (3, 7, 2)


@pytest.mark.parametrize("more", [[], ["--one-at-a-time"]])
def test_the_command_is_readable(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    tree = ["--height", "2", "--degree", "3"]
    assert main(["sim", "roaming", *tree, "--routing", "simple", *QUICK, *more]) == 0
    out = capsys.readouterr().out
    assert out.startswith("handoff, simple routing, seed 0: 2 movers, 2 publishers, 4 brokers\n")
    assert "2.00 a hop" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_table_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "roaming", "--table", "--brokers", "7", *QUICK]) == 0
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert "relocation" in head
    assert {*line} == {*"| -:"}
    assert [row.split("|")[2].strip() for row in rows] == [*RELOCATIONS]
    assert {len(one) for one in (head, line, *rows)} == {len(head)}
    assert len(head) <= 80


def test_the_table_leaves_out_what_does_not_go_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["sim", "roaming", "--table", "--json", "--brokers", "7", "--routing", "flooding"]
    assert main([*command, *QUICK]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["relocation"] for row in rows] == [one for one in RELOCATIONS if one != "junction"]
    assert "wayfare: left out: junction follows subscriptions" in err
    assert main([*command, "--relocation", "handoff", *QUICK]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--movers", "0"], "wayfare: movers is at least 1"),
        (["--brokers", "7", "--height", "3"], "leave --brokers"),
        (["--relocation", "junction", "--routing", "flooding"], "choose another relocation"),
        (["--rate", "-1"], "rate is a number of publications per second"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["sim", "roaming", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("time", ["soon", "nan", "inf"])
def test_a_time_that_is_none(capsys: pytest.CaptureFixture[str], time: str) -> None:
    with pytest.raises(SystemExit):
        main(["sim", "roaming", "--away", time])
    assert f"'{time}' is no time: give milliseconds, like 500" in capsys.readouterr().err
