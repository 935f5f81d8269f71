"""A report as blocks, and those as Markdown and as one HTML page that needs nothing but itself.

In texts, `...` is code. HTML here is XML, too, so that it can be checked by a parser.
"""

from __future__ import annotations

import re
from html import escape

import msgspec

from wayfare.pipeline.figures import Figure

MARKS = {"holds": "✓", "differs": "≠", "BROKEN": "✗", "failed": "✗"}


class Heading(msgspec.Struct, frozen=True):
    text: str
    anchor: str = ""
    level: int = 2


class Text(msgspec.Struct, frozen=True):
    text: str
    kind: str = ""  # lead, published


class Cell(msgspec.Struct, frozen=True):
    text: str
    more: str = ""  # smaller
    mark: str = ""  # one of MARKS
    link: str = ""


class Table(msgspec.Struct, frozen=True):
    header: list[str]
    rows: list[list[Cell]]
    numbers: int = 99  # columns from this one on are numbers


class Pictures(msgspec.Struct, frozen=True):
    figures: list[Figure]
    command: str  # that makes them


Block = Heading | Text | Table | Pictures


class Page(msgspec.Struct, frozen=True):
    title: str
    blocks: list[Block]


# Markdown


def markdown(page: Page) -> str:
    parts = [f"# {page.title}", *(_markdown(block) for block in page.blocks)]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, _, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Table(header, rows, numbers):
            rules = ["---:" if at >= numbers else "---" for at in range(len(header))]
            whole = [header, rules, *([_markdown_cell(cell) for cell in row] for row in rows)]
            return "\n".join(f"| {' | '.join(cells)} |" for cells in whole)
        case Pictures(figures, command):
            return "\n\n".join(
                f"![{one.title}](figures/{one.name}.svg)\n\n"
                + (f"{one.note} " if one.note else "")
                + f"`{command}`, [figures/{one.name}.csv](figures/{one.name}.csv)"
                for one in figures
            )


def _markdown_cell(cell: Cell) -> str:
    text = f"{MARKS[cell.mark]} {cell.text}" if cell.mark else cell.text
    if cell.link:
        text = f"[{text}]({cell.link})"
    return (f"{text} ({cell.more})" if cell.more else text).replace("|", "\\|")


# HTML

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#22252a;--quiet:#5d6066;--line:#d9dbdf;--soft:#f4f5f7;
--good:#00704f;--odd:#8a5a00;--bad:#b3261e;--link:#00598c}
@media(prefers-color-scheme:dark){:root{--paper:#16181c;--ink:#e3e5e8;--quiet:#a3a7ae;--line:#383c43;
--soft:#1f2227;--good:#4cc79b;--odd:#e0ad4a;--bad:#ff8a80;--link:#7cc0f0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.5rem clamp(1rem,4vw,3rem) 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.35rem;margin:3rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--line)}
p,ul{max-width:46rem}
a{color:var(--link)}
code{font:.86em ui-monospace,monospace;background:var(--soft);padding:.05em .3em;border-radius:3px;
overflow-wrap:anywhere}
.lead{font-size:1.1rem}
.published{border-left:3px solid var(--line);padding-left:.8rem;color:var(--quiet)}
.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:.3rem 1.2rem .3rem 0}
th{color:var(--quiet);font-weight:600;vertical-align:bottom}
tbody tr{border-top:1px solid var(--line)}
tbody tr.same{border-top:0}
.same td{padding-top:0}
.number{text-align:right;white-space:nowrap}
th.number{white-space:normal}
td:first-child:not(:has(.mark)){min-width:min(10rem,30vw)}
.more{display:block;color:var(--quiet);font-size:.85em}
.mark{white-space:nowrap;font-weight:600}
.holds{color:var(--good)}.differs{color:var(--odd)}.BROKEN,.failed{color:var(--bad)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,25rem),1fr));gap:1.5rem 2rem;
margin:1.5rem 0}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:auto}
figure.wide{grid-column:1/-1;overflow-x:auto}
figure.wide svg{min-width:40rem;max-width:60rem}
figcaption{font-size:.8rem;color:var(--quiet);margin-top:.3rem}
""".strip()


def html(page: Page, svgs: dict[str, str]) -> str:
    """With these drawings in it, by the names of figures."""
    body = "\n".join(_html(block, svgs) for block in page.blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n'
        '<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{CSS}\n</style>\n</head>\n"
        f"<body><main>\n<h1>{escape(page.title)}</h1>\n{body}\n</main></body>\n</html>\n"
    )


def _html(block: Block, svgs: dict[str, str]) -> str:
    match block:
        case Heading(text, anchor, level):
            return f'<h{level} id="{escape(anchor)}">{_inline(text)}</h{level}>'
        case Text(text, kind):
            return f'<p class="{kind}">{_inline(text)}</p>'
        case Table():
            return _html_table(block)
        case Pictures(figures, command):
            drawn = "\n".join(_html_figure(one, command, svgs[one.name]) for one in figures)
            return f'<div class="figures">\n{drawn}\n</div>'


def _html_table(table: Table) -> str:
    def line(tag: str, cells: list[str]) -> str:
        same = ' class="same"' if tag == "td" and not cells[0] else ""
        kinds = [' class="number"' if at >= table.numbers else "" for at in range(len(cells))]
        inside = "".join(
            f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, cells, strict=True)
        )
        return f"<tr{same}>{inside}</tr>"

    rows = [line("td", [_html_cell(cell) for cell in row]) for row in table.rows]
    head = line("th", [_inline(text) for text in table.header])
    return (
        f'<div class="scroll"><table>\n<thead>{head}</thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _html_cell(cell: Cell) -> str:
    text = _inline(cell.text)
    if cell.link:
        text = f'<a href="{escape(cell.link)}">{text}</a>'
    if cell.mark:
        text = f'<span class="mark {cell.mark}">{MARKS[cell.mark]} {text}</span>'
    return text + (f'<span class="more">{_inline(cell.more)}</span>' if cell.more else "")


def _html_figure(one: Figure, command: str, svg: str) -> str:
    wide = ' class="wide"' if len(one.panels) > 1 else ""
    file = escape(f"figures/{one.name}.csv")
    note = f"{_inline(one.note)} " if one.note else ""
    return (
        f'<figure{wide} id="{escape(one.name)}">{svg}<figcaption>{note}<code>{escape(command)}</code>'
        f' <a href="{file}">{file}</a></figcaption></figure>'
    )


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
