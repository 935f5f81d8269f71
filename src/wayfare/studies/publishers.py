"""Publisher mobility: the experiments of Muthusamy, Petrovic, Gao and Jacobsen, and ours beside them.

Where the paper leaves something open, docs/publisher-mobility.md says how it is here. The speed
experiment is there twice: publishers that start anywhere in their cells, and publishers that start
together, which is what makes the paper's curves.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import linear_regression, mean

from wayfare.sim.experiment import ALGORITHMS
from wayfare.sim.links import SECOND_NS
from wayfare.studies.checks import flat, less, linear, never, rises
from wayfare.studies.study import Check, Experiment, Metric, Picture, Rows, Study, Verdict

PUBLISHED = ("standard", "prefetching", "proxy", "delayed")
COST = Metric("control_per_move", "Rebuilding cost of a move", "messages", log=True)
TOTAL = Metric("control_total", "Rebuilding messages", "messages", log=True)
LINKS = Metric("link_messages_per_move", "Messages on links of a move", "messages", log=True)
RATIO = Metric("delivery_ratio", "Delivered share of the probes", "")
DELIVERY = Metric("delivery_p50_ms", "Delivery time, median", "ms")
DELIVERY_P90 = Metric("delivery_p90_ms", "Delivery time, 90th percentile", "ms")
REBUILD = Metric("rebuild_p50_ms", "Time until the tree is complete, median", "ms")
TOGETHER = {"start": "together", "jitter_ns": 3 * SECOND_NS, "minutes": 6.0}


def _first_complete(rows: Rows, algorithm: str) -> float:
    """Seconds after the arrival when 99 % of the probes are delivered from then on."""
    ratios = [row["probe_ratio"] for row in rows.of(algorithm)]
    by_index = [mean(share or 0 for share in column) for column in zip(*ratios, strict=True)]
    last_bad = max((i for i, share in enumerate(by_index) if share < 0.99), default=-1)
    return 0.2 * (last_bad + 2) if last_bad >= 0 else 0.0


def _probes(algorithm: str, says: str, least_s: float, most_s: float) -> Check:
    def verdict(rows: Rows) -> Verdict:
        time = _first_complete(rows, algorithm)
        return Verdict(least_s <= time <= most_s, f"99 % of all probes after {time:.1f} s")

    return Check(f"{algorithm}: {says}", verdict)


def _median(rows: Rows) -> Verdict:
    medians = [rows.mean("delivery_p50_ms", one) / 1000 for one in PUBLISHED]
    return Verdict(
        min(medians) >= 0.15 and max(medians) <= 0.6, f"{min(medians):.2f} to {max(medians):.2f} s"
    )


def _worst_and_best(rows: Rows) -> Verdict:
    times = {one: rows.mean("delivery_p90_ms", one) for one in PUBLISHED}
    order = sorted(times, key=lambda one: times[one])
    text = ", ".join(f"{one} {times[one]:.0f}" for one in order)
    return Verdict(order[0] == "prefetching" and order[-1] == "standard", f"p90 in ms: {text}")


def _levels_off(rows: Rows) -> Verdict:
    curve = dict(zip(rows.xs(), rows.curve("control_per_move", "proxy"), strict=True))
    near, far = [x for x in curve if x <= 5], [x for x in curve if x >= 5]
    grows = all(curve[a] <= curve[b] for a, b in pairwise(near))
    most = max(curve.values())
    level = all(abs(curve[x] - curve[far[0]]) <= 0.15 * most for x in far)
    return Verdict(grows and level, " ".join(f"{x}: {cost:.2f}" for x, cost in curve.items()))


def _comes_close(rows: Rows) -> Verdict:
    far = rows.xs()[-1]
    ours, theirs = (
        rows.mean("delivery_ratio", "standard", far),
        rows.mean("delivery_ratio", "delayed", far),
    )
    cost = rows.mean("control_per_move", "standard", far) / rows.mean(
        "control_per_move", "standard", 0.0
    )
    return Verdict(
        theirs - ours < 0.005 and cost < 0.25,
        f"at {far:.0%} it delivers {ours:.4f} ({theirs:.4f} for delayed), for {cost:.0%} of its cost at 0",
    )


def _steepest(rows: Rows) -> Verdict:
    slope = {
        one: linear_regression(rows.xs(), rows.curve("control_total", one)).slope
        for one in PUBLISHED
    }
    order = sorted(slope, key=lambda one: -slope[one])
    return Verdict(
        set(order[:2]) == {"standard", "prefetching"} and all(v > 0 for v in slope.values()),
        ", ".join(f"{one} {slope[one]:.3g}" for one in order) + " messages for each km/h",
    )


def _state(rows: Rows) -> Verdict:
    def entries(algorithm: str) -> float:
        of_brokers = []
        for row in rows.of(algorithm, rows.xs()[-1]):
            levels = row["state"]
            whole = sum(one["brokers"] * (one["ads_mean"] + one["subs_mean"]) for one in levels)
            of_brokers.append(whole / sum(one["brokers"] for one in levels))
        return float(mean(of_brokers))

    size = {one: entries(one) for one in PUBLISHED}
    others = [value for one, value in size.items() if one != "proxy"]
    equal = max(others) / min(others) < 1.2
    return Verdict(
        equal and 1 < size["proxy"] / min(others) < 2,
        "entries of a broker: " + ", ".join(f"{one} {value:.0f}" for one, value in size.items()),
    )


def _more_near_the_root(rows: Rows) -> Verdict:
    levels = rows.of("standard", rows.xs()[-1])[0]["state"]
    subs = [level["subs_mean"] for level in levels]
    return Verdict(
        subs == sorted(subs, reverse=True),
        " > ".join(f"{one:.0f}" for one in subs) + " subscriptions",
    )


def carried(rows: Rows) -> Verdict:
    """Above what a link can carry, answers come later and later, and brokers do not wait for ever."""
    lost: dict[bool, list[int]] = {False: [], True: []}
    for row in rows.of("handoff"):
        lost[row["link_load_max"] >= 1].append(row["lost"])
    within, above = lost[False], lost[True]
    more = f"; with more than a link can carry, {sum(above)} in {len(above)}" if above else ""
    return Verdict(bool(within) and not any(within), f"{sum(within)} in {len(within)} runs{more}")


SCALABILITY = Experiment(
    name="publishers",
    title="How the cost grows with the publishers",
    varied="publishers",
    axis="publishers",
    values=(50, 100, 150, 200, 250),
    quick_values=(20, 50, 80),
    compared=ALGORITHMS,
    fixed={"minutes": 5.0},
    quick_fixed={"minutes": 2.0, "subscribers": 200},
    metrics=(TOTAL, COST, LINKS, RATIO, DELIVERY, REBUILD),
    pictures=(Picture("delivery"),),
    published="tree-rebuilding messages grow about linearly for each algorithm; standard and prefetching"
    " cost more than ten times proxy and delayed; prefetching costs more than standard; delayed costs"
    " less than proxy; the median delivery time is about 0.3 s",
    checks=(
        *(
            linear("control_total", one, f"{one}: messages grow about linearly with the publishers")
            for one in ALGORITHMS
        ),
        *(
            less("control_total", one, other, 10, f"{other} costs more than 10 times {one}")
            for other in ("standard", "prefetching")
            for one in ("proxy", "delayed")
        ),
        less("control_total", "standard", "prefetching"),
        less(
            "control_total",
            "delayed",
            "proxy",
            note="only if publishers leave their proxies: see the experiment `ways`",
        ),
        Check("the median delivery time is about 0.3 s", _median),
        Check(
            "standard is the slowest to deliver, prefetching the fastest",
            _worst_and_best,
            note="standard loses what would come late, and prefetching delivers it",
        ),
        Check("state is about equal, proxy has slightly more", _state),
        Check("there is more state near the root", _more_near_the_root),
        never("lost", "handoff"),
        never("duplicates", "handoff"),
        less(
            "link_messages_per_move",
            "handoff",
            "delayed",
            says="handoff needs fewer messages on links than delayed",
            source="ours",
        ),
    ),
)

PROBES = Experiment(
    name="probes",
    title="Which probes arrive, by their index after the arrival",
    varied="speed_kmh",
    axis="speed (km/h)",
    values=(25.0,),
    quick_values=(25.0,),
    compared=ALGORITHMS,
    fixed={"start": "together", "jitter_ns": 3 * SECOND_NS, "minutes": 2.0, "publishers": 50},
    quick_fixed={},
    metrics=(RATIO,),
    pictures=(Picture("probes"),),
    published="standard needs nearly 4 s until all probes are delivered; prefetching nearly none; delayed is"
    " fast, too. Here publishers start together: docs/publisher-mobility.md says why",
    checks=(
        _probes("standard", "nearly 4 s until all probes are delivered", 2.0, 10.0),
        _probes("prefetching", "nearly no time until all probes are delivered", 0.0, 0.4),
        _probes("delayed", "fast, too", 0.0, 1.4),
        never("lost", "handoff"),
    ),
)

SUBSCRIBERS = Experiment(
    name="subscribers",
    title="Subscribers",
    varied="subscribers",
    axis="subscribers",
    values=(500, 2500, 5000),
    quick_values=(100, 500),
    compared=ALGORITHMS,
    fixed={"minutes": 1.0},
    quick_fixed={"publishers": 20, "warm_up_ns": 40 * SECOND_NS},
    seeds=2,
    metrics=(COST, RATIO),
    published="hardly any effect on the delivery ratio; the rebuilding cost grows little",
    checks=(
        *(
            flat("delivery_ratio", one, 1.05, f"{one}: hardly any effect on the delivery ratio")
            for one in PUBLISHED
        ),
        *(flat("control_per_move", one, 2, f"{one}: the cost grows little") for one in PUBLISHED),
        never("lost", "handoff"),
    ),
)

SPEED = Experiment(
    name="speed",
    title="Speed, for publishers that start together",
    varied="speed_kmh",
    axis="speed (km/h)",
    values=(5.0, 25.0, 50.0, 75.0, 100.0),
    quick_values=(25.0, 100.0),
    compared=ALGORITHMS,
    fixed=TOGETHER,
    quick_fixed={"minutes": 2.0, "publishers": 30, "subscribers": 200},
    seeds=2,
    metrics=(TOTAL, RATIO, DELIVERY, DELIVERY_P90),
    published="the cost grows with speed, steepest for standard and prefetching; the delivery ratio of"
    " standard goes up with speed, and delivery time goes down for all",
    checks=(
        Check("the cost grows with speed, steepest for standard and prefetching", _steepest),
        rises("delivery_ratio", "standard", "standard delivers more at higher speed"),
        *(
            rises("delivery_p90_ms", one, f"{one} delivers sooner at higher speed", down=True)
            for one in PUBLISHED
        ),
        never("lost", "handoff"),
    ),
)

SPREAD = Experiment(
    name="speed-spread",
    title="Speed, for publishers that start anywhere in their cells",
    varied="speed_kmh",
    axis="speed (km/h)",
    values=(25.0, 50.0, 75.0, 100.0),
    quick_values=(25.0, 100.0),
    compared=("standard", "handoff"),
    fixed={"minutes": 3.0, "publishers": 150},
    quick_fixed={"minutes": 1.0, "publishers": 30, "subscribers": 200},
    seeds=2,
    metrics=(RATIO, DELIVERY),
    published="(the paper does not say how publishers start)",
    checks=(
        Check(
            "standard delivers no more at higher speed when publishers do not start together",
            lambda rows: Verdict(
                rows.curve("delivery_ratio", "standard")[-1]
                <= rows.curve("delivery_ratio", "standard")[0] + 0.005,
                " -> ".join(f"{one:.3f}" for one in rows.curve("delivery_ratio", "standard")),
            ),
            "ours",
        ),
        Check("handoff: lost never, as long as links can carry the load", carried, "ours"),
    ),
)

WAYS = Experiment(
    name="ways",
    title="Publishers that turn back, and publishers that drive on",
    varied="turn",
    axis="share of borders where a publisher turns back",
    values=(0.0, 0.5),
    quick_values=(0.0, 0.5),
    compared=("proxy", "delayed", "handoff"),
    fixed={"minutes": 10.0},
    quick_fixed={"publishers": 20, "subscribers": 200},
    seeds=2,
    metrics=(COST,),
    published="delayed costs less than proxy; the distance from the proxies decides",
    checks=(
        Check(
            "delayed costs less than proxy where publishers leave their proxies",
            lambda rows: Verdict(
                rows.mean("control_per_move", "delayed", 0.0)
                < rows.mean("control_per_move", "proxy", 0.0),
                f"{rows.mean('control_per_move', 'delayed', 0.0):.1f} against"
                f" {rows.mean('control_per_move', 'proxy', 0.0):.1f} messages",
            ),
        ),
        never("lost", "handoff"),
    ),
)

OVERSHOOT = Experiment(
    name="overshoot",
    title="How far publishers leave their proxies",
    varied="overshoot",
    axis="brokers beyond the proxies",
    values=(0, 1, 2, 3, 4, 5, 8),
    quick_values=(0, 2, 5, 8),
    compared=("proxy",),
    fixed={"minutes": 10.0},
    quick_fixed={"minutes": 5.0, "publishers": 20, "subscribers": 100},
    metrics=(COST, RATIO),
    published="the cost grows with the overshoot and levels off at 5; proxy is not very sensitive",
    checks=(Check("the cost grows with the overshoot and levels off at 5", _levels_off),),
)

LOCALITY = Experiment(
    name="locality",
    title="Publishers with the same publication",
    varied="locality",
    axis="share of publishers with the same publication",
    values=(0.0, 0.3, 0.5, 0.7, 0.9),
    quick_values=(0.0, 0.9),
    compared=ALGORITHMS,
    fixed={"minutes": 2.0},
    quick_fixed={
        "minutes": 1.0,
        "publishers": 20,
        "subscribers": 100,
        "warm_up_ns": 40 * SECOND_NS,
    },
    seeds=2,
    metrics=(COST, RATIO, DELIVERY),
    published="at 90 % standard comes close to delayed and proxy",
    checks=(
        Check("at 90 % standard comes close to delayed and proxy", _comes_close),
        never("lost", "handoff"),
    ),
)

SIZE = Experiment(
    name="size",
    title="Larger cities",
    varied="brokers",
    axis="brokers",
    values=(85, 341, 1365),
    quick_values=(85, 341),
    compared=("standard", "delayed", "handoff"),
    fixed={"publishers": 10, "subscribers": 100, "minutes": 3.0},
    quick_fixed={"minutes": 1.0, "publishers": 5, "warm_up_ns": 40 * SECOND_NS},
    seeds=2,
    metrics=(COST, LINKS),
    published="(beyond the paper)",
    checks=(
        flat("control_per_move", "handoff", 1.5, "handoff costs the same in any network", "ours"),
        Check(
            "the cost of standard grows with the network",
            lambda rows: Verdict(
                rows.curve("control_per_move", "standard")[-1]
                > 2 * rows.curve("control_per_move", "standard")[0],
                " -> ".join(f"{one:.0f}" for one in rows.curve("control_per_move", "standard")),
            ),
            "ours",
        ),
        never("lost", "handoff"),
    ),
)

PUBLISHERS = Study(
    name="publishers",
    title="Publisher mobility",
    about="Publishers drive along the leaves of a broker tree: what a move costs under the published"
    " algorithms and under handoff, and what is delivered.",
    kind="city",
    by="algorithm",
    experiments=(SCALABILITY, PROBES, SUBSCRIBERS, SPEED, SPREAD, WAYS, OVERSHOOT, LOCALITY, SIZE),
)
