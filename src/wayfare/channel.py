"""A wireless link: one model, played by the simulator and by the live emulator.

    send(now, size) ->  [packet][packet][pac]  ->  the line: bit/s x channels available now
                                                        |
                        arrival  <-  + latency  <-  broken? + 30 to 50 ms, again and again

A message is cut into packets. They leave one after the other, as fast as the channels (the time
slots of GPRS) of this moment allow; a broken one arrives later by the time that the link takes to
send it again, and those behind it do not overtake it. So an error costs time, never data. The line
itself goes on meanwhile: the delay stands for all of the resending, as we read Seawind's DELAY_ITERATE.

How many channels there are is a function of the seed and of the time, and the errors are drawn
packet by packet: so the same bytes at the same times arrive at the same times, whoever plays it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Protocol

import msgspec

from wayfare.errors import UsageError

MS_NS = 1_000_000
S_NS = 1000 * MS_NS
VARY_NS_MIN = MS_NS  # each change is a step for whoever plays the link


class Chance(Protocol):
    """What a channel asks of a `random.Random`."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


class Direction(msgspec.Struct, frozen=True):
    """How a link behaves one way."""

    bps: int  # of one channel
    least: int = 1  # channels that are available
    most: int = 1
    vary_ns: int = S_NS  # how long their number stays; then it is drawn again, evenly
    packet: int = 1500  # bytes at most, with the overhead
    overhead: int = 40  # bytes of each packet that are not the message's
    error: float = 0.0  # share of transmissions of a packet that break it
    again_least_ns: int = 30 * MS_NS  # until a broken packet has been sent again
    again_most_ns: int = 50 * MS_NS
    latency_ns: int = 0  # propagation, and whatever else takes time without taking bandwidth

    def __post_init__(self) -> None:
        for name in WHOLE:
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                short = name.removesuffix("_ns")
                raise UsageError(f"{short} of a channel is a whole number, not negative")
        if self.bps < 1 or self.least < 1:
            raise UsageError("bps and least of a channel are at least 1: bits must get through")
        if self.vary_ns < VARY_NS_MIN:
            raise UsageError("vary of a channel is at least 1ms: what changes faster evens out")
        if self.most < self.least or self.again_most_ns < self.again_least_ns:
            raise UsageError("most channels (or again_most) are not below the least")
        if self.packet <= self.overhead:
            raise UsageError("a packet is longer than its overhead: give a larger packet")
        if not 0 <= self.error < 1:
            raise UsageError("error is a share from 0 to below 1: some packet must get through")

    @property
    def payload(self) -> int:
        """Bytes of a message that one packet carries."""
        return self.packet - self.overhead

    def packets(self, size: int) -> Iterator[int]:
        """The lengths of the packets that carry so many bytes; an empty message takes one, too."""
        while size > self.payload:
            yield self.packet
            size -= self.payload
        yield size + self.overhead

    def floor_ns(self, size: int) -> int:
        """The least time that so many bytes can take: all channels, no error, nothing before them."""
        bits = 8 * sum(self.packets(size))
        return self.latency_ns + -(-bits * S_NS // (self.bps * self.most))


WHOLE = tuple(name for name in Direction.__struct_fields__ if name != "error")
TIMES = tuple(name for name in WHOLE if name.endswith("_ns"))
SETTINGS = {name.removesuffix("_ns"): name for name in Direction.__struct_fields__}


class Profile(msgspec.Struct, frozen=True):
    """A kind of link: up is from the mobile, down is to it."""

    up: Direction
    down: Direction
    source: str = "given"  # where the figures come from


def floor(profile: Profile, size: int) -> int:
    """The least nanoseconds for one round trip that brings so many bytes down."""
    return profile.up.floor_ns(0) + profile.down.floor_ns(size)


_PPP = 48  # IP 20, TCP 20, PPP 8
_GPRS = Direction(13_400, most=2, error=0.001, latency_ns=300 * MS_NS, packet=1500, overhead=_PPP)


def _even(bps: int, latency_ms: float, **more: float) -> Direction:
    return msgspec.convert({"bps": bps, "latency_ns": round(latency_ms * MS_NS), **more}, Direction)


_WPT = "WebPageTest's profile for Mobile Edge, 3G and LTE: half its round trip each way, no errors"
_WIFI = Direction(
    30_000_000,
    overhead=76,
    error=0.05,
    again_least_ns=MS_NS,
    again_most_ns=4 * MS_NS,
    latency_ns=2 * MS_NS,
)
PROFILES = {
    "gprs": Profile(
        _GPRS,
        msgspec.structs.replace(_GPRS, most=3),
        "Table 2 of the mobility service paper (Seawind, class 6, CS-2); chosen: latency (a round trip"
        " of GPRS takes a few hundred ms to 1 s: RFC 3481, 2.1), vary, packet and overhead (PPP)",
    ),
    "edge": Profile(_even(200_000, 420), _even(240_000, 420), _WPT),
    "3g": Profile(_even(768_000, 150), _even(1_600_000, 150), _WPT),
    "lte": Profile(_even(12_000_000, 35), _even(12_000_000, 35), _WPT),
    "wifi": Profile(_WIFI, _WIFI, "chosen: a busy access point, one frame in 20 sent again"),
    "lossy": Profile(
        msgspec.structs.replace(_GPRS, error=0.1),
        msgspec.structs.replace(_GPRS, most=3, error=0.1),
        "chosen: gprs at the edge of a cell, one packet in 10 broken",
    ),
    "lan": Profile(
        _even(100_000_000, 0.2, overhead=78, packet=1538),
        _even(100_000_000, 0.2, overhead=78, packet=1538),
        "chosen: Fast Ethernet (IP 20, TCP 20, Ethernet 38 with its gap) and one switch",
    ),
}


def find(name: str, settings: Iterable[str] = ()) -> Profile:
    """A profile by its name, changed by settings as `error=0.01`, `latency=100ms`, `down.most=1`.

    Without `up.` or `down.` a setting is for both ways.
    """
    if name not in PROFILES:
        raise UsageError(f"there is no profile {name[:60]!r}: take one of {', '.join(PROFILES)}")
    changes: dict[str, dict[str, float]] = {"up": {}, "down": {}}
    for setting in settings:
        what, _, value = setting.partition("=")
        way, _, short = what.rpartition(".")
        if way not in ("", *changes) or short not in SETTINGS:
            raise UsageError(
                f"{setting[:60]!r} sets nothing: write NAME=VALUE, up.NAME=VALUE or down.NAME=VALUE"
                f" with one of {', '.join(SETTINGS)}"
            )
        for one in [way] if way else changes:
            changes[one][SETTINGS[short]] = _value(SETTINGS[short], value, setting)
    profile, replace = PROFILES[name], msgspec.structs.replace
    return replace(
        profile,
        up=replace(profile.up, **changes["up"]),
        down=replace(profile.down, **changes["down"]),
    )


def _value(field: str, text: str, setting: str) -> float:
    unit = {"ms": MS_NS, "s": S_NS, "us": 1000}
    try:
        if field == "error":
            return float(text)
        if field in TIMES:
            letters = text.lstrip("0123456789.")
            return round(float(text.removesuffix(letters)) * unit[letters or "ms"])
        return int(text)
    except (ValueError, KeyError, OverflowError):
        kind = "a time as 300ms" if field in TIMES else "a number"
        raise UsageError(f"{setting[:60]!r} has no value that fits: give {kind}") from None


class Channel:
    """One way of a link, and what is on it. Nothing is kept: it says when bytes will be there."""

    __slots__ = (
        "_chance",
        "_epoch",
        "_last",
        "_rate",
        "_salt",
        "again",
        "bytes",
        "direction",
        "free_at",
        "packets",
    )

    def __init__(self, direction: Direction, chance: Chance) -> None:
        self.direction = direction
        self._chance = chance
        self._salt = chance.getrandbits(64).to_bytes(8, "big")
        self._epoch = -1  # of which `_rate` is known
        self._rate = 0
        self.free_at = 0  # when the last bit that was sent has left
        self._last = 0  # when it arrives
        self.bytes = self.packets = 0
        self.again = 0  # times that a packet was sent again

    def send(self, now: int, size: int) -> int:
        """So many bytes want to leave now: when the last of them arrives."""
        direction, chance, error = self.direction, self._chance, self.direction.error
        latency = direction.latency_ns
        self.bytes += size
        for length in direction.packets(size):
            self.free_at = left = self._leaves(max(now, self.free_at), length)
            arrival = left + latency
            while error and chance.random() < error:
                self.again += 1
                arrival += self._again_ns()
            self._last = max(arrival, self._last)
            self.packets += 1
        return self._last

    def clear(self, now: int) -> None:
        """Whoever sent it has given up: what has not left does not hold up what comes next."""
        self.free_at = min(self.free_at, now)
        self._last = min(self._last, now)

    def channels(self, now: int) -> int:
        """How many are available."""
        return self._rate_in(now // self.direction.vary_ns) // self.direction.bps

    def _again_ns(self) -> int:
        least, most = self.direction.again_least_ns, self.direction.again_most_ns
        return least + int(self._chance.random() * (most - least + 1))

    def _leaves(self, start: int, length: int) -> int:
        """When the last bit of a packet has left whose first one leaves at `start`."""
        vary_ns = self.direction.vary_ns
        left = length * 8 * S_NS  # bits, as far as they get in a nanosecond at 1 bit/s
        epoch = start // vary_ns
        while True:
            rate = self._rate_in(epoch)
            epoch += 1
            room = (epoch * vary_ns - start) * rate
            if left <= room:
                return start - (-left // rate)
            left -= room
            start = epoch * vary_ns

    def _rate_in(self, epoch: int) -> int:
        if epoch != self._epoch:
            direction = self.direction
            spread = direction.most - direction.least + 1
            channels = direction.least
            if spread > 1:
                drawn = blake2b(epoch.to_bytes(16, "big"), key=self._salt, digest_size=8).digest()
                channels += int.from_bytes(drawn, "big") % spread
            self._epoch, self._rate = epoch, channels * direction.bps
        return self._rate
