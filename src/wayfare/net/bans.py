"""Bans: addresses, networks and names that are refused for a time. A file of JSON lines:

    {"target":"192.0.2.0/24","until":"2026-11-18T09:00:00Z","reason":"guesses passwords"}
    {"target":"name:car-17"}

A name is that of a client or of an account. Brokers, thin proxies and mobility proxies look at the file every second;
`wayfare ban` writes it. A file that is missing bans nobody; one that is wrong changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

import msgspec

from wayfare.core.codec import NAME_MAX
from wayfare.errors import UsageError
from wayfare.net.audit import Audit

BANS_MAX = 100_000  # in one file
WATCH_S = 1.0  # between two looks at the file
NAME = "name:"
LIKE_ADDRESS = re.compile(r"\d+(\.\d+){3}|[0-9a-fA-F:]*::?[0-9a-fA-F:]*:[0-9a-fA-F:.]*")

Stamp = tuple[int, int, int] | None
Network = IPv4Network | IPv6Network


class Ban(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ban."""

    target: str  # a network, or `name:` and a name
    until: datetime | None = None  # None: until it is removed
    reason: str = ""

    def is_over(self, now: float) -> bool:
        return self.until is not None and self.until.timestamp() <= now

    @property
    def ends(self) -> str:
        return "" if self.until is None else f"{self.until:%Y-%m-%dT%H:%M:%SZ}"

    def refusal(self) -> str:
        """What the peer is told; the reason is for operators."""
        return f"banned until {self.ends}" if self.until else "banned: ask who runs this"


def target_of(text: str) -> str:
    """The target that somebody wrote: an address, a network, or a name; UsageError if it is none."""
    name = text.removeprefix(NAME)
    if name == text:
        with suppress(ValueError):
            return str(_plain(ip_network(text, strict=False)))
        if "/" in text:
            with suppress(ValueError):
                ip_address(text.partition("/")[0])
                raise UsageError(f"{text!r:.80} is no network: write it like 192.0.2.0/24")
        if LIKE_ADDRESS.fullmatch(text):
            raise UsageError(f"{text!r:.80} is no address: correct it, or write {NAME}{text:.80}")
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise UsageError(f"a ban is for an address, a network or a name, not {text!r:.80}")
    return NAME + name


class Bans:
    """The bans in a file, as it is now; without a file, none."""

    def __init__(self, path: str | Path = "", clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path) if path else None
        self._clock = clock
        self._stamp: Stamp = None
        self._bans: dict[str, Ban] = {}
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}  # by version and prefix
        if self.path is not None:
            self._read(self.path)

    def _read(self, path: Path) -> None:
        stamp = _stamp(path)
        self._bans = {one.target: one for one in read(path)}
        self._stamp = stamp
        self._networks = {}
        for target, ban in self._bans.items():
            if not target.startswith(NAME):
                network = ip_network(target)
                same = self._networks.setdefault((network.version, network.prefixlen), {})
                same[int(network.network_address)] = ban

    def refresh(self, audit: Audit) -> bool:
        """Read the file again if it has changed, and record how; UsageError, and all stays, if it is wrong."""
        if self.path is None:
            return False
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before = self._bans
        self._read(self.path)
        for target, ban in self._bans.items():
            if before.get(target) != ban:
                change = "changed" if target in before else "added"
                audit.record(
                    "ban_changed", target=target, change=change, until=ban.ends, reason=ban.reason
                )
        for target in before:
            if target not in self._bans:
                audit.record("ban_changed", target=target, change="removed")
        return True

    async def watch(self, mind: Callable[[], None]) -> None:
        """Call `mind` now and then, for as long as there is a file."""
        while self.path is not None:
            await asyncio.sleep(WATCH_S)
            mind()

    def of(self, address: str, *names: str) -> Ban | None:
        """The ban of a peer at this address with these names, if there is one."""
        if not self._bans:
            return None
        found = self._of_address(address) if address and self._networks else None
        for name in names:
            found = found or self._bans.get(NAME + name)
        return None if found is None or found.is_over(self._clock()) else found

    def _of_address(self, address: str) -> Ban | None:
        try:
            ip = ip_address(address.partition("%")[0])
        except ValueError:
            return None
        inner = getattr(ip, "ipv4_mapped", None)
        ip = ip if inner is None else inner
        now, bits = self._clock(), ip.max_prefixlen
        for (version, prefix), bans in self._networks.items():
            if version != ip.version:
                continue
            ban = bans.get(int(ip) >> bits - prefix << bits - prefix)
            if ban is not None and not ban.is_over(now):
                return ban
        return None


def _plain(network: Network) -> Network:
    """An IPv4 network that is written in IPv6 is that network."""
    first = network.network_address
    if isinstance(first, IPv6Address) and first.ipv4_mapped and network.prefixlen >= 96:
        return ip_network(f"{first.ipv4_mapped}/{network.prefixlen - 96}")
    return network


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read the bans in {path}: {error.strerror}") from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read(path: Path) -> list[Ban]:
    """The bans in a file; none if it is missing."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read the bans in {path}: {error.strerror}") from None
    if len(lines) > BANS_MAX:
        raise UsageError(f"{path} has more than {BANS_MAX} bans: ban networks instead")
    return [_understood(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line]


def _understood(line: bytes, where: str) -> Ban:
    try:
        ban = msgspec.json.decode(line, type=Ban)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: this is no ban: {error}") from None
    if ban.until is not None and ban.until.tzinfo is None:
        raise UsageError(f"{where}: until needs a time zone, like 2026-11-18T09:00:00Z")
    try:
        return msgspec.structs.replace(ban, target=target_of(ban.target))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


# Changing the file


def add(path: Path, target: str, seconds: float | None, reason: str, now: float) -> Ban:
    """Ban a target for so many seconds; None: until it is removed. A ban that is there is replaced."""
    until = None if seconds is None else datetime.fromtimestamp(int(now + seconds), UTC)
    ban = Ban(target_of(target), until, reason)
    others = {one.target: one for one in read(path) if not one.is_over(now)}
    _write(path, {**others, ban.target: ban})
    return ban


def remove(path: Path, target: str, now: float) -> Ban:
    """Lift a ban; UsageError if there is none."""
    bans = {one.target: one for one in read(path) if not one.is_over(now)}
    ban = bans.pop(target_of(target), None)
    if ban is None:
        raise UsageError(f"{target} is not banned in {path}: `wayfare ban list` shows who is")
    _write(path, bans)
    return ban


def _write(path: Path, bans: Mapping[str, Ban]) -> None:
    """In one go; the file is for nobody else to read."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "wb") as file:
            file.write(_text(bans.values()))
            file.flush()
            os.fsync(number)
            if path.exists():
                old = path.stat()
                with suppress(PermissionError):
                    os.fchown(number, old.st_uid, old.st_gid)
        os.replace(new, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _text(bans: Iterable[Ban]) -> bytes:
    return b"".join(msgspec.json.encode(one) + b"\n" for one in bans)
