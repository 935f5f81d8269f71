"""What one peer may cost a broker: the limits of the live host, and how rates are kept."""

from __future__ import annotations

import msgspec

from wayfare.core.codec import FRAME_MAX


class NetLimits(msgspec.Struct, frozen=True):
    """Beside `Limits`, which are those of the protocol. Rates may be exceeded for a moment."""

    stranger_bytes: int = 8_192  # of a frame, from a peer that has yet to log in or to join
    frame_bytes: int = FRAME_MAX  # of a frame, from then on
    greeting_s: float = 10.0  # that a stranger may take to say what it is
    strangers: int = 1_000  # connections that have not said what they are
    connections_per_address: int = 5_000
    clients: int = 20_000  # that are attached
    moves_per_minute: int = 600  # attachments of one client
    messages_per_second: int = 100_000  # from one client; no publisher alone gets there
    trickle_bytes: int = 1_024  # of an unfinished frame, in one heartbeat: less is silence
    # That wait for a peer that does not read: more than a whole backlog, which may be under way.
    write_bytes: int = 33_554_432
    # That wait for a neighbour: then others wait, and so long if it is away; see `links`.
    link_count: int = 10_000
    link_bytes: int = 67_108_864
    link_away_s: float = 30.0
    closing_s: float = 5.0  # that a peer may take to read the rest, when it is closed
    logins: int = 100  # whose passwords wait to be checked
    failed_logins_per_minute: int = 10  # from one address
    # Of the accounts that do not say otherwise, see `quotas`; 0: no limit.
    account_publications_per_second: int = 0
    account_bytes_per_second: int = 0
    account_subscription_cost: int = 0
    account_connections: int = 0
    account_sessions: int = 0
    failed_logins_per_account: int = 100  # a minute, from all addresses: see `login_limits`
    disk_bytes: int = 0  # of a store, journal and snapshot together; 0: any
    account_disk_bytes: int = 0  # ... for the clients of one account; 0: any


DEFAULT_NET_LIMITS = NetLimits()


class Rate:
    """So many per second, and after a pause so many at once. Times are in seconds."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, count: float, now: float) -> float:
        """Count these. Returns after how many seconds they, and all before, are within the rate."""
        left = self._left + (now - self._at) * self._per_s
        self._left = left = (left if left < self._burst else self._burst) - count
        self._at = now
        return -left / self._per_s if left < 0 else 0.0

    def is_fresh(self, now: float) -> bool:
        """Whether it is as if nothing had been counted."""
        return self._left + (now - self._at) * self._per_s >= self._burst


class Rates:
    """A rate for each of many names; who was quiet for long enough is forgotten."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._rates: dict[str, Rate] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def take(self, name: str, now: float, count: int = 1) -> float:
        rate = self._rates.get(name)
        if rate is None:
            rate = Rate(self._per_minute / 60, self._per_minute, now)
            self._rates[name] = rate
        wait = rate.take(count, now)
        if wait and count > 0:
            rate.take(-count, now)  # what is refused does not count
        return wait

    def forget(self, now: float) -> None:
        self._rates = {name: one for name, one in self._rates.items() if not one.is_fresh(now)}
