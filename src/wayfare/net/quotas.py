"""Quotas of an account: how much its clients together may use at one broker.

    publications_per_second, bytes_per_second    beyond it, the broker does not read from the client for a while
    connections, sessions                        beyond it, an Attach is refused, and may be tried again
    subscription_cost                            beyond it, a Subscribe or an Attach is refused
    memory, disk                                 beyond it, its largest consumer loses: see `memory`

A quota that an account does not name is the one of `[limits]`; 0 is no quota. Rates are token buckets that hold
one second's worth: an account may use that much at once after a pause, and its connections share it.
"""

from __future__ import annotations

import asyncio

import msgspec

from wayfare.core.memory import AccountLimit
from wayfare.core.messages import AnyMessage, Publish
from wayfare.net.connection import Connection
from wayfare.net.limits import NetLimits, Rate

QUOTAS = {
    "publications_per_second": "publications of its clients; beyond it, they are not read for a while",
    "bytes_per_second": "bytes from its clients; beyond it, they are not read for a while",
    "subscription_cost": "cost of all subscriptions of its clients",
    "connections": "clients of it that are attached at a time",
    "sessions": "sessions of its clients, attached or away",
    "memory": "memory of what is kept for its clients, like 64MiB; beyond it, the largest loses its oldest notifications",
    "disk": "the same, where the broker has a store",
}
PAUSE = "quota"


class Quota(msgspec.Struct, frozen=True):
    """None: the default of the broker; 0: no limit."""

    publications_per_second: int | None = None
    bytes_per_second: int | None = None
    subscription_cost: int | None = None
    connections: int | None = None
    sessions: int | None = None
    memory: int | None = None  # bytes
    disk: int | None = None  # bytes

    def within(self, limits: NetLimits) -> Quota:
        """The same, with the defaults of a broker where it says nothing, but for memory and disk: see `kept`."""
        return Quota(
            **{
                name: getattr(limits, f"account_{name}", None) if own is None else own
                for name, own in msgspec.structs.asdict(self).items()
            }
        )

    def kept(self, memory: int, disk: int, *, stored: bool) -> AccountLimit:
        """How much may be kept, with these defaults, at a broker that has a store or none."""
        memory = memory if self.memory is None else self.memory
        disk = disk if self.disk is None else self.disk
        return AccountLimit.of(memory, disk if stored else 0)


class Meter:
    """What one account may send, over all its connections."""

    def __init__(self, quota: Quota, now: float) -> None:
        self.quota = quota
        publications, size = quota.publications_per_second, quota.bytes_per_second
        self._publications = Rate(publications, publications, now) if publications else None
        self._bytes = Rate(size, size, now) if size else None

    def on_read(self, connection: Connection, messages: list[AnyMessage], size: int) -> None:
        """A client has sent this: if the account exceeds its rate, the client has to wait."""
        loop = asyncio.get_running_loop()
        now, wait = loop.time(), 0.0
        if self._publications is not None:
            wait = self._publications.take(sum(type(one) is Publish for one in messages), now)
        if self._bytes is not None:
            wait = max(wait, self._bytes.take(size, now))
        if wait:
            connection.pause(PAUSE)
            loop.call_later(wait, connection.resume, PAUSE)


class Meters:
    """The meters of all accounts that have a rate."""

    def __init__(self, limits: NetLimits) -> None:
        self._limits = limits
        self._meters: dict[str, Meter] = {}

    def of(self, account: str, given: Quota) -> Meter | None:
        """The meter of an account, as its quota is now; None if its rates are not limited."""
        quota = given.within(self._limits)
        if not (quota.publications_per_second or quota.bytes_per_second):
            self._meters.pop(account, None)
            return None
        meter = self._meters.get(account)
        if meter is None or meter.quota != quota:
            meter = Meter(quota, asyncio.get_running_loop().time())
            self._meters[account] = meter
        return meter

    def keep(self, accounts: set[str]) -> None:
        """Forget the meters of all other accounts."""
        self._meters = {name: one for name, one in self._meters.items() if name in accounts}
