"""Accounts that change while clients are here: what they may do changes with them, within seconds.

    every FILES_S     the file of accounts is looked at; one that is being written is left alone until it is done
    SIGHUP            the same, at once

of a client that is attached          what happens
    its account was removed           it is disconnected
    ... or its name is not its own    it is disconnected
    its password does not count       it is disconnected, and may log in again
    its rules changed                 they hold from now on; if it has a subscription, an advertisement or a will
                                      that they do not allow, that is withdrawn, and it is disconnected
    its quotas changed                they hold from now on

Of a client that is away, subscriptions that are not allowed any more are withdrawn, and what waits because of
them is dropped and reported; so is a will. The session of a removed account stays until `limits.away`: nobody can
attach to it, and its will is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from wayfare.core.broker import Broker
from wayfare.core.effects import Confined, Event, Granted
from wayfare.core.grants import Grants
from wayfare.core.messages import ClientId, LinkId
from wayfare.net.accounts import Account, Accounts
from wayfare.net.audit import Audit
from wayfare.net.connection import Connection
from wayfare.net.limits import NetLimits
from wayfare.net.logs import tell
from wayfare.net.members import Member, Members
from wayfare.net.quotas import Quota
from wayfare.net.store import Store

FILES_S = 1.0  # between two looks at the file
SLICE = 100  # clients that are looked at before others have their turn

logger = logging.getLogger("wayfare.broker")


class Host(Protocol):
    name: str
    core: Broker
    connections: dict[str, Connection]
    audit: Audit

    @property
    def store(self) -> Store | None: ...

    def apply(self, event: Event) -> None: ...


class Enforcement:
    """Holds the clients of one broker to its accounts as they are now."""

    def __init__(self, host: Host, accounts: Accounts, members: Members, limits: NetLimits) -> None:
        self._host, self._accounts, self._members = host, accounts, members
        self._limits = limits
        self._applied: Mapping[str, Account] = {}
        self._applied_at = 0.0  # time of day; a password may expire since
        self._seen: object = None  # the state of the file at the last look
        self._trouble = ""
        self._busy = asyncio.Lock()

    async def watch(self) -> None:
        """From the start of the broker to its end."""
        await self._begin()
        while True:
            await asyncio.sleep(FILES_S)
            await self._look()

    async def _begin(self) -> None:
        """Sessions on disk may be older than the rules."""
        self._applied, self._applied_at = self._accounts.all(), time.time()
        self._limit_kept()
        await self._confine_away()

    async def _look(self) -> None:
        now = self._accounts.stamp()
        if now == self._seen:  # nobody is writing it
            self._read()
            if self._is_due():
                await self.enforce()
        self._seen = now

    def _read(self) -> None:
        trouble = self._accounts.refresh()
        if trouble and trouble != self._trouble:
            tell(
                logger,
                logging.WARNING,
                "accounts_unread",
                "%(broker)s goes on with the accounts that it has: %(reason)s",
                broker=self._host.name,
                reason=trouble,
            )
            self._host.audit.record("reloaded", what="accounts", ok=False, reason=trouble)
        self._trouble = trouble

    def _is_due(self) -> bool:
        accounts = self._accounts.all()
        return accounts is not self._applied or any(
            self._applied_at < one.previous_expires <= time.time() for one in accounts.values()
        )

    async def enforce(self) -> None:
        """Hold everybody to the accounts as they were read last."""
        async with self._busy:
            before, self._applied = self._applied, self._accounts.all()
            self._applied_at = time.time()
            self._limit_kept()
            changed = self._record(before, self._applied)
            attached = list(self._host.connections.items())
            for count, (link, connection) in enumerate(attached, 1):
                member = self._members.get(connection)
                if member is not None and member.client and not connection.closing:
                    self._check(LinkId(link), connection, member, changed)
                if not count % SLICE:
                    await asyncio.sleep(0)
            await self._confine_away()

    def _record(self, before: Mapping[str, Account], after: Mapping[str, Account]) -> set[str]:
        """Write changes to the audit log. Returns the names of changed accounts."""
        changed: set[str] = set()
        for name in dict.fromkeys((*before, *after)):
            old, new = before.get(name), after.get(name)
            if old == new:
                continue
            changed.add(name)
            change = "added" if old is None else "removed" if new is None else "changed"
            what = ", ".join(_differences(old, new)) if old and new else ""
            self._host.audit.record("account_changed", account=name, change=change, what=what)
        return changed

    def _limit_kept(self) -> None:
        border, stored = self._host.core.border, self._host.store is not None
        defaults = border.limits.account_memory_bytes, self._limits.account_disk_bytes
        own = {
            name: one.quota.kept(*defaults, stored=stored) for name, one in self._applied.items()
        }
        border.memory.limit_accounts(own, Quota().kept(*defaults, stored=stored))

    # Clients that are attached

    def _check(
        self, link: LinkId, connection: Connection, member: Member, changed: set[str]
    ) -> None:
        name = member.account.name
        account = self._accounts.get(name)
        if account is None:
            connection.refuse(f"the account {name} was removed", why="account")
            self._drop_will(member.client)
        elif member.hashed not in account.hashes(time.time()):
            why = f"the password of the account {name} was changed: log in again"
            connection.refuse(why, again=True, why="account")
        elif (owner := self._accounts.owner(member.client)) is None or owner.name != name:
            why = f"{name} may not attach as {member.client} any more: {account.names()}"
            rule = self._accounts.refusal(account, member.client)
            connection.refuse(why, why="account", details=rule)
            self._drop_will(member.client)
        elif name in changed:
            member.account = account
            self._members.meter(connection, account)
            grants = self.grants(account, member.client)
            self._host.apply(Granted(link, grants))
            if self._is_exceeded(grants):
                self._host.apply(Confined(ClientId(member.client), grants))

    def grants(self, account: Account, client: str) -> Grants:
        cost_max = account.quota.within(self._limits).subscription_cost or 0
        return account.grants(client, cost_max)

    # Clients that are away

    async def _confine_away(self) -> None:
        for count, client in enumerate(self._away(), 1):
            account = self._accounts.owner(client)
            if account is None:
                self._drop_will(client)
            else:
                self._members.know(account.name, client)
                grants = self.grants(account, client)
                if self._is_exceeded(grants):
                    self._tell_confined(client)
                    self._host.apply(Confined(client, grants))
            if not count % SLICE:
                await asyncio.sleep(0)

    def _away(self) -> Iterator[ClientId]:
        sessions = self._host.core.border.all()
        return iter(dict.fromkeys(one.client for one in sessions if one.link is None))

    def _is_exceeded(self, grants: Grants) -> bool:
        """Whether a session of the client holds something that these rules do not allow."""
        core, client = self._host.core, ClientId(grants.client)
        if grants.cost_max and not core.costs.knows(grants.account, client):
            return True
        return any(
            grants.unsubscribable(one.subscriptions)
            or grants.unadvertisable(one.advertisements)
            or (one.will is not None and grants.unpublishable(one.will))
            for one in core.border.of(client)
        ) or bool(grants.unsubscribable(core.replicator.followed_by(client)))

    def _drop_will(self, client: str) -> None:
        """Nobody may act as this client any more: nothing is published for it either."""
        nothing = Grants(client, publish=())
        if self._is_exceeded(nothing):
            self._host.apply(Confined(ClientId(client), nothing))

    def _tell_confined(self, client: str) -> None:
        tell(
            logger,
            logging.INFO,
            "confined",
            "%(broker)s withdraws from the session of %(peer)s what its account does not allow any more",
            broker=self._host.name,
            peer=client,
        )


def _differences(old: Account, new: Account) -> Iterator[str]:
    """The keys of an account that changed."""
    for field in msgspec.structs.fields(Account):
        if getattr(old, field.name) != getattr(new, field.name):
            yield "quotas" if field.name == "quota" else field.name
