"""Which buffer policy, and where: the paper asks, and measures nothing, so all checks are promises of ours.

Policy: what is kept by time, count, both or meaning, by application. Where: at the next brokers, the publishers'
or inner ones. Then what it depends on: how long clients stay, how much brokers remember, and of how many places a
publisher speaks.
"""

from __future__ import annotations

from typing import Any

from wayfare.sim.application_profiles import APPLICATIONS, POLICIES
from wayfare.sim.links import MS_NS, SECOND_NS
from wayfare.sim.placement import PLACEMENTS, Parameters
from wayfare.sim.world import CLIENT_LINK
from wayfare.studies.checks import flat, grows, less, never
from wayfare.studies.study import Check, Experiment, Metric, Rows, Study, Verdict

OWN_LINK_MS = 2 * CLIENT_LINK.latency_ns / MS_NS
BY_MEANING = tuple(name for name, one in APPLICATIONS.items() if one.fitting == "semantic")
NEARLY = 0.02  # of what is wanted: less is no difference
FEW = 0.05  # share of what comes that is not wanted
MANY = 0.4
LOSES = 0.75  # a policy that loses what counts finds at most so much of the rest

ASKED = ("publisher", "junction", "collector")
SMALL: dict[str, Any] = {"minutes": 5.0}

SHARE = Metric("share", "Of what is wanted, there on arrival", "")
UNWANTED = Metric("unwanted_share", "Of what is there, not wanted", "")
DELAY = Metric("delay_ms", "Until the past is there", "ms", True)
REPORTED = Metric("reported", "Arrivals that are told that the past may be incomplete", "")
SILENT = Metric("silent", "Arrivals that miss something without a report", "arrivals")
KEPT = Metric("kept_mean", "Notifications that all brokers keep", "notifications", True)
PEAK = Metric("kept_peak", "Notifications that all brokers keep, at most", "notifications", True)
BYTES = Metric("bytes_mean", "Memory for them", "bytes", True)
BYTES_PEAK = Metric("bytes_peak", "Memory for them, at most", "bytes", True)
CONTROL = Metric("control_per_move", "Control messages of an arrival", "messages")
REPLAYED = Metric("replayed_per_move", "Past on links, of an arrival", "notifications")
NOTIFICATIONS = Metric("notifications_per_move", "Live on links, of an arrival", "notifications")


def _wrong(rows: Rows) -> Verdict:
    names = ("lost", "duplicates", "strays", "order_violations", "ghosts")
    counts = {name: rows.total(name) for name in names}
    said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    return Verdict(not any(counts.values()), f"{said} in {len(rows.rows)} runs")


WRONG = Check(
    "what is live is neither lost nor delivered twice or to the wrong place, and nothing is left behind",
    _wrong,
    "ours",
)


# Policies: rows vary the application, and are compared by policy


def _fitting(rows: Rows) -> Verdict:
    """However it is placed."""
    least, where = min(
        (
            here.mean("share", APPLICATIONS[x].fitting, x) - here.mean("share", policy, x),
            f"{x}, {placement}, against {policy}",
        )
        for placement in sorted({row["placement"] for row in rows.rows})
        for here in [rows.where(placement=placement)]
        for x in rows.xs()
        for policy in rows.series()
    )
    return Verdict(least >= -NEARLY, f"the least difference is {least:+.1%} ({where})")


def _unwanted(rows: Rows, policies: list[str]) -> list[float]:
    """Of applications that want the newest by a key."""
    known = [x for x in rows.xs() if x in BY_MEANING]
    return [rows.mean("unwanted_share", policy, x) for x in known for policy in policies]


def _little_else(rows: Rows) -> Verdict:
    most = max(_unwanted(rows, ["semantic"]))
    return Verdict(most <= FEW, f"{most:.1%} at most")


def _much_else(rows: Rows) -> Verdict:
    shares = _unwanted(rows, [one for one in rows.series() if one != "semantic"])
    return Verdict(min(shares) >= MANY, f"{min(shares):.1%} to {max(shares):.1%}")


def _loses(rows: Rows) -> Verdict:
    asked = rows.where(placement="publisher")
    parts = [
        asked.mean("share", "semantic", x) / asked.mean("share", APPLICATIONS[x].fitting, x)
        for x in rows.xs()
        if x not in BY_MEANING
    ]
    return Verdict(max(parts) <= LOSES, f"{min(parts):.1%} to {max(parts):.1%} of it")


def _least_memory(rows: Rows) -> Verdict:
    here = rows.where(placement="border")
    ratios = [
        here.mean("bytes_mean", policy, x) / here.mean("bytes_mean", "semantic", x)
        for x in rows.xs()
        if x in BY_MEANING
        for policy in rows.series()
        if policy != "semantic"
    ]
    return Verdict(
        min(ratios) > 1, f"others take {min(ratios):.3g} to {max(ratios):.3g} times that"
    )


def _the_same_memory(rows: Rows) -> Verdict:
    """A broker that remembers does so for whoever asks."""
    asked = rows.where(placement="publisher")
    off = max(
        asked.mean("kept_mean", policy, x) / asked.mean("kept_mean", other, x)
        for x in rows.xs()
        for policy in rows.series()
        for other in rows.series()
    )
    return Verdict(off <= 1 + NEARLY, f"{off:.4g} times at most")


# Placements: rows vary something, and are compared by placement


def _nothing(rows: Rows) -> Verdict:
    most = max(rows.curve("share", "none"))
    return Verdict(most <= NEARLY, f"{most:.2%} at most")


def _everything(rows: Rows) -> Verdict:
    least = min(rows.curve("share", "publisher"))
    return Verdict(least == 1, f"{least:.2%} at least")


def _at_once(rows: Rows) -> Verdict:
    longest = max(rows.curve("delay_ms", "border"))
    return Verdict(
        longest <= 2 * OWN_LINK_MS, f"{longest:.3g} ms; the client's link takes {OWN_LINK_MS:g} ms"
    )


def _one_round_trip(rows: Rows) -> Verdict:
    off = []
    for row in rows.of("publisher"):
        usual = Parameters(side=row["side"], degree=row["degree"])
        farthest_ms = 4 * usual.height() * row["link_latency_ns"] / MS_NS + 2 * OWN_LINK_MS
        off.append(row["delay_max_ms"] / farthest_ms)
    return Verdict(max(off) <= 1, f"{min(off):.3g} to {max(off):.3g} times that")


def _feeds(rows: Rows) -> Verdict:
    gains = [
        rows.mean("share", "collector", x) - rows.mean("share", "junction", x) for x in rows.xs()
    ]
    return Verdict(min(gains) > 0, f"{min(gains):+.1%} to {max(gains):+.1%}")


def _partly(rows: Rows) -> Verdict:
    """The publishers at the client's own broker, which remembers nothing."""
    most = max(rows.curve("share", "collector"))
    return Verdict(most < 1, f"{most:.1%} at most")


def _always_reported(rows: Rows) -> Verdict:
    least = min(
        rows.mean("reported", one, x) for one in ("junction", "collector") for x in rows.xs()
    )
    return Verdict(least == 1, f"{least:.1%} at least")


def _remembers_more(rows: Rows) -> Verdict:
    curve = rows.curve("share", "publisher")
    return Verdict(
        curve[0] < curve[-1] == 1 and curve == sorted(curve),
        " -> ".join(f"{one:.1%}" for one in curve),
    )


POLICY = Experiment(
    name="policy",
    title="What is kept, by application",
    by="policy",
    varied="application",
    axis="application",
    values=(*APPLICATIONS,),
    quick_values=("parking", "chat"),
    compared=tuple(one for one in POLICIES if one != "fitting"),
    crossed={"placement": ("border", "publisher")},
    quick_crossed={"placement": ("border", "publisher")},
    at={"placement": "border"},
    quick_fixed=SMALL,
    metrics=(SHARE, UNWANTED, KEPT, BYTES, REPLAYED),
    checks=(
        WRONG,
        Check("the policy that fits an application finds most of what it wants", _fitting, "ours"),
        Check("by meaning, hardly anything else comes", _little_else, "ours"),
        Check("by time and count, much comes that is not wanted any more", _much_else, "ours"),
        Check("where every message counts, a key loses much of them", _loses, "ours"),
        Check("by meaning, the next brokers need the least memory", _least_memory, "ours"),
        Check("what a publisher's broker keeps does not depend on it", _the_same_memory, "ours"),
    ),
)

WHERE = Experiment(
    name="where",
    title="Where it is kept, by application",
    varied="application",
    axis="application",
    values=(*APPLICATIONS,),
    quick_values=("parking", "chat"),
    compared=(*PLACEMENTS,),
    quick_fixed=SMALL,
    metrics=(
        SHARE,
        DELAY,
        REPORTED,
        SILENT,
        KEPT,
        PEAK,
        BYTES,
        BYTES_PEAK,
        CONTROL,
        REPLAYED,
        NOTIFICATIONS,
    ),
    checks=(
        WRONG,
        Check("where nothing is kept, hardly anything is there", _nothing, "ours"),
        Check("at the publishers' brokers, all of it is there", _everything, "ours"),
        *(never("silent", one) for one in ASKED),
        Check("at the next brokers, it is there at once", _at_once, "ours"),
        Check(
            "at the publishers' brokers, it takes a round trip to the farthest at most",
            _one_round_trip,
            "ours",
        ),
        less("delay_ms", "publisher", "collector", says="inner brokers are slower", source="ours"),
        less(
            "bytes_mean",
            "border",
            "publisher",
            says="the next brokers keep less than the publishers' ones",
            source="ours",
        ),
        less(
            "notifications_per_move",
            "publisher",
            "border",
            says="... and listening ahead takes more notifications than asking",
            source="ours",
        ),
        Check("inner brokers find more if everything passes them", _feeds, "ours"),
        Check("... but not all of it", _partly, "ours"),
        Check("what inner brokers know is always reported as incomplete", _always_reported, "ours"),
    ),
)

STAY = Experiment(
    name="stay",
    title="Where it is kept, by how long clients stay before",
    varied="dwell_ns",
    axis="time at a place, on average",
    values=tuple(s * SECOND_NS for s in (20, 60, 180)),
    quick_values=tuple(s * SECOND_NS for s in (20, 120)),
    compared=("border", "publisher", "collector"),
    fixed={"application": "warnings", "minutes": 20.0},
    quick_fixed=SMALL,
    metrics=(SHARE, CONTROL, NOTIFICATIONS, KEPT),
    checks=(
        WRONG,
        grows("share", "border", "the next brokers know more if they could listen for longer"),
        flat(
            "share",
            "publisher",
            1 + NEARLY,
            "the publishers' brokers know the same, however long clients stay",
            "ours",
        ),
    ),
)

ROOM = Experiment(
    name="room",
    title="How much a broker has to remember",
    varied="past_count",
    axis="notifications that it remembers",
    values=(10, 30, 100, 300, 1000, 3000),
    quick_values=(10, 3000),
    compared=ASKED,
    quick_fixed=SMALL,
    metrics=(SHARE, REPORTED, SILENT, KEPT, BYTES),
    checks=(
        WRONG,
        Check(
            "publishers' brokers that remember more know more, and then all",
            _remembers_more,
            "ours",
        ),
        *(never("silent", one) for one in ASKED),
    ),
)

SPREAD = Experiment(
    name="spread",
    title="Publishers that speak of several places",
    varied="spread",
    axis="places of a publisher",
    values=(1, 2, 4, 16),
    quick_values=(1, 16),
    compared=("border", "publisher"),
    fixed={"past_count": 20_000},
    quick_fixed=SMALL,
    metrics=(SHARE, REPORTED, SILENT),
    checks=(
        WRONG,
        flat("share", "border", 1 + NEARLY, "virtual clients do not mind", "ours"),
    ),
)

PLACEMENT = Study(
    name="placement",
    title="Which part of the past to keep, and where",
    about="Clients go from place to place and want something of the past of each: which buffer policy fits which"
    " application, and which brokers should remember. What is there on arrival, when, and what it costs in memory"
    " and messages. The paper (REBECA) asks this, and has no measurements.",
    kind="placement",
    by="placement",
    experiments=(POLICY, WHERE, STAY, ROOM, SPREAD),
)
