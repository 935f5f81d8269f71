"""Figures as values, and as files: NAME.svg, NAME.png, and NAME.csv with what is drawn.

What is not data is drawn in `INK`, which becomes `currentColor` in SVG: a figure takes the colour of
the page that it is in, and as a file it follows the reader's light or dark. Colours of lines can be
told apart by people who see fewer of them, on both; every line has a dash and a marker of its own, too.
The same figure is the same bytes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

INK = "#5d6066"
LIGHT, DARK = "#ffffff", "#16181c"  # what figures are read on
# Near Okabe and Ito's, none so light or dark that it fades on one of them.
COLOURS = ("#1f7fbf", "#d55e00", "#009e73", "#b5689b", "#a17a00", "#767b84")
DASHES = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 2)), (0, (10, 3)))
MARKERS = "os^DvP"
INCHES = {1: (4.8, 3.3), 2: (9.6, 3.3)}  # of one panel, and of a row of them
PANEL_ROW_INCHES = 2.7
PUBLISHED = ", published"  # lines of this name are dots in the colour of what they are beside
AWAY = "move-out"  # from such a mark to the next one, the background is darker
TITLE_MAX = {1: 48, 2: 105}  # characters in a line of it, by columns of panels
LEGEND_MAX = 60  # characters in a row of a legend, with 6 for the line beside each
TICKS_MAX = 10  # values that are written at the x axis one by one
DODGE = 0.14  # between the dots of a category
LOG_FROM = 10.0  # values on an axis that differ by such a factor stand on a logarithmic one
CROWDED_FROM = 1000  # between the ends of an axis: then a number for each power of ten is enough
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titlepad": 9,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        ),
        INK,
    ),
}
STYLE = "<style>svg{color:#33363b;background:transparent}@media(prefers-color-scheme:dark){svg{color:#c9ccd1}}</style>"


class Line(msgspec.Struct, frozen=True):
    """A curve; it is broken where y is None. low and high: the smallest and largest of its seeds."""

    name: str
    x: list[Any]
    y: list[float | None]
    low: list[float | None] = []
    high: list[float | None] = []


class Panel(msgspec.Struct, frozen=True):
    lines: list[Line]
    title: str = ""
    marks: list[tuple[str, float]] = []  # dashed lines: what happened, and at which x


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of its files
    title: str
    x: str  # what is on the axes, with units
    y: str
    panels: list[Panel]
    names: list[str]  # of lines, in the order of their colours
    kind: str = "curves"  # dots: x are words; steps: a distribution; traces
    log: bool = False  # the y axis
    note: str = ""

    def header(self) -> list[str]:
        return ["panel", "series", self.x, self.y, "lowest", "highest"]

    def rows(self) -> Iterator[list[Any]]:
        """All that is drawn."""
        for panel in self.panels:
            for line in panel.lines:
                spread = [line.low or line.y, line.high or line.y]
                for values in zip(line.x, line.y, *spread, strict=True):
                    yield [panel.title, line.name, *values]
            for what, x in panel.marks:
                yield [panel.title, what, x, None, None, None]


def save(figure: Figure, folder: Path) -> list[Path]:
    """Its three files."""
    paths = [folder / f"{figure.name}.{kind}" for kind in ("svg", "png", "csv")]
    with mpl.rc_context(SETTINGS | {"svg.hashsalt": figure.name}):
        sheet = draw(figure)
        sheet.savefig(paths[0], transparent=True, metadata={"Date": None})
        sheet.savefig(paths[1], dpi=160, facecolor=LIGHT, metadata={"Software": None})
    paths[0].write_text(tidied(paths[0].read_text("utf-8"), figure), "utf-8")
    with paths[2].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(figure.header())
        writer.writerows(figure.rows())
    return paths


def tidied(text: str, figure: Figure) -> str:
    """SVG that may stand in a page beside others: no head, no names that nobody refers to."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", text)
    text = text.replace(INK, "currentColor")
    label = f"<title>{_escaped(figure.title)}</title>"
    return re.sub(r"(<svg[^>]*)>", rf'\1 role="img">{label}{STYLE}', text, count=1)


def inline(svg: str) -> str:
    """Without colours and a size of its own: those of the page."""
    return re.sub(r' (width|height)="[\d.]+pt"', "", svg.replace(STYLE, ""), count=2)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")


# Drawing


def draw(figure: Figure) -> Sheet:
    count = len(figure.panels)
    columns = min(count, 2)
    lines = -(-count // columns)
    width, height = INCHES[columns]
    sheet = Sheet(
        figsize=(width, height if lines == 1 else lines * PANEL_ROW_INCHES + 0.6),
        layout="constrained",
    )
    FigureCanvasAgg(sheet)
    grid = sheet.subplots(lines, columns, sharex=count > 1, sharey=count > 1, squeeze=False)
    for axes, panel in zip(grid.flat, figure.panels, strict=False):
        _draw_panel(axes, figure, panel)
    every = [y for panel in figure.panels for line in panel.lines for y in line.y if y is not None]
    if every and figure.kind in ("curves", "dots"):
        for axes in grid.flat:  # which share their y, so that none of them is alone
            _scale(axes, figure, every)
    for axes in grid.flat:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    for axes in list(grid.flat)[count:]:
        axes.set_visible(False)
    for axes in list(grid.flat)[max(0, count - columns) : count]:  # with nothing below
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel(figure.x)
    for axes in grid[:, 0]:
        axes.set_ylabel(figure.y)
    title = fill(figure.title, TITLE_MAX[columns])
    if count == 1 and not figure.panels[0].title:
        grid[0, 0].set_title(title)
    else:
        sheet.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    _draw_legend(sheet, list(grid.flat), figure)
    return sheet


def _draw_panel(axes: Axes, figure: Figure, panel: Panel) -> None:
    if panel.title:
        axes.set_title(panel.title, fontsize=9)
    DRAWN[figure.kind](axes, figure, panel)
    for _, at in panel.marks:
        axes.axvline(at, color=INK, linewidth=0.7, dashes=(4, 3), zorder=1)
    for (what, left), (_, came) in pairwise(panel.marks):
        if what == AWAY:
            axes.axvspan(left, came, color=INK, alpha=0.1, linewidth=0)


def _scale(axes: Axes, figure: Figure, values: list[float]) -> None:
    """The y axis: logarithmic if that is wanted and worth it, from 0 if that is not far away, no share above 1."""
    low, high = min(values), max(values)
    if low == high == 0:
        axes.set_ylim(0, 1)
        return
    least = min((value for value in values if value > 0), default=high)
    wide = figure.log and high > LOG_FROM * least
    if wide and low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    elif wide:
        axes.set_yscale("symlog", linthresh=least)
        axes.set_ylim(bottom=0)
    elif low < 0.5 * high:
        axes.set_ylim(bottom=0)
    if figure.y.startswith("share"):
        axes.set_ylim(top=1)


def _style(figure: Figure, name: str) -> dict[str, Any]:
    at = figure.names.index(name.removesuffix(PUBLISHED)) % len(COLOURS)
    style: dict[str, Any] = {"color": COLOURS[at], "linestyle": DASHES[at], "marker": MARKERS[at]}
    style["label"] = name
    if name.endswith(PUBLISHED):
        style |= {"linestyle": "none", "fillstyle": "none", "markersize": 8}
    return style


def _draw_curves(axes: Axes, figure: Figure, panel: Panel) -> None:
    for line in panel.lines:
        style = _style(figure, line.name)
        axes.plot(line.x, _gaps(line.y), **style, zorder=3, clip_on=False)
        if line.low:
            axes.fill_between(
                line.x, _gaps(line.low), _gaps(line.high), color=style["color"], alpha=0.15, lw=0
            )
    xs = sorted({x for line in panel.lines for x in line.x})
    if len(xs) > TICKS_MAX:
        axes.xaxis.set_major_locator(MaxNLocator(TICKS_MAX, integer=True))
        return
    above = [x for x in xs if x > 0]
    if len(above) > 1 and above[-1] / above[0] >= LOG_FROM:
        axes.set_xscale(
            "symlog" if xs[0] == 0 else "log", **({"linthresh": above[0]} if xs[0] == 0 else {})
        )
    axes.set_xticks(xs, [number(x) for x in xs], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_dots(axes: Axes, figure: Figure, panel: Panel) -> None:
    words = list(dict.fromkeys(x for line in panel.lines for x in line.x))
    for at, line in enumerate(panel.lines):
        style = _style(figure, line.name) | {"linestyle": "none"}
        place = (at - (len(panel.lines) - 1) / 2) * DODGE
        xs = [words.index(x) + place for x in line.x]
        axes.plot(xs, _gaps(line.y), **style, zorder=3, clip_on=False)
        if line.low:
            axes.vlines(xs, _gaps(line.low), _gaps(line.high), color=style["color"], linewidth=1.2)
    axes.set_xticks(range(len(words)), [number(word) for word in words])
    axes.set_xlim(-0.6, len(words) - 0.4)
    axes.grid(axis="x", visible=False)


def _draw_steps(axes: Axes, figure: Figure, panel: Panel) -> None:
    for line in panel.lines:
        style = _style(figure, line.name) | {"marker": ""}
        axes.plot(line.x, _gaps(line.y), **style, zorder=3)
    xs = [x for line in panel.lines for x in line.x if x > 0]
    if xs and max(xs) / min(xs) >= LOG_FROM:
        axes.set_xscale("log")
        few = max(xs) / min(xs) <= CROWDED_FROM
        axes.xaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12)
        )
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_ylim(0, 1.02)


def _draw_traces(axes: Axes, figure: Figure, panel: Panel) -> None:
    for line in panel.lines:
        style = _style(figure, line.name) | {"marker": ".", "markersize": 4, "linestyle": "-"}
        axes.plot(line.x, _gaps(line.y), **style, linewidth=1.1, zorder=3)
    axes.xaxis.set_major_locator(MaxNLocator(8))


DRAWN = {
    "curves": _draw_curves,
    "dots": _draw_dots,
    "steps": _draw_steps,
    "traces": _draw_traces,
}


def _draw_legend(sheet: Sheet, every: list[Axes], figure: Figure) -> None:
    """Below the figure, where it covers nothing; panels that have their names as titles need none."""
    if figure.kind == "traces":
        return
    known: dict[str, Any] = {}
    for axes in every:
        handles, labels = axes.get_legend_handles_labels()
        known = dict(zip(labels, handles, strict=True)) | known
    labels, handles = list(known), list(known.values())
    sheet.legend(
        handles,
        labels,
        loc="outside lower left",
        ncols=len(labels) if sum(map(len, labels)) + 6 * len(labels) <= LEGEND_MAX else 3,
        handlelength=2.2,
        columnspacing=1.2,
        fontsize=8.5,
    )


def _gaps(values: Iterable[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def number(value: Any) -> str:
    """For people: few digits, and thousands apart."""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
