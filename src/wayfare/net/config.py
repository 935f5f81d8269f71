"""Configuration in TOML: of one broker (`site.toml`), or of a whole tree on this machine (`city.toml`).

    text -> tomllib -> one value for each key -> KEYS says what it means -> configured.Broker or Network

All mistakes of a file are told at once, each with its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wayfare.core.broker import check_ahead, check_strategies
from wayfare.core.history import Limits
from wayfare.core.saving import check_savable
from wayfare.errors import ConfigError, UsageError
from wayfare.net.config_keys import BOTH, CITY, KEYS, LEAST, LIMITS, NET_LIMITS, REQUIRED, SITE
from wayfare.net.configured import (
    ADMIN_FILE,
    AdminApi,
    Ahead,
    Announce,
    Broker,
    Durability,
    Network,
    Security,
    Settings,
    Status,
)
from wayfare.net.kinds import DURATIONS_NS, LINKS, NAME, NAMES, meant, shown
from wayfare.net.limits import NetLimits
from wayfare.net.mistakes import Mistake, Place, dotted, located
from wayfare.net.security import Tls, is_loopback

EVERY_ADDRESS = ("0.0.0.0", "::", "")  # hosts that are nowhere to call


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
            inner = any(key.startswith(f"{dotted(place)}.") for key in self.keys)
            if inner and isinstance(value, dict):
                yield from self._leaves(value, place)
            else:
                yield place, value

    def _take(self, place: Place, value: Any) -> None:
        table = self.tables.get(str(place[0])) if len(place) == 2 else None
        key = self.keys.get(f"{place[0]}.*" if table is not None else dotted(place))
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
        name = dotted(place)
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
            mapped = self._path("ahead.places") or self._path("ahead.movement")
            nlb = got["ahead.nlb"]
            check_ahead(
                got["relocation"], nlb in ("all", "learnt") or (nlb == "next" and bool(mapped))
            )
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
            admin=self._admin(),
            admin_api=self._admin_api(),
            announce=self._announce(),
        )

    def _admin(self) -> str:
        """The path of the admin socket: beside the store, unless the file says otherwise."""
        directory = self.found.get("durability.directory", "")
        stored = directory and self.found["durability.mode"] != "memory"
        beside = str(Path(self.file).parent / directory / ADMIN_FILE) if stored else ""
        return self._path("admin.socket") or beside

    def _admin_api(self) -> AdminApi:
        listen, tokens = self.found.get("admin.listen"), self._path("admin.tokens")
        if listen is None:
            return AdminApi()
        if not tokens:
            self.mistakes.append(
                (("admin", "tokens"), "is missing: name the file of the tokens for admin.listen")
            )
        if not self._path("tls.cert") and (listen.tls or not is_loopback(listen.host)):
            wrong = f"is at {shown(listen.host)}: say tls.cert and tls.key, or listen at 127.0.0.1"
            self.mistakes.append((("admin", "listen"), wrong))
        return AdminApi(listen, tokens)

    def _announce(self) -> Announce:
        network, host = self.found.get("announce.network", ""), self.found.get("announce.host", "")
        listen = self.found.get("listen")
        here = self.found.get("host", "") if listen is None else listen.host
        if host and not network:
            self.mistakes.append(
                (("announce", "network"), "is missing: name the network that clients look for")
            )
        elif network and (host or here) in EVERY_ADDRESS:
            wrong = "has to say where clients on the LAN reach it, like 192.168.1.5"
            if not host:
                wrong = f"is missing: it listens at every address of this machine, and {wrong}"
            self.mistakes.append((("announce", "host"), wrong))
        return Announce(network, host)

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
            got.get("ahead.dwell"),
            got.get("ahead.hop"),
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
        crl = self._path("tls.crl")
        if crl and not ca:
            self.mistakes.append((("tls", "crl"), "needs tls.ca: who signs the certificates"))
        tls = Tls(cert, key, ca, require, crl) if cert else None
        return Security(
            tls,
            self._path("secret_file"),
            self._path("accounts"),
            self._path("audit.file"),
            self._path("bans"),
        )

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
