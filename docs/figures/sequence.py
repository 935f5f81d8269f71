"""Draw a scenario as a picture: who says what to whom, and when it arrives.

    python docs/figures/sequence.py handoff --columns braga,porto,lisbon,faro,anna --from 40

Time goes down, to scale but for idle times. Every message and every delivery is a line of the trace
that `wayfare sim` prints; only arrivals are not in there, and follow from the latency of the link.
"""

from __future__ import annotations

import argparse
import re
import sys
from itertools import pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape

from wayfare.sim import scenario
from wayfare.sim.links import MS_NS, LinkSpec

PER_MS = 8.5  # points
IDLE_MAX = 34.0  # that nothing is under way, however long it takes
COLUMN, LEFT, TOP = 240, 180, 62
LINE, CHARACTER = 14, 6.3  # of a text: its height, and the width of a character
CHARACTERS = 31  # of a line of a label

LINE_OF_TRACE = re.compile(r" *([\d.]+) ms  (.{22})(?:  (.*))?")

STYLE = """
  .paper { fill: #ffffff; stroke: #d0d7de }
  .life { stroke: #8c959f; stroke-dasharray: 2 4 }
  .control { stroke: #0550ae } .control-head { fill: #0550ae }
  .news { stroke: #116329 } .news-head { fill: #116329 }
  .box { fill: #ffffff; fill-opacity: 0.94 }
  text { font: 10.5px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328 }
  .name { font-weight: bold; font-size: 13px }
  .note { font-style: italic; fill: #8a4600 }
  .time { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; stroke: #3d444d }
    .life { stroke: #656c76 }
    .control { stroke: #79c0ff } .control-head { fill: #79c0ff }
    .news { stroke: #7ee787 } .news-head { fill: #7ee787 }
    .box { fill: #0d1117 }
    text { fill: #e6edf3 }
    .note { fill: #ffb77c }
    .time { fill: #9198a1 }
  }
"""


class Arrow(NamedTuple):
    """A message, from when it is sent until it arrives."""

    sender: str
    receiver: str
    sent: float
    arrives: float
    label: list[str]
    news: bool


class Mark(NamedTuple):
    """What reaches an application, or a note that belongs to nobody."""

    who: str
    time: float
    text: str


def read(name: str, columns: list[str], start: float, end: float) -> tuple[list[Arrow], list[Mark]]:
    """Play a scenario; what happens in this time, in milliseconds, to these."""
    outcome = scenario.play(scenario.find(name))
    arrows, marks = [], []
    for line in outcome.lines:
        found = LINE_OF_TRACE.fullmatch(line)
        if found is None or not start <= float(found[1]) <= end:
            continue
        time, subject, text = float(found[1]), found[2].strip(), found[3] or ""
        sender, to, receiver = subject.partition(" -> ")
        who = subject.removesuffix(" <=")
        if to and {sender, receiver} <= {*columns}:
            pipe = outcome.world.pipes.get((sender, receiver))
            direct = {
                sender,
                receiver,
            } <= outcome.world.brokers.keys()  # from replicator to replicator
            other = outcome.world.direct_link if direct else outcome.world.client_link
            spec = other if pipe is None else pipe.spec
            news = text.startswith(("Notification", "Deliver"))
            arrives = time + latency_ms(spec)
            arrow = Arrow(sender, receiver, time, arrives, lines_of(text), news)
            together = [one for one in arrows if one[:4] == arrow[:4]]
            for one in together:
                arrows.remove(one)
                arrow = arrow._replace(label=one.label + arrow.label)
            arrows.append(arrow)
        elif not subject or (who != subject and who in columns):
            marks.append(Mark(who, time, text))
    return arrows, marks


def latency_ms(spec: LinkSpec) -> float:
    if spec != LinkSpec(latency_ns=spec.latency_ns):
        raise SystemExit("nobody knows when a message arrives on a link with more than a latency")
    return spec.latency_ns / MS_NS


def lines_of(text: str) -> list[str]:
    """A message as a label: one line for each part of an update, or more where it is long."""
    if text.startswith("Update("):
        text = text.removeprefix("Update(").removesuffix(")")
    out: list[str] = []
    for part in re.split(r", (?=[-+]|[A-Z])", text):
        line = ""
        for word in part.split(" "):
            if line and len(line) + 1 + len(word) > CHARACTERS:
                out.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        out.append(line)
    return out


def heights(arrows: list[Arrow], marks: list[Mark]) -> dict[float, float]:
    """Where on the paper each moment is."""
    moments = {one for arrow in arrows for one in (arrow.sent, arrow.arrives)}
    times = sorted(moments | {mark.time for mark in marks})
    at = {times[0]: TOP + 30.0}
    for before, after in pairwise(times):
        gap = (after - before) * PER_MS
        if not any(one.sent <= before and after <= one.arrives for one in arrows):
            gap = max(min(gap, IDLE_MAX), 2 * LINE)
        at[after] = at[before] + gap
    return at


def draw(name: str, columns: list[str], start: float = 0, end: float = float("inf")) -> str:
    """The picture, as SVG."""
    arrows, marks = read(name, columns, start, end)
    if not arrows:
        raise SystemExit(f"{', '.join(columns)} say nothing to each other then")
    at = heights(arrows, marks)
    speak = {one for arrow in arrows for one in arrow[:2]}
    x, right = {columns[0]: LEFT}, LEFT
    for who in columns[1:]:
        right += COLUMN if who in speak else COLUMN // 3
        x[who] = right
    told: dict[float, int] = {}  # how many notes and deliveries there are at a time
    shapes, labels = [], []
    for arrow in arrows:
        shapes.append(_line(arrow, x, at))
        beside = [one for one in arrows if (one.sender, one.sent) == (arrow.sender, arrow.sent)]
        labels.append(_label(arrow, x, at, late=len(beside) > 1))
    for mark in marks:
        down = told.get(mark.time, 0) * LINE
        told[mark.time] = told.get(mark.time, 0) + 1
        if mark.who:
            centre = f'cx="{x[mark.who]}" cy="{at[mark.time] + down:.1f}"'
            labels.append(f'<circle class="news-head" {centre} r="3.5"/>')
        place = x[mark.who] + 9 if mark.who else 12
        y = at[mark.time] + down + 4
        kind = "" if mark.who else ' class="note"'
        labels.append(f'<text{kind} x="{place}" y="{y:.1f}">{escape(mark.text)}</text>')
    for time, y in at.items():
        if any(time == arrow.sent for arrow in arrows) or any(
            time == mark.time for mark in marks if mark.who
        ):
            labels.append(f'<text class="time" x="12" y="{y + 4:.1f}">{time:5.1f} ms</text>')
    bottom = max(at.values()) + max(told.values(), default=0) * LINE + 22
    wide = max((len(mark.text) * CHARACTER for mark in marks if mark.who), default=0.0)
    width = x[columns[-1]] + max(60, wide + 30)
    size = f'width="{width:.0f}" height="{bottom:.0f}" viewBox="0 0 {width:.0f} {bottom:.0f}"'
    paper = f'width="{width - 1:.0f}" height="{bottom - 1:.0f}" rx="6"'
    lives = [
        f'<line class="life" x1="{x[who]}" y1="{TOP - 14}" x2="{x[who]}" y2="{bottom - 12:.0f}"/>'
        f'<text class="name" x="{x[who]}" y="{TOP - 24}" text-anchor="middle">{escape(who)}</text>'
        for who in columns
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(name)}: who says what to whom, time going down</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" {paper}/>',
            *lives,
            *shapes,
            *labels,
            "</svg>\n",
        ]
    )


def _line(arrow: Arrow, x: dict[str, int], at: dict[float, float]) -> str:
    kind = "news" if arrow.news else "control"
    x1, y1, x2, y2 = x[arrow.sender], at[arrow.sent], x[arrow.receiver], at[arrow.arrives]
    long = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    across, down = (x2 - x1) / long, (y2 - y1) / long
    tip_x, tip_y = x2 - across, y2 - down
    corners = [
        (tip_x, tip_y),
        (tip_x - 9 * across + 4 * down, tip_y - 9 * down - 4 * across),
        (tip_x - 9 * across - 4 * down, tip_y - 9 * down + 4 * across),
    ]
    head = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return (
        f'<line class="{kind}" x1="{x1}" y1="{y1:.1f}" x2="{tip_x:.1f}" y2="{tip_y:.1f}"/>'
        f'<polygon class="{kind}-head" points="{head}"/>'
    )


def _label(arrow: Arrow, x: dict[str, int], at: dict[float, float], late: bool) -> str:
    """In the middle of its way to the next column, wherever it goes; `late`, from the last column."""
    share = 0.5 * COLUMN / abs(x[arrow.receiver] - x[arrow.sender])
    share = 1 - share if late else share
    middle = x[arrow.sender] + (x[arrow.receiver] - x[arrow.sender]) * share
    centre = at[arrow.sent] + (at[arrow.arrives] - at[arrow.sent]) * share
    wide = max(map(len, arrow.label)) * CHARACTER + 8
    high = len(arrow.label) * LINE + 2
    top = centre - high / 2
    box = (
        f'<rect class="box" x="{middle - wide / 2:.1f}" y="{top:.1f}"'
        f' width="{wide:.1f}" height="{high}"/>'
    )
    texts = [
        f'<text x="{middle:.1f}" y="{top + 11 + row * LINE:.1f}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for row, line in enumerate(arrow.label)
    ]
    return box + "".join(texts)


def main(argv: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "scenario", help="a name from the list that `wayfare sim` prints, or a file"
    )
    parser.add_argument("--columns", required=True, help="brokers and clients, from left to right")
    parser.add_argument("--from", dest="start", type=float, default=0, help="in milliseconds")
    parser.add_argument("--until", type=float, default=float("inf"), help="in milliseconds")
    given = parser.parse_args(argv)
    return draw(given.scenario, given.columns.split(","), given.start, given.until)


if __name__ == "__main__":
    sys.stdout.write(main())
