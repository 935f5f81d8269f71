"""Reports: the right numbers in tables and figures, everything that does not hold is told, no other file needed."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from wayfare.cli import main
from wayfare.errors import PipelineError
from wayfare.pipeline import charts, figures, report, results, traces
from wayfare.pipeline.figures import Figure, Line, Panel
from wayfare.pipeline.page import Cell, Table
from wayfare.studies import STUDIES
from wayfare.studies.study import Check, Experiment, Metric, Picture, Rows, Study, Verdict

S_NS = 10**9
COST = Metric("cost", "Cost of a move", "messages", log=True)
AWAY = Experiment(
    name="away",
    title="Time away",
    varied="away_ns",
    axis="time away",
    values=(S_NS, 10 * S_NS),
    quick_values=(),
    compared=("naive", "handoff"),
    metrics=(COST, Metric("lost", "Lost", "notifications")),
    pictures=(Picture("traces", 0), Picture("delivery"), Picture("probes")),
    published="half of it is lost",
    checks=(Check("nothing", lambda _: Verdict(True, "")),),
)
STUDY = Study(
    name="tiny",
    title="A <tiny> study",
    about="Is anything lost?",
    kind="roaming",
    by="relocation",
    experiments=(AWAY,),
)
# relocation, away, seed -> cost, lost; None: it failed
RUNS: dict[tuple[str, int, int], tuple[float, int] | None] = {
    ("naive", 1, 0): (4.0, 30),
    ("naive", 1, 1): (6.0, 50),
    ("naive", 10, 0): (5.0, 300),
    ("naive", 10, 1): (5.0, 400),
    ("handoff", 1, 0): (1500.0, 0),
    ("handoff", 1, 1): (1500.0, 0),
    ("handoff", 10, 0): (12.5, 0),
    ("handoff", 10, 1): None,
}
CHECKS = [
    ("away", "handoff: lost never", "ours", True, "0 in 3 runs", ""),
    ("away", "naive: lost never", "ours", False, "780 in 4 runs", ""),
    ("away", "half of it is lost", "published", False, "a third", "they had another network"),
    (report.EVERYWHERE, "all agree", "ours", True, "7 runs", "not to be seen"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a study leaves behind."""
    about = {"study": "tiny", "quick": False, "command": "wayfare study tiny"}
    (tmp_path / "study.json").write_text(json.dumps(about))
    (tmp_path / "runs").mkdir()
    points, analysed = [], []
    for (series, away, seed), told in RUNS.items():
        run = f"{series}-{away}-{seed}"
        points.append(("away", "away_ns", str(away * S_NS), series, seed, run))
        figures = told and json.dumps({"cost": told[0], "lost": told[1]})
        parameters = json.dumps({"relocation": series, "seed": seed, "away_ns": away * S_NS})
        error = None if told else "Boom: <it> broke"
        row = (run, "roaming", parameters, f"wayfare sim roaming --{run}", 1.5, figures, error)
        _write(tmp_path / f"runs/{run}.parquet", results.RUNS, [row])
        analysed.append(run)
    (tmp_path / "runs/half.123.part").write_text("a sweep was stopped while it wrote this")
    _write(tmp_path / "points.parquet", results.POINTS, points)
    _write(tmp_path / "checks.parquet", results.CHECKS, CHECKS)
    _analysis(tmp_path, analysed)
    return tmp_path


def _write(path: Path, schema: pa.Schema, rows: list[tuple[Any, ...]]) -> None:
    results.write_table(path, schema, [dict(zip(schema.names, row, strict=True)) for row in rows])


def _analysis(out: Path, runs: list[str]) -> None:
    tables: dict[str, list[dict[str, Any]]] = {
        "traces": [
            {
                "run": run,
                "client": "anna",
                "publisher": "p",
                "number": number,
                "departed_ns": (5 + number) * S_NS,
                "arrived_ns": None if number == 1 else (7 + number) * S_NS,
            }
            for run in runs
            for number in (2, 0, 1)
        ],
        "moves": [
            {"run": run, "client": client, "left_ns": left * S_NS, "came_ns": (left + 1) * S_NS}
            for run in runs
            for client, left in (("anna", 6), ("bert", 5), ("anna", 99))
        ],
        "quantiles": [
            {"run": run, "share": share, "delay_ms": share * (100 if run.endswith("0") else 300)}
            for run in runs
            for share in (0.5, 1.0)
        ],
        "probes": [
            {"run": run, "index": index, "ratio": 0.5 if (run[-1], index) == ("0", 0) else 1.0}
            for run in runs
            for index in (0, 1)
        ],
        "runs": [
            dict.fromkeys(report.LOG_COLUMNS, 3) | {"run": run, "lost": 1, "gaps": None}
            for run in runs
        ],
        "control": [
            {"run": run, "counted": "messages", "message": "Fetch", "count": 1234} for run in runs
        ],
    }
    for name, rows in tables.items():
        (out / "analysis" / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), out / "analysis" / name / "part-0.parquet")


def _rows(folder: Path) -> Rows:
    return Rows(results.read_rows(folder)["away"], "relocation", "away_ns")


def _read(folder: Path) -> charts.Read:
    return lambda table, runs: results.read_analysed(folder, table, runs)


# Data of figures


def test_a_metric_against_what_is_varied(folder: Path) -> None:
    """Means and spreads over seeds, in seconds; ours has the first colour; a failed run is left out."""
    names = charts.series(STUDY)
    assert names == ["handoff", "naive"]
    figure = charts.against(AWAY, _rows(folder), COST, names)
    assert (figure.name, figure.kind, figure.log) == ("away-cost", "curves", True)
    assert (figure.x, figure.y) == ("time away (s)", "messages")
    assert figure.panels == [
        Panel(
            [
                Line("handoff", [1, 10], [1500, 12.5], [1500, 12.5], [1500, 12.5]),
                Line("naive", [1, 10], [5, 5], [4, 5], [6, 5]),
            ]
        )
    ]


def test_pictures_are_of_the_runs_that_they_show(folder: Path) -> None:
    rows, read, names = _rows(folder), _read(folder), charts.series(STUDY)
    trace, _, _, delivery, probes = charts.of_experiment(AWAY, rows, names, read)
    assert trace.title.endswith("time away: 1 s")
    shown = trace.panels[1]
    assert shown.lines == [Line("naive", [0, 1, 2], [2, None, 4])]  # broken where one is lost
    assert shown.title == "naive: 1 of 3 lost"
    assert shown.marks == [("move-out", 1), ("move-in", 2)]  # of its own moves, as far as it goes
    # Of two seeds the mean; of handoff only one is there at 10 s.
    assert delivery.panels[0].lines == [
        Line("handoff", [50, 100], [0.5, 1]),
        Line("naive", [100, 200], [0.5, 1]),
    ]
    assert probes.panels[0].lines == [
        Line("handoff", [1, 2], [0.5, 1]),
        Line("naive", [1, 2], [0.75, 1]),
    ]


@pytest.mark.parametrize(
    ("varied", "xs", "shown", "unit"),
    [
        ("away_ns", [0, S_NS, 10 * S_NS], [0, 1, 10], "s"),
        ("dwell_ns", [20_000_000, 5 * S_NS], [20, 5000], "ms"),
        ("publishers", [50, 100], [50, 100], ""),
        ("routing", ["simple"], ["simple"], ""),
    ],
)
def test_times_are_shown_in_seconds_or_milliseconds(
    varied: str, xs: list[Any], shown: list[Any], unit: str
) -> None:
    assert (charts.shown(varied, xs), charts.unit(varied, xs)[0]) == (shown, unit)


def test_a_picture_of_runs_that_are_not_there(folder: Path) -> None:
    rows = Rows(
        [row for row in _rows(folder).rows if row["away_ns"] != S_NS], "relocation", "away_ns"
    )
    rows.rows += _rows(folder).of("naive", S_NS)
    trace = charts.traces(AWAY, rows, S_NS, charts.series(STUDY), _read(folder))
    assert [panel.title for panel in trace.panels] == [
        "handoff: nothing to show",
        "naive: 1 of 3 lost",
    ]
    figures.save(trace, folder)


def test_words_keep_the_order_of_the_experiment() -> None:
    one = Experiment(
        name="routing",
        title="",
        varied="routing",
        axis="routing",
        values=("simple", "covering"),
        quick_values=(),
        compared=("handoff",),
        metrics=(COST,),
    )
    rows = [
        {"routing": word, "relocation": "handoff", "cost": 1} for word in ("covering", "simple")
    ]
    figure = charts.against(one, Rows(rows, "relocation", "routing"), COST, ["handoff"])
    assert figure.kind == "dots"
    assert figure.panels[0].lines[0].x == ["simple", "covering"]


# Files


def test_a_figure_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    one = Figure(
        name="one",
        title="Less & <more>",
        x="x",
        y="y",
        panels=[
            Panel([Line("a", [1, 2], [3, None], [2, None], [4, None])], marks=[("move-out", 1.5)])
        ],
        names=["a"],
    )
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        figures.save(one, tmp_path / name)
    svg, png, table = (tmp_path / f"first/one.{kind}" for kind in ("svg", "png", "csv"))
    for file in (svg, png, table):
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes()
    text = svg.read_text()
    ElementTree.fromstring(text)
    assert "Less &amp; &lt;more&gt;" in text and "currentColor" in text and figures.INK not in text
    assert "<text" in text  # words stay words
    assert png.read_bytes().startswith(b"\x89PNG")
    assert table.read_text() == (
        "panel,series,x,y,lowest,highest\n,a,1,3,2,4\n,a,2,,,\n,move-out,1.5,,,\n"
    )


@pytest.mark.parametrize("colour", figures.COLOURS)
@pytest.mark.parametrize("paper", [figures.LIGHT, figures.DARK])
def test_lines_stand_out_on_light_and_dark(colour: str, paper: str) -> None:
    """By WCAG's contrast, 3 is what graphics need."""

    def luminance(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted(luminance(one) for one in (colour, paper))
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_the_report_of_a_study(folder: Path) -> None:
    (folder / "figures").mkdir()
    (folder / "figures/gone.svg").write_text("of an experiment that is no more")
    written = report.write(folder, STUDY)
    assert written == [folder / "report.html", folder / "report.md"]
    text = written[0].read_text()
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    plain = re.sub(r"\s+", " ", "".join(root.itertext()))

    assert "2 of 3 promises of ours hold. 0 of 1 published results are seen here, too." in plain
    assert "7 of 8 runs are complete." in plain
    assert "✗ BROKEN" in plain and "780 in 4 runs" in plain
    assert "≠ differs" in plain and "they had another network" in plain
    assert "not to be seen" not in plain  # a note is for what does not hold
    assert "Boom: <it> broke" in plain and "wayfare sim roaming --handoff-10-1" in plain
    assert "Published: half of it is lost." in plain
    assert "wayfare study tiny --out DIR figures/away-cost.csv" in plain
    assert len(root.findall(".//{http://www.w3.org/2000/svg}svg")) == 5

    # It needs nothing from elsewhere, and its links lead somewhere.
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    names = set(re.findall(r'\bid="([^"]+)"', text))
    assert len(re.findall(r'\bid="', text)) == len(names)
    for link in links:
        assert link[1:] in names if link.startswith("#") else (folder / link).is_file(), link
    assert "url(http" not in text and "@import" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }

    kinds = {file.suffix for file in (folder / "figures").iterdir()}
    assert kinds == {".svg", ".png", ".csv"} and not (folder / "figures/gone.svg").exists()
    with (folder / "figures/away-lost.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["series"], row["time away (s)"], row["notifications"]) for row in rows] == [
        ("handoff", "1.0", "0.0"),
        ("handoff", "10.0", "0.0"),
        ("naive", "1.0", "40.0"),
        ("naive", "10.0", "350.0"),
    ]

    said = written[1].read_text()
    assert "| Cost of a move (messages) | 1 | 1,500 | 5 (4 to 6) |" in said
    assert "|  | 10 | 12.5 | 5 |" in said
    assert "| ✗ BROKEN | [away](#away) | ours | naive: lost never | 780 in 4 runs |" in said
    assert "![Cost of a move](figures/away-cost.svg)" in said


def test_the_table_of_an_experiment(folder: Path) -> None:
    table = report.figure_table(AWAY, _rows(folder), ["handoff", "naive"])
    assert table.header == ["", "time away (s)", "handoff", "naive"]
    assert table.rows[2] == [
        Cell("Lost (notifications)"),
        Cell("1"),
        Cell("0"),
        Cell("40", "30 to 50"),
    ]


def test_the_report_of_an_analysed_log(folder: Path) -> None:
    folder /= "analysis"
    html, said = (path.read_text() for path in report.write(folder))
    assert "8 runs: 16 of 24 notifications reached those who wanted them." in said
    assert "gaps told" not in said  # the log does not say
    assert "| run | Fetch |" in said and "| naive-1-0 | 1,234 |" in said
    assert "naive-1-0: 1 of 3 lost" in html
    assert (folder / "figures/traces.svg").exists() and (folder / "figures/delivery.csv").exists()


def test_what_cannot_be_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder / "nowhere")]) == 2
    assert capsys.readouterr().err == (
        f"wayfare: {folder}/nowhere is no study: `wayfare study NAME --out {folder}/nowhere` makes one\n"
    )
    assert main(["report", str(folder)]) == 2
    assert (
        "is of a study 'tiny', which is none of relocation, publishers" in capsys.readouterr().err
    )

    pq.write_table(pa.table({"run": ["x"]}), folder / "points.parquet")
    with pytest.raises(
        PipelineError, match=r"points.parquet has no column experiment and no varied"
    ):
        report.write(folder, STUDY)
    (folder / "points.parquet").write_text("nonsense")
    with pytest.raises(PipelineError, match=r"points.parquet cannot be read, remove it, and"):
        report.write(folder, STUDY)
    (folder / "points.parquet").unlink()
    with pytest.raises(PipelineError, match=r"points.parquet is not there: `wayfare study NAME"):
        report.write(folder, STUDY)


def test_the_command_prints_what_it_wrote(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder /= "analysis"
    assert main(["report", str(folder), "--json"]) == 0
    paths = [f"{folder}/report.html", f"{folder}/report.md"]
    assert json.loads(capsys.readouterr().out) == {"written": paths}
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.split() == paths


def test_nobody_waits_for_matplotlib_who_draws_nothing() -> None:
    code = (
        "import sys, wayfare, wayfare.cli; wayfare.cli.parser();"
        " sys.exit(any(name in sys.modules for name in ('matplotlib', 'pyspark')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# Tables that Spark makes for figures


def test_the_trace_is_of_the_client_that_moves_most(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wanted from its first move on, with the first arrival of each."""
    monkeypatch.setattr(traces, "LEAD_NS", 5)
    monkeypatch.setattr(traces, "TRACE_MAX", 4)
    publications = spark.createDataFrame(
        [("r", "p", number, 10 * number, "{}", number != 2) for number in range(8)],
        "run string, publisher string, number bigint, at_ns bigint, attributes string, measured boolean",
    )
    wants = spark.createDataFrame(
        [("r", "{}", "anna", 0, 99), ("r", "{}", "bert", 0, 45), ("r", "{}", "bert", 55, 99)],
        "run string, attributes string, client string, since_ns bigint, until_ns bigint",
    )
    moves = spark.createDataFrame(
        [("r", "anna", 10), ("r", "bert", 15), ("r", "bert", 30), ("r", "carl", 0)],
        "run string, client string, left_ns bigint",
    )
    deliveries = spark.createDataFrame(
        [
            ("r", "bert", "p", 1, 12),
            ("r", "bert", "p", 3, 39),
            ("r", "bert", "p", 3, 33),
            ("r", "anna", "p", 4, 41),
            ("r", "bert", "p", 6, 66),
        ],
        "run string, client string, publisher string, number bigint, time_ns bigint",
    )
    found = traces.traces(deliveries, publications, wants, moves)
    # 0 is too early, 2 is not measured, 5 is not wanted, 7 is one too many.
    expected = [
        ("r", "bert", "p", 1, 10, 12),
        ("r", "bert", "p", 3, 30, 33),
        ("r", "bert", "p", 4, 40, None),
        ("r", "bert", "p", 6, 60, 66),
    ]
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            expected,
            "run string, client string, publisher string, number bigint, departed_ns bigint,"
            " arrived_ns bigint",
        ),
    )


def test_quantiles_are_the_smallest_delay_of_a_share(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "STEPS", 4)
    delays = spark.createDataFrame(
        [("a", 1000, 1), ("a", 2000, 2), ("a", 9000, 1), ("b", 5000, 3)],
        "run string, delay_us bigint, count bigint",
    )
    expected = [("a", 0.25, 1.0), ("a", 0.5, 2.0), ("a", 0.75, 2.0), ("a", 1.0, 9.0)]
    expected += [("b", share, 5.0) for share in (0.25, 0.5, 0.75, 1.0)]
    assertDataFrameEqual(
        traces.quantiles(delays),
        spark.createDataFrame(expected, "run string, share double, delay_ms double"),
    )


def test_what_live_logs_do_not_have_is_no_column(folder: Path) -> None:
    """Clients write them, and do not know what brokers say to each other."""
    path = folder / "analysis" / "runs" / "part-0.parquet"
    rows = pq.read_table(path).to_pylist()

    def columns() -> list[str]:
        page = report.of_log(folder / "analysis")
        return next(block for block in page.blocks if isinstance(block, Table)).header

    assert "control messages" in columns()
    pq.write_table(pa.Table.from_pylist([row | {"control": 0} for row in rows]), path)
    assert "control messages" not in columns()


@pytest.mark.parametrize(
    ("values", "scale", "lowest"),
    [([0.5, 40.0], "log", None), ([0.0, 0.5, 40.0], "symlog", 0), ([2.5, 13.0], "linear", 0)],
)
def test_an_axis_is_logarithmic_if_values_are_far_apart(
    values: list[float | None], scale: str, lowest: float | None
) -> None:
    line = Line("handoff", list(range(len(values))), values)
    names = {"x": "publishers", "y": "messages", "names": ["handoff"]}
    figure = Figure(name="cost", title="Cost", panels=[Panel([line])], log=True, **names)
    (axes,) = figures.draw(figure).axes
    assert axes.get_yscale() == scale
    assert lowest is None or axes.get_ylim()[0] == lowest


CROSSED = Experiment(
    name="crossed",
    title="Crossed",
    varied="s",
    axis="subscriptions",
    values=(1, 10),
    quick_values=(),
    compared=("naive", "handoff"),
    crossed={"p": (1, 2), "away": (5,)},
    at={"p": 2, "away": 5},
    printed={("cost", 10, "naive"): 77.0},
    metrics=(COST, Metric("lost", "Lost", "notifications", drawn=False)),
)
CROSSED_ROWS = Rows(
    [
        {"relocation": name, "s": s, "p": p, "away": away, "cost": s * p + away, "lost": 0}
        for name in ("naive", "handoff")
        for s in (1, 10)
        for p in (1, 2)
        for away in (5, 1000)
    ],
    "relocation",
    "s",
)


def test_what_is_crossed_has_panels_and_what_is_published_stands_beside_it() -> None:
    names = ["naive", "handoff"]
    (figure,) = charts.of_experiment(CROSSED, CROSSED_ROWS, names, lambda *_: [])
    assert [panel.title for panel in figure.panels] == ["p = 1", "p = 2"]
    drawn = {line.name: (line.x, line.y) for line in figure.panels[1].lines}
    assert drawn["naive"] == ([1, 10], [7.0, 25.0])  # of one `away` only
    assert drawn["naive, published"] == ([10], [77.0])
    assert [line.name for line in figure.panels[0].lines] == names
    sheet = figures.draw(figure)
    assert "naive, published" in [text.get_text() for text in sheet.legends[0].get_texts()]
    table = report.figure_table(CROSSED, CROSSED_ROWS, names)
    assert table.rows[1][2:] == [Cell("25", "published: 77"), Cell("25")]


def test_what_is_the_same_whatever_is_crossed_is_drawn_once() -> None:
    once = msgspec.structs.replace(COST, crossed=False, note="read this")
    one = msgspec.structs.replace(CROSSED, metrics=(once,), where="on a LAN")
    (figure,) = charts.of_experiment(one, CROSSED_ROWS, ["naive", "handoff"], lambda *_: [])
    assert [panel.title for panel in figure.panels] == [""]
    assert figure.panels[0].lines[0] == Line("naive", [1, 10], [7, 25], [7, 25], [7, 25])
    assert (figure.title, figure.note) == ("Cost of a move: on a LAN", "read this")


def trace_of(panels: int) -> Figure:
    shown = [Panel([Line("a", [0, 1, 2], [0.5, None, 2.5])], "a: 1 of 3 lost")] * panels
    title = "Departure and arrival at one client that moves, delay: 200 ms: Siena on a LAN"
    return charts.trace_figure("t", title, shown, ["a"])


def test_the_title_of_a_single_panel_is_not_cut_off_and_says_how_many_were_lost() -> None:
    sheet = figures.draw(trace_of(1))
    sheet.canvas.draw()
    right = sheet.get_window_extent().x1
    texts = [sheet._suptitle, sheet.axes[0].title, sheet.axes[0]._left_title]  # type: ignore[attr-defined]
    assert max(text.get_window_extent().x1 for text in texts) <= right
    assert "1 of 3 lost" in " ".join(text.get_text() for text in texts)


def test_every_publication_of_a_trace_is_a_point() -> None:
    (axes,) = figures.draw(trace_of(1)).axes
    (line,) = axes.get_lines()
    assert line.get_marker() == "."


def test_with_an_odd_number_of_panels_every_column_has_its_x_axis() -> None:
    axes = figures.draw(trace_of(3)).axes
    assert [one.get_xlabel() != "" for one in axes[:3]] == [False, True, True]
    assert [one.xaxis.get_tick_params()["labelbottom"] for one in axes[1:3]] == [True, True]


def test_an_axis_of_nothing_but_zeros_begins_at_zero() -> None:
    zeros = Panel([Line("a", [1, 2], [0.0, 0.0])])
    figure = Figure(name="f", title="F", x="x", y="y", panels=[zeros], names=["a"], log=True)
    (axes,) = figures.draw(figure).axes
    assert axes.get_ylim() == (0, 1)


def test_what_the_paper_shows_is_drawn_under_the_names_that_the_report_gives() -> None:
    """Figures 8 to 17, and both tables of results."""
    study = STUDIES["service"]
    drawn = set()
    for name, points in study.points(quick=True).items():
        one = study.experiment(name)
        usual = dict.fromkeys((metric.name for metric in one.metrics), 0.0)
        facts = [
            msgspec.to_builtins(point.parameters()) | usual | {one.varied: x, "run": "r"}
            for x, point in points
        ]
        rows = Rows(facts, study.by_of(one), one.varied)
        drawn |= {
            each.name
            for each in charts.of_experiment(one, rows, [*charts.series(study)], lambda *_: [])
        }
    assert [*study.shows] == [*(f"figure {n}" for n in range(8, 18)), "table 4", "table 5"]
    for files in study.shows.values():
        assert isinstance(files, str) or set(files) <= drawn
    page = Path("docs/pipeline.md").read_text()
    for published, files in study.shows.items():
        (line,) = [one for one in page.splitlines() if one.startswith(f"| {published} |")]
        for file in [files] if isinstance(files, str) else files:
            assert file.strip("`") in line


def test_panels_share_an_axis_that_all_of_them_fit_on() -> None:
    lines = [Line("a", [1, 2], [0.0, y]) for y in (900.0, 1.0)]
    panels = [Panel([line], title) for line, title in zip(lines, "xy", strict=True)]
    figure = Figure(name="f", title="F", x="x", y="y", panels=panels, names=["a"])
    for axes in figures.draw(figure).axes:
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= 900
