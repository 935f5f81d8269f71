"""Reports: from the tables in a folder to figures, report.md and report.html. Nothing is run for it.

OUT/figures/NAME.svg, .png, .csv    a figure, and what is drawn in it
OUT/report.md                       tables, with links to the figures
OUT/report.html                     the same as one page that needs no other file
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from wayfare.errors import PipelineError
from wayfare.pipeline import charts, results
from wayfare.pipeline.figures import Figure, inline, number, save
from wayfare.pipeline.page import (
    Block,
    Cell,
    Heading,
    Page,
    Pictures,
    Table,
    Text,
    html,
    markdown,
)
from wayfare.studies import STUDIES, service_live
from wayfare.studies.study import Experiment, Row, Rows, Study

LOG_COMMAND = "wayfare analyse LOG --out DIR"
# Of the analysis of a log: what is shown of a run, and how it is called.
LOG_COLUMNS = {
    "published": "published",
    "expected": "wanted",
    "lost": "lost",
    "extra": "beside that",
    "past": "of the past",
    "duplicates": "twice",
    "order_violations": "out of order",
    "gaps": "gaps told",
    "delay_p50_ms": "delay, median (ms)",
    "delay_p99_ms": "delay, 99 % (ms)",
    "moves": "moves",
    "live_p50_ms": "until live, median (ms)",
    "control": "control messages",
}
EVERYWHERE = "all runs"  # the experiment of checks that are about every one


def write(out: Path, study: Study | None = None) -> list[Path]:
    """The report of a study, or of the analysis of a log: the files that people look at."""
    if not (out / "study.json").exists() and (out / "quantiles").is_dir():
        return publish(out, of_log(out))
    about = results.read_about(out)
    if study is None and about.study == service_live.NAME:
        study = service_live.only({point["experiment"] for point in results.read_points(out)})
    if study is None and about.study not in STUDIES:
        raise PipelineError(
            f"{out} is of a study {about.study!r}, which is none of {', '.join(STUDIES)}"
        )
    chosen = study or STUDIES[about.study]
    return publish(out, of_study(out, chosen, about))


def publish(out: Path, page: Page) -> list[Path]:
    """Draw its figures, and write the page."""
    folder = out / "figures"
    try:
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            if old.suffix in (".svg", ".png", ".csv"):
                old.unlink()
        svgs = {}
        for block in page.blocks:
            for figure in block.figures if isinstance(block, Pictures) else ():
                svgs[figure.name] = inline(save(figure, folder)[0].read_text("utf-8"))
        files = {out / "report.html": html(page, svgs), out / "report.md": markdown(page)}
        for path, text in files.items():
            path.write_text(text, "utf-8")
    except OSError as error:
        raise PipelineError(f"the report of {out} cannot be written: {error.strerror}") from None
    return list(files)


# The report of a study


def of_study(out: Path, study: Study, about: results.About) -> Page:
    rows, checks, runs = results.read_rows(out), results.read_checks(out), results.read_runs(out)
    wanted = dict.fromkeys(point["run"] for point in results.read_points(out))
    failed = [runs[run] for run in wanted if run in runs and runs[run]["error"] is not None]
    missing = [run for run in wanted if run not in runs]
    command = f"{about.command} --out DIR"

    def read(table: str, of: Iterable[str]) -> list[Row]:
        return results.read_analysed(out, table, of)

    blocks: list[Block] = [Text(study.about, "lead")]
    blocks += summary(study, checks, len(wanted), failed, missing)
    names = charts.series(study)
    for one in study.experiments:
        of_one = Rows(rows.get(one.name, []), study.by_of(one), one.varied)
        figures = charts.of_experiment(one, of_one, names, read)
        blocks += of_experiment(one, of_one, names, _of(checks, one.name), figures, command)
    blocks += [Heading("All runs", "all-runs"), *_verdicts(_of(checks, EVERYWHERE))]
    if study.shows:
        blocks += [Heading("Where what the paper shows is", "published"), shown_table(study)]
    cpu = sum(run["cpu_s"] for run in runs.values())
    what = (
        "live runs" if study.kind == service_live.KIND else f"simulations, {cpu:,.0f} s of CPU time"
    )
    blocks += [
        Text(
            f"{len(wanted)} {what}. `{command}` makes all of it again;"
            " every row of `runs` has the command of its own run. `wayfare report DIR` makes this"
            " report again from the tables beside it."
        )
    ]
    return Page(f"{study.title}{' (quick)' if about.quick else ''}", blocks)


def summary(
    study: Study, checks: list[Row], runs: int, failed: list[Row], missing: list[str]
) -> list[Block]:
    """What holds, and what does not."""
    ours, published = (_of(checks, source, "source") for source in ("ours", "published"))
    blocks: list[Block] = [
        Text(
            f"{_count(ours, 'promises of ours hold')}"
            + (f" {_count(published, 'published results are seen here, too')}" if published else "")
            + f" {runs - len(failed) - len(missing)} of {runs} runs are complete."
        )
    ]
    odd = [one for one in checks if not one["holds"]]
    if odd:
        blocks += [Heading("What does not hold", "odd", 3), _check_table(odd, with_experiment=True)]
    if failed:
        blocks += [
            Heading("Failed runs", "failed", 3),
            Table(
                ["run", "why", "again"],
                [
                    [
                        Cell(run["run"], mark="failed"),
                        Cell(run["error"]),
                        Cell(f"`{run['command']}`"),
                    ]
                    for run in failed
                ],
            ),
        ]
    if missing:
        blocks.append(Text(f"{len(missing)} runs are missing: the same command runs them."))
    sources = [source for source in ("published", "ours") if _of(checks, source, "source")]
    rows = [
        [
            Cell(one.title, link=f"#{one.name}"),
            *(_held(_of(_of(checks, one.name), source, "source")) for source in sources),
        ]
        for one in study.experiments
    ]
    return [*blocks, Table(["experiment", *sources], rows, 1)]


def shown_table(study: Study) -> Table:
    """By what the paper calls it: the figures here, or what else shows it."""
    rows = []
    for published, here in study.shows.items():
        files = here if isinstance(here, str) else ", ".join(f"`figures/{one}.svg`" for one in here)
        rows.append([Cell(published), Cell(files)])
    return Table(["published", "here"], rows)


def _held(checks: list[Row]) -> Cell:
    held = sum(one["holds"] for one in checks)
    return Cell(f"{held} of {len(checks)}" if checks else "")


def of_experiment(
    one: Experiment,
    rows: Rows,
    names: list[str],
    checks: list[Row],
    figures: list[Figure],
    command: str,
) -> list[Block]:
    blocks: list[Block] = [Heading(one.title, one.name)]
    if one.published:
        said = one.published if one.published[0] == "(" else f"Published: {one.published}."
        blocks.append(Text(said, "published"))
    blocks += _verdicts(checks)
    if not rows.rows and one.replayed:
        return [*blocks, Text("Not run: it follows the clients of a log, `--trace LOG`.")]
    if not rows.rows:
        return [*blocks, Text("No run of it is there.")]
    blocks.append(Pictures(figures, command))
    if one.at:
        at = ", ".join(_setting(name, value) for name, value in one.at.items())
        blocks.append(Text(f"Traces, and the table, are of {at}."))
    return [*blocks, figure_table(one, rows, charts.compared(rows, names))]


def _setting(name: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{name} = {value}"
    unit, size = charts.unit(name, [value])
    return f"{name.removesuffix('_ns')} = {number(value / size)} {unit}".rstrip()


def figure_table(one: Experiment, rows: Rows, names: list[str]) -> Table:
    """Every metric by x and by what is compared: mean over seeds, and from where to where they are.

    What the paper measured stands beside it.
    """
    rows = rows.where(**one.at)
    xs = charts.values(one, rows)
    shown = charts.shown(one.varied, xs)
    lines = []
    for metric in one.metrics:
        title = f"{metric.title}{f' ({metric.unit})' if metric.unit else ''}"
        for x, at in zip(xs, shown, strict=True):
            cells = [
                _figure(
                    [row[metric.name] for row in rows.of(name, x)],
                    one.printed.get((metric.name, x, name)),
                )
                for name in names
            ]
            lines.append([Cell(title), Cell(number(at)), *cells])
            title = ""
    return Table(["", charts.axis(one, xs), *names], lines, 1)


def _figure(values: list[Any], printed: float | None = None) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return Cell("")
    low, high = min(known), max(known)
    more = [f"{number(low)} to {number(high)}"] if low != high else []
    if printed is not None:
        more.append(f"published: {number(printed)}")
    return Cell(number(mean(known)), "; ".join(more))


def _verdicts(checks: list[Row]) -> list[Block]:
    return [_check_table(checks)] if checks else []


def _check_table(checks: list[Row], *, with_experiment: bool = False) -> Table:
    rows = []
    for one in checks:
        whose = [Cell(one["experiment"], link=_anchor(one))] if with_experiment else []
        note = "" if one["holds"] else one["note"]
        rows.append(
            [
                Cell(verdict(one), mark=verdict(one)),
                *whose,
                Cell(one["source"]),
                Cell(one["says"], note),
                Cell(one["measured"]),
            ]
        )
    return Table(
        ["", *(["experiment"] if with_experiment else []), "of", "what is said", "measured"], rows
    )


def verdict(check: Row) -> str:
    """A promise of ours that does not hold is broken; a published result that differs is a finding."""
    if check["holds"]:
        return "holds"
    return "BROKEN" if check["source"] == "ours" else "differs"


def _anchor(check: Row) -> str:
    return f"#{check['experiment'].replace(' ', '-')}"


def _of(checks: list[Row], value: str, column: str = "experiment") -> list[Row]:
    return [one for one in checks if one[column] == value]


def _count(checks: list[Row], what: str) -> str:
    held = sum(one["holds"] for one in checks)
    return f"{'All' if held == len(checks) else f'{held} of'} {len(checks)} {what}."


# The report of one log


def of_log(out: Path) -> Page:
    """What an analysis has: all runs in a table, and the first of them in figures."""
    runs = sorted(results.read_analysed(out, "runs"), key=lambda row: str(row["run"]))
    if not runs:
        raise PipelineError(
            f"{results.analysis(out)} is of a log without a run: there is nothing to tell"
        )
    lost, wanted = (sum(row[name] for row in runs) for name in ("lost", "expected"))
    told = (
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {number(wanted - lost)} of {number(wanted)}"
        " notifications reached those who wanted them"
    )
    # Clients write live logs, and do not know what brokers say to each other.
    silent = () if any(row["control"] for row in runs) else ("control",)
    columns = [
        name
        for name in LOG_COLUMNS
        if name not in silent and any(row[name] is not None for row in runs)
    ]
    header = ["run", *(LOG_COLUMNS[name] for name in columns)]
    rows = [[Cell(str(row["run"])), *(_figure([row[name]]) for name in columns)] for row in runs]

    def read(table: str, of: Iterable[str]) -> list[Row]:
        return results.read_analysed(out, table, of)

    figures = charts.of_runs([str(row["run"]) for row in runs], read)
    kinds = results.read_analysed(out, "control")
    blocks: list[Block] = [Text(f"{told}.", "lead"), Table(header, rows, 1)]
    if figures:
        blocks.append(Pictures(figures, LOG_COMMAND))
    if kinds:
        blocks += [Heading("What brokers said to each other", "control"), control_table(kinds)]
    return Page("What the event log says", blocks)


def control_table(kinds: list[Row]) -> Table:
    """By run and kind of message: kinds are few."""
    counts = {(str(row["run"]), row["message"]): row["count"] for row in kinds}
    runs, names = (sorted({key[at] for key in counts}) for at in (0, 1))
    return Table(
        ["run", *names],
        [
            [Cell(run), *(Cell(number(counts.get((run, name), 0))) for name in names)]
            for run in runs
        ],
        1,
    )
