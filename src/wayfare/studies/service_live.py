"""The experiment of the mobility service paper on real systems: what is run, and what has to hold.

Three nodes of each system, a publisher at the first, and a client that moves from the second to the third.
`basic` and `ping` are the service as in the paper, `ids` is what it does by default, `own` is Wayfare's own
network, which needs no service.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wayfare.studies.checks import never
from wayfare.studies.service_published import AIM_MS, BEST_PUBLISHED_MS, printed
from wayfare.studies.study import Check, Experiment, Metric, Picture, Rows, Study, Verdict

NAME = "service-live"
KIND = "live"
SYSTEMS = ("mqtt", "nats", "redis", "stomp", "amqp", "wayfare")
# Which send a publication once, whatever number of subscriptions it matches. The others would send s copies:
# there each publication matches one of the subscriptions.
ONCE = ("amqp", "wayfare")
OWN = "wayfare"  # the system that has the support `own`, too
SUPPORT = ("none", "basic", "ping", "ids", "own")
COMPARED_QUICK = ("mqtt", OWN)  # systems whose subscriptions are varied in a quick study

DELAY = Metric("delay_ms", "From appearing to the last one that was missed", "ms", log=True)
FIRST = Metric("first_ms", "From appearing to the first publication", "ms", drawn=False)
LOST = Metric("lost", "Lost", "publications")
LOST_IN = Metric(
    "lost_in", "Lost of those published since the client appeared", "publications", drawn=False
)
TWICE = Metric("duplicates", "Twice", "publications", drawn=False)
TWICE_IN = Metric("duplicates_in", "Twice of those published since the client appeared", "copies")
DISORDER = Metric("order_violations", "Out of order", "publications", drawn=False)
MOVE_OUT = Metric("move_out_ms", "Until the client may go", "ms")
FLOOR = Metric("floor_ms", "What the link needs at least", "ms", drawn=False)
METRICS = (DELAY, FIRST, LOST, LOST_IN, TWICE, TWICE_IN, DISORDER, MOVE_OUT)

PUBLISHED = (
    "Elvin, FioranoMQ and Siena by GPRS at 2 publications a second, with basic support and with ping:"
    " 8.3 to 13.9 s and 11.8 to 17.2 s with 10 subscriptions, 10.8 to 95.0 s and 39.6 to 98.8 s with 100;"
    " up to 10 lost with basic support, none with ping; 4 to 159 twice"
)
BESIDE = (
    f"{PUBLISHED}. In the table, those of Siena, which keeps its connection as systems of today do"
)


def _loses_the_time_away(rows: Rows) -> Verdict:
    runs = rows.of("none")
    lost, missed = rows.total("lost_away", "none"), rows.total("missed", "none")
    return Verdict(lost >= 0.9 * missed > 0, f"{lost} of {missed} in {len(runs)} runs")


def _none_lost_with_ping(rows: Rows) -> Verdict:
    lost, runs = rows.total("lost", "ping"), len(rows.of("ping"))
    return Verdict(runs > 0 and lost == 0, f"{lost} in {runs} runs")


def _quicker(rows: Rows) -> Verdict:
    s = max(rows.xs())
    floor, mean = rows.mean("floor_ms", "own", s), rows.mean("delay_ms", "own", s)
    worst = max(row["delay_ms"] or float("inf") for row in rows.of("own", s))
    return Verdict(
        mean < AIM_MS and worst < BEST_PUBLISHED_MS / 3,
        f"{mean / 1000:.2f} s on average, {worst / 1000:.2f} s at worst, with {s} subscriptions;"
        f" the link needs {floor / 1000:.2f} s",
    )


AWAY = Check(
    "without support, what is published while the client is away is lost", _loses_the_time_away
)
NONE_LOST = Check("with ping, none are lost", _none_lost_with_ping)
NEVER = ("lost", "duplicates", "order_violations", "gaps")
IDS = tuple(never(metric, "ids") for metric in NEVER)
BY_ITSELF = tuple(never(metric, "own") for metric in NEVER)
# What was missed takes nearly 2 s alone if the radio has a single channel meanwhile.
QUICKER = Check(
    "Wayfare's own network has all after less than 3 s on average, at worst in a third of the best published time",
    _quicker,
    "ours",
)


def _on_systems(name: str, title: str, network: str, systems: Sequence[str]) -> Experiment:
    others = tuple((system, "own") for system in systems if system != OWN)
    own = BY_ITSELF if OWN in systems else ()
    wired = network == "lan"
    return Experiment(
        name=name,
        title=title,
        where="on a wire, live" if wired else "by GPRS, live",
        varied="system",
        axis="system",
        values=tuple(systems),
        quick_values=tuple(systems),
        compared=SUPPORT if OWN in systems else SUPPORT[:-1],
        impossible=others,
        fixed={"network": network, "s": 10, "p": 10.0 if wired else 2.0, "away_s": 10.0},
        quick_fixed={"away_s": 2.0} if wired else {},
        metrics=METRICS if wired else (*METRICS, FLOOR),
        checks=(AWAY, NONE_LOST, *IDS, *own),
        published="" if wired else PUBLISHED,
    )


def _varied(system: str, varied: str, values: tuple[float, ...], axis: str) -> Experiment:
    own = (*BY_ITSELF, QUICKER) if varied == "s" else BY_ITSELF
    return Experiment(
        name=f"{varied}-{system}",
        title=f"{system} by GPRS: {axis}",
        where=f"{system} by GPRS, live",
        varied=varied,
        axis=axis,
        values=values,
        quick_values=(values[0], values[-1]),
        compared=SUPPORT if system == OWN else SUPPORT[:-1],
        fixed={"system": system, "network": "gprs", "s": 10, "p": 2.0, "away_s": 10.0},
        metrics=(*METRICS, FLOOR),
        pictures=(Picture("traces"),),
        checks=(AWAY, NONE_LOST, *IDS, *(own if system == OWN else ())),
        published=BESIDE if varied == "s" else "",
        printed=printed("siena") if varied == "s" else {},
    )


def live(systems: Sequence[str] = SYSTEMS, *, quick: bool = False) -> Study:
    """The study on these systems. What a quick one has is in the whole one, too."""
    on_all = (
        _on_systems("wire", "Every system, on a wire", "lan", systems),
        _on_systems("gprs", "Every system, by GPRS", "gprs", systems),
    )
    closer = [one for one in systems if not quick or one in COMPARED_QUICK]
    by_s = [_varied(one, "s", (10, 50, 100), "subscriptions") for one in closer]
    by_p = [_varied(one, "p", (1.0, 2.0, 5.0), "publications a second") for one in closer]
    return Study(
        name=NAME,
        title="The mobility service on real systems",
        about="A client of a publish/subscribe system of three nodes moves once, on a wire and by GPRS as"
        " `wayfare emulate` plays it: without support, with the mobility service as in its paper and as it is"
        " by default, and Wayfare's own network. Every publication matches all subscriptions on `amqp` and"
        " `wayfare`; the other systems would send a copy for each, so there it matches one.",
        kind=KIND,
        by="support",
        experiments=(*on_all, *by_s, *(() if quick else by_p)),
    )


def only(names: set[str]) -> Study:
    """The study with these experiments, for its report."""
    whole = live()
    kept = tuple(one for one in whole.experiments if one.name in names)
    return msgspec.structs.replace(whole, experiments=kept)
