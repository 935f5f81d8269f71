"""The documentation is true: examples run, links resolve, traces and tables are those of the code.

```python       is executed, top to bottom, all blocks of a page in one namespace; with the network that the
                page starts by `wayfare network up`, but at free ports
```python spark     likewise, but with a session: see test_source.py
```sh           lines that begin with `wayfare` are understood by the command line
```trace NAME   lines of that scenario's trace, in order; `...` stands for lines left out
"""

import ast
import doctest
import importlib
import json
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from wayfare import cli, eventlog
from wayfare.channel import SETTINGS
from wayfare.core import messages
from wayfare.core.history import Limits
from wayfare.net import config
from wayfare.net.limits import NetLimits
from wayfare.sim import scenario

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "wayfare"
DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for page in (*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING")))
    if page.is_file()
)

# ---- reading pages ---------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block: what it says behind the fence, its text, and the line it starts on."""

    info: str
    text: str
    line: int


def blocks(text):
    """All fenced blocks of a page."""
    found, start, fence, info = [], 0, "", ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        opening = re.match(r" {0,3}(`{3,}|~{3,})\s*(.*)", line)
        if not fence and opening:
            fence, info, start = opening[1], opening[2].strip(), number + 1
        elif fence and re.fullmatch(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}\s*", line):
            found.append(Block(info, "\n".join(lines[start:number]) + "\n", start + 1))
            fence = ""
    assert not fence, f"the block that begins on line {start} has no end"
    return found


def unfenced(text):
    """The lines of a page that are not in fenced blocks."""
    fence = ""
    for line in text.splitlines():
        opening = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if opening and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else opening[1]
        elif not fence:
            yield line


def prose(text):
    """The page without its code: neither fenced, nor indented, nor in backticks."""
    lines = (line for line in unfenced(text) if not line.startswith("    "))
    return "\n".join(re.sub(r"`[^`]*`", "``", line) for line in lines)


def anchors(text):
    """What a link to a heading of this page may name, as GitHub makes it."""
    headings = (re.match(r"#{1,6}\s+(.*)", line) for line in unfenced(text))
    plain = (re.sub(r"[^\w\- ]", "", found[1].strip().lower()) for found in headings if found)
    return {one.replace(" ", "-") for one in plain}


def rows(page):
    """The cells of every table row of a page, without backticks and escapes."""
    out = []
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            out.append([cell.replace("`", "").replace("\\|", "|").strip() for cell in cells])
    return out


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def pages_with(info):
    return [
        page for page in PAGES if any(one.info.split()[:1] == [info] for one in blocks_of(page))
    ]


def blocks_of(page):
    return blocks(page.read_text("utf-8"))


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


# ---- pages: examples, links, commands, traces ---------------------------------------------------


def run(page, found):
    """Execute the python blocks of a page, in one namespace."""
    namespace = {"__name__": "__docs__"}
    for block in found:
        if block.info.split()[:1] != ["python"] or block.info == "python spark":
            continue
        if block.text.lstrip().startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(
                block.text, namespace, page, page, block.line - 1
            )
            runner = doctest.DebugRunner(optionflags=doctest.ELLIPSIS)
            runner.run(test, clear_globs=False)
            namespace.update(test.globs)
        else:
            code = "\n" * (block.line - 1) + block.text  # a traceback names the page's line
            exec(compile(code, page, "exec"), namespace)


@contextmanager
def network_of(page, folder):
    """The network that a page starts: for each address that the page has, where the broker really is."""
    found = re.search(r"^wayfare network up (\S+)", page.read_text("utf-8"), re.MULTILINE)
    if found is None:
        yield {}
        return
    city = config.read(ROOT / found[1])
    links = [list(pair) for pair in city.links]
    file = folder / "city.toml"
    file.write_text(f"links = {json.dumps(links)}\n")
    command = [sys.executable, "-m", "wayfare", "network", "up", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            rows = [json.loads(process.stdout.readline()) for _ in city.brokers]
            at = {row["name"]: row["address"].removeprefix("wayfare://") for row in rows}
            yield {f"{city.host}:{port}": at[name] for name, port in city.brokers.items()}
        finally:
            process.terminate()


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with network_of(page, tmp_path) as addresses:
        found = blocks_of(page)
        if addresses:
            pattern = "|".join(map(re.escape, addresses))
            found = [
                one._replace(text=re.sub(pattern, lambda at: addresses[at[0]], one.text))
                for one in found
            ]
        run(str(page), found)


def dead_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text("utf-8"))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # elsewhere
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            yield f"{target}: there is no {path}"
        elif not there.is_relative_to(ROOT):
            yield f"{target}: leads out of the repository"
        elif anchor and anchor not in anchors(there.read_text("utf-8")):
            yield f"{target}: no heading of {path or 'this page'} is called that"


@every_page
def test_links_resolve(page):
    assert list(dead_links(page)) == []


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text("utf-8")
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index)}
    assert [name_of(page) for page in sorted({*DOCS.rglob("*.md")} - linked)] == ["docs/README.md"]


@pytest.mark.parametrize("page", pages_with("sh"), ids=name_of)
def test_commands_are_understood(page):
    for block in blocks_of(page):
        if block.info.split()[:1] == ["sh"]:
            for line in block.text.splitlines():
                for command in line.split(" | "):
                    words = shlex.split(command, comments=True)
                    if words[:1] == ["wayfare"]:
                        check_command(words[1:])


def check_command(words):
    arguments = cli.parser().parse_args(cli.as_subcommand(words))
    named = getattr(arguments, "scenario", None)
    if named is not None and not named.endswith(".txt"):
        assert named in scenario.shipped(), f"there is no scenario {named}"


TRACES = [
    (page, block)
    for page in pages_with("trace")
    for block in blocks_of(page)
    if block.info.startswith("trace ")
]


def not_in_trace(shown, trace):
    """The first shown line that does not follow, in this trace; None if all do."""
    lines = [line.split() for line in trace]
    at, skipping = 0, True
    for line in shown:
        if line.strip() == "...":
            skipping = True
            continue
        try:
            found = lines.index(line.split(), at)
        except ValueError:
            return line
        if found != at and not skipping:
            return line
        at, skipping = found + 1, False
    return None


@pytest.mark.parametrize(("page", "block"), TRACES, ids=[block.info for _, block in TRACES])
def test_traces_are_those_of_the_scenario(page, block):
    outcome = scenario.play(scenario.shipped()[block.info.split()[1]])
    assert not_in_trace(block.text.splitlines(), outcome.lines) is None


def drawings():
    """The pictures that pages say how to draw: the arguments, and the file."""
    for page in pages_with("sh"):
        for block in blocks_of(page):
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["python", "docs/figures/sequence.py"]:
                    *arguments, into, file = words[2:]
                    assert into == ">"
                    yield arguments, file


def test_pictures_are_what_their_commands_draw(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "figures")
    sequence = importlib.import_module("sequence")
    drawn = {ROOT / file: sequence.main(arguments) for arguments, file in drawings()}
    assert sorted(drawn) == sorted((DOCS / "figures").glob("*.svg"))
    for file, picture in drawn.items():
        again = "draw it again with the command on its page"
        assert file.read_text("utf-8") == picture, f"{file.name} is out of date: {again}"


@every_page
def test_every_test_that_a_page_names_is_there(page):
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").glob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    named = re.findall(r"`(test_\w+)`", page.read_text("utf-8"))
    assert [name for name in named if name not in there] == []


def comparisons():
    """The tables of `wayfare sim roaming --table` on pages: the command, and its lines of 7 brokers."""
    for page in pages_with("sh"):
        lines = page.read_text("utf-8").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("wayfare sim roaming --table") and lines[number + 3][:1] == "|":
                below = takewhile(lambda row: row.startswith("|"), lines[number + 3 :])
                shown = [row for row in below if row.startswith("|       7 ")]
                if shown:
                    yield shlex.split(line)[1:], shown


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), [*comparisons()])
def test_tables_of_costs_are_what_their_commands_print(command, shown, capsys):
    """For the smallest tree; the others take minutes."""
    assert cli.main([*command, "--brokers", "7"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [row for row in printed if row.startswith("|       7 ")] == shown


def test_the_table_of_profiles_is_what_its_command_prints(capsys):
    assert cli.main(["emulate", "--profile", "list"]) == 0
    assert capsys.readouterr().out in (DOCS / "emulator.md").read_text("utf-8")


def test_every_setting_of_a_profile_is_described():
    described = {name for row in rows(DOCS / "emulator.md") for name in row[0].split(", ")}
    assert set(SETTINGS) <= described


# ---- tables: messages, limits, modules, statements, events --------------------------------------


def test_every_message_is_described_with_its_tag_and_fields():
    described = {row[0]: row[1:] for row in rows(DOCS / "protocol.md") if row[1].isdecimal()}
    for message in (*get_args(messages.AnyMessage), *get_args(messages.Errand)):
        fields = ", ".join(message.__struct_fields__)
        tag = str(message.__struct_config__.tag)
        assert described.get(message.__name__) == [tag, fields]


def test_the_version_is_current():
    text = (DOCS / "protocol.md").read_text("utf-8")
    assert f"`PROTOCOL_VERSION` is {messages.PROTOCOL_VERSION}." in text


def constants(path):
    """The names that a module assigns at the top."""
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name):
                    yield name.id


ALSO_LIMITS = {"ACK_BYTES", "ACK_EVERY", "ACK_DELAY_NS", "BATCH_ROWS", "MARKS_AGE_NS"}


def limits():
    """Every limit: its name, value and module."""
    paths = [
        path for part in ("core", "net", "service", "sim") for path in (SOURCE / part).rglob("*.py")
    ]
    for path in sorted([*paths, *SOURCE.glob("eventlog*")]):
        module = path.relative_to(SOURCE).as_posix()
        dotted = f"wayfare.{module.removesuffix('.py').replace('/', '.')}"
        for name in constants(path):
            if name.endswith("_MAX") or name in ALSO_LIMITS:
                yield name, getattr(importlib.import_module(dotted), name), module
    for name in Limits.__struct_fields__:
        yield f"Limits.{name}", getattr(Limits(), name), "core/history.py"
    for name in NetLimits.__struct_fields__:
        yield f"NetLimits.{name}", getattr(NetLimits(), name), "net/limits.py"


@pytest.mark.parametrize(("name", "value", "module"), [*limits()])
def test_every_limit_is_in_the_table_with_its_default(name, value, module):
    found = [row for row in rows(DOCS / "architecture.md") if row[0] == name and row[2] == module]
    assert len(found) == 1, f"docs/architecture.md has to name {name} of {module}, once"
    assert found[0][1].split(" (")[0] == f"{value:,}"
    assert len(found[0]) == 3 or found[0][3], "say what happens there"


def test_no_limit_in_the_table_is_gone():
    named = [(row[0], row[2]) for row in rows(DOCS / "architecture.md") if row[2:3] != ["module"]]
    known = {(name, module) for name, _, module in limits()}
    assert [one for one in named if one[1].endswith(".py") and one not in known] == []


def test_the_module_map_is_the_tree():
    text = (DOCS / "architecture.md").read_text("utf-8")
    _, _, text = text.partition("\n## Modules\n")
    text, _, _ = text.partition("\n## ")
    listed, folder = set(), ""
    for line in text.splitlines():
        if found := re.match(r"( {6}| {8})(\w+/|\w+\.py)\s+\S", line):
            deep, name = len(found[1]) == 8, found[2]
            folder = folder if deep else name if name.endswith("/") else ""
            if name.endswith(".py"):
                listed.add(folder + name)
    there = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert listed == {path for path in there if not path.endswith("/__init__.py")}


def test_every_statement_of_scenarios_is_described_with_its_usage():
    described = [row[:2] for row in rows(DOCS / "simulator.md") if len(row) == 3]
    for word, (usage, _) in scenario.STATEMENTS.items():
        assert [word, f"{word} {usage}".strip()] in described


def kinds():
    """Every kind of event that the source writes, by what it calls."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="log" | "fact"),
                    args=[ast.Constant(value=str(kind)), *_],
                ):
                    yield kind
                case ast.Call(
                    func=ast.Name(id="Event"), args=[_, ast.Constant(value=str(kind)), *_]
                ):
                    yield kind


def test_every_kind_of_event_is_described():
    table = rows(DOCS / "event-log.md")
    start, end = table.index(["kind", "filled", "fact"]), table.index(["column", "type", "meaning"])
    described = {row[0] for row in table[start:end]} - {"kind", "---"}
    assert described == {*kinds()} != set()


def test_every_column_is_described_with_its_type():
    described = [row[:2] for row in rows(DOCS / "event-log.md") if len(row) == 3]
    for field in eventlog.SCHEMA:
        kind = {"string": "text"}.get(str(field.type), str(field.type))
        assert [field.name, kind] in described


def test_decisions_have_a_number_and_three_parts():
    pages = sorted((DOCS / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len({*numbers}) == len(pages)  # some may be of branches that have not been merged
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith(f"# {page.name[:4]}: ")
        places = [text.index(f"\n## {part}\n") for part in ("Context", "Choice", "Consequences")]
        assert all(a < b for a, b in pairwise(places))


# ---- the checks, checked ------------------------------------------------------------------------


def test_blocks_are_found():
    text = "a\n```python\nx = 1\n```\n\n````text\n```\n````\n```\nplain\n```\n"
    assert blocks(text) == [
        ("python", "x = 1\n", 3),
        ("text", "```\n", 7),
        ("", "plain\n", 10),
    ]


def test_a_wrong_example_is_found_with_its_line():
    with pytest.raises(AssertionError) as caught:
        run("page.md", blocks("text\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n"))
    assert caught.traceback[-1].lineno + 1 == 8
    with pytest.raises(doctest.DocTestFailure):
        run("page.md", blocks("```python\n>>> 1 + 1\n3\n```\n"))


def test_a_dead_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# One `two`, three\n```\n# no\n```\n", "utf-8")
    page = tmp_path / "a.md"
    good = "[x](b.md) [y](b.md#one-two-three) [z](https://example.org) `[no](no)` \n    [no](no)\n"
    page.write_text(good, "utf-8")
    assert list(dead_links(page)) == []
    page.write_text(good + "[1](c.md) [2](b.md#no) [3](#one) [4](../)", "utf-8")
    assert [one.split(":")[0] for one in dead_links(page)] == ["c.md", "b.md#no", "#one", "../"]


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        ("b c", None),
        ("a ... d", None),
        ("a c", "c"),
        ("c ... b", "b"),
        ("x", "x"),
    ],
)
def test_a_line_that_is_not_in_the_trace_is_found(shown, wrong):
    assert not_in_trace(shown.split(), ["a", "b", "c", "d"]) == wrong


def test_a_command_that_makes_no_sense_is_found(capsys):
    check_command(["sim", "fuzz", "--seeds", "3"])
    with pytest.raises(SystemExit):
        check_command(["bench", "nothing"])
    with pytest.raises(AssertionError):
        check_command(["sim", "no-such-story"])
