"""The mobility service: the experiments of Caporuscio, Carzaniga and Wolf, and Wayfare beside them.

Elvin, FioranoMQ and Siena are models (docs/simulator.md says of what); the service on them is the real
one. `ids` is what it does by default, `own` is Wayfare's brokers in place of the system. What the paper
measured is in the tables of the report, marked as published.
"""

from __future__ import annotations

import msgspec

from wayfare.sim.links import MS_NS
from wayfare.sim.one_move import NETWORKS, OWN
from wayfare.studies.service_checks import (
    PROMISES,
    checks_of,
    closest,
    elvin_loses,
    elvin_moves_in_slowly,
    enough,
    fiorano_before_elvin,
    fiorano_is_best,
    loses_at_once,
    minimal,
    more_by_radio,
    moves_out_slowly,
    needs_more,
    none,
    others_do_not,
    rises,
    says_so,
    slower_than_siena,
)
from wayfare.studies.service_published import AT, AWAY, TITLES, USUAL_NS, WHERE, P, S, printed
from wayfare.studies.study import Check, Experiment, Metric, Picture, Study

MANY = {"p": 10.0}  # ... but where a run with few loses nothing
SUPPORT = ("none", "basic", "ping", "delay", "ids", "own")
ON_WAYFARE = {"own": {"system": OWN}}

DELAY = Metric("delay_ms", "Delay at reattach", "ms", log=True)
LOST = Metric("lost_in", "Lost at reattach", "publications", log=True)
TWICE = Metric("duplicates_in", "Twice at reattach", "publications", log=True)
AWAY_LOST = Metric("lost_away", "Lost while away", "publications", drawn=False)
OVERHEAD = Metric(
    "subscribe_ms",
    "Subscribing, of a client that stays",
    "ms",
    log=True,
    crossed=False,
    note="That the service costs something on Siena is put in, not found: the model of its library takes 0.5 ms to"
    " compare two subscriptions. `own` is no server of 2003, as the models are: Wayfare's brokers take no time in the"
    " simulator.",
)
MOVE_OUT = Metric("move_out_ms", "Until the client may go", "ms", drawn=False)
OUT_LOST = Metric("lost_out", "Lost while moving out", "publications", drawn=False)
FLOOR = Metric("floor_ms", "Physics ask for", "ms", drawn=False)
FIRST = Metric("first_ms", "From move-in to the first publication", "ms", log=True)


def _experiment(system: str, network: str) -> Experiment:
    gprs = network == "gprs"
    return Experiment(
        name=f"{system}-{network}",
        title=f"{TITLES[system]} {WHERE[network]}",
        where=f"{TITLES[system]} {WHERE[network]}",
        varied="s",
        axis="subscriptions",
        values=S,
        quick_values=(1, 10, 50, 100),
        compared=SUPPORT,
        but=ON_WAYFARE,
        fixed={"system": system, "network": network},
        crossed={"p": P, "away_ns": AWAY},
        quick_crossed={"p": (2.0, 10.0), "away_ns": AWAY[:1]},
        at=AT,
        seeds=4,
        quick_seeds=1,
        metrics=(
            DELAY,
            LOST,
            TWICE,
            OUT_LOST,
            AWAY_LOST,
            MOVE_OUT,
            *((FLOOR,) if gprs else (OVERHEAD,)),
        ),
        pictures=(
            Picture("traces", x=10, but=MANY if (system, network) == ("siena", "lan") else {}),
            *((Picture("traces", x=50),) if system == "siena" else ()),
            Picture("traces", x=100),
        ),
        printed=printed(system) if gprs else {},
        published=(
            "figures 16 and 17, and table 4, whose figures stand beside ours"
            if gprs
            else "figures 8 to 15"
        ),
        checks=checks_of(system, network),
    )


WAIT = Experiment(
    name="delay",
    title="How long a delay has to be, on Siena on a LAN",
    varied="delay_ns",
    axis="delay",
    values=tuple(ms * MS_NS for ms in (0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)),
    where="Siena on a LAN",
    quick_values=tuple(ms * MS_NS for ms in (0, 10, 100, 200, 1000, 10000)),
    compared=("delay",),
    fixed={"system": "siena", "network": "lan", "p": 10.0},
    crossed={"s": S},
    quick_crossed={"s": (10, 50, 100)},
    at={"s": 10},
    seeds=4,
    metrics=(LOST, TWICE, DELAY),
    pictures=(Picture("traces", x=0), Picture("traces", x=200 * MS_NS)),
    published="figure 14: with 10 subscriptions 200 ms are enough; what is needed grows with s",
    checks=(
        Check("without a delay, some are lost with 10 subscriptions", loses_at_once),
        Check("with 10 subscriptions, a delay of 200 ms loses nothing", enough),
        Check("the delay that is needed grows with s", needs_more),
    ),
)


LATENCY = Experiment(
    name="latency",
    title="How much the propagation delay of GPRS matters",
    by="system",
    varied="latency_ns",
    axis="one way by radio",
    values=tuple(ms * MS_NS for ms in (0, 50, 100, 150, 200, 300, 500)),
    quick_values=tuple(ms * MS_NS for ms in (0, 100, 150, 300)),
    compared=(*TITLES, OWN),
    but={OWN: {"support": "own"}},
    fixed={"support": "basic", "network": "gprs", "s": 100, "p": 2.0},
    seeds=4,
    metrics=(DELAY, LOST, TWICE),
    where="100 subscriptions, basic support",
    published=f"(the paper gives none. All other experiments have {USUAL_NS // MS_NS} ms)",
    checks=(
        *(
            Check(f"{system}: the delay at reattach grows with it", rises(system), "ours")
            for system in ("elvin", "fioranomq", OWN)
        ),
        Check(
            "with a shorter one, Elvin and FioranoMQ come within 15 % of the published delays",
            closest,
            "ours",
        ),
    ),
)


CUT = Experiment(
    name="cut-off",
    title="Cut off without a move-out, Siena by GPRS",
    varied="s",
    axis="subscriptions",
    values=S,
    quick_values=(10, 100),
    compared=("none", "basic", "ping", "ids", "own"),
    but=ON_WAYFARE,
    where="Siena by GPRS, cut off",
    fixed={"system": "siena", "network": "gprs", "abrupt": True},
    crossed={"p": P},
    quick_crossed={"p": (2.0,)},
    at={"p": 2.0},
    seeds=4,
    metrics=(AWAY_LOST, LOST, TWICE, DELAY),
    pictures=(Picture("traces"),),
    published="(beyond the paper, where every client moves out)",
    checks=(
        *PROMISES,
        Check(
            "the service as in the paper loses what comes until the lease has run out, and says so",
            says_so,
            "ours",
        ),
    ),
)

# The systems beside each other: figures 10 to 13 and 16, at the points of the experiments above

BESIDE_NONE = Experiment(
    name="beside-none",
    title="The systems beside each other, without support",
    where="100 subscriptions, without support",
    by="system",
    varied="network",
    axis="network",
    values=NETWORKS,
    quick_values=NETWORKS,
    compared=(*TITLES,),
    fixed={"support": "none", "s": 100, "p": 2.0},
    seeds=4,
    metrics=(LOST, FIRST),
    pictures=tuple(Picture("traces", x=network) for network in NETWORKS),
    published="figures 10 and 16",
    checks=(
        Check(
            "figure 10: on a LAN, Elvin loses some after reattach, with 100 subscriptions",
            elvin_loses,
            note="the paper has it drop publications while it is busy with subscriptions. Here they do not wait for"
            " subscriptions, and the first of a hundred is enough to get them",
        ),
        Check("figure 10: FioranoMQ and Siena do not", others_do_not),
        Check("figure 16: more are lost after reattach by GPRS than on a LAN", more_by_radio),
        Check("figure 16: by GPRS, Elvin and FioranoMQ are slower than Siena", slower_than_siena),
    ),
)
AT_ONCE = (
    "the call returns when the connection has the bytes, and nothing waits for Siena's access point"
)
BESIDE_BASIC = Experiment(
    name="beside-basic",
    title="The systems beside each other, with basic support on a LAN",
    where="basic support on a LAN",
    by="system",
    varied="s",
    axis="subscriptions",
    values=S,
    quick_values=(1, 10, 50, 100),
    compared=(*TITLES,),
    fixed={"support": "basic", "network": "lan", "p": 2.0},
    seeds=4,
    metrics=(msgspec.structs.replace(MOVE_OUT, drawn=True, log=True), DELAY, LOST),
    pictures=(Picture("traces", x=10), Picture("traces", x=100)),
    published="figures 11 and 12",
    checks=(
        Check("figure 11: Elvin moves out slowly with 100", moves_out_slowly("elvin")),
        Check(
            "figure 11: Siena moves out slowly with 100", moves_out_slowly("siena"), note=AT_ONCE
        ),
        Check("figure 11: FioranoMQ moves out faster than Elvin", fiorano_before_elvin),
        Check(
            "figure 11: with 100, FioranoMQ is faster than both, out and in",
            fiorano_is_best,
            note=f"than Elvin, yes; but {AT_ONCE}. It loses, in turn",
        ),
        Check("figure 11: Elvin is back slowly with 100", elvin_moves_in_slowly),
        Check("figure 12: with 10, Elvin and Siena leave and are back at once", minimal),
    ),
)
BESIDE_PING = Experiment(
    name="beside-ping",
    title="The systems beside each other, with ping on a LAN",
    where="ping on a LAN",
    by="system",
    varied="s",
    axis="subscriptions",
    values=S,
    quick_values=(1, 10, 50, 100),
    compared=(*TITLES,),
    fixed={"support": "ping", "network": "lan", "p": 2.0},
    seeds=4,
    metrics=(DELAY, LOST),
    pictures=(Picture("traces", x=10), Picture("traces", x=100)),
    published="figure 13, whose checks stand with the systems",
    checks=(
        *(
            Check(f"figure 13: no holes, {title}", none("lost", system))
            for system, title in TITLES.items()
        ),
    ),
)

SHOWS: dict[str, tuple[str, ...] | str] = {
    "figure 8": tuple(f"{system}-lan-subscribe-ms" for system in TITLES),
    "figure 9": ("siena-lan-traces-50", "siena-gprs-traces-50"),
    "figure 10": ("beside-none-traces-lan",),
    "figure 11": ("beside-basic-traces-100",),
    "figure 12": ("beside-basic-traces-10", "siena-lan-traces-10"),
    "figure 13": ("beside-ping-traces-100",),
    "figure 14": ("delay-traces-0", "delay-traces-200"),
    "figure 15": tuple(
        f"{system}-lan-{metric}" for system in TITLES for metric in ("duplicates-in", "lost-in")
    ),
    "figure 16": ("beside-none-traces-gprs",),
    "figure 17": tuple(f"{system}-gprs-traces-{s}" for system in TITLES for s in (100, 10)),
    "table 4": tuple(
        f"{system}-gprs-{metric}"
        for system in TITLES
        for metric in ("delay-ms", "lost-in", "duplicates-in")
    ),
    "table 5": "`wayfare service adapters`",
}

SERVICE = Study(
    name="service",
    title="The mobility service on other people's systems",
    about="One client moves once, from one of three access points to another, while a publisher goes on: on"
    " models of the three systems of the paper, with no support, with its mobility service, with what ours"
    " does by default, and on Wayfare's own brokers. What is lost or comes twice, and how long it takes.",
    kind="service",
    by="support",
    experiments=(
        *(_experiment(system, network) for network in reversed(NETWORKS) for system in TITLES),
        BESIDE_NONE,
        BESIDE_BASIC,
        BESIDE_PING,
        WAIT,
        LATENCY,
        CUT,
    ),
    shows=SHOWS,
)
