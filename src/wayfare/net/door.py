"""Who may come in: neighbours that prove who they are, and clients with an account.

    stranger -- Challenge, Proof --> Join      a neighbour, where brokers share a secret
             -- (its certificate) -> Join      ... or know a CA
             -- likewise ----------> Peer      another broker of the tree, whose replicator speaks
             -- Login -------------> Attach    a client, where there are accounts

A refusal closes the connection, and says why. Passwords are checked in threads, one connection waiting
for each, and nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any

from wayfare.core.codec import encode
from wayfare.core.grants import Grants
from wayfare.core.messages import Challenge, Login, Proof
from wayfare.errors import UsageError
from wayfare.net.accounts import Accounts
from wayfare.net.addresses import Address
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.connection import Connection
from wayfare.net.limits import NetLimits, Rates
from wayfare.net.login_limits import LoginLimits
from wayfare.net.logs import tell
from wayfare.net.members import Members
from wayfare.net.security import (
    Proving,
    Tls,
    check_secret,
    is_loopback,
    is_vouched,
    neighbour_context,
    network_of,
    reload,
    server_context,
)

HASHING_THREADS = 2  # that check passwords; each takes 64 MiB while it does

logger = logging.getLogger("wayfare.broker")


class Door:
    """The door of one broker."""

    def __init__(
        self,
        name: str,
        neighbours: Collection[str],
        tls: Tls | None,
        secret: str | None,
        accounts: Accounts | None,
        limits: NetLimits,
        audit: Audit,
        bans: Bans,
    ) -> None:
        check_secret(secret)
        self._name, self._neighbours = name, frozenset(neighbours)
        self._peers: Collection[str] = ()  # other brokers of the tree that may come
        self._tls, self._secret, self._accounts = tls, secret, accounts
        self._context: ssl.SSLContext | None = None  # of those who come
        # Of those whom we call; it is made when it is needed, for it reads files.
        self._outwards: ssl.SSLContext | None = None
        self._limits = limits
        self._audit, self._bans = audit, bans
        self._proving: dict[Connection, Proving] = {}
        self.members = Members(limits)
        self._at: dict[str, int] = {}  # how many connections come from each network
        self._moves = Rates(limits.moves_per_minute)
        self.logins = LoginLimits(limits.failed_logins_per_minute, limits.failed_logins_per_account)
        self._checking: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None

    def options(self, address: Address) -> dict[str, Any]:
        """How to listen there."""
        if not address.tls:
            return {}
        if self._tls is None:
            raise UsageError(f"to listen at {address}, {self._name} needs a certificate and a key")
        self._context = server_context(self._tls)
        return {
            "ssl": self._context,
            "ssl_handshake_timeout": self._limits.greeting_s,
            "ssl_shutdown_timeout": self._limits.closing_s,
        }

    def outwards(self) -> ssl.SSLContext:
        """How to call a neighbour at wayfares://."""
        if self._outwards is None:
            self._outwards = neighbour_context(self._tls)
        return self._outwards

    def reload(self) -> None:
        """Go by certificates and accounts as they are in their files now; what is no good is not used."""
        trouble = self._accounts.refresh() if self._accounts is not None else ""
        trouble = self.reload_tls() or trouble
        if trouble:
            says = "%(broker)s goes on with the files that it has: %(reason)s"
            self._tell("not_reloaded", says, reason=trouble)
            self._audit.record(
                "reloaded", what="certificates and accounts", ok=False, reason=trouble
            )
        else:
            tell(
                logger, logging.INFO, "reloaded", "%(broker)s has read its files", broker=self._name
            )
            self._audit.record("reloaded", what="certificates and accounts", ok=True)

    def reload_tls(self) -> str:
        """Go by certificates and revocation lists as they are now. Returns what is wrong with them."""
        try:
            if self._tls is not None:
                reload(self._tls, *filter(None, (self._context, self._outwards)))
        except UsageError as error:
            return str(error)
        return ""

    def warn(self, address: Address) -> None:
        """Say in the log who may come, if others than this machine can reach us."""
        if is_loopback(address.host):
            return
        if self._accounts is None:
            self._tell(
                "no_accounts",
                "%(broker)s has no accounts: whoever reaches %(address)s may attach, under any name",
                address=address,
            )
        certified = address.tls and self._tls is not None and self._tls.ca
        if self._neighbours and self._secret is None and not certified:
            self._tell(
                "no_secret",
                "%(broker)s has neither a secret nor a CA: whoever reaches %(address)s may join as its"
                " neighbour",
                address=address,
            )

    def _tell(self, event: str, sentence: str, **facts: Any) -> None:
        tell(logger, logging.WARNING, event, sentence, broker=self._name, **facts)

    # All connections

    def on_connected(self, connection: Connection) -> None:
        """Another one has come; it may be banned, or there may be too many from there."""
        network = network_of(connection.host)
        self._at[network] = self._at.get(network, 0) + 1
        most = self._limits.connections_per_address
        if not self.bans(connection) and self._at[network] > most:
            connection.refuse(
                f"{self._name} has {most} connections from {connection.host}: close some",
                again=True,
            )

    def bans(self, connection: Connection, *names: str) -> bool:
        """Whether this peer is banned, by its address or one of these names; if so, it is refused."""
        ban = self._bans.of(connection.origin, *names)
        if ban is None and connection.origin != connection.host:
            ban = self._bans.of(connection.host)
        if ban is None:
            return False
        via = connection.host if connection.origin != connection.host else ""
        self._audit.record(
            "banned",
            target=ban.target,
            account=connection.account,
            client=connection.peer,
            address=connection.origin,
            via=via,
            until=ban.ends,
            reason=ban.reason,
        )
        connection.audited = True
        connection.refuse(ban.refusal(), why="banned", details=f"{ban.target} {ban.reason}".strip())
        return True

    def on_closed(self, connection: Connection) -> None:
        self._proving.pop(connection, None)
        self.members.close(connection)
        if not connection.called:
            network = network_of(connection.host)
            self._at[network] -= 1
            if not self._at[network]:
                del self._at[network]

    def on_hello(self, connection: Connection) -> None:
        if self._accounts is None:
            connection.allow_long_frames()  # an Attach comes next, from anybody

    def forget(self, now: float) -> None:
        """Time has passed, and with it what was counted."""
        self._moves.forget(now)

    async def close(self) -> None:
        for task in self._checking:
            task.cancel()
        await asyncio.gather(*self._checking, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # Neighbours, and other brokers

    def expect(self, peers: Collection[str]) -> None:
        """Let these brokers come in, too, as peers."""
        self._peers = peers

    def knows(self, connection: Connection) -> bool:
        """Whether who comes as a peer is a broker of the tree; if not, it is refused."""
        peer = connection.peer
        if peer not in self._peers and peer not in self._neighbours:
            connection.refuse(
                f"{self._name} knows no broker {peer}: name it in [peers]", why="neighbour"
            )
            return False
        return self.trusts(connection)

    def challenge(self, connection: Connection, neighbour: str) -> bool:
        """Ask a neighbour that was called for a proof; False if none is needed."""
        if self._secret is None:
            return False
        proving = self._proving[connection] = Proving(self._secret, self._name, neighbour)
        connection.send(encode(proving.challenge()))
        return True

    def prove(self, connection: Connection, message: Challenge | Proof) -> bool:
        """Both ends show that they know the secret, who called first. True: now it may join."""
        peer, proving = connection.peer, self._proving.get(connection)
        if self._secret is None:
            connection.refuse(
                f"{peer} has a secret, and {self._name} has none: give it to both", why="neighbour"
            )
        elif peer not in self._neighbours and peer not in self._peers:
            connection.refuse(f"{peer} is no neighbour of {self._name}", why="neighbour")
        elif isinstance(message, Challenge):
            if proving is None:
                proving = self._proving[connection] = Proving(self._secret, self._name, peer)
                connection.send(encode(proving.challenge()))
            proving.challenged(message)
            if connection.called:
                connection.send(encode(proving.proof()))
        elif proving is None or not proving.check(message):
            connection.refuse(
                f"{peer} and {self._name} have different secrets: give both the same",
                why="neighbour",
            )
        elif connection.called:
            return True
        else:
            connection.send(encode(proving.proof()))
        return False

    def trusts(self, connection: Connection) -> bool:
        """Whether a neighbour that joins is the one that it says it is; if not, it is refused."""
        peer = connection.peer
        if self._secret is not None:
            proving = self._proving.get(connection)
            if proving is None or not proving.done:
                connection.refuse(
                    f"{peer} has not proved that it knows the secret of {self._name}:"
                    " give it to both",
                    why="neighbour",
                )
                return False
        if self._wants_certificate(connection) and peer not in connection.names:
            shown = ", ".join(connection.names) or "nobody"
            connection.refuse(
                f"{peer} showed a certificate of {shown}: it needs one of its name", why="neighbour"
            )
            return False
        if self._secret is not None and not connection.private:
            self._tell(
                "not_private",
                "what %(broker)s and %(peer)s say to each other can be read, and changed, on the way:"
                " use wayfares://",
                peer=peer,
            )
        self._proving.pop(connection, None)
        return True

    def _wants_certificate(self, connection: Connection) -> bool:
        if connection.called:
            return connection.tls
        return self._secret is None and self._tls is not None and self._tls.ca != ""

    # Clients

    def admits(self, connection: Connection, client: str) -> bool:
        """Whether a client may attach under this name, now; if not, it is refused."""
        member = self.members.get(connection)
        account = None if member is None else member.account
        now = asyncio.get_running_loop().time()
        if client != connection.peer:
            connection.refuse(f"{connection.peer} attaches as {client}")
        elif self.bans(connection, client, connection.account):
            pass
        elif self._accounts is not None and account is None:
            connection.refuse(
                f"{client} has not logged in: {self._name} wants an account and its password",
                why="login",
            )
        elif account and self._accounts and (rule := self._accounts.refusal(account, client)):
            connection.refuse(
                f"{account.name} may not attach as {client}: {account.names()}",
                why="login",
                details=rule,
            )
        elif wait := self._moves.take(client, now):
            most = self._limits.moves_per_minute
            connection.refuse(
                f"{client} attaches more than {most} times a minute: wait {ceil(wait)} s",
                again=True,
            )
        else:
            return True
        return False

    def has_room(
        self, connection: Connection, client: str, has_session: Callable[[str], bool]
    ) -> bool:
        """Whether the account of a client may have one more; if not, it is refused."""
        if shortage := self.members.shortage(connection, client, has_session):
            connection.refuse(f"{self._name} has no room: {shortage}", again=True)
            return False
        return True

    def account_of(self, connection: Connection) -> str:
        """The account that a connection belongs to; "" where there are none."""
        member = self.members.get(connection)
        return "" if member is None else member.account.name

    def account_of_name(self, client: str) -> str:
        owner = None if self._accounts is None else self._accounts.owner(client)
        return "" if owner is None else owner.name

    def grants(self, connection: Connection, client: str) -> Grants | None:
        """What the client may do, which attaches now; None: everything, without an account."""
        member = self.members.get(connection)
        if member is None:
            return None
        self.members.attach(connection, client)
        account = member.account
        cost_max = account.quota.within(self._limits).subscription_cost or 0
        return account.grants(client, cost_max)

    def log_in(self, connection: Connection, login: Login) -> None:
        """Check a password, and hold the connection meanwhile."""
        if self._accounts is None:
            return  # everybody may come
        if is_vouched(self._secret, login):
            connection.origin = login.address
        if self.bans(connection, connection.peer, login.name):
            pass
        elif not connection.private:
            connection.refuse(
                "a password came in clear, so others may know it: use wayfares://", why="login"
            )
        elif connection in self.members:
            connection.refuse("Login twice on one connection")
        elif len(self._checking) >= self._limits.logins:
            connection.refuse(f"{self._name} has too many logins to check", again=True)
        else:
            connection.hold()
            work = self._log_in(self._accounts, connection, login)
            task = asyncio.get_running_loop().create_task(work)
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)

    async def _log_in(self, accounts: Accounts, connection: Connection, login: Login) -> None:
        hashed = ""
        async with self.logins.attempt(login.name, connection.origin) as attempt:
            if not attempt.wait_s and not connection.closing:
                hashed = await self._check(accounts, login)
                attempt.good = bool(hashed)
        if connection.closing:
            return
        account = accounts.get(login.name)
        if attempt.wait_s:
            reason = f"wait {ceil(attempt.wait_s)} s"
            self._audit_login("login_throttled", connection, login, reason=reason)
            connection.refuse(f"too many failed logins before this one: {reason}", again=True)
        elif attempt.good and account is not None:
            self._audit_login("login_ok", connection, login)
            self.members.log_in(connection, account, hashed)
            connection.account = account.name
            connection.allow_long_frames()
            connection.release()
        else:
            known = "wrong password" if account is not None else "no such account"
            self._audit_login("login_failed", connection, login, reason=known)
            connection.refuse(
                f"{login.name} cannot log in: no such account, or not its password",
                why="login",
                login=True,
                details=f"{known}, from {connection.origin}",
            )

    async def _check(self, accounts: Accounts, login: Login) -> str:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(HASHING_THREADS, "wayfare-login")
        if trouble := accounts.refresh():
            self._tell(
                "accounts_unread",
                "%(broker)s goes on with the accounts that it has: %(reason)s",
                reason=trouble,
            )
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, accounts.verify, login.name, login.password
        )

    def _audit_login(self, event: str, connection: Connection, login: Login, **facts: str) -> None:
        connection.audited = event != "login_ok"
        via = connection.host if connection.origin != connection.host else ""
        self._audit.record(
            event,
            account=login.name,
            client=connection.peer,
            address=connection.origin,
            via=via,
            **facts,
        )
