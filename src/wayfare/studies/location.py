"""Subscriptions that follow their clients: the paper has no measurements, so all checks are promises of ours.

Blackout: what is missed after a change of location, by how far ahead brokers are told (steps). Arrival: what
is there of the last minute, by who listens ahead (nlb). Both with their price.
"""

from __future__ import annotations

from typing import Any

from wayfare.sim.blackout import STEPS
from wayfare.sim.links import MS_NS, SECOND_NS
from wayfare.sim.world import CLIENT_LINK
from wayfare.studies.checks import grows, less, most, never
from wayfare.studies.study import Check, Experiment, Metric, Rows, Study, Verdict

AHEAD = ("dwell", "everywhere")
OWN_LINK_MS = 2 * CLIENT_LINK.latency_ns / MS_NS
FETCHED_MIN = 0.8  # of the last minute, where nobody expected the client
NEARLY = 0.9  # of what neighbours find, what is mined finds

TOLD = tuple(one for one in STEPS if one != "measured")  # which comes to the same as dwell
BLACKOUT = Metric("blackout_ms", "Blackout after a change of location, by steps", "ms")
MISSED = Metric("missed_share", "Missed notifications, by steps", "")
CARRIED = Metric(
    "notifications_per_delivered",
    "Notifications on links for each delivered, by steps",
    "notifications",
    True,
)
CHANGE = Metric("control_per_change", "Control messages of a change, by steps", "messages")
ENTRIES = Metric("subs_mean", "Subscriptions in the tables of a broker", "entries")

SHARE = Metric("share", "Of the last minute, there on arrival, by nlb", "")
FETCHED = Metric("fetched_share", "... where nobody listened ahead, by nlb", "")
MESSAGES = Metric(
    "messages_per_minute", "Messages of all sorts, of a client in a minute", "messages"
)
POSTED = Metric("posted_per_move", "Messages between replicators, of a move", "messages")
CONTROL = Metric("control_per_move", "Control messages of a move", "messages")
NOTIFICATIONS = Metric(
    "notifications_per_move", "Notifications on links, of a move", "notifications"
)
VIRTUAL = Metric("virtual_mean", "Virtual clients of a client", "virtual clients", True)
KEPT = Metric("kept_mean", "Notifications that the broker of a place keeps", "notifications")
PEAK = Metric(
    "kept_peak", "Notifications that the broker of a place keeps, at most", "notifications"
)
IDS = Metric("ids_mean", "Ids in the buffers of a place's broker", "ids")


def _wrong(*more: str) -> Check:
    """All that may never happen, in one check."""
    names = ("duplicates", "strays", "order_violations", "gaps", "ghosts", *more)

    def verdict(rows: Rows) -> Verdict:
        counts = {name: rows.total(name) for name in names}
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        return Verdict(not any(counts.values()), f"{said} in {len(rows.rows)} runs")

    what = "nothing is lost, comes twice" if "lost" in more else "nothing comes twice"
    return Check(f"{what}, or to the wrong place, and nothing is left behind", verdict, "ours")


def _no_blackout(series: str) -> Check:
    def verdict(rows: Rows) -> Verdict:
        longest = max(row["blackout_max_ms"] for row in rows.of(series))
        return Verdict(
            longest <= OWN_LINK_MS, f"{longest:.3g} ms at most; its link takes {OWN_LINK_MS:g} ms"
        )

    says = f"steps {series}: nobody misses more than its own link takes there and back"
    return Check(says, verdict, "ours")


def _there_and_back(rows: Rows) -> Verdict:
    """A change goes to the publisher, and what is published then comes back."""
    off = []
    for row in rows.of("0"):
        expected = 2 * row["hops"] * row["link_latency_ns"] / MS_NS + OWN_LINK_MS
        off.append(row["blackout_ms"] / min(expected, row["dwell_ns"] / MS_NS))
    return Verdict(0.9 < min(off) <= max(off) < 1.1, f"{min(off):.2f} to {max(off):.2f} times that")


def _fetched(rows: Rows) -> Verdict:
    """Of all arrivals without prediction, for each nlb that has some: without any, there is nothing to show."""
    shares = {
        series: rows.total("fetched", series) / rows.total("unforeseen", series)
        for series in rows.series()
        if rows.total("unforeseen", series)
    }
    if not shares:
        return Verdict(False, "every arrival was expected")
    least = min(shares, key=shares.__getitem__)
    return Verdict(shares[least] >= FETCHED_MIN, f"{shares[least]:.1%} at least, of nlb {least}")


def _all(rows: Rows) -> Verdict:
    least = min(rows.curve("share", "all"))
    return Verdict(least == 1.0, f"{least:.2%} at least")


def _everywhere(rows: Rows) -> Verdict:
    """Not than with none: to fetch the past on every arrival takes most where stays are short."""
    metric = "messages_per_minute"
    ratios = [
        rows.mean(metric, "all", x) / rows.mean(metric, other, x)
        for x in rows.xs()
        for other in ("learnt", "mined", "neighbours")
    ]
    return Verdict(min(ratios) > 1, f"{min(ratios):.3g} to {max(ratios):.3g} times as many")


def _mined(rows: Rows) -> Verdict:
    shares = [
        rows.mean("share", "mined", x) / rows.mean("share", "neighbours", x) for x in rows.xs()
    ]
    return Verdict(min(shares) >= NEARLY, f"{min(shares):.1%} to {max(shares):.1%} of it")


def _cheaper(what: str, metric: str) -> Check:
    says = f"what is mined takes fewer {what} than neighbours"
    return less(metric, "mined", "neighbours", says=says, source="ours")


ARRIVAL: dict[str, Any] = {
    "kind": "location",
    "by": "nlb",
    "compared": ("none", "learnt", "mined", "neighbours", "all"),
    "metrics": (
        SHARE,
        FETCHED,
        MESSAGES,
        VIRTUAL,
        KEPT,
        PEAK,
        IDS,
        POSTED,
        CONTROL,
        NOTIFICATIONS,
        ENTRIES,
    ),
}
MEMORY = _cheaper("kept notifications", "kept_mean")
CHECKS = (
    _wrong("lost"),
    Check(f"where nobody listens ahead, at least {FETCHED_MIN:.0%} is there", _fetched, "ours"),
    Check("where all listen ahead, all of it is there", _all, "ours"),
    Check(f"what is mined finds at least {NEARLY:.0%} of what neighbours find", _mined, "ours"),
    _cheaper("virtual clients", "virtual_mean"),
    _cheaper("messages", "messages_per_minute"),
    MEMORY,
    Check("to listen everywhere takes more messages than to listen ahead", _everywhere, "ours"),
    most("kept_mean", "all", "... and most memory"),
)

HOPS = Experiment(
    name="hops",
    title="Blackout, by how far away publishers are",
    varied="hops",
    axis="hops to the publisher",
    values=(1, 2, 4, 6, 8),
    quick_values=(1, 4, 8),
    compared=TOLD,
    fixed={"side": 7, "changes": 200, "rate": 50.0},
    quick_fixed={"changes": 100},
    metrics=(BLACKOUT, MISSED, CARRIED, CHANGE),
    checks=(
        _wrong(),
        Check(
            "steps 0: in the dark for as long as a change takes to the publisher and back",
            _there_and_back,
            "ours",
        ),
        grows("blackout_ms", "0", "steps 0: the blackout grows with the hops"),
        *map(_no_blackout, AHEAD),
        most(
            "notifications_per_delivered", "everywhere", "everywhere takes the most notifications"
        ),
        never("control", "everywhere"),
    ),
)

HURRY = Experiment(
    name="hurry",
    title="Blackout, by how long clients stay",
    varied="dwell_ns",
    axis="shortest time at a location",
    values=tuple(ms * MS_NS for ms in (20, 50, 100, 200, 1000)),
    quick_values=tuple(ms * MS_NS for ms in (20, 100, 500)),
    compared=TOLD,
    fixed={"side": 7, "hops": 5, "changes": 200},
    quick_fixed={"changes": 100},
    metrics=(BLACKOUT, MISSED, CARRIED, CHANGE),
    checks=(
        _wrong(),
        *map(_no_blackout, AHEAD),
        Check(
            "who stays for less than a change takes misses much with one step, by dwell what its link takes",
            lambda rows: Verdict(
                rows.mean("missed_share", "1", rows.xs()[0])
                > 2 * rows.mean("missed_share", "dwell", rows.xs()[0]),
                f"{rows.mean('missed_share', '1', rows.xs()[0]):.1%} against"
                f" {rows.mean('missed_share', 'dwell', rows.xs()[0]):.1%}",
            ),
            "ours",
        ),
    ),
)

STAY = Experiment(
    name="stay",
    title="There on arrival, by how long clients stay before",
    varied="dwell_ns",
    axis="time at a place, on average",
    values=tuple(s * SECOND_NS for s in (10, 30, 60, 120)),
    quick_values=tuple(s * SECOND_NS for s in (30, 120)),
    fixed={"minutes": 20.0},
    quick_fixed={"minutes": 10.0},
    checks=(
        *CHECKS,
        grows("share", "neighbours", "neighbours find more if they could listen for longer"),
    ),
    **ARRIVAL,
)

ODD = Experiment(
    name="odd",
    title="There on arrival, by how many moves nobody can foresee",
    varied="jump",
    axis="share of moves to anywhere",
    values=(0.0, 0.05, 0.2, 0.5),
    quick_values=(0.0, 0.3),
    fixed={"minutes": 20.0, "dwell_ns": 90 * SECOND_NS},
    quick_fixed={"minutes": 10.0},
    checks=(CHECKS[0], CHECKS[1], CHECKS[2]),
    **ARRIVAL,
)

TAXIS = Experiment(
    name="taxis",
    title="There on arrival, of the clients of a log",
    replayed=True,
    varied="walkers",
    axis="clients",
    values=(10, 30, 100),
    quick_values=(5, 15),
    fixed={"minutes": 60.0, "coverage": 0.95, "rate": 0.1},
    quick_fixed={"minutes": 20.0},
    seeds=1,
    checks=tuple(one for one in CHECKS if one is not MEMORY),  # where all are, all keep the same
    **ARRIVAL,
)

COVERAGE = Experiment(
    name="coverage",
    title="How much to mine, of the clients of a log",
    kind="location",
    by="nlb",
    replayed=True,
    varied="coverage",
    axis="share of the moves that were learnt",
    values=(0.5, 0.8, 0.9, 0.95, 0.99),
    quick_values=(0.5, 0.95),
    compared=("mined",),
    fixed={"minutes": 60.0, "rate": 0.1, "walkers": 30, "remembered": 0},
    quick_fixed={"minutes": 20.0, "walkers": 15},
    seeds=1,
    metrics=(SHARE, MESSAGES, VIRTUAL, KEPT),
    checks=(
        _wrong("lost"),
        grows("share", "mined", "more coverage finds more"),
        grows("virtual_mean", "mined", "... with more virtual clients"),
    ),
)

LOCATION = Study(
    name="location",
    title="Subscriptions that follow their clients",
    about="Clients change their location, in the range of a broker and from broker to broker: what they miss"
    " until brokers know, what of the last minute is there when they arrive, and what it costs to be told, and"
    " to listen, ahead. The paper (REBECA) has no measurements to compare with.",
    kind="blackout",
    by="steps",
    experiments=(HOPS, HURRY, STAY, ODD, TAXIS, COVERAGE),
)
