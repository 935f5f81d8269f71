"""The mobility service in the simulator: systems as the paper found them, its experiment, and random runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from wayfare.channel import PROFILES
from wayfare.errors import UsageError
from wayfare.moves import judge_move
from wayfare.service import arrival as service_arrival
from wayfare.service.merging import Seen
from wayfare.service.pinging import Waiting
from wayfare.service.system import Publication
from wayfare.sim import links, migrations, one_move, service
from wayfare.sim.fuzz import Job, Run, fuzz
from wayfare.sim.hosting import ProxyHost
from wayfare.sim.links import MS_NS, SECOND_NS, Agenda
from wayfare.sim.one_move import Figures, Parameters
from wayfare.sim.systems import LAN_NS, SYSTEMS, Access, Point, Radio, Wire, overlay
from wayfare.studies import STUDIES, service_live
from wayfare.studies import service as studies
from wayfare.studies.study import Rows

PAPER = [*SYSTEMS]
BATCH = 25


# ---- systems -----------------------------------------------------------------------------------


class Reader:
    """Opens, subscribes, and remembers what happened when."""

    def __init__(self, point: Point, texts: tuple[str, ...], line: Any = None) -> None:
        self.agenda, self.texts = point.agenda, texts
        self.at: dict[str, int] = {}
        self.got: list[int] = []
        self.access = Access(self, "reader", point, line or Wire(point.agenda))
        self.access.open()

    def opened(self, access: Access) -> None:
        self.at["opened"] = self.agenda.now
        access.subscribe(self.texts)

    def subscribed(self, access: Access, texts: tuple[str, ...]) -> None:
        self.at["subscribed"] = self.agenda.now

    def published(self, access: Access, publication: Publication) -> None:
        self.at["published"] = self.agenda.now

    def arrived(self, access: Access, publication: Publication) -> None:
        self.got.append(self.agenda.now)


def line_of(system: str) -> dict[str, Point]:
    return overlay(Agenda(), SYSTEMS[system], ["b0", "b1", "b2"], one_move.EDGES, LAN_NS)


def publish(points: dict[str, Point], topic: str = "news") -> None:
    points["b0"].publish((None, Publication(topic)))
    points["b0"].agenda.run_until(points["b0"].agenda.now + SECOND_NS)


def test_who_broadcasts_keeps_subscriptions_where_they_are() -> None:
    points = line_of("elvin")
    reader = Reader(points["b2"], ("news#0",))
    points["b2"].agenda.run_until(SECOND_NS)
    assert [point.known for point in points.values()] == [0, 0, 1]
    publish(points, "sport")
    assert [point.publications for point in points.values()] == [1, 1, 0]
    assert not reader.got


def test_who_propagates_tells_everybody_once_and_sends_only_what_is_wanted() -> None:
    points = line_of("siena")
    first, second = (Reader(points["b2"], ("news#0", "news#1")) for _ in range(2))
    points["b2"].agenda.run_until(SECOND_NS)
    assert [point.control for point in points.values()] == [0, 2, 2]  # not once for each reader
    publish(points, "sport")
    assert [point.publications for point in points.values()] == [0, 0, 0]
    publish(points)
    assert len(first.got) == len(second.got) == 1  # a copy for the client, not for the subscription
    first.access.close()
    points["b2"].agenda.run_until(5 * SECOND_NS)
    publish(points)
    assert (len(first.got), len(second.got)) == (1, 2)
    second.access.close()
    points["b2"].agenda.run_until(10 * SECOND_NS)
    assert [point.known for point in points.values()] == [0, 0, 0]


def test_one_time_connections_take_two_round_trips_for_each_subscription() -> None:
    gprs = PROFILES["gprs"]
    round_trip = gprs.up.latency_ns + gprs.down.latency_ns
    for system, trips in (("elvin", 2 * 11), ("siena", 1)):
        points = line_of(system)
        radio = Radio(points["b1"].agenda, gprs, migrations.Random(1))
        reader = Reader(points["b1"], tuple(f"news#{i}" for i in range(10)), radio)
        points["b1"].agenda.run_until(60 * SECOND_NS)
        assert trips * round_trip < reader.at["subscribed"] < 1.3 * trips * round_trip
        assert len(points["b1"].tables[reader.access]) == 10


def test_what_one_connection_sends_by_radio_does_not_wait_for_all_of_another() -> None:
    agenda = Agenda()
    radio = Radio(agenda, PROFILES["gprs"], migrations.Random(1))
    (one, _), (other, _) = radio.connection(), radio.connection()
    came: list[str] = []
    for _ in range(20):
        one.send(1000, came.append, "one")
    other.send(10, came.append, "other")
    agenda.run_until(60 * SECOND_NS)
    assert came.index("other") == 4  # of which three packets are full
    assert came.count("one") == 20


def test_who_is_cut_off_is_noticed_later() -> None:
    points = line_of("siena")
    reader = Reader(points["b1"], ("news#0",))
    points["b1"].agenda.run_until(SECOND_NS)
    reader.access.cut()
    publish(points)
    assert not reader.got
    points["b1"].agenda.run_until(5 * SECOND_NS)
    assert points["b0"].known == 0


# ---- the experiment ----------------------------------------------------------------------------


def run(**given: Any) -> Figures:
    return service.run(Parameters(**given))


@pytest.mark.parametrize("system", PAPER)
@pytest.mark.parametrize("network", one_move.NETWORKS)
def test_without_support_what_is_published_while_away_is_lost(system: str, network: str) -> None:
    found = run(system=system, support="none", network=network, p=5)
    assert found.missed == 50
    assert found.lost_away >= 50
    assert found.duplicates == found.gaps == 0


@pytest.mark.parametrize("system", PAPER)
@pytest.mark.parametrize("network", one_move.NETWORKS)
def test_with_ping_nothing_is_lost(system: str, network: str) -> None:
    found = run(system=system, support="ping", network=network, s=50, p=5)
    assert (found.lost, found.gaps, found.order_violations) == (0, 0, 0)
    assert found.duplicates_in > 0 or network == "lan"


def test_basic_support_loses_where_subscriptions_propagate() -> None:
    lost = {system: run(system=system, support="basic", s=100).lost_in for system in PAPER}
    assert lost["elvin"] == lost["fioranomq"] == 0
    assert lost["siena"] > 5


def test_a_delay_is_enough_if_it_is_long_enough() -> None:
    short, long = (
        run(support="delay", s=100, p=10, delay_ns=delay * MS_NS).lost_in for delay in (1, 9000)
    )
    assert short > 0 == long


@pytest.mark.parametrize("abrupt", [False, True])
@pytest.mark.parametrize("network", one_move.NETWORKS)
@pytest.mark.parametrize("system", PAPER)
def test_with_ids_all_comes_once_and_in_order(system: str, network: str, abrupt: bool) -> None:
    for seed in range(3):
        found = run(
            system=system, support="ids", network=network, s=20, p=5, abrupt=abrupt, seed=seed
        )
        assert (found.lost, found.duplicates, found.order_violations, found.gaps) == (0, 0, 0, 0)


@pytest.mark.parametrize("abrupt", [False, True])
def test_wayfare_itself_is_back_in_less_than_three_seconds(abrupt: bool) -> None:
    for seed in range(60):
        found = run(
            system="wayfare", support="own", network="gprs", s=100, abrupt=abrupt, seed=seed
        )
        assert (found.lost, found.duplicates, found.order_violations) == (0, 0, 0)
        assert found.delay_ms is not None
        assert found.floor_ms < found.delay_ms < 3000


def test_everybody_has_the_same_tcp_by_radio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wayfare's brokers as the others: a packet at a time makes all of them slower."""
    points = [
        {"system": "wayfare", "support": "own", "p": 10.0},
        {"system": "siena", "support": "ping", "s": 50},
    ]
    usual = [run(network="gprs", **given) for given in points]
    monkeypatch.setattr(links, "WINDOW_FIRST", 1)
    monkeypatch.setattr(links, "WINDOW_MOST", 1)
    for given, quicker in zip(points, usual, strict=True):
        slower = run(network="gprs", **given)
        assert slower.delay_ms is not None and quicker.delay_ms is not None
        assert slower.delay_ms > quicker.delay_ms + 1000


def test_what_is_lost_counts_where_it_was_published_and_is_the_same_word_live() -> None:
    """Between the call of move-out and its end, while away, and since move-in."""
    sent = {number: 10 * number for number in range(1, 11)}
    got = [(1, 11), (2, 21), (3, 31), (5, 73), (5, 74), (6, 75), (8, 81), (8, 82), (8, 83), (9, 95)]
    moved = judge_move(sent, got, out=35, gone=45, back=70)
    assert (moved.missed, moved.lost_out, moved.lost_away, moved.lost_in) == (2, 1, 0, 2)
    assert (moved.duplicates_away, moved.duplicates_in) == (1, 2)
    assert (moved.first_ns, moved.delay_ns) == (3, 5)
    bare = judge_move(sent, [(1, 11), (9, 95)], out=35, gone=35, back=70)
    assert (bare.missed, bare.lost_away, bare.first_ns, bare.delay_ns) == (3, 3, 25, 25)
    assert judge_move(sent, [], out=35, gone=35, back=70).delay_ns is None


def test_publications_between_brokers_are_no_control_messages() -> None:
    few, many = (run(system="wayfare", support="own", p=p).control for p in (1.0, 10.0))
    assert 0 < few == many


def test_the_same_seed_is_the_same_run_and_the_log_says_all_of_it() -> None:
    logs: list[list[Any]] = [[], []]
    found = [
        service.run(Parameters(support="ping", s=20, network="gprs", seed=3), log.extend)
        for log in logs
    ]
    assert found[0] == found[1]
    assert logs[0] == logs[1]
    kinds = [event.kind for event in logs[0]]
    assert kinds.count("published") == found[0].published
    assert kinds.count("delivered") == found[0].delivered
    assert found[0] != run(support="ping", s=20, network="gprs", seed=4)


def test_a_library_that_compares_subscriptions_costs_a_client_that_stays() -> None:
    for system, more in (("fioranomq", 1.05), ("siena", 1.5)):
        bare, basic = (run(system=system, support=one, s=100) for one in ("none", "basic"))
        times = basic.subscribe_ms / bare.subscribe_ms
        assert times < more if system == "fioranomq" else times > more


@pytest.mark.parametrize(
    "given",
    [
        {"system": "jedi"},
        {"support": "magic"},
        {"network": "pigeon"},
        {"s": 0},
        {"p": 0},
        {"away_ns": -1},
        {"support": "own"},
        {"system": "wayfare"},
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Parameters(**given)


# ---- random runs -------------------------------------------------------------------------------


def runs(first: int, count: int = BATCH, *, faults: bool = False) -> list[Run]:
    return [
        fuzz(Job(seed, routing, faults=faults, mobile="service"))
        for seed in range(first, first + count)
        for routing in ("flooding", "simple")
    ]


def failures(some: list[Run]) -> str:
    return "\n".join(
        f"reproduce: {one.job.command()}\n    {one.verdict.violations[0]}"
        for one in some
        if one.verdict.violations
    )


@pytest.mark.parametrize("first", range(0, 300, BATCH))
def test_whoever_moves_gets_what_it_was_promised(first: int) -> None:
    some = runs(first)
    assert failures(some) == ""
    assert sum(one.verdict.required for one in some) > 1000


def test_a_response_does_not_come_by_what_was_subscribed_to_in_an_attempt_before() -> None:
    """The client moves in, is cut off, and moves in there again, before its first subscriptions are forgotten."""
    run = fuzz(Job(65728, "simple", mobile="service"))
    assert run.verdict.violations == ()


def test_the_judge_waits_for_what_a_client_publishes_by_a_slow_line() -> None:
    """75 publications, one connection after the other by GPRS: the last ones are out two minutes later."""
    run = fuzz(Job(60368, "simple", faults=True, mobile="service"))
    assert run.verdict.violations == ()


@pytest.mark.parametrize("first", range(0, 100, BATCH))
def test_with_faults_it_is_told_what_it_does_not_get(first: int) -> None:
    some = runs(first, faults=True)
    assert failures(some) == ""
    assert sum(one.verdict.lost for one in some) > 0


def broken(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, instead: Any) -> set[str]:
    """The rules that random runs break when this is done instead."""
    monkeypatch.setattr(owner, name, instead)
    return {one.rule for run in runs(0, 40) for one in run.verdict.violations}


def test_the_judge_misses_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    never = property(lambda _self: True)
    assert "complete" in broken(monkeypatch, Waiting, "over", never)


def test_the_judge_sees_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "once" in broken(monkeypatch, Seen, "is_news", lambda _self, _id: True)


def test_the_judge_sees_disorder(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(downloaded: Any, received: Any) -> list[Publication]:
        return [*reversed([*downloaded]), *received]

    assert "fifo" in broken(monkeypatch, service_arrival, "merged", backwards)


def test_the_judge_sees_that_a_stopped_proxy_loses_what_piles_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(self: ProxyHost, piled: list[Any]) -> None:
        piled.clear()
        go_on(self, piled)

    go_on = ProxyHost._go_on
    monkeypatch.setattr(ProxyHost, "_go_on", forget)
    some = runs(25, faults=True, count=32)
    assert {one.rule for run in some for one in run.verdict.violations} == {"complete"}


def test_the_judge_sees_what_nobody_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without support, a client that got what it cannot have got would be seen, too."""
    monkeypatch.setattr(migrations, "SUPPORT", ("none",))
    assert failures(runs(0, 20)) == ""
    monkeypatch.setattr(Access, "cut", lambda _self: None)
    rules = {one.rule for run in runs(0, 20) for one in run.verdict.violations}
    assert rules == {"away"}


# ---- the study ---------------------------------------------------------------------------------


def row(support: str, s: int = 10, p: float = 2.0, **figures: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        **dict.fromkeys(("lost", "lost_in", "lost_away", "duplicates", "duplicates_in"), 0),
        "order_violations": 0,
        "gaps": 0,
        "missed": 20,
        "published": 50,
        "away_ns": 10 * SECOND_NS,
        "delay_ms": 1000.0,
        "subscribe_ms": 100.0,
        "floor_ms": 900.0,
    }
    return usual | {"support": support, "s": s, "p": p} | figures


def judged(system: str, network: str, rows: list[dict[str, Any]]) -> dict[str, bool]:
    found = {}
    for one in studies.checks_of(system, network):
        try:
            found[one.says] = one.verdict(Rows(rows, "support", "s")).holds
        except LookupError:
            found[one.says] = False
    return found


@pytest.mark.parametrize(
    ("system", "network", "says", "good", "bad"),
    [
        (
            "elvin",
            "lan",
            "without support, all that is published while away is lost",
            [row("none", lost_away=20)],
            [row("none", lost_away=20), row("none", lost_away=19)],
        ),
        (
            "siena",
            "gprs",
            "ping loses nothing",
            [row("ping")],
            [row("ping"), row("ping", lost=1)],
        ),
        (
            "siena",
            "lan",
            "basic support loses at reattach, and more with more subscriptions",
            [row("basic", 1), row("basic", 10, lost_in=1), row("basic", 100, lost_in=5)],
            [row("basic", 1, lost_in=5), row("basic", 10), row("basic", 100, lost_in=6)],
        ),
        (
            "siena",
            "lan",
            "these are few: less than a quarter of what is lost without support, at any s",
            [
                row("basic", 1),
                row("none", 1, lost=20),
                row("basic", 100, lost_in=4),
                row("none", 100, lost=20),
            ],
            [
                row("basic", 1),
                row("none", 1, lost=20),
                row("basic", 100, lost_in=19),
                row("none", 100, lost=20),
            ],
        ),
        (
            "siena",
            "gprs",
            "figure 9: with 50 subscriptions and basic support nearly all arrives, in the end",
            [row("basic", 50, lost=2), row("none", 50, lost=20)],
            [row("basic", 50, lost=20), row("none", 50, lost=20)],
        ),
        (
            "siena",
            "lan",
            "figures 12, 14: basic support loses some with 10 subscriptions",
            [row("basic", 10), row("basic", 10, p=10.0, lost_in=1)],
            [row("basic", 10), row("basic", 100, lost_in=9)],
        ),
        (
            "siena",
            "lan",
            "figure 13: ping takes slightly longer, with 100 subscriptions",
            [row("basic", 100), row("ping", 100, delay_ms=1200.0)],
            [row("basic", 100), row("ping", 100, delay_ms=9000.0)],
        ),
        (
            "elvin",
            "lan",
            "figure 13: ping takes as long as basic support",
            [row("basic", 100), row("ping", 100, delay_ms=1050.0)],
            [row("basic", 100), row("ping", 100, delay_ms=1200.0)],
        ),
        (
            "elvin",
            "lan",
            "basic support loses nothing at reattach",
            [row("basic")],
            [row("basic", lost_in=1)],
        ),
        (
            "elvin",
            "gprs",
            "duplicates grow with s",
            [row("basic", 1), row("basic", 100, duplicates_in=3)],
            [row("basic", 1, duplicates_in=3), row("basic", 100, duplicates_in=3)],
        ),
        (
            "elvin",
            "gprs",
            "duplicates grow with s",
            [
                row("basic", 1),
                row("basic", 10, duplicates_in=3),
                row("basic", 100, duplicates_in=9),
            ],
            [
                row("basic", 1),
                row("basic", 10, duplicates_in=30),
                row("basic", 100, duplicates_in=9),
            ],
        ),
        (
            "siena",
            "lan",
            "duplicates grow with p",
            [row("ping", p=1.0), row("ping", p=10.0, duplicates_in=3)],
            [row("ping", p=1.0), row("ping", p=10.0)],
        ),
        (
            "elvin",
            "lan",
            "figure 15: ping adds nearly no duplicates, at any s and p",
            [row("basic", duplicates_in=20), row("ping", duplicates_in=22)],
            [
                row("basic", 1),
                row("ping", 1, duplicates_in=5),  # which hundreds elsewhere do not hide
                row("basic", 100, duplicates_in=500),
                row("ping", 100, duplicates_in=500),
            ],
        ),
        (
            "elvin",
            "gprs",
            "table 4: ping adds at most 12 duplicates, at any s",
            [row("basic", 1), row("ping", 1, duplicates_in=12)],
            [row("basic", 1), row("ping", 1, duplicates_in=13)],
        ),
        (
            "siena",
            "lan",
            "figure 15: ping adds at most 45 % duplicates",
            [row("basic", duplicates_in=20), row("ping", duplicates_in=29)],
            [row("basic", duplicates_in=20), row("ping", duplicates_in=30)],
        ),
        (
            "elvin",
            "gprs",
            "table 4: with one-time connections the delay grows with s",
            [row("basic", 10), row("basic", 100, delay_ms=8000.0)],
            [row("basic", 10), row("basic", 100, delay_ms=2000.0)],
        ),
        (
            "siena",
            "gprs",
            "table 4: with keep-alive the delay hardly grows with s",
            [row("basic", 10), row("basic", 100, delay_ms=1900.0)],
            [row("basic", 10), row("basic", 100, delay_ms=2100.0)],
        ),
        (
            "siena",
            "lan",
            "figure 8: the service costs a client that stays more than a little",
            [row("none"), row("basic", subscribe_ms=150.0)],
            [row("none"), row("basic", subscribe_ms=105.0)],
        ),
        (
            "elvin",
            "lan",
            "figure 8: the service costs a client that stays hardly anything",
            [row("none"), row("basic", subscribe_ms=105.0)],
            [row("none"), row("basic", subscribe_ms=150.0)],
        ),
        (
            "elvin",
            "gprs",
            "own: with 100 subscriptions below 3 s, and below all that is published",
            [row("own", 100, delay_ms=2900.0)],
            [row("own", 100), row("own", 100, delay_ms=3100.0)],
        ),
        (
            "elvin",
            "gprs",
            "ids: order violations never",
            [row("ids")],
            [row("ids"), row("ids", order_violations=1)],
        ),
        ("elvin", "gprs", "own: gaps never", [row("own")], [row("own"), row("own", gaps=1)]),
        ("elvin", "gprs", "own: lost never", [row("own")], [row("ids")]),  # nothing was run
    ],
)
def test_every_shape_of_the_study_can_fail(
    system: str, network: str, says: str, good: list[dict[str, Any]], bad: list[dict[str, Any]]
) -> None:
    assert judged(system, network, good)[says]
    assert not judged(system, network, bad)[says]


def test_the_delay_that_is_needed_is_the_first_that_is_enough() -> None:
    def rows(*lost: tuple[int, int, int]) -> Rows:
        found = [row("delay", s, delay_ns=ms * MS_NS, lost_in=count) for s, ms, count in lost]
        return Rows(found, "support", "delay_ns")

    few = [(10, 0, 1), (10, 100, 0), (10, 1000, 0)]
    _, enough, grows = studies.WAIT.checks
    good = rows(*few, (100, 0, 9), (100, 100, 2), (100, 1000, 0))
    assert (enough.verdict(good).holds, grows.verdict(good).holds) == (True, True)
    assert grows.verdict(good).measured == "10: 100 ms, 100: 1000 ms"
    bad = rows((10, 0, 1), (10, 100, 1), (10, 1000, 0), (100, 0, 9), (100, 100, 0), (100, 1000, 0))
    assert (enough.verdict(bad).holds, grows.verdict(bad).holds) == (False, False)


def test_a_check_does_not_hold_because_nothing_was_run() -> None:
    """Whatever of its series is missing."""
    held = []
    for one in (*STUDIES["service"].experiments, *service_live.live().experiments):
        some = [row("other", delay_ns=0, system="other", network="other", latency_ns=0)]
        for each in one.checks:
            with suppress(LookupError, ValueError):
                if each.verdict(Rows(some, "support", one.varied)).holds:
                    held.append((one.name, each.says))
    assert held == []


DIFFERS = {
    ("siena-gprs", "figure 15: ping adds at most 45 % duplicates"),
    ("siena-lan", "figure 15: ping adds at most 45 % duplicates"),
    ("siena-lan", "these are few: less than a quarter of what is lost without support, at any s"),
    ("siena-lan", "figure 13: ping takes slightly longer, with 100 subscriptions"),
    ("beside-none", "figure 10: on a LAN, Elvin loses some after reattach, with 100 subscriptions"),
    ("beside-basic", "figure 11: Siena moves out slowly with 100"),
    ("beside-basic", "figure 11: with 100, FioranoMQ is faster than both, out and in"),
}


def test_of_what_was_published_it_is_known_what_differs() -> None:
    """All checks, on the runs of a quick study; what differs says why."""
    study, done = STUDIES["service"], {}
    differ = set()
    for name, points in study.points(quick=True).items():
        one, rows = study.experiment(name), []
        for _, point in points:
            known = point.run_name()
            if known not in done:
                done[known] = msgspec.to_builtins(point.parameters()) | msgspec.to_builtins(
                    point.run()
                )
            rows.append(done[known])
        for each in one.checks:
            verdict = each.verdict(Rows(rows, study.by_of(one), one.varied))
            if not verdict.holds:
                assert each.source == "published", f"{name}: {each.says}: {verdict.measured}"
                assert each.note, each.says
                differ.add((name, each.says))
    assert differ == DIFFERS


def test_every_system_has_as_many_points_as_in_the_paper() -> None:
    points = {
        point.run_name(): point.given["system"]
        for of_one in STUDIES["service"].points().values()
        for _, point in of_one
    }
    for system in PAPER:
        assert list(points.values()).count(system) >= 2000
    own = [
        point.given
        for _, point in STUDIES["service"].points()["elvin-gprs"]
        if point.given["support"] == "own"
    ]
    assert {one["system"] for one in own} == {"wayfare"}
    assert {(one["s"], one["p"]) for one in own} == {(s, p) for s in studies.S for p in studies.P}
