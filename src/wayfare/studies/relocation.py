"""Subscriber mobility: the paper has no measurements, so all checks are promises of ours.

Naive is what happens without support; junction is REBECA's; home and handoff are beside it.
"""

from __future__ import annotations

from wayfare.core.broker import RELOCATIONS
from wayfare.core.reduction import STRATEGIES
from wayfare.sim.links import MS_NS
from wayfare.studies.checks import flat, never
from wayfare.studies.study import Check, Experiment, Metric, Picture, Rows, Study, Verdict

LOST = Metric("lost", "Lost notifications", "notifications")
TWICE = Metric("duplicates", "Duplicates", "notifications")
CONTROL = Metric("control_per_move", "Control messages of a move", "messages")
PER_HOP = Metric("control_per_hop", "Control messages of a hop", "messages")
LIVE = Metric("live_p50_ms", "From attaching to the first live notification, median", "ms")
SUBS = Metric("subs_mean", "Subscriptions in the tables of a broker", "entries")
PEAK = Metric("buffer_peak", "Notifications kept at one moment, at most", "notifications")
PROMISES = tuple(never(metric, "handoff") for metric in ("lost", "duplicates", "order_violations"))
ALL = tuple(RELOCATIONS)
QUICK = {"movers": 10, "moves": 5, "publishers": 8, "dwell_ns": 500 * MS_NS, "away_ns": 250 * MS_NS}


def _naive_loses(rows: Rows) -> Verdict:
    lost, expected = rows.total("lost", "naive"), rows.total("expected", "naive")
    return Verdict(lost > 0, f"{lost} of {expected}")


NAIVE = Check("naive loses what is published while clients are away", _naive_loses, "ours")


def _grows_with_absence(rows: Rows) -> Verdict:
    shares = [
        sum(row["lost"] for row in rows.of("naive", x))
        / sum(row["expected"] for row in rows.of("naive", x))
        for x in rows.xs()
    ]
    return Verdict(shares == sorted(shares), " -> ".join(f"{share:.1%}" for share in shares))


ROUTING = Experiment(
    name="routing",
    title="Relocation under every routing",
    varied="routing",
    axis="routing",
    values=tuple(STRATEGIES),
    quick_values=tuple(STRATEGIES),
    compared=ALL,
    impossible=(("flooding", "junction"),),  # which follows subscriptions, and there are none
    fixed={"height": 4, "degree": 4, "moves": 5},
    quick_fixed=QUICK | {"height": 3, "degree": 3},
    metrics=(LOST, TWICE, CONTROL, LIVE, SUBS, PEAK),
    checks=(*PROMISES, NAIVE),
)

SIZE = Experiment(
    name="size",
    title="Larger networks",
    varied="brokers",
    axis="brokers",
    values=(7, 85, 341),
    quick_values=(7, 85),
    compared=ALL,
    fixed={
        "movers": 10,
        "moves": 5,
        "one_at_a_time": True,
        "dwell_ns": 500 * MS_NS,
        "away_ns": 250 * MS_NS,
    },
    quick_fixed=QUICK | {"movers": 5},
    metrics=(PER_HOP, CONTROL, LIVE, SUBS),
    checks=(
        *PROMISES,
        flat(
            "control_per_hop",
            "handoff",
            1.3,
            "handoff: a hop costs the same in any network",
            "ours",
        ),
        Check(
            "handoff says nothing off the path between the old broker and the new one",
            lambda rows: Verdict(
                rows.total("control_off_path", "handoff") == 0,
                f"{rows.total('control_off_path', 'handoff')} messages off the path",
            ),
            "ours",
        ),
    ),
)

PUBLISHERS = Experiment(
    name="publishers",
    title="Publishers",
    varied="publishers",
    axis="publishers",
    values=(1, 5, 10, 20),
    quick_values=(1, 8),
    compared=ALL,
    fixed={"moves": 5},
    quick_fixed=QUICK | {"height": 3, "degree": 3},
    metrics=(LOST, CONTROL, LIVE, PEAK),
    checks=PROMISES,
)

AWAY = Experiment(
    name="away",
    title="Time away",
    varied="away_ns",
    axis="time away between two brokers, on average",
    values=tuple(s * 1000 * MS_NS for s in (0, 1, 10, 60)),
    quick_values=tuple(s * 1000 * MS_NS for s in (0, 1, 10)),
    compared=ALL,
    fixed={"moves": 5, "movers": 10, "rate": 5.0},
    quick_fixed=QUICK | {"height": 3, "degree": 3},
    metrics=(LOST, LIVE, PEAK),
    pictures=(Picture("traces", 1),),
    checks=(
        *PROMISES,
        Check(
            "without support, a longer absence loses a larger share", _grows_with_absence, "ours"
        ),
    ),
)

SPEED = Experiment(
    name="speed",
    title="Speed, from slow to faster than a relocation takes",
    varied="dwell_ns",
    axis="time at a broker, on average",
    values=tuple(ms * MS_NS for ms in (20, 50, 200, 1000, 5000)),
    quick_values=tuple(ms * MS_NS for ms in (20, 200, 1000)),
    compared=ALL,
    fixed={"away_ns": 50 * MS_NS},
    quick_fixed=QUICK | {"height": 3, "degree": 3, "away_ns": 50 * MS_NS},
    metrics=(LOST, TWICE, CONTROL, LIVE),
    pictures=(Picture("delivery"),),
    checks=PROMISES,
)

RELOCATION = Study(
    name="relocation",
    title="Subscriber mobility",
    about="Subscribers move from leaf to leaf of a broker tree while publishers go on: what is lost, what"
    " comes twice or out of order, how long it takes, and what brokers have to say to each other for it.",
    kind="roaming",
    by="relocation",
    experiments=(ROUTING, SIZE, PUBLISHERS, AWAY, SPEED),
)
