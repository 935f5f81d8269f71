"""Scenarios: short stories in text, with the trace that they must give.

    # A subscription travels towards the advertisement.
    brokers porto - lisbon - faro
    attach ticker faro ; advertise ticker price > 0
    attach anna porto ; subscribe anna price > 40
    settle
    publish ticker {price: 41}
    ----
    (the trace, as it was when somebody last looked at it)

One statement a line, or several with ` ; ` between. Everything happens at once until `wait 30ms` or
`settle` lets time pass. At the end all settles, and the oracle judges. `help_text()` lists all statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from itertools import pairwise
from pathlib import Path

import msgspec

from wayfare.core.history import Limits
from wayfare.core.predicates import Value
from wayfare.errors import ScenarioError, WayfareError
from wayfare.sim.faults import Crash, Cut, Slow
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.oracle import Verdict, check
from wayfare.sim.trace import Trace
from wayfare.sim.world import CLIENT_LINK, World

SEPARATOR = "----"
UNITS_NS = {"ns": 1, "us": 1_000, "ms": MS_NS, "s": 1000 * MS_NS, "h": 3600 * 1000 * MS_NS}
FOR_EVER_NS = 10**15


class Scenario(msgspec.Struct, frozen=True):
    """A story: what it is about, its statements by line, and the trace it should give."""

    name: str
    about: str
    statements: tuple[tuple[int, str], ...]
    script: str
    trace: str


class Outcome(msgspec.Struct, frozen=True):
    """What a scenario came to."""

    world: World
    lines: list[str]
    verdict: Verdict


def read(name: str, text: str) -> Scenario:
    script, _, trace = text.partition(f"\n{SEPARATOR}\n")
    about = [line[1:].strip() for line in script.splitlines() if line.startswith("#")]
    statements = [
        (number, statement.strip())
        for number, line in enumerate(script.splitlines(), 1)
        if line.strip() and not line.startswith("#")
        for statement in re.split(r"\s;\s", line)
    ]
    return Scenario(name, " ".join(about), tuple(statements), script, trace)


def shipped() -> dict[str, Scenario]:
    """The scenarios that come with Wayfare, by name."""
    files = resources.files("wayfare.sim") / "scenarios"
    texts = {
        file.name.removesuffix(".txt"): file.read_text(encoding="utf-8")
        for file in files.iterdir()
        if file.name.endswith(".txt")
    }
    return {name: read(name, texts[name]) for name in sorted(texts)}


def find(name: str) -> Scenario:
    """The scenario of that name, or in that file."""
    path = Path(name)
    if path.is_file():
        try:
            return read(path.stem, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(1, f"cannot read {name}: {error}") from None
    scenarios = shipped()
    if name not in scenarios:
        raise WayfareError(
            f"there is no scenario or file {name!r}; `wayfare sim` lists the scenarios"
        )
    return scenarios[name]


def play(scenario: Scenario, seed: int = 0, *, log_messages: bool = False) -> Outcome:
    """Run a scenario and let the oracle judge it."""
    stage = Stage(seed, log_messages)
    for line, statement in scenario.statements:
        try:
            stage.do(statement)
        except ScenarioError:
            raise
        except WayfareError as error:
            raise ScenarioError(line, str(error)) from error
    world = stage.world
    world.settle()
    verdict = check(world)
    return Outcome(world, [*stage.trace.lines, *judgement(verdict)], verdict)


def judgement(verdict: Verdict) -> list[str]:
    """The oracle's words."""
    counts = f"{verdict.published} published, {verdict.delivered} delivered, {verdict.lost} lost"
    if verdict.violations:
        return [f"{counts}: NOT AS PROMISED", *(f"  {one}" for one in verdict.violations)]
    return [f"{counts}: complete, once, in order, tidy"]


class Stage:
    """Carries out statements, one by one."""

    def __init__(self, seed: int, log_messages: bool = False) -> None:
        self._seed = seed
        self._log_messages = log_messages
        self._routing = "covering"
        self._limits = Limits()
        self._broker_link = LinkSpec()
        self._client_link = CLIENT_LINK
        self._world: World | None = None
        self._trace: Trace | None = None
        self._trace_clients = False

    @property
    def world(self) -> World:
        if self._world is None:
            raise WayfareError("name the brokers first: brokers porto - lisbon - faro")
        return self._world

    @property
    def trace(self) -> Trace:
        assert self.world
        assert self._trace is not None
        return self._trace

    def do(self, statement: str) -> None:
        word, _, rest = statement.partition(" ")
        if word not in STATEMENTS:
            raise WayfareError(f"unknown statement {word!r}: {', '.join(STATEMENTS)}")
        usage, act = STATEMENTS[word]
        try:
            act(self, rest.strip())
        except (ValueError, IndexError):
            raise WayfareError(f"this is written: {word} {usage}") from None

    # Before the brokers are there

    def routing(self, rest: str) -> None:
        self._before_brokers()
        self._routing = rest

    def link(self, rest: str) -> None:
        self._before_brokers()
        self._broker_link = _link_spec(rest)

    def client_link(self, rest: str) -> None:
        self._before_brokers()
        self._client_link = _link_spec(rest)

    def backlog(self, rest: str) -> None:
        self._before_brokers()
        what, value = rest.split()
        amount = _time_ns(value) if what == "age" else int(value)
        field = {"count": "backlog_count", "bytes": "backlog_bytes", "age": "backlog_age_ns"}
        names = {**field, "window": "window"}
        if what not in names:
            raise ValueError(what)
        self._limits = msgspec.structs.replace(self._limits, **{names[what]: amount})

    def trace_all(self, rest: str) -> None:
        if rest != "all":
            raise ValueError(rest)
        self._before_brokers()
        self._trace_clients = True

    def _before_brokers(self) -> None:
        if self._world is not None:
            raise WayfareError("this has to be said before the brokers are named")

    def brokers(self, rest: str) -> None:
        self._before_brokers()
        edges: list[tuple[str, str]] = []
        alone: str | None = None
        for branch in rest.split(","):
            chain = [name.strip() for name in branch.split(" - ")]
            if not all(re.fullmatch(r"[\w.]+", name) for name in chain):
                raise ValueError(rest)
            alone = chain[0]
            edges += pairwise(chain)
        world = World(self._seed, self._routing, self._limits, self._broker_link, self._client_link)
        if self._log_messages:
            world.log_messages()
        world.add_brokers(edges, alone=alone)
        self._world, self._trace = world, Trace(world, clients=self._trace_clients)

    # What clients do

    def attach(self, rest: str) -> None:
        name, *broker = rest.split()
        if name in self.world.clients:
            self.world.client(name).attach(broker[0] if broker else None)
        else:
            self.world.add_client(name, broker[0])

    def detach(self, rest: str) -> None:
        self.world.client(rest).detach()

    def leave(self, rest: str) -> None:
        self.world.client(rest).detach(leave=True)

    def disconnect(self, rest: str) -> None:
        self.world.client(rest).disconnect()

    def subscribe(self, rest: str) -> None:
        name, filter = rest.split(maxsplit=1)
        self.world.client(name).subscribe(filter)

    def unsubscribe(self, rest: str) -> None:
        name, filter = rest.split(maxsplit=1)
        self.world.client(name).unsubscribe(filter)

    def advertise(self, rest: str) -> None:
        name, filter = rest.split(maxsplit=1)
        self.world.client(name).advertise(filter)

    def unadvertise(self, rest: str) -> None:
        name, filter = rest.split(maxsplit=1)
        self.world.client(name).unadvertise(filter)

    def publish(self, rest: str) -> None:
        name, attributes = rest.split(maxsplit=1)
        self.world.client(name).publish(read_attributes(attributes))

    # What happens to the network

    def cut(self, rest: str) -> None:
        a, b = rest.split(" - ")
        self.world.cut(Cut(a.strip(), b.strip(), self.world.now, FOR_EVER_NS))

    def heal(self, rest: str) -> None:
        a, b = rest.split(" - ")
        self.world.heal(Cut(a.strip(), b.strip(), self.world.now, FOR_EVER_NS))

    def crash(self, rest: str) -> None:
        broker, time = rest.split()
        self.world.broker(broker)
        self.world.crash(Crash(broker, self.world.now, _time_ns(time)))

    def slow(self, rest: str) -> None:
        broker, per_message = rest.split()
        self.world.slow_down(Slow(broker, self.world.now, FOR_EVER_NS, _time_ns(per_message)))

    # Time

    def wait(self, rest: str) -> None:
        self.world.run_until(self.world.now + _time_ns(rest))

    def settle(self, rest: str) -> None:
        if rest:
            raise ValueError(rest)
        self.world.settle()

    def note(self, rest: str) -> None:
        self.trace.line("", rest)

    def show(self, rest: str) -> None:
        """Write a broker's tables into the trace."""
        routing = self.world.broker(rest).core.routing
        for other in self.world.broker(rest).core.neighbours:
            for table, entries in (
                ("in_ads", dict.fromkeys(routing.in_ads[other], True)),
                ("in_subs", dict.fromkeys(routing.in_subs[other], True)),
                ("out_ads", routing.out_ads[other].entries),
                ("out_subs", routing.out_subs[other].entries),
            ):
                for entry, sent in entries.items():
                    owner = f"{entry.client}: " if entry.client else ""
                    unsent = "" if sent else "   (not sent)"
                    self.trace.line(f"{rest} {table} {other}", f"{owner}{entry.filter}{unsent}")


STATEMENTS: dict[str, tuple[str, Callable[[Stage, str], None]]] = {
    "routing": ("flooding | simple | identity | covering | merging", Stage.routing),
    "link": ("10ms [+5ms jitter] [256kbps] [loss 0.1]", Stage.link),
    "client_link": ("2ms [+1ms jitter] [128kbps] [loss 0.1]", Stage.client_link),
    "backlog": ("count 3 | bytes 1000 | age 10s | window 32", Stage.backlog),
    "trace": ("all", Stage.trace_all),
    "brokers": ("porto - lisbon - faro, lisbon - braga", Stage.brokers),
    "attach": ("anna porto", Stage.attach),
    "detach": ("anna", Stage.detach),
    "leave": ("anna", Stage.leave),
    "disconnect": ("anna", Stage.disconnect),
    "subscribe": ("anna price > 40", Stage.subscribe),
    "unsubscribe": ("anna price > 40", Stage.unsubscribe),
    "advertise": ("ticker price > 0", Stage.advertise),
    "unadvertise": ("ticker price > 0", Stage.unadvertise),
    "publish": ("ticker {price: 41, road: 'A5'}", Stage.publish),
    "cut": ("porto - lisbon", Stage.cut),
    "heal": ("porto - lisbon", Stage.heal),
    "crash": ("lisbon 2s", Stage.crash),
    "slow": ("lisbon 5ms", Stage.slow),
    "wait": ("30ms", Stage.wait),
    "settle": ("", Stage.settle),
    "note": ("anything, to be read in the trace", Stage.note),
    "show": ("lisbon", Stage.show),
}


def help_text() -> str:
    """All statements, with an example each."""
    return "\n".join(f"{word} {usage}".rstrip() for word, (usage, _) in STATEMENTS.items())


def _time_ns(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|h)", text.strip())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * UNITS_NS[match[2]])


def _link_spec(text: str) -> LinkSpec:
    match = re.fullmatch(
        r"(?P<latency>\S+)(?: \+(?P<jitter>\S+) jitter)?(?: (?P<kbps>\d+)kbps)?(?: loss (?P<loss>0?\.\d+))?",
        text,
    )
    if match is None:
        raise ValueError(text)
    return LinkSpec(
        latency_ns=_time_ns(match["latency"]),
        jitter_ns=_time_ns(match["jitter"]) if match["jitter"] else 0,
        bandwidth_bps=int(match["kbps"]) * 1000 if match["kbps"] else None,
        loss=float(match["loss"] or 0),
    )


_ATTRIBUTE = re.compile(r"\s*([\w.$]+)\s*:\s*('(?:[^']|'')*'|true|false|[-+\d.eE]+)\s*(?:,|$)")


def read_attributes(text: str) -> dict[str, Value]:
    """{price: 41, road: 'A5', open: true}"""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(text)
    inner = text[1:-1].strip()
    out: dict[str, Value] = {}
    at = 0
    while at < len(inner):
        match = _ATTRIBUTE.match(inner, at)
        if match is None:
            raise ValueError(text)
        out[match[1]] = _value(match[2])
        at = match.end()
    return out


def _value(text: str) -> Value:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
