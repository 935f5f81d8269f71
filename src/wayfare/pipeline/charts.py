"""Which figures a study has: from the rows of its runs, and of their analysis, to values to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean
from typing import Any

from wayfare.pipeline.figures import AWAY, PUBLISHED, Figure, Line, Panel, number
from wayfare.studies.study import Experiment, Metric, Picture, Row, Rows, Study

MS_NS, S_NS = 10**6, 10**9
OURS = "handoff"
RUNS_MAX = 6  # of a log that are drawn: as many as there are colours
TRACE_NOTE = (
    "A point is a notification that arrived. Dashed, with grey between: the client leaves a broker, and reaches the next one. The line is broken"
    " where a notification was lost."
)
Read = Callable[[str, Iterable[str]], list[Row]]  # a table of the analysis, of these runs


def series(study: Study) -> list[str]:
    """All that are compared, in the order of their colours: the same in every figure."""
    names = dict.fromkeys(name for one in study.experiments for name in one.compared)
    return sorted(names, key=lambda name: name != OURS)


def unit(varied: str, xs: Iterable[Any]) -> tuple[str, float]:
    """In which a parameter is shown, and how many of its own that is."""
    if not varied.endswith("_ns"):
        return "", 1
    long = all(x >= S_NS for x in xs if x)
    return ("s", S_NS) if long else ("ms", MS_NS)


def shown(varied: str, xs: list[Any]) -> list[Any]:
    size = unit(varied, xs)[1]
    return xs if size == 1 else [x / size for x in xs]


def axis(one: Experiment, xs: list[Any]) -> str:
    name = unit(one.varied, xs)[0]
    return f"{one.axis} ({name})" if name else one.axis


def values(one: Experiment, rows: Rows) -> list[Any]:
    """What was varied, in its order; words have that of the experiment."""
    xs = rows.xs()
    words = bool(xs) and isinstance(xs[0], str)
    return sorted(xs, key=[*one.values, *one.quick_values].index) if words else xs


def compared(rows: Rows, names: list[str]) -> list[str]:
    return [name for name in names if rows.of(name)]


def lines(one: Experiment, rows: Rows, metric: str, names: list[str]) -> list[Line]:
    """A line for each that is compared: mean, smallest and largest of its seeds at every x."""
    found = []
    varied = values(one, rows)
    xs = dict(zip(varied, shown(one.varied, varied), strict=True))
    for name in compared(rows, names):
        line = Line(name, [], [], [], [])
        for x, at in xs.items():
            if not rows.of(name, x):
                continue
            known = [row[metric] for row in rows.of(name, x) if row[metric] is not None]
            line.x.append(at)
            for part, of in ((line.y, mean), (line.low, min), (line.high, max)):
                part.append(float(of(known)) if known else None)
        found.append(line)
    return found


def against(one: Experiment, rows: Rows, metric: Metric, names: list[str]) -> Figure:
    """A metric against what is varied."""
    xs = values(one, rows)
    words = isinstance(xs[0], str)
    return Figure(
        name=f"{one.name}-{metric.name}".replace("_", "-"),
        title=_titled(one, metric.title),
        x=axis(one, xs),
        y=metric.unit or "share",
        panels=panels(one, rows, metric, names),
        names=names,
        kind="dots" if words else "curves",
        log=metric.log,
        note=metric.note,
    )


def panels(one: Experiment, rows: Rows, of: Metric, names: list[str]) -> list[Panel]:
    """One, or one for each value of the first parameter that is crossed with what is varied."""
    metric = of.name
    if not (one.crossed and of.crossed):
        rows = rows.where(**one.at)
        return [Panel([*lines(one, rows, metric, names), *published(one, metric, names)])]
    first = next(iter(one.crossed))
    found = []
    for value in sorted({row[first] for row in rows.rows}):
        here = rows.where(**one.at | {first: value})
        drawn = lines(one, here, metric, names)
        if value == one.at[first]:
            drawn += published(one, metric, names)
        found.append(Panel(drawn, f"{first} = {number(value)}"))
    return found


def published(one: Experiment, metric: str, names: list[str]) -> list[Line]:
    """What the paper measured, as dots."""
    found = []
    for name in names:
        known = {x: y for (of, x, by), y in one.printed.items() if (of, by) == (metric, name)}
        if known:
            found.append(Line(f"{name}{PUBLISHED}", [*known], [*known.values()]))
    return found


def probes(one: Experiment, rows: Rows, at: Any, names: list[str], read: Read) -> Figure:
    """Which of the first, second ... publication behind an arrival is delivered."""
    drawn = []
    for name in compared(rows, names):
        ratios: dict[int, list[float]] = {}
        for row in read("probes", _runs(rows, name, at)):
            ratios.setdefault(row["index"] + 1, []).append(row["ratio"])
        xs = sorted(ratios)
        drawn.append(Line(name, xs, [mean(ratios[x]) for x in xs]))
    return Figure(
        name=f"{one.name}-by-index",
        title="Delivered share of the probes, by their index",
        x="probe behind the arrival of its publisher",
        y="share that is delivered",
        panels=[Panel(drawn)],
        names=names,
    )


def delivery(one: Experiment, rows: Rows, at: Any, names: list[str], read: Read) -> Figure:
    """How many are delivered within which time."""
    drawn = [
        distribution(name, read("quantiles", _runs(rows, name, at)))
        for name in compared(rows, names)
    ]
    title = f"Delivery time{_where(one, rows, at)}"
    return delivery_figure(f"{one.name}-delivery", title, drawn, names)


def delivery_figure(name: str, title: str, drawn: list[Line], names: list[str]) -> Figure:
    return Figure(
        name=name,
        title=title,
        x="from publishing to delivery (ms)",
        y="share of the deliveries",
        panels=[Panel(drawn)],
        names=names,
        kind="steps",
    )


def distribution(name: str, rows: list[Row]) -> Line:
    """The time that a share of the deliveries needs at most; of several runs, its mean."""
    times: dict[float, list[float]] = {}
    for row in rows:
        times.setdefault(row["share"], []).append(row["delay_ms"])
    shares = sorted(times)
    return Line(name, [mean(times[share]) for share in shares], [*shares])


def traces(
    one: Experiment, rows: Rows, at: Any, names: list[str], read: Read, more: str = ""
) -> Figure:
    """When what was published then arrived at one client that moves."""
    drawn = []
    for name in compared(rows, names):
        runs = _runs(rows, name, at)[:1]
        drawn.append(trace(name, read("traces", runs), read("moves", runs)))
    title = f"Departure and arrival at one client that moves{_where(one, rows, at)}{more}"
    many = sum(each.kind == "traces" for each in one.pictures) > 1
    (value,) = shown(one.varied, [at])
    value = value if isinstance(value, str) else f"{value:g}"
    return trace_figure(
        f"{one.name}-traces{f'-{value}' if many else ''}", _titled(one, title), drawn, names
    )


def trace_figure(name: str, title: str, panels: list[Panel], names: list[str]) -> Figure:
    return Figure(
        name=name,
        title=title,
        x="published (s)",
        y="arrived (s)",
        panels=panels,
        names=names,
        kind="traces",
        note=TRACE_NOTE,
    )


def trace(name: str, rows: list[Row], moves: list[Row]) -> Panel:
    """Seconds since the first of them was published; no arrival: lost."""
    rows = sorted(rows, key=lambda row: (row["departed_ns"], row["publisher"], row["number"]))
    if not rows:
        return Panel([], f"{name}: nothing to show")
    begin, end = rows[0]["departed_ns"], rows[-1]["departed_ns"]
    line = Line(
        name,
        [(row["departed_ns"] - begin) / S_NS for row in rows],
        [None if row["arrived_ns"] is None else (row["arrived_ns"] - begin) / S_NS for row in rows],
    )
    marks = [
        (what, (move[when] - begin) / S_NS)
        for move in sorted(moves, key=lambda move: int(move["left_ns"]))
        for what, when in ((AWAY, "left_ns"), ("move-in", "came_ns"))
        if move["client"] == rows[0]["client"] and begin <= move[when] <= end
    ]
    lost = sum(y is None for y in line.y)
    return Panel([line], f"{name}: {lost or 'none'} of {len(rows)} lost", marks)


def of_runs(runs: list[str], read: Read) -> list[Figure]:
    """Of a log that is of no study: traces and delivery times of its first runs."""
    few = runs[:RUNS_MAX]
    panels = [trace(run, read("traces", [run]), read("moves", [run])) for run in few]
    panels = [panel for panel in panels if panel.lines]
    drawn = [distribution(run, read("quantiles", [run])) for run in few]
    drawn = [line for line in drawn if line.x]
    figures = []
    if panels:
        figures.append(trace_figure("traces", "Departure and arrival at one client", panels, few))
    if drawn:
        figures.append(delivery_figure("delivery", "Delivery time", drawn, few))
    return figures


PICTURES: dict[str, Callable[[Experiment, Rows, Any, list[str], Read], Figure]] = {
    "probes": probes,
    "delivery": delivery,
    "traces": traces,
}


def of_experiment(one: Experiment, rows: Rows, names: list[str], read: Read) -> list[Figure]:
    """What has many panels first, then every metric, then the rest; a single x is for tables only."""
    if not rows.rows:
        return []
    metrics = one.metrics if len(rows.xs()) > 1 else ()
    drawn = [against(one, rows, metric, names) for metric in metrics if metric.drawn]
    drawn += [_picture(one, rows, each, names, read) for each in one.pictures]
    return sorted(drawn, key=lambda figure: len(figure.panels) == 1)


def _picture(one: Experiment, rows: Rows, each: Picture, names: list[str], read: Read) -> Figure:
    rows = rows.where(**one.at | each.but)
    xs = rows.xs()
    at = each.x if each.x in xs else xs[min(each.at, len(xs) - 1)]
    if each.kind == "traces" and each.but:
        more = "".join(f", {name} = {number(value)}" for name, value in each.but.items())
        return traces(one, rows, at, names, read, more)
    return PICTURES[each.kind](one, rows, at, names, read)


def _runs(rows: Rows, name: str, at: Any) -> list[str]:
    return [row["run"] for row in sorted(rows.of(name, at), key=lambda row: int(row["seed"]))]


def _titled(one: Experiment, title: str) -> str:
    """With what it is of, where the experiment says that."""
    return f"{title}: {one.where}" if one.where else title


def _where(one: Experiment, rows: Rows, at: Any) -> str:
    xs = rows.xs()
    if len(xs) < 2:
        return ""
    value = shown(one.varied, xs)[xs.index(at)]
    return (
        f", {one.axis}: {value:g} {unit(one.varied, xs)[0]}".rstrip()
        if not isinstance(value, str)
        else f", {value}"
    )
