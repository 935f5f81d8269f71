"""Configuration in TOML: of one broker (`site.toml`), or of a whole tree on this machine (`city.toml`).

    text -> tomllib -> one value for each key -> KEYS says what it means -> Broker or Network

KEYS is the whole language: what is not there is refused, and docs/configuration.md is written from it. To add a
key, add a line to it, and a field to `Settings`. All mistakes of a file are told at once, each with its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from wayfare.core.broker import check_strategies
from wayfare.core.codec import NAME_MAX, PASSWORD_MAX
from wayfare.core.history import Limits
from wayfare.core.saving import check_savable
from wayfare.core.virtual import Ahead as CoreAhead
from wayfare.errors import ConfigError, UsageError
from wayfare.net.addresses import PORT, Address
from wayfare.net.heartbeat import HEARTBEAT_S
from wayfare.net.kinds import (
    ADDRESS,
    COUNT,
    COUNT_OR_NONE,
    DURATION,
    DURATIONS_NS,
    FLAG,
    LINKS,
    MODE,
    NAME,
    NAMED,
    NAMES,
    NEIGHBOUR,
    NEXT,
    NUMBERED,
    PEER,
    RELOCATION,
    ROUTING,
    SHARE,
    SIZE,
    SIZES,
    STEPS,
    TEXT,
    Kind,
    meant,
    shown,
    written,
)
from wayfare.net.limits import DEFAULT_NET_LIMITS, NetLimits
from wayfare.net.security import Tls

NOT_AHEAD = CoreAhead()
Place = tuple[str | int, ...]  # ("limits", "away"), ("links", 3)

# What comes out


class Durability(msgspec.Struct, frozen=True):
    """How safe is what a broker acknowledges, and where it is kept if that is not in memory."""

    mode: str = "memory"
    directory: str = ""


class Status(msgspec.Struct, frozen=True):
    """Where a process tells about its brokers over HTTP; without a port, nowhere."""

    host: str = "127.0.0.1"
    port: int | None = None


class Security(msgspec.Struct, frozen=True):
    """Who may come in: files."""

    tls: Tls | None = None
    secret_file: str = ""
    accounts: str = ""


class Ahead(msgspec.Struct, frozen=True):
    """Where clients go, by the file of a map or of a mined model, and how far brokers listen ahead."""

    places: str = ""
    movement: str = ""
    coverage: float = 0.9
    nlb: str = "next"
    steps: int | None = 0
    dwell_ns: int = NOT_AHEAD.dwell_ns
    hop_ns: int = NOT_AHEAD.hop_ns


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all brokers of a network have in common, or one broker for itself."""

    routing: str
    relocation: str
    heartbeat_s: float
    limits: Limits
    durability: Durability
    status: Status = Status()
    security: Security = Security()
    net_limits: NetLimits = DEFAULT_NET_LIMITS
    ahead: Ahead = Ahead()


class Broker(msgspec.Struct, frozen=True):
    """One broker, its neighbours, and where they are; those without an address call."""

    name: str
    listen: Address
    neighbours: dict[str, Address | None]
    settings: Settings
    peers: dict[str, Address] = {}


class Network(msgspec.Struct, frozen=True):
    """A tree of brokers on one machine: the port of each (0: any), and the links."""

    host: str
    brokers: dict[str, int]
    links: tuple[tuple[str, str], ...]
    settings: Settings


class Mistake(msgspec.Struct, frozen=True):
    """What is wrong, and where: a line of 0 is the file as a whole."""

    file: str
    line: int
    key: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.key} {self.reason}" if self.key else f"{where}{self.reason}"


# The language

REQUIRED = object()
BOTH, SITE, CITY = "both", "broker", "network"  # in which files a key may be


class Key(msgspec.Struct, frozen=True):
    name: str  # "limits.away"; "neighbours.*" is there for every name
    kind: Kind
    default: Any  # as it would be written; None: there is none, and nothing is needed
    about: str
    file: str = BOTH


def _limit(field: str, about: str) -> Key:
    value = getattr(Limits(), field)
    if field.endswith("_ns"):
        return Key(
            f"limits.{field.removesuffix('_ns')}", DURATION, written(value, DURATIONS_NS), about
        )
    if field.endswith("_bytes"):
        return Key(f"limits.{field}", SIZE, written(value, SIZES), about)
    return Key(f"limits.{field}", COUNT if value else COUNT_OR_NONE, value, about)


# By field of `Limits`. Not here: what only the published algorithms for publishers use, which the simulator runs.
LIMITS = {
    field: _limit(field, about)
    for field, about in (
        ("backlog_count", "notifications that wait for one client; then the oldest are lost"),
        ("backlog_bytes", "the same, in bytes"),
        ("backlog_age_ns", "the same, by age"),
        ("away_ns", "that a client may be away; then its session ends"),
        ("filters", "subscriptions, or advertisements, of one client"),
        ("window", "deliveries on their way to a client without an acknowledgement"),
        ("held_count", "notifications held back until a client's old broker has answered"),
        ("answer_ns", "that a client waits for its old broker"),
        ("marks_age_ns", "that a copy of a notification may be under way"),
        ("tombstone_ns", "that an attachment may be under way"),
        ("past_count", "notifications that came by last, for who subscribes with `since`"),
        ("past_bytes", "the same, in bytes"),
        ("buffer_count", "notifications that are kept where a client may come to"),
        ("buffer_age_ns", "the same, by age"),
        ("listen_ns", "that brokers listen ahead for a client that is away"),
        ("lease_ns", "that a broker listens ahead without news of the client"),
        ("recall_ns", "that a client waits for what was kept for it elsewhere"),
    )
}


def _net_limit(field: str, about: str) -> Key:
    value = getattr(DEFAULT_NET_LIMITS, field)
    if field.endswith("_s"):
        return Key(f"limits.{field.removesuffix('_s')}", DURATION, f"{value:g}s", about)
    if field.endswith("_bytes"):
        return Key(f"limits.{field}", SIZE, written(value, SIZES), about)
    return Key(f"limits.{field}", COUNT, value, about)


# By field of `NetLimits`.
NET_LIMITS = {
    field: _net_limit(field, about)
    for field, about in (
        ("stranger_bytes", "of a message from a peer that has yet to log in or to join"),
        ("frame_bytes", "of a message from then on"),
        ("greeting_s", "that a peer may take to say what it is"),
        ("strangers", "peers that have not said what they are; then the oldest is closed"),
        ("connections_per_address", "from one address, or one /64 of IPv6"),
        ("clients", "that are attached at a time"),
        ("sessions", "of clients, attached or away"),
        ("moves_per_minute", "attachments of one client"),
        ("messages_per_second", "from one client; then it is not read for a while"),
        ("trickle_bytes", "of an unfinished message in a heartbeat; less counts as silence"),
        ("write_bytes", "that wait for a peer that does not read; then it is cut off"),
        ("link_count", "messages that wait for a neighbour; then publishers wait, too"),
        ("link_bytes", "the same, in bytes"),
        ("link_away_s", "that publishers wait for a neighbour that is away; then it is given up"),
        ("closing_s", "that a peer may take to read the rest, when it is closed"),
        ("logins", "whose passwords wait to be checked"),
        ("failed_logins_per_minute", "from one address, or one /64 of IPv6"),
    )
}

KEYS = (
    Key("name", NAMED, REQUIRED, "what this broker is called; no other in the tree is", SITE),
    Key("listen", ADDRESS, f"127.0.0.1:{PORT}", "where it listens; port 0 is any free one", SITE),
    Key(
        "neighbours.*",
        NEIGHBOUR,
        None,
        "a neighbour, and where it is called; with an empty text, it calls us",
        SITE,
    ),
    Key(
        "peers.*",
        PEER,
        None,
        "another broker of the tree, and where it is: to listen ahead, brokers speak directly",
        SITE,
    ),
    Key("host", TEXT, "127.0.0.1", "where all brokers listen", CITY),
    Key(
        "links",
        LINKS,
        (),
        "which brokers are linked: together one tree, without a circle",
        CITY,
    ),
    Key(
        "brokers.*",
        NUMBERED,
        None,
        "a broker, and its port; without this table, all that links name, at any free port",
        CITY,
    ),
    Key("routing", ROUTING, "covering", "what brokers tell each other; the same in all"),
    Key("relocation", RELOCATION, "handoff", "how sessions follow clients; the same in all"),
    Key(
        "heartbeat",
        DURATION,
        f"{HEARTBEAT_S:g}s",
        "how often something is said; silent for three of them is dead",
    ),
    *LIMITS.values(),
    *NET_LIMITS.values(),
    Key("ahead.places", TEXT, None, "file of a map: locations, and whose range they are in"),
    Key("ahead.movement", TEXT, None, "instead, file of a mined model: every broker a location"),
    Key("ahead.coverage", SHARE, Ahead().coverage, "of the moves that its next brokers make up"),
    Key("ahead.nlb", NEXT, Ahead().nlb, "at which brokers somebody listens for who may come"),
    Key("ahead.steps", STEPS, Ahead().steps, "how far from a client brokers farther away listen"),
    Key(
        "ahead.dwell",
        DURATION,
        written(NOT_AHEAD.dwell_ns, DURATIONS_NS),
        "by dwell: that clients stay at a location",
    ),
    Key(
        "ahead.hop",
        DURATION,
        written(NOT_AHEAD.hop_ns, DURATIONS_NS),
        "by dwell: that a subscription takes from broker to broker",
    ),
    Key("tls.cert", TEXT, None, "file of its certificate, to listen at wayfares://"),
    Key("tls.key", TEXT, None, "file of the key for that, without a password"),
    Key("tls.ca", TEXT, None, "file of who signs for its peers: neighbours show a certificate"),
    Key("tls.require", FLAG, False, "clients have to show one, too"),
    Key("secret_file", TEXT, None, "file whose first line all neighbours know, and nobody else"),
    Key("accounts", TEXT, None, "file of the accounts of clients; without, everybody may come"),
    Key(
        "durability.mode",
        MODE,
        "memory",
        "what its acknowledgements outlive: nothing, the process, or a loss of power",
    ),
    Key(
        "durability.directory",
        TEXT,
        None,
        "where it is kept, for os and disk; relative to the file",
    ),
    Key(
        "status.port",
        NUMBERED,
        None,
        "where /metrics, /health and /status are answered over HTTP; without it, nowhere",
    ),
    Key("status.host", TEXT, Status().host, "the same: the address, which is this machine only"),
)


# What is too little to be of use: the least of a key, and why.
LEAST = {
    "heartbeat": ("10ms", "no peer answers as soon as that"),
    "limits.greeting": ("100ms", "no peer says what it is as soon as that"),
    "limits.stranger_bytes": (
        written(4 * (NAME_MAX + PASSWORD_MAX) + 64, SIZES),
        "a login with a long name and password does not fit",
    ),
    "limits.frame_bytes": ("64KiB", "messages that everybody sends do not fit"),
}


# Reading


def read(path: str | Path) -> Broker | Network:
    """What this file says; ConfigError with all its mistakes, UsageError if it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        return parse(data.decode(), str(path))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        mistake = Mistake(str(path), line, "", "this line is no TOML: it is not UTF-8 text")
        raise ConfigError([mistake]) from None


def parse(text: str, file: str = "") -> Broker | Network:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_not_toml(text, file, str(error))]) from None
    return understand(values, file, text)


def _not_toml(text: str, file: str, error: str) -> Mistake:
    reason, _, where = error.rpartition(" (at ")
    found = re.search(r"line (\d+), (column \d+)", where)
    if found is None:
        return Mistake(
            file, text.rstrip().count("\n") + 1, "", f"this is no TOML: {reason} at the end"
        )
    return Mistake(file, int(found[1]), "", f"this is no TOML at {found[2]}: {reason}")


def understand(values: Mapping[str, Any], file: str = "", text: str = "") -> Broker | Network:
    """What these values say; a network is what has links or brokers."""
    return _Reading(values, file, text).result()


class _Reading:
    """One pass over a file: what its keys mean, and all that is wrong."""

    def __init__(self, values: Mapping[str, Any], file: str, text: str) -> None:
        self.file, self.text = file, text
        self.kind = CITY if "links" in values or "brokers" in values else SITE
        self.mistakes: list[tuple[Place, str]] = []
        self.keys = {key.name: key for key in KEYS if key.file in (BOTH, self.kind)}
        self.found: dict[str, Any] = {
            key.name: key.kind.read(list(key.default) if key.kind is LINKS else key.default)
            for key in self.keys.values()
            if key.default not in (None, REQUIRED)
        }
        self.tables: dict[str, dict[str, Any]] = {
            name.removesuffix(".*"): {} for name in self.keys if name.endswith(".*")
        }
        for place, value in self._leaves(values):
            self._take(place, value)
        for key in self.keys.values():
            if key.default is REQUIRED and key.name not in values:
                self.mistakes.append(((key.name,), f"is missing: {key.about}"))

    def result(self) -> Broker | Network:
        settings = self._settings()
        out = self._broker(settings) if self.kind == SITE else self._network(settings)
        if self.mistakes:
            raise ConfigError(located(self.file, self.text, self.mistakes))
        return out

    def _leaves(self, table: Mapping[str, Any], above: Place = ()) -> Iterator[tuple[Place, Any]]:
        for name, value in table.items():
            place = (*above, name)
            inner = any(key.startswith(f"{_dotted(place)}.") for key in self.keys)
            if inner and isinstance(value, dict):
                yield from self._leaves(value, place)
            else:
                yield place, value

    def _take(self, place: Place, value: Any) -> None:
        table = self.tables.get(str(place[0])) if len(place) == 2 else None
        key = self.keys.get(f"{place[0]}.*" if table is not None else _dotted(place))
        if key is None:
            self.mistakes.append((place, self._unknown(place)))
            return
        if table is not None:
            table[str(place[1])] = None  # there is such a broker, whatever is said of it
            if not NAME.fullmatch(str(place[1])):
                self.mistakes.append((place, f"is no name of a broker: {NAMES}"))
                return
        try:
            meaning = key.kind.read(value)
            least, why = LEAST.get(key.name, ("", ""))
            if least and meaning < key.kind.read(least):
                raise ValueError(f"{why}, so give at least {least}")
        except ValueError as error:
            self.mistakes.append((place, f"is {shown(value)}: {error}"))
            return
        if table is not None:
            table[str(place[1])] = meaning
        else:
            self.found[key.name] = meaning

    def _unknown(self, place: Place) -> str:
        name = _dotted(place)
        if any(key.startswith(f"{name}.") for key in self.keys):
            return f"is a table: write [{name}]"
        elsewhere = [key for key in KEYS if key.name.split(".")[0] == place[0]]
        if elsewhere and all(key.file not in (BOTH, self.kind) for key in elsewhere):
            return f"is for the file of a {elsewhere[0].file}, and this is one of a {self.kind}"
        near = meant(name, (key for key in self.keys if not key.endswith("*")))
        return f"is no key{near or ': docs/configuration.md has them all'}"

    def _settings(self) -> Settings:
        got = self.found
        try:
            check_strategies(got["routing"], got["relocation"])
        except UsageError as error:
            self.mistakes.append((("relocation",), f"is {shown(got['relocation'])}: {error}"))
        limits = {field: got[key.name] for field, key in LIMITS.items()}
        return Settings(
            routing=got["routing"],
            relocation=got["relocation"],
            heartbeat_s=got["heartbeat"] / DURATIONS_NS["s"],
            limits=Limits(**limits),
            durability=self._durability(),
            status=Status(got["status.host"], got.get("status.port")),
            security=self._security(),
            net_limits=self._net_limits(),
            ahead=self._ahead(),
        )

    def _ahead(self) -> Ahead:
        places, movement = self._path("ahead.places"), self._path("ahead.movement")
        if places and movement:
            self.mistakes.append(
                (("ahead", "movement"), "is a map by itself: leave out ahead.places, or this")
            )
        got = self.found
        return Ahead(
            places,
            movement,
            got["ahead.coverage"],
            got["ahead.nlb"],
            got["ahead.steps"],
            got["ahead.dwell"],
            got["ahead.hop"],
        )

    def _durability(self) -> Durability:
        mode, directory = self.found["durability.mode"], self.found.get("durability.directory", "")
        place = ("durability", "mode")
        if mode == "memory":
            return Durability()
        if not directory:
            self.mistakes.append((place, f'is {shown(mode)}: say where, like directory = "store"'))
        try:
            check_savable(self.found["relocation"])
        except UsageError as error:
            self.mistakes.append((place, f"is {shown(mode)}: {error}"))
        return Durability(mode, str(Path(self.file).parent / directory))

    def _security(self) -> Security:
        cert, key = self._path("tls.cert"), self._path("tls.key")
        for one, other, place in ((cert, key, "key"), (key, cert, "cert")):
            if one and not other:
                self.mistakes.append((("tls", place), "is missing: a certificate has a key"))
        listen = self.found.get("listen")
        if listen is not None and listen.tls and not cert:
            self.mistakes.append(
                (("listen",), f"is {shown(str(listen))}: say tls.cert and tls.key")
            )
        ca, require = self._path("tls.ca"), self.found.get("tls.require", False)
        if require and not ca:
            self.mistakes.append(
                (("tls", "require"), "is true: say in tls.ca who signs for clients")
            )
        if self.kind == CITY and cert and not ca:
            self.mistakes.append(
                (("tls", "ca"), "is missing: brokers look at the certificates of each other")
            )
        tls = Tls(cert, key, ca, require) if cert else None
        return Security(tls, self._path("secret_file"), self._path("accounts"))

    def _path(self, key: str) -> str:
        """A file, relative to this one."""
        name = self.found.get(key, "")
        return str(Path(self.file).parent / name) if name else ""

    def _net_limits(self) -> NetLimits:
        got = {field: self.found[key.name] for field, key in NET_LIMITS.items()}
        return NetLimits(
            **{
                field: value / DURATIONS_NS["s"] if field.endswith("_s") else value
                for field, value in got.items()
            }
        )

    def _broker(self, settings: Settings) -> Broker:
        name = self.found.get("name", "")
        for table in ("neighbours", "peers"):
            if name in self.tables[table]:
                self.mistakes.append(((table, name), "is this broker itself: leave it out"))
        return Broker(
            name, self.found["listen"], self.tables["neighbours"], settings, self.tables["peers"]
        )

    def _network(self, settings: Settings) -> Network:
        brokers, links = self.tables["brokers"], self.found["links"]
        if all(place[0] != "links" for place, _ in self.mistakes):
            self.mistakes += _wrong_links(brokers, links)
        ports: dict[int, str] = {}
        for name, port in brokers.items():
            first = ports.setdefault(port, name) if port else name
            if first != name:
                self.mistakes.append((("brokers", name), f"is {port}, which is {first}'s port"))
        named = [one for pair in links for one in pair] if not self.mistakes else []
        ports_of = brokers or dict.fromkeys(named, 0)
        return Network(self.found["host"], ports_of, tuple(map(tuple, links)), settings)


def _wrong_links(brokers: Mapping[str, int], links: tuple[Any, ...]) -> Iterator[tuple[Place, str]]:
    """What keeps these links from making one tree."""
    group: dict[str, str] = {name: name for name in brokers}

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = name = group[group[name]]  # the way gets shorter by it
        return name

    good = True
    for number, pair in enumerate(links):
        place = ("links", number)
        wrong = _wrong_pair(pair, brokers)
        if wrong:
            good = False
            yield place, wrong
            continue
        a, b = pair
        for name in pair:
            group.setdefault(name, name)
        if root(a) == root(b):
            good = False
            yield place, f"has {shown(pair)}, which are linked already: a tree has no circle"
        group[root(a)] = root(b)
    if not group and good:
        yield (
            (),
            'a network without brokers: give links, like [["porto", "lisbon"]], or a table [brokers]',
        )
    first = next(iter(group), "")
    alone = [name for name in group if root(name) != root(first)]
    if alone and good:
        yield ("links",), f"leave {alone[0]} without a way to {first}: a network is one tree"


def _wrong_pair(pair: Any, brokers: Mapping[str, int]) -> str:
    if type(pair) is not list or len(pair) != 2 or not all(type(one) is str for one in pair):
        return f'has {shown(pair)}: give pairs of names, like ["porto", "lisbon"]'
    for name in pair:
        if not NAME.fullmatch(name):
            return f"has {shown(pair)}: {NAMES}"
        if brokers and name not in brokers:
            return f"has {shown(pair)}: there is no {name} in [brokers]{meant(name, brokers)}"
    return f"has {shown(pair)}: a broker has no link to itself" if pair[0] == pair[1] else ""


def _dotted(place: Place) -> str:
    return ".".join(one for one in place if isinstance(one, str))


# Where keys are

# All that matters of TOML here: texts and comments, in which anything may stand, and what is around them.
TOKEN = re.compile(
    r"""
    "{3} (?: [^\\] | \\. )*? "{3,5} | '{3} .*? '{3,5}   # texts of several lines
    | " (?: [^"\\] | \\. )* " | ' [^']* '              # and of one
    | \# [^\n]*
    | [\[\]{},\n]
    | [^\s\[\]{},"'\#]+
    """,
    re.DOTALL | re.VERBOSE,
)


def located(file: str, text: str, wrong: Iterable[tuple[Place, str]]) -> list[Mistake]:
    """What is wrong with keys of this text, in the order of its lines."""
    lines = _lines(text)
    out = []
    for place, reason in wrong:
        line = lines.get(place, lines.get(place[:1], 0)) if place else 0
        out.append(Mistake(file, line, _dotted(place), reason))
    return sorted(out, key=lambda one: one.line)


def _lines(text: str) -> dict[Place, int]:
    """The line of every key, and of the elements of its list. tomllib, which took the text, does not say."""
    out: dict[Place, int] = {}
    table: Place = ()
    for first, statement, elements in _statements(text):
        is_table = statement.startswith("[")
        for place in _places(tomllib.loads(statement)):
            number = next((one for one in place if isinstance(one, int)), len(elements))
            line = first if is_table or number >= len(elements) else elements[number]
            out.setdefault(place if is_table else (*table, *place), line)
            if is_table:
                table = place
    return out


def _statements(text: str) -> Iterator[tuple[int, str, list[int]]]:
    """The line of each, what it says, and if that is a list, the lines where its elements begin."""
    line, first, start, depth = 1, 0, -1, 0
    elements: list[int] = []
    in_list = awaited = False  # the next element
    for token in TOKEN.finditer(f"{text}\n"):
        word = token[0]
        if word == "\n":
            if start >= 0 and depth == 0:
                yield first, text[start : token.start()].rstrip(), elements
                start = -1
        elif not word.startswith("#"):
            if start < 0:
                start, first, elements, in_list = token.start(), line, [], False
            if in_list and depth == 1:
                if awaited and word != "]":
                    elements.append(line)
                awaited = word == ","
            if word in ("[", "{"):
                depth += 1
                if depth == 1:
                    in_list = awaited = word == "["
            elif word in ("]", "}"):
                depth -= 1
        line += word.count("\n")


def _places(found: Any, above: Place = ()) -> Iterator[Place]:
    inner = found.items() if isinstance(found, dict) else enumerate(found)
    for name, value in inner:
        yield (*above, name)
        if isinstance(value, dict | list):
            yield from _places(value, (*above, name))


# The reference


def rows() -> Iterator[dict[str, str]]:
    """Every key, for people to read."""
    for key in KEYS:
        default = "" if key.default in (None, ()) else shown(key.default)
        if key.default is REQUIRED:
            default = "(needed)"
        yield {
            "key": key.name,
            "file": key.file,
            "kind": key.kind.name,
            "default": default,
            "about": key.about,
        }


def reference() -> str:
    """The tables of docs/configuration.md."""
    head = ["| key | what it is | default | what it says |", "| --- | --- | --- | --- |"]
    parts = []
    for title, file in (
        ("One broker", SITE),
        ("A network on one machine", CITY),
        ("Both", BOTH),
    ):
        lines = [
            f"| `{one['key']}` | {one['kind']} | {_cell(one['default'])} | {one['about']} |"
            for one in rows()
            if one["file"] == file
        ]
        parts.append("\n".join([f"## {title}", "", *head, *lines]))
    return "\n\n".join(parts) + "\n"


def _cell(default: str) -> str:
    return default if default in ("", "(needed)") else f"`{default}`"
