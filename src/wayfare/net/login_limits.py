"""Failed logins, counted in one place: at brokers, thin proxies and mobility proxies.

A failure counts after the check, in three token buckets; a correct login never counts:

    this account from this address    per_address a minute
    this address, any account         per_address a minute
    this account, any address         per_account a minute; higher, because others can use it up

An attempt is refused without a check while one of its buckets is empty. Attempts that are being checked hold a
token each, which a correct login gives back: as many guesses at a time as the buckets have tokens, and no more.
Attempts beyond that wait for the checks before them.

Somebody who guesses cannot keep a device out for ever: where an account has logged in from an address before,
only the first bucket counts, and that is used up from this very address only. An address is an IPv4
address, or a /64 of IPv6.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from wayfare.net.security import network_of

BUCKETS_MAX = 100_000  # of accounts and addresses that failed; then the oldest are forgotten
KNOWN_MAX = 10_000  # accounts and addresses that have logged in; then the oldest are forgotten
PER_ADDRESS = 10  # failures a minute
PER_ACCOUNT = 100

Key = tuple[str, ...]


class Attempt:
    """One login that is being checked."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s  # above 0: it is refused, and this long
        self.good: bool | None = None  # what came of the check; None: nothing


class Bucket:
    """Failures of one account or address that are still allowed."""

    __slots__ = ("_at", "_left", "_per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute, self._left, self._at = per_minute, float(per_minute), now

    def left(self, now: float) -> float:
        return min(self._per_minute, self._left + (now - self._at) * self._per_minute / 60)

    def count(self, now: float) -> None:
        self._left, self._at = max(0.0, self.left(now) - 1), now

    def wait_s(self, now: float) -> float:
        """Until one more failure is allowed."""
        return max(0.0, (1 - self.left(now)) * 60 / self._per_minute)


class LoginLimits:
    """The failures at one broker or proxy."""

    def __init__(
        self,
        per_address: int = PER_ADDRESS,
        per_account: int = PER_ACCOUNT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results: Counter[str] = Counter(ok=0, failed=0, throttled=0)
        self._per_address, self._per_account = per_address, per_account
        self._clock = clock
        self._buckets: dict[Key, Bucket] = {}
        self._checking: Counter[Key] = Counter()
        self._known: dict[Key, None] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def attempt(self, account: str, address: str) -> AsyncIterator[Attempt]:
        """Wait until this login may be checked; who checks it sets `good`."""
        wait_s = await self._reserve(account, address)
        attempt = Attempt(wait_s)
        if wait_s:
            self.results["throttled"] += 1
            yield attempt
            return
        try:
            yield attempt
        finally:
            self._release(account, address)
            if attempt.good is not None:
                self.settle(account, address, attempt.good)

    def wait_s(self, account: str, address: str) -> float:
        """How long this login is refused, for a check that takes no time; 0: it is not."""
        now = self._clock()
        applying = (self._buckets.get(key) for key in self._applying(account, address))
        wait_s = max((one.wait_s(now) for one in applying if one is not None), default=0.0)
        self.results["throttled"] += wait_s > 0
        return wait_s

    def settle(self, account: str, address: str, good: bool) -> None:
        """A check is done."""
        pair, by_address, by_account = _keys(account, address)
        self.results["ok" if good else "failed"] += 1
        if good:
            self._known.pop(pair, None)
            self._known[pair] = None
            _forget_oldest(self._known, KNOWN_MAX)
            return
        now = self._clock()
        for key, most in (
            (pair, self._per_address),
            (by_address, self._per_address),
            (by_account, self._per_account),
        ):
            bucket = self._buckets.pop(key, None) or Bucket(most, now)
            bucket.count(now)
            self._buckets[key] = bucket
        _forget_oldest(self._buckets, BUCKETS_MAX)

    def _applying(self, account: str, address: str) -> tuple[Key, ...]:
        keys = _keys(account, address)
        return keys[:1] if keys[0] in self._known else keys

    async def _reserve(self, account: str, address: str) -> float:
        while True:
            now, keys = self._clock(), self._applying(account, address)
            buckets = [(key, self._buckets.get(key)) for key in keys]
            if wait_s := max(one.wait_s(now) if one else 0.0 for _, one in buckets):
                return wait_s
            most = {key: self._most(key) for key in keys}
            if all(
                self._checking[key] + 1 <= (one.left(now) if one else most[key])
                for key, one in buckets
            ):
                for key in _keys(account, address):
                    self._checking[key] += 1
                return 0.0
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _release(self, account: str, address: str) -> None:
        for key in _keys(account, address):
            self._checking[key] -= 1
            if not self._checking[key]:
                del self._checking[key]
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def _most(self, key: Key) -> int:
        return self._per_account if key[0] == "account" else self._per_address


def _keys(account: str, address: str) -> tuple[Key, Key, Key]:
    network = network_of(address)
    return ("pair", account, network), ("address", network), ("account", account)


def _forget_oldest(
    table: dict[Key, object] | dict[Key, Bucket] | dict[Key, None], most: int
) -> None:
    while len(table) > most:
        del table[next(iter(table))]
