"""The city of the publisher mobility paper: the experiment's figures, its command, and its shapes."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from wayfare.cli import main
from wayfare.core.messages import BrokerId
from wayfare.errors import UsageError
from wayfare.sim import topology
from wayfare.sim.city import City, run
from wayfare.sim.experiment import ALGORITHMS, Figures, Parameters
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.world import World

SMALL: dict[str, Any] = {
    "height": 3,
    "degree": 2,
    "publishers": 3,
    "subscribers": 6,
    "minutes": 2.0,
    "warm_up_ns": 20 * SECOND_NS,
}
# Links on which nothing queues: what takes time is the way.
WIDE: dict[str, Any] = {"message_bytes": 0, "broker_bps": 10**12, "client_bps": 10**12}


def small(**how: Any) -> Parameters:
    return Parameters(**SMALL | how)


# ---- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_figures_add_up(algorithm: str) -> None:
    f = run(small(algorithm=algorithm))
    assert f.moves > 0 and f.rebuilds == f.moves
    assert sum(f.control.values()) == f.control_total
    assert f.control_per_move == round(f.control_total / f.moves, 3)
    assert f.link_messages <= f.control_total
    assert f.expected == f.delivered + f.lost
    assert f.duplicates == 0
    assert len(f.probe_ratio) == 20 and f.probe_ratio[-1] == 1.0
    assert [state.brokers for state in f.state] == [1, 2, 4]


def test_every_algorithm_sees_the_same_ways_and_publications() -> None:
    seen = {(f.moves, f.probes, f.expected) for f in (run(small(algorithm=a)) for a in ALGORITHMS)}
    assert len(seen) == 1


def test_same_seed_same_figures() -> None:
    assert run(small()) == run(small())
    assert run(small()) != run(small(seed=1))


def test_a_border_is_crossed_every_cell_and_disconnection_is_part_of_it() -> None:
    assert Parameters(speed_kmh=50).period_ns() == 36 * SECOND_NS
    city = City(small(publishers=1, minutes=6.0))
    assert city.run().moves == 10


def test_publishers_go_to_adjacent_leaves_and_turn_at_the_ends() -> None:
    city = City(small(publishers=1, turn=0.0))
    one = city.publishers["p0"]
    at = []
    for _ in range(8):
        at.append(one.at)
        city._go(one)
    assert {abs(a - b) for a, b in pairwise(at)} == {1}
    assert min(at) == 0 and max(at) == len(city.row) - 1


@pytest.mark.parametrize(
    ("home", "around"), [(0, [0, 1, 2, 3, 4]), (7, [5, 6, 7, 8, 9]), (15, [11, 12, 13, 14, 15])]
)
def test_proxies_are_the_five_around_the_first_broker(home: int, around: list[int]) -> None:
    city = City(small(height=3, degree=4))
    proxies = city._proxies(BrokerId(city.row[home]))
    assert [city.place[proxy] for proxy in proxies] == around


def test_overshoot_keeps_a_publisher_near_its_proxies() -> None:
    city = City(small(height=4, publishers=5, proxies=2, overshoot=1))
    for one in city.publishers.values():
        assert one.low <= one.at <= one.high
        assert one.high - one.low <= 3


def test_locality_is_a_share_of_publishers_with_the_same_publication() -> None:
    city = City(small(publishers=10, locality=0.9))
    assert len(city.by_filter) == 2
    assert max(len(offer.offered_by) for offer in city.offers) == 9
    assert city.run().control_by_hops is None  # nobody knows whose entry it was


def test_publishers_that_start_together_move_in_waves() -> None:
    figures = run(small(start="together", minutes=1.0))
    assert figures.moves == 2 * 3  # after 3 s and 39 s, all of them


def test_a_cold_start_is_measured_from_the_first_attachment_on() -> None:
    figures = run(small(start="cold", algorithm="standard", minutes=0.5))
    assert (figures.moves, figures.rebuilds, figures.probes) == (0, 3, 3 * 20)
    assert figures.control_per_move is None
    assert figures.control["advertisements"] > 0


@pytest.mark.parametrize("routing", ["simple", "identity", "merging"])
def test_rebuilding_ends_at_the_same_time_under_every_routing(routing: str) -> None:
    """Nearly: merged filters are longer, and subscriptions may be there for another publisher."""
    usual, other = run(small(**WIDE)), run(small(routing=routing, **WIDE))
    assert other.rebuilds == usual.rebuilds and other.lost == 0
    assert other.rebuild_max_ms is not None and usual.rebuild_max_ms is not None
    assert other.rebuild_max_ms <= usual.rebuild_max_ms + 1


# ---- the end of rebuilding -----------------------------------------------------------------------


def rebuild_ms(algorithm: str, **how: Any) -> tuple[Figures, list[float], list[int]]:
    """Of one publisher and one subscriber: each time, and how far they were apart."""
    city = City(small(algorithm=algorithm, publishers=1, subscribers=1, **WIDE | how))
    hops: list[int] = []
    come = city._come

    def watched(one: Any) -> None:
        come(one)
        if one.stay is not None and one.stay.measured:
            hops.append(len(one.stay.needed))

    city._come = watched  # type: ignore[method-assign]
    figures = city.run()
    return figures, [round(time / MS_NS, 1) for time in city.rebuild_ns], sorted(hops)


def test_standard_rebuilds_with_one_round_trip_to_the_subscriber() -> None:
    """2 ms to the broker, 10 ms for each hop there (advertisement) and back (subscription)."""
    _, times, hops = rebuild_ms("standard")
    assert times == [2.0 + 20 * n if n else 0.0 for n in hops]
    assert max(hops) > 0


def test_prefetching_has_rebuilt_before_the_publisher_comes() -> None:
    _, times, _ = rebuild_ms("prefetching")
    assert set(times) == {0.0}


def test_a_publisher_that_is_off_again_has_no_tree() -> None:
    figures, _, _ = rebuild_ms("standard", broker_latency_ns=20 * SECOND_NS)
    assert figures.rebuild_unfinished > 0


def test_a_tree_that_falls_apart_again_is_not_complete() -> None:
    """The old tree looks complete from the new broker while it is still being torn down."""
    figures, times, _ = rebuild_ms("standard", broker_latency_ns=2 * SECOND_NS)
    assert figures.lost > 0
    assert min(time for time in times if time) > 2000


def test_a_message_takes_at_least_so_many_bytes_of_the_bandwidth() -> None:
    figures = run(small(publishers=1, message_bytes=1600, client_bps=128_000))
    # 100 ms on each client link, 2 ms latency; none of the subscribers is nearer.
    assert figures.delivery_p50_ms is not None and figures.delivery_p50_ms >= 204
    with pytest.raises(UsageError, match="bytes"):
        LinkSpec(least_bytes=-1)


# ---- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"algorithm": "junction"}, "unknown algorithm"),
        ({"routing": "flooding"}, "without tables"),
        ({"publishers": 0}, "publishers is at least 1"),
        ({"height": 1}, "somewhere to go"),
        ({"height": 12}, "more than 1365"),
        ({"away_ns": -1}, "away is a time"),
        ({"delay_ns": 0}, "delay is above 0"),
        ({"warm_up_ns": 0}, "all attach in it"),
        ({"minutes": 0.0}, "minutes"),
        ({"locality": 1.5}, "locality is a share"),
        ({"turn": -0.1}, "turn is a share"),
        ({"overshoot": -1}, "overshoot"),
        ({"overshoot": 0, "proxies": 1}, "nobody could move"),
        ({"message_bytes": -1}, "message_bytes"),
        ({"speed_kmh": 0.0}, "speed and cell"),
        ({"speed_kmh": 300.0}, "drive slower"),
        ({"start": "late"}, "unknown start"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        small(**how)


# ---- the command -------------------------------------------------------------------------------

COMMAND = "sim city --height 3 --degree 2 --publishers 3 --subscribers 6 --minutes 1".split()


def test_the_command_prints_a_table_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--algorithm", "delayed", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("delayed, covering routing, seed 3: 3 publishers, 6 subscribers, 7")
    assert max(map(len, out.splitlines())) <= 80
    for what in ("advertisements", "probe ratio", "tree complete", "depth 2", "CPU"):
        assert what in out


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--speed", "100", "--warm-up", "30000", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts.pop("cpu_s") >= 0
    given = SMALL | {"minutes": 1.0, "speed_kmh": 100.0, "warm_up_ns": 30 * SECOND_NS}
    expected = msgspec.to_builtins(run(Parameters(**given)))
    assert facts == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--brokers", "85", "--height", "3"], "leave --brokers"),
        (["--speed", "1000"], "drive slower"),
        (["--locality", "2"], "locality is a share"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "city", *words]) == 2
    assert complaint in capsys.readouterr().err


# ---- the published shapes ------------------------------------------------------------------------


shared = pytest.mark.xdist_group("city")  # a process of its own would have to run everything again


def shape(test: Any) -> Any:
    """Slow, and more so on a busy machine."""
    return pytest.mark.slow(pytest.mark.timeout(600)(shared(test)))


once = cache(run)


def figures(algorithm: str, **how: Any) -> Figures:
    return once(Parameters(**{"algorithm": algorithm, "minutes": 1.5} | how))


def cost(algorithm: str, **how: Any) -> float:
    per_move = figures(algorithm, **how).control_per_move
    assert per_move is not None
    return per_move


@shape
def test_standard_and_prefetching_cost_more_than_ten_times_proxy_and_delayed() -> None:
    assert min(cost("standard"), cost("prefetching")) > 10 * max(cost("proxy"), cost("delayed"))
    assert cost("prefetching") > cost("standard")


@shape
def test_delayed_costs_less_than_proxy_if_publishers_leave_their_proxies() -> None:
    """As published. But one that turns at random is mostly near them, and then proxy costs less."""
    away: dict[str, Any] = {"turn": 0.0, "minutes": 12.0, "publishers": 20}
    assert cost("delayed", **away) < cost("proxy", **away)
    assert cost("proxy") < cost("delayed")


@shape
def test_standard_comes_close_to_delayed_where_publications_are_the_same() -> None:
    """Nearly: the publishers with one of their own cost as much as ever."""
    few: dict[str, Any] = {"publishers": 20, "subscribers": 60, "minutes": 2.0}
    same = few | {"locality": 0.9}
    gap = cost("standard", **few) - cost("delayed", **few)
    assert cost("standard", **same) - cost("delayed", **same) < 0.15 * gap
    times = [figures(one, **same).delivery_p50_ms for one in ("standard", "delayed")]
    assert times[0] == pytest.approx(times[1], rel=0.02)


TOGETHER: dict[str, Any] = {"start": "together", "jitter_ns": 3 * SECOND_NS, "speed_kmh": 25.0}


@shape
def test_standard_needs_seconds_until_all_probes_arrive_and_prefetching_none() -> None:
    standard = figures("standard", **TOGETHER)
    late = [ratio or 0 for ratio in standard.probe_ratio]
    assert late[0] < 0.2 and late[4] < 0.9  # after 200 ms, and after one second
    assert late[18] > 0.9  # it takes nearly 4 s
    assert (standard.rebuild_max_ms or 0) > 3000
    assert set(figures("prefetching", **TOGETHER).probe_ratio) == {1.0}
    delayed = [ratio or 0 for ratio in figures("delayed", **TOGETHER).probe_ratio]
    assert delayed[0] > 0.95 and set(delayed[4:]) == {1.0}


@shape
def test_handoff_delivers_every_probe_from_the_first_on() -> None:
    for f in (figures("handoff"), figures("handoff", **TOGETHER)):
        assert set(f.probe_ratio) == {1.0}
        assert f.lost == f.duplicates == 0


FEW: dict[str, Any] = {"publishers": 10, "subscribers": 100}


def check_handoff(heights: tuple[int, ...]) -> None:
    """Flat by the length of the path, and clearly fewer messages than delayed needs."""
    sizes = [figures("handoff", height=height, **FEW) for height in heights]
    for hops in (2, 4):
        costs = [(f.control_by_hops or {})[hops] for f in sizes]
        assert max(costs) < 1.2 * min(costs)
    for height, handoff in zip(heights, sizes, strict=True):
        delayed = figures("delayed", height=height, **FEW)
        assert handoff.moves == delayed.moves > 0
        assert handoff.link_messages < 0.9 * delayed.link_messages


@shared
def test_handoff_costs_its_path_in_a_larger_network_and_fewer_messages_than_delayed() -> None:
    check_handoff((4, 5))  # 85 and 341 brokers


@shape
def test_handoff_costs_its_path_in_the_largest_network_and_standard_all_of_it() -> None:
    check_handoff((4, 6))  # 85 and 1365 brokers
    standard = [cost("standard", height=height, **FEW) for height in (4, 5)]
    assert standard[1] > 3 * standard[0]


def messages_on_a_line(algorithm: str, hops: int) -> int:
    """Between brokers, when a publisher goes from one end to the other; all want something else."""
    world = World(relocation=algorithm)
    world.add_brokers(topology.line(hops + 1))
    for i in range(hops + 1):
        world.add_client(f"s{i}", topology.name(i)).subscribe(f"x = {i}")
    publisher = world.add_client("p", topology.name(0))
    publisher.advertise("exists x")
    world.settle()
    before = sum(pipe.messages for pipe in world.pipes.values())
    publisher.detach()
    world.settle()
    publisher.attach(topology.name(hops))
    world.run_until(world.now + 2 * world.limits.delay_ns)
    return sum(pipe.messages for pipe in world.pipes.values()) - before


def test_a_move_along_a_line_is_linear_with_handoff_and_quadratic_with_delayed() -> None:
    ways = (2, 4, 8, 16)
    assert [messages_on_a_line("handoff", hops) for hops in ways] == [6, 12, 24, 48]
    assert [messages_on_a_line("delayed", hops) for hops in ways] == [9, 22, 60, 184]


# ---- why delivery improves with speed ------------------------------------------------------------


def ratio(how: dict[str, Any], speed_kmh: float, minutes: float) -> float:
    f = figures("standard", **how | {"speed_kmh": speed_kmh, "minutes": minutes})
    assert f.delivery_ratio is not None
    return f.delivery_ratio


@shape
def test_faster_publishers_that_started_together_are_sooner_out_of_step() -> None:
    """The open question of the paper: what counts is how often they have moved, not their speed."""
    slow, fast = ratio(TOGETHER, 25.0, 1.5), ratio(TOGETHER, 100.0, 1.5)
    assert slow + 0.05 < fast
    assert ratio(TOGETHER, 25.0, 6.0) == pytest.approx(fast, abs=0.03)  # as many moves
    spread = {"message_bytes": 800}
    assert ratio(spread, 25.0, 0.5) > ratio(spread, 100.0, 0.5)  # as one expects
