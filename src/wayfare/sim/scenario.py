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

from wayfare.channel import find as find_profile
from wayfare.core import templates
from wayfare.core.broker import NOT_AHEAD, RELOCATIONS, check_ahead
from wayfare.core.changes import Change
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.late import WANTED
from wayfare.core.membership import AWAY_NS, PREFETCH
from wayfare.core.messages import Area, Nullify, Terms, Will
from wayfare.core.places import Places, of_edges
from wayfare.core.predicates import Value
from wayfare.core.reduction import STRATEGIES
from wayfare.core.virtual import Ahead
from wayfare.errors import ScenarioError, UsageError, WayfareError
from wayfare.sim import topology
from wayfare.sim.applications import Applications
from wayfare.sim.faults import Crash, Cut, Late, Rollback, Slow, Stall
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.oracle import check
from wayfare.sim.trace import Trace
from wayfare.sim.verdict import Verdict
from wayfare.sim.world import CLIENT_LINK, World

SEPARATOR = "----"
_AT_SEPARATOR = re.compile(rf"\n{SEPARATOR}(?:\n|\Z)")  # also as the last line, unfinished
# A semicolon by itself, not within quotes.
_BETWEEN_STATEMENTS = re.compile(r"(?<!\S);(?!\S)(?=(?:[^']*'[^']*')*[^']*$)")
UNITS_NS = {"ns": 1, "us": 1_000, "ms": MS_NS, "s": 1000 * MS_NS, "h": 3600 * 1000 * MS_NS}


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
    # Some editors put a byte order mark in front, which nobody sees.
    script, *rest = _AT_SEPARATOR.split(text.removeprefix("\ufeff"), maxsplit=1)
    about = [line[1:].strip() for line in script.splitlines() if line.startswith("#")]
    statements = [
        (number, statement.strip())
        for number, line in enumerate(script.splitlines(), 1)
        if not line.startswith("#")
        for statement in _BETWEEN_STATEMENTS.split(line)
        if statement.strip()
    ]
    return Scenario(name, " ".join(about), tuple(statements), script, "".join(rest))


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
    scenarios = shipped()
    if name in scenarios:
        return scenarios[name]
    try:
        return read(Path(name).stem, Path(name).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not a text in UTF-8") from None
    except OSError as error:
        raise UsageError(
            f"there is no scenario {name[:80]!r}, and no such file ({error.strerror});"
            " `wayfare sim` lists the scenarios"
        ) from None


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
    try:
        world = stage.world
    except WayfareError as error:
        raise ScenarioError(len(scenario.script.splitlines()) or 1, str(error)) from None
    world.settle()
    verdict = check(world)
    return Outcome(world, [*stage.trace.lines, *judgement(verdict)], verdict)


def judgement(verdict: Verdict) -> list[str]:
    """The oracle's words."""
    counts = f"{verdict.published} published, {verdict.delivered} delivered, {verdict.lost} lost"
    if verdict.violations:
        return [f"{counts}: NOT AS PROMISED", *(f"  {one}" for one in verdict.violations)]
    return [f"{counts}: complete, once, in order, tidy"]


class Misread(Exception):
    """A statement that is not written as it should be."""


def _words(rest: str, count: int) -> list[str]:
    """That many words, the last of which may be a text with blanks."""
    words = rest.split(maxsplit=count - 1)
    if len(words) != count:
        raise Misread
    return words


def _ends(rest: str) -> tuple[str, str]:
    """The two ends of a link, as in `porto - lisbon`."""
    match = re.fullmatch(r"(\S+)\s+-\s+(\S+)", rest)
    if match is None:
        raise Misread
    return match[1], match[2]


def _branches(rest: str) -> tuple[dict[str, None], list[tuple[str, str]]]:
    """Names, and what is linked: `porto - lisbon - faro, lisbon - braga`."""
    edges: list[tuple[str, str]] = []
    names: dict[str, None] = {}
    for branch in rest.split(","):
        chain = [name.strip() for name in branch.split(" - ")]
        if not all(re.fullmatch(r"[\w.]+", name) for name in chain):
            raise Misread
        names.update(dict.fromkeys(chain))
        edges += pairwise(chain)
    return names, edges


class Stage:
    """Carries out statements, one by one."""

    def __init__(self, seed: int, log_messages: bool = False) -> None:
        self._seed = seed
        self._log_messages = log_messages
        self._routing = "covering"
        self._relocation = "handoff"
        self._limits = Limits()
        self._broker_link = LinkSpec()
        self._client_link = CLIENT_LINK
        self._ahead = NOT_AHEAD
        self._world: World | None = None
        self._trace: Trace | None = None
        self._trace_clients = False
        self._applications: Applications | None = None
        self._wills: dict[str, Will] = {}  # of clients that have not attached yet
        self._starts: dict[str, Late] = {}  # brokers that are not there from the beginning

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

    @property
    def applications(self) -> Applications:
        assert self.world
        assert self._applications is not None
        return self._applications

    def do(self, statement: str) -> None:
        word, _, rest = statement.partition(" ")
        if word not in STATEMENTS:
            raise WayfareError(f"unknown statement {word!r}: {', '.join(STATEMENTS)}")
        usage, act = STATEMENTS[word]
        try:
            act(self, rest.strip())
        except Misread:
            raise WayfareError(f"this is written: {word} {usage}".rstrip()) from None

    # Before the brokers are there

    def routing(self, rest: str) -> None:
        self._before_brokers()
        if rest not in STRATEGIES:
            raise Misread
        self._routing = rest

    def relocation(self, rest: str) -> None:
        self._before_brokers()
        if rest not in RELOCATIONS:
            raise Misread
        self._relocation = rest

    def link(self, rest: str) -> None:
        self._before_brokers()
        self._broker_link = _link_spec(rest)

    def client_link(self, rest: str) -> None:
        self._before_brokers()
        self._client_link = _link_spec(rest)

    def backlog(self, rest: str) -> None:
        self._before_brokers()
        what, value = _words(rest, 2)
        if what not in LIMITS:
            raise Misread
        field, read = LIMITS[what]
        self._limits = msgspec.structs.replace(self._limits, **{field: read(value)})

    def remember(self, rest: str) -> None:
        """Every broker remembers so many notifications, for clients that ask for the past."""
        self._before_brokers()
        self._limits = msgspec.structs.replace(self._limits, past_count=_whole(rest))

    def trace_all(self, rest: str) -> None:
        if rest != "all":
            raise Misread
        self._before_brokers()
        self._trace_clients = True

    def _before_brokers(self) -> None:
        if self._world is not None:
            raise WayfareError("this has to be said before the brokers are named")

    def places(self, rest: str) -> None:
        """`faro - harbour` are one step apart; `harbour at lisbon` says that it is in the range of that broker.

        With `steps`, brokers further away are told more: so many steps, or changes of a value.
        """
        self._before_brokers()
        rest, _, steps = rest.partition(" steps ")
        if steps and not steps.isdecimal():
            raise Misread
        places = read_places(rest)
        self._ahead = Ahead(places, places.next_brokers, int(steps or 0))

    def starts(self, rest: str) -> None:
        """A broker starts for the first time after so long, and its links begin so much later."""
        self._before_brokers()
        rest, _, link = rest.partition(" linked after ")
        name, time = _words(rest, 2)
        self._starts[name] = Late(_time_ns(time), _time_ns(link) if link else 0)

    def brokers(self, rest: str) -> None:
        self._before_brokers()
        names, edges = _branches(rest)
        if unknown := self._starts.keys() - names.keys():
            raise WayfareError(f"there is no broker {min(unknown)!r} that could start")
        if (wrong := topology.check_tree(list(names), edges)) is not None:
            raise WayfareError(wrong)
        check_ahead(self._relocation, self._ahead is not NOT_AHEAD)
        world = World(
            self._seed,
            self._routing,
            self._limits,
            self._broker_link,
            self._client_link,
            relocation=self._relocation,
            ahead=self._ahead,
        )
        if self._log_messages:
            world.log_messages()
        alone = None if edges else next(iter(names))
        world.add_brokers(edges, alone=alone, late=self._starts)
        self._world, self._trace = world, Trace(world, clients=self._trace_clients)
        self._applications = Applications(world, self._trace)

    # What clients do

    def attach(self, rest: str) -> None:
        rest, _, expires = rest.partition(" expires ")
        where, wireless, given = rest.partition(" profile ")
        link = _link_spec(f"profile {given}") if wireless else None
        name, *broker = where.split() or [""]
        if name in self.world.clients and len(broker) < 2 and link is None and not expires:
            self.world.client(name).attach(broker[0] if broker else None)
        elif name not in self.world.clients and len(broker) == 1:
            expires_ns = _time_ns(expires) if expires else 0
            will = self._wills.pop(name, None)
            self.world.add_client(name, broker[0], link=link, expires_ns=expires_ns, will=will)
        else:
            raise Misread

    def will(self, rest: str) -> None:
        name, will = read_will(rest)
        if name in self.world.clients:
            raise WayfareError(f"{name} has attached already: its will has to be said before that")
        self._wills[name] = will

    def begin(self, rest: str) -> None:
        who, by_clock, clock = rest.partition(" clock ")
        name, broker = _words(who, 2)
        self.world.begin_anew(name, broker, int(clock) if by_clock else None)

    def failover(self, rest: str) -> None:
        name, time = _words(rest, 2)
        self.world.client(name).core.failover_ns = _time_ns(time)

    def late(self, rest: str) -> None:
        self.world.client(rest).core.late = WANTED

    def detach(self, rest: str) -> None:
        name, _, why = rest.partition(" ")
        if why not in ("", "moves"):
            raise Misread
        self.world.client(name).detach(moves=bool(why))

    def leave(self, rest: str) -> None:
        self.world.client(rest).detach(leave=True)

    def disconnect(self, rest: str) -> None:
        self.world.client(rest).disconnect()

    def subscribe(self, rest: str) -> None:
        rest, _, past = rest.partition(" since ")
        name, filter = _words(rest, 2)
        self.world.client(name).subscribe(filter, since_ns=_time_ns(past) if past else 0)

    def unsubscribe(self, rest: str) -> None:
        name, filter = _words(rest, 2)
        self.world.client(name).unsubscribe(filter)

    def advertise(self, rest: str) -> None:
        name, filter = _words(rest, 2)
        self.world.client(name).advertise(filter)

    def unadvertise(self, rest: str) -> None:
        name, filter = _words(rest, 2)
        self.world.client(name).unadvertise(filter)

    def follow(self, rest: str) -> None:
        rest, _, past = rest.partition(" since ")
        rest, _, terms = rest.partition(" keep ")
        name, text = _words(rest, 2)
        wanted = read_terms(terms) if terms else None
        self.world.client(name).follow(text, wanted, _time_ns(past) if past else 0)

    def unfollow(self, rest: str) -> None:
        name, text = _words(rest, 2)
        template = templates.parse(text)
        if not isinstance(template, templates.Template):
            raise Misread
        self.world.client(name).unfollow(template)

    def be(self, rest: str) -> None:
        name, what = _words(rest, 2)
        client = self.world.client(name)
        state = client.core.following.state
        if what.startswith("{"):
            client.be(msgspec.structs.replace(state, values=read_attributes(what)))
        elif what.startswith("at "):
            client.be(msgspec.structs.replace(state, location=what[3:].strip()))
        else:
            raise Misread

    def changes(self, rest: str) -> None:
        """`anna need by 1`: it changes by at most 1; `anna mode along walk bike car`: to one beside it."""
        name, value, how, given = _words(rest, 4)
        following = self.world.client(name).core.following
        changes: dict[str, Change] = dict(following.state.changes)
        if how == "by" and given.isdecimal():
            changes[value] = int(given)
        elif how == "along":
            changes[value] = tuple(given.split())
        else:
            raise Misread
        following.declare(changes)

    def confirm(self, rest: str) -> None:
        (name,) = _words(rest, 1)
        self.world.client(name).confirm()

    def watch(self, rest: str) -> None:
        name, filter = _words(rest, 2)
        self.world.client(name).watch(filter)

    def unwatch(self, rest: str) -> None:
        name, filter = _words(rest, 2)
        self.world.client(name).unwatch(filter)

    def publish(self, rest: str) -> None:
        one = read_publication(rest)
        self.world.client(one.client).publish(
            one.attributes,
            retain=one.retain,
            clear=one.clear,
            expires_ns=one.expires_ns,
            area=one.area,
        )

    def burst(self, rest: str) -> None:
        name, count, attributes = _words(rest, 3)
        self.world.client(name).burst(_whole(count), read_attributes(attributes))

    def pause(self, rest: str) -> None:
        name, time = _words(rest, 2)
        self.world.client(name).stop_reading(_time_ns(time))

    def request(self, rest: str) -> None:
        name, attributes, timeout_ns = read_request(rest)
        self.world.client(name).request(attributes, timeout_ns=timeout_ns)

    def reply(self, rest: str) -> None:
        name, attributes = _words(rest, 2)
        self.applications.reply(name, read_attributes(attributes))

    def join(self, rest: str) -> None:
        one = read_member(rest)
        self.applications.join(
            one.client, one.group, one.filter, one.prefetch, one.away_ns, by_hand=one.by_hand
        )

    def take(self, rest: str) -> None:
        self.applications.take(rest)

    def done(self, rest: str) -> None:
        self.applications.done(rest)

    def quit(self, rest: str) -> None:
        self.applications.quit(rest)

    # What happens to the network

    def cut(self, rest: str) -> None:
        link, _, time = rest.partition(" for ")
        self.world.cut(Cut(*_ends(link), self.world.now, _time_ns(time) if time else None))

    def heal(self, rest: str) -> None:
        self.world.heal(Cut(*_ends(rest), self.world.now, None))

    def crash(self, rest: str) -> None:
        broker, time = _words(rest, 2)
        self.world.crash(Crash(broker, self.world.now, _time_ns(time)))

    def forget(self, rest: str) -> None:
        broker, time = _words(rest, 2)
        self.world.roll_back(Rollback(broker, None, self.world.now, _time_ns(time)))

    def slow(self, rest: str) -> None:
        broker, per_message = _words(rest, 2)
        self.world.slow_down(Slow(broker, self.world.now, None, _time_ns(per_message)))

    def stall(self, rest: str) -> None:
        broker, time = _words(rest, 2)
        self.world.stall(Stall(broker, self.world.now, _time_ns(time)))

    # Time

    def wait(self, rest: str) -> None:
        self.world.run_until(self.world.now + _time_ns(rest))

    def settle(self, rest: str) -> None:
        if rest:
            raise Misread
        self.world.settle()

    def note(self, rest: str) -> None:
        self.trace.line("", rest)

    def show(self, rest: str) -> None:
        """Write a broker's tables into the trace."""
        core = self.world.broker(rest).core
        routing = core.routing
        for other in core.neighbours:
            out_ads, out_subs = routing.out_ads[other], routing.out_subs[other]
            for table, entries, sent in (
                ("in_ads", routing.in_ads[other], routing.in_ads[other]),
                ("in_subs", routing.in_subs[other], routing.in_subs[other]),
                ("out_ads", out_ads.entries, dict.fromkeys(out_ads.sent())),
                ("out_subs", out_subs.entries, dict.fromkeys(out_subs.sent())),
            ):
                for entry in {**entries, **sent}:
                    remark = "" if entry in sent else "   (not sent)"
                    remark = remark if entry in entries else "   (merged)"
                    self.trace.line(f"{rest} {table} {other}", f"{entry}{remark}")


STATEMENTS: dict[str, tuple[str, Callable[[Stage, str], None]]] = {
    "routing": ("flooding | simple | identity | covering | merging", Stage.routing),
    "relocation": (" | ".join(RELOCATIONS), Stage.relocation),
    "link": ("10ms [+5ms jitter] [256kbps] [loss 0.1] [profile lan]", Stage.link),
    "client_link": (
        "2ms [+1ms jitter] [128kbps] [loss 0.1] | profile gprs [error=0.01]",
        Stage.client_link,
    ),
    "backlog": (
        "count 3 | bytes 1000 | age 10s | away 60s | window 64 | window-bytes 1000 | answer 30s | held 100",
        Stage.backlog,
    ),
    "remember": ("100", Stage.remember),
    "trace": ("all", Stage.trace_all),
    "places": ("porto - lisbon - faro, lisbon - harbour at lisbon [steps 1]", Stage.places),
    "starts": ("faro 2s [linked after 50ms]", Stage.starts),
    "brokers": ("porto - lisbon - faro, lisbon - braga", Stage.brokers),
    "failover": ("anna 2s", Stage.failover),
    "late": ("anna", Stage.late),
    "attach": ("anna porto [profile gprs] [expires 60s]", Stage.attach),
    "begin": ("anna faro [clock 3]", Stage.begin),
    "detach": ("anna [moves]", Stage.detach),
    "leave": ("anna", Stage.leave),
    "disconnect": ("anna", Stage.disconnect),
    "subscribe": ("anna price > 40 [since 10s]", Stage.subscribe),
    "unsubscribe": ("anna price > 40", Stage.unsubscribe),
    "advertise": ("ticker price > 0", Stage.advertise),
    "unadvertise": ("ticker price > 0", Stage.unadvertise),
    "follow": (
        "anna location in myloc [keep last 3 | younger 10s | key road+lane | nullified space by state = 'taken'] [since 10s]",
        Stage.follow,
    ),
    "unfollow": ("anna location in myloc", Stage.unfollow),
    "changes": ("anna need by 1 | anna mode along walk bike car", Stage.changes),
    "be": ("anna at porto | {need: 3}", Stage.be),
    "confirm": ("anna", Stage.confirm),
    "watch": ("ticker price > 0", Stage.watch),
    "unwatch": ("ticker price > 0", Stage.unwatch),
    "publish": (
        "ticker {price: 41, road: 'A5'} [retain road+lane | clear road] [in faro lisbon] [expires 10s]",
        Stage.publish,
    ),
    "burst": ("ticker 20 {price: 41}", Stage.burst),
    "pause": ("anna 2s", Stage.pause),
    "will": ("anna {alarm: true} [after 5s]", Stage.will),
    "request": ("anna {need: 'taxi'} [within 5s]", Stage.request),
    "reply": ("bert {taxi: 7}", Stage.reply),
    "join": ("anna workers price > 40 [prefetch 4] [away 2s] [by hand]", Stage.join),
    "take": ("anna", Stage.take),
    "done": ("anna", Stage.done),
    "quit": ("anna", Stage.quit),
    "cut": ("porto - lisbon [for 500ms]", Stage.cut),
    "heal": ("porto - lisbon", Stage.heal),
    "crash": ("lisbon 2s", Stage.crash),
    "forget": ("lisbon 2s", Stage.forget),
    "slow": ("lisbon 5ms", Stage.slow),
    "stall": ("lisbon 40s", Stage.stall),
    "wait": ("30ms", Stage.wait),
    "settle": ("", Stage.settle),
    "note": ("anything, to be read in the trace", Stage.note),
    "show": ("lisbon", Stage.show),
}


def help_text() -> str:
    """All statements, with an example each."""
    return "\n".join(f"{word} {usage}".rstrip() for word, (usage, _) in STATEMENTS.items())


def _time_ns(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)(ns|us|ms|s|h)", text.strip())
    if match is None:
        raise Misread
    return int(float(match[1]) * UNITS_NS[match[2]])


def read_places(text: str) -> Places:
    """What is one step apart, and in the range of which broker."""
    ranges = dict(re.findall(r"([\w.]+) at ([\w.]+)", text))
    _, edges = _branches(re.sub(r" at [\w.]+", "", text))
    known = of_edges(edges).places
    return Places(
        {
            name: msgspec.structs.replace(place, broker=ranges.get(name, place.broker))
            for name, place in known.items()
        }
    )


def read_terms(text: str) -> Terms:
    what, value = _words(text, 2)
    if what == "last":
        return Terms(last=_whole(value))
    if what == "younger":
        return Terms(younger_ns=_time_ns(value))
    if what == "key":
        names = tuple(value.split("+"))
        return Terms(key=names if len(names) > 1 else value)
    if what == "nullified":
        same, _, when = value.partition(" by ")
        return Terms(nullify=Nullify(Filter.parse(when), tuple(same.split("+"))))
    raise Misread


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise Misread
    return int(text)


class Publication(msgspec.Struct, frozen=True):
    """What a `publish` says."""

    client: str
    attributes: dict[str, Value]
    retain: tuple[str, ...]
    clear: bool
    expires_ns: int
    area: Area | None = None


def read_publication(text: str) -> Publication:
    name, rest = _words(text, 2)
    match = re.fullmatch(
        r"(\{.*\})(?: (retain|clear) ([\w.+]+))?(?: in ((?!expires )\S+(?: (?!expires )\S+)*))?(?: expires (\S+))?",
        rest.strip(),
    )
    if match is None:
        raise Misread
    keys = tuple(match[3].split("+")) if match[3] else ()
    area = Area(tuple(match[4].split())) if match[4] else None
    expires_ns = _time_ns(match[5]) if match[5] else 0
    return Publication(name, read_attributes(match[1]), keys, match[2] == "clear", expires_ns, area)


def read_will(text: str) -> tuple[str, Will]:
    name, rest = _words(text, 2)
    match = re.fullmatch(r"(\{.*\})(?: after (\S+))?", rest.strip())
    if match is None:
        raise Misread
    return name, Will(read_attributes(match[1]), b"", _time_ns(match[2]) if match[2] else 0)


def read_request(text: str) -> tuple[str, dict[str, Value], int]:
    name, rest = _words(text, 2)
    match = re.fullmatch(r"(\{.*\})(?: within (\S+))?", rest.strip())
    if match is None:
        raise Misread
    return name, read_attributes(match[1]), _time_ns(match[2] or "5s")


class Joining(msgspec.Struct, frozen=True):
    """What a `join` says."""

    client: str
    group: str
    filter: str
    prefetch: int
    away_ns: int
    by_hand: bool


def read_member(text: str) -> Joining:
    name, group, rest = _words(text, 3)
    match = re.fullmatch(r"(.+?)(?: prefetch (\d+))?(?: away (\S+))?( by hand)?", rest)
    if match is None:
        raise Misread
    prefetch = _whole(match[2]) if match[2] else PREFETCH
    away_ns = _time_ns(match[3]) if match[3] else AWAY_NS
    return Joining(name, group, match[1], prefetch, away_ns, bool(match[4]))


LIMITS: dict[str, tuple[str, Callable[[str], int]]] = {
    "count": ("backlog_count", _whole),
    "bytes": ("backlog_bytes", _whole),
    "age": ("backlog_age_ns", _time_ns),
    "away": ("away_ns", _time_ns),
    "window": ("window", _whole),
    "window-bytes": ("window_bytes", _whole),
    "answer": ("answer_ns", _time_ns),
    "held": ("held_count", _whole),
}


def _link_spec(text: str) -> LinkSpec:
    plain, wireless, given = f" {text}".partition(" profile ")
    profile = find_profile(*_profile_words(given)) if wireless else None
    match = _LINK.fullmatch(plain.strip() or ("0ms" if wireless else ""))
    if match is None:
        raise Misread
    return LinkSpec(
        latency_ns=_time_ns(match["latency"]),
        jitter_ns=_time_ns(match["jitter"]) if match["jitter"] else 0,
        bandwidth_bps=int(match["kbps"]) * 1000 if match["kbps"] else None,
        loss=float(match["loss"] or 0),
        profile=profile,
    )


def _profile_words(text: str) -> tuple[str, list[str]]:
    name, *settings = text.split() or [""]
    return name, settings


_LINK = re.compile(
    r"(?P<latency>\S+)(?: \+(?P<jitter>\S+) jitter)?(?: (?P<kbps>\d+)kbps)?(?: loss (?P<loss>0?\.\d+))?"
)
_ATTRIBUTE = re.compile(r"\s*([\w.$]+)\s*:\s*('(?:[^']|'')*'|true|false|[-+\d.eE]+)\s*(?:,|$)")


def read_attributes(text: str) -> dict[str, Value]:
    """{price: 41, road: 'A5', open: true}"""
    if not (text.startswith("{") and text.endswith("}")):
        raise Misread
    inner = text[1:-1].strip()
    out: dict[str, Value] = {}
    at = 0
    while at < len(inner):
        match = _ATTRIBUTE.match(inner, at)
        if match is None:
            raise Misread
        if match[1] in out:
            raise WayfareError(f"{match[1]} is given twice")
        out[match[1]] = _value(match[2])
        at = match.end()
    return out


def _value(text: str) -> Value:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if re.fullmatch(r"[-+]?\d{1,20}", text) else float(text)
    except ValueError:
        raise Misread from None
