"""Which connection belongs to which account, and whether an account has room for one more client."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from wayfare.net.accounts import Account
from wayfare.net.connection import Connection
from wayfare.net.limits import NetLimits
from wayfare.net.quotas import Meters


class Member(msgspec.Struct):
    """A client that has logged in."""

    account: Account
    hashed: str  # of the password that it logged in with
    client: str = ""  # "": it has not attached yet


class Members:
    """Of one broker."""

    def __init__(self, limits: NetLimits) -> None:
        self._limits = limits
        self._members: dict[Connection, Member] = {}
        self._attached: dict[str, int] = {}  # clients of each account
        # Clients of each account that may have a session here; those without are forgotten when it is full.
        self._clients: dict[str, dict[str, None]] = {}
        self.meters = Meters(limits)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._members

    def get(self, connection: Connection) -> Member | None:
        return self._members.get(connection)

    def log_in(self, connection: Connection, account: Account, hashed: str) -> None:
        self._members[connection] = Member(account, hashed)

    def shortage(self, connection: Connection, client: str, has: Callable[[str], bool]) -> str:
        """Why the account has no room for this client, or "". `has` says who has a session."""
        member = self._members.get(connection)
        if member is None:
            return ""
        name, quota = member.account.name, member.account.quota.within(self._limits)
        used = self._attached.get(name, 0)
        full = quota.connections and used >= quota.connections
        if full and not self._has_attached(name, client):
            return f"the account {name} has {used} attached clients, and no more may attach"
        known = self._clients.get(name, {})
        if quota.sessions and len(known) >= quota.sessions and not has(client):
            known = self._clients[name] = {one: None for one in known if has(one)}
            if len(known) >= quota.sessions:
                return f"the account {name} has {len(known)} sessions, and no more may begin"
        return ""

    def _has_attached(self, account: str, client: str) -> bool:
        """Whether a connection of this client counts already: the new one will take its place."""
        return any(
            one.client == client and one.account.name == account for one in self._members.values()
        )

    def attach(self, connection: Connection, client: str) -> None:
        member = self._members.get(connection)
        if member is not None:
            member.client = client
            name = member.account.name
            self._attached[name] = self._attached.get(name, 0) + 1
            self.know(name, client)
            self.meter(connection, member.account)

    def meter(self, connection: Connection, account: Account) -> None:
        """Measure what comes on this connection by the rates of the account, if it has any."""
        connection.meter = self.meters.of(account.name, account.quota)

    def know(self, account: str, client: str) -> None:
        """This client of the account may have a session."""
        self._clients.setdefault(account, {})[client] = None

    def close(self, connection: Connection) -> None:
        member = self._members.pop(connection, None)
        if member is not None and member.client:
            name = member.account.name
            self._attached[name] -= 1
            if not self._attached[name]:
                del self._attached[name]
