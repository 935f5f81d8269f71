"""Limits in sum: what all peers together may cost a broker in memory, and on disk.

    up to 7/8 of a limit    nobody notices anything
    beyond that             publishers of the largest consumer are slowed for a moment, again and again, here or
                            behind neighbours (of an account: only its own clients here that publish to its
                            largest consumer)
    beyond the limit        the largest consumer loses: a client that does not read its connection, a session
                            its oldest notifications (the core decides, and tells it by a `Gap`),
                            a neighbour what waits for it

Nothing is looked at one by one unless a limit is near; what is kept is counted where it changes.

Profiles of clients that are attached are not taken back. So that there is always room for others, the clients of one
account, or of one address where there are no accounts, get no more of it than is left of the limit besides all profiles.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from wayfare.core.broker import SPARE, Broker
from wayfare.core.effects import Exceeded
from wayfare.core.history import size_of
from wayfare.core.memory import FILTER_BYTES, NEAR, SESSION_BYTES
from wayfare.core.messages import Attach, BrokerId
from wayfare.net.connection import Buffers, Connection
from wayfare.net.links import Link

WARN_EVERY_S = 60.0
COUNTED_EVERY_S = 0.2  # all profiles, while they take much
COUNTED_SHARE = 0.05  # of the time that this may take

logger = logging.getLogger("wayfare.broker")


class Holders:
    """Whose clients' profiles take how much: by account, or by address for clients without one."""

    def __init__(self, core: Broker, connections: Mapping[str, Connection]) -> None:
        self._core, self._connections = core, connections
        self._bytes: dict[str, int] = {}
        self._due_s = 0.0  # when to look at all sessions again

    def is_crowding(self, connection: Connection) -> bool:
        """Whether its account or address has more than is left for everybody."""
        limit, profiles = self._core.border.limits.memory_bytes, self._core.border.memory.profiles
        if 2 * profiles <= limit:  # then nobody has
            return False
        now = time.monotonic()
        if now >= self._due_s:
            self._count()
            took_s = time.monotonic() - now
            self._due_s = now + max(COUNTED_EVERY_S, took_s / COUNTED_SHARE)
        return 0 < limit < profiles + self._bytes.get(_holder(connection), 0)

    def add(self, connection: Connection, size: int) -> None:
        """One of its clients has so much more, which is counted again later."""
        holder = _holder(connection)
        self._bytes[holder] = self._bytes.get(holder, 0) + size

    def _count(self) -> None:
        self._bytes = {}
        for session in self._core.border.all():
            connection = self._connections.get(session.link or "")
            if connection is not None:
                self.add(connection, session.profile)
            elif session.account:
                holder = f"account {session.account}"
                self._bytes[holder] = self._bytes.get(holder, 0) + session.profile


def _holder(connection: Connection) -> str:
    account = connection.account
    return f"account {account}" if account else f"address {connection.origin}"


def profile_of(attach: Attach) -> int:
    """What the profile of a client will take, as the core counts it."""
    filters = len(attach.subscriptions) + len(attach.advertisements)
    will = 0 if attach.will is None else size_of(attach.will)
    return SESSION_BYTES + filters * FILTER_BYTES + will


class MemoryGuard:
    """Keeps one broker below `limits.memory`, and each account below `limits.account_memory` and `account_disk`."""

    def __init__(
        self,
        core: Broker,
        links: Mapping[BrokerId, Link],
        shed: Callable[[Exceeded], None],
        give_up: Callable[[Link], None],
        tell: Callable[..., None],
        grown: Callable[[], None],
        slow: Callable[[str], None],
        connections: Mapping[str, Connection],
    ) -> None:
        """`grown` is called when connections keep more: then `mind` is due at the end of the turn.

        `slow` slows the publishers of the largest consumer, of this account if one is named.
        """
        self._core, self._links = core, links
        self._shed, self._give_up, self._tell, self._slow = shed, give_up, tell, slow
        self._limit = core.border.limits.memory_bytes
        self._warned_s = -WARN_EVERY_S
        self.buffers = Buffers(grown)  # of clients' connections
        self._holders = Holders(core, connections)
        self.cut = 0  # connections of clients that did not read
        self.full = False  # even now that the largest have lost
        self.near = False  # 7/8 of the limit are used
        # Accounts that keep more than their limit even now, and how much: filters are not taken back.
        self._full_accounts: dict[str, int] = {}

    def outside(self) -> int:
        """Bytes that are kept beside the core."""
        return self.buffers.bytes + sum(link.bytes for link in self._links.values())

    def used(self) -> int:
        return self._core.memory_bytes() + self.outside()

    def mind(self) -> None:
        """The end of a turn: something may have been kept."""
        if self._core.border.memory.suspects or self._full_accounts:
            self._mind_accounts()
        if not self._limit:
            return
        if self.used() <= self._limit * NEAR:
            self.full = self.near = False
            return
        self.buffers.refresh()
        self.near = self.used() > self._limit * NEAR
        if self.near:
            self._slow("")
        if self.used() > self._limit:
            self._warn()
            self._relieve()
        self.full = self.used() > self._limit

    def _mind_accounts(self) -> None:
        memory = self._core.border.memory
        for account in dict.fromkeys((*memory.suspects, *self._full_accounts)):
            self._mind_account(account)
        for account in list(memory.suspects):
            self._slow(account)

    def _mind_account(self, account: str) -> None:
        memory, full = self._core.border.memory, self._full_accounts
        limit = memory.limit_of(account).bytes
        spared = full[account] + limit // SPARE if account in full else 0
        if 0 < limit < memory.noted(account) <= spared:
            return  # what it could shed was shed when it was about as large
        exceeded = self._core.account_excess(account)
        if exceeded is not None:
            self._shed(exceeded)
        if memory.noted(account) > limit > 0:
            full[account] = memory.noted(account)  # even now
        else:
            full.pop(account, None)

    def is_full_for(self, account: str) -> bool:
        """Whether a client of this account may add nothing more; "" is for clients without an account."""
        return self.full or account in self._full_accounts

    def short_for(self, connection: Connection, size: int) -> str:
        """Who has no memory left for a profile that becomes so much larger; "" if there is room."""
        account = connection.account
        if self.full:
            return self._core.name
        if account in self._full_accounts:
            return f"the account {account}"
        if self._holders.is_crowding(connection):
            return f"the account {account}" if account else "your address"
        self._holders.add(connection, size)
        return ""

    def growth(self, attach: Attach) -> int:
        """By how much the profile of a client becomes larger that attaches; 0 if its session is here already."""
        there = sum(one.profile for one in self._core.border.of(attach.client))
        return max(0, profile_of(attach) - there)

    def _relieve(self) -> None:
        """Let the largest lose, whoever that is, until there is room again."""
        goal = self._limit - self._limit // SPARE
        while self.used() > goal:
            session = self._core.largest_bytes()
            connection, unread = self.buffers.largest()
            link = largest_link(self._links)
            if connection is not None and unread >= max(session, link.bytes if link else 0):
                self.cut += 1
                connection.abort(
                    f"{unread} bytes are kept for this connection, and limits.memory is exceeded",
                    why="memory",
                )
                self.buffers.note(connection, 0)
            elif link is not None and link.bytes > session:
                self._give_up(link)
            else:
                for exceeded in self._core.excess(self.outside()):
                    self._shed(exceeded)
                return

    def _warn(self) -> None:
        if time.monotonic() - self._warned_s > WARN_EVERY_S:
            self._warned_s = time.monotonic()
            self._tell(
                logging.WARNING,
                "memory_short",
                "%(broker)s keeps %(bytes)s bytes, and limits.memory is %(limit)s: the largest consumers"
                " lose, and are told so",
                bytes=self.used(),
                limit=self._limit,
            )

    def kinds(self) -> Iterator[tuple[str, int]]:
        """Bytes by what they are kept for."""
        memory = self._core.border.memory
        yield "notifications", memory.notification_bytes() + memory.attached
        yield "profiles", memory.profiles
        waiting = self._core.profiles.bytes + self._core.preparations.bytes
        yield "publications", memory.publications + waiting
        yield "past", self._core.past_bytes()
        yield "retained", self._core.border.retained.memory_bytes()
        yield "connections", self.buffers.bytes
        yield "links", sum(link.bytes for link in self._links.values())


def largest_link(links: Mapping[BrokerId, Link]) -> Link | None:
    """The neighbour for which most is kept."""
    return max(links.values(), key=_bytes, default=None)


def _bytes(link: Link) -> int:
    return link.bytes
