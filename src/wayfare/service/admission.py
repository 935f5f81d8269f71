"""What a mobility proxy asks before it does what a peer says.

    a key that is wrong           counted by client and address; after too many, not even compared
    a name that has an owner      its key, from the first registration on, also after the client has moved on
    a proxy that is to be called  it is named by the operator, or proves a secret; or it is on this machine, and so is the
                                  client; a client with its key has to ask, and may not make us try many
    a new client                  a connection opens a limited number of accesses

None of this is for connections that the proxy has made itself.
"""

from __future__ import annotations

import hmac
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from math import ceil

import msgspec

from wayfare.net.audit import Audit
from wayfare.net.login_limits import LoginLimits
from wayfare.net.logs import printable
from wayfare.service import messages as m
from wayfare.service.messages import SECOND_NS
from wayfare.service.proxy import Proxy
from wayfare.service.relays import TAKEN

ACCESSES_MAX = 100  # client proxies that one connection may create
OWNERS_MAX = (
    100_000  # names that are protected beyond their client proxy; then the oldest are forgotten
)
OWNED_NS = 30 * 24 * 3600 * SECOND_NS  # that a name is protected after its client was last here
ASKED_NS = 10 * SECOND_NS  # that another proxy may rely on a name without a lasting key
DIALS_MAX = 10  # proxies that are being called for one address
DIALS_PER_MINUTE = 60  # calls for one address that may fail

log = logging.getLogger(__name__)

Question = m.Reach | m.Download | m.Release
Creating = m.Register | m.MoveOut | m.Download
WithKey = m.Hello | m.Register | m.Change | m.Renew | m.MoveOut | Question | m.Leave


class Owner(msgspec.Struct, frozen=True):
    """Whose name it is."""

    client: str
    digest: bytes  # of the key
    until: int


class Admission:
    """That of one proxy."""

    def __init__(
        self,
        proxy: Proxy,
        audit: Audit,
        address_of: Callable[[str], str],
        own: Callable[[Owner], None],
        is_named: Callable[[str], bool],
    ) -> None:
        """
        address_of   where a peer is
        own          is told whom a name belongs to from now on
        is_named     whether the operator has named that proxy
        """
        self.keys = LoginLimits()
        self._proxy, self._audit = proxy, audit
        self._address_of, self._own, self._is_named = address_of, own, is_named
        self._owners: dict[str, Owner] = {}  # registered here
        self._learned: dict[str, Owner] = {}  # from other proxies; evicts none that registered here
        self._created: dict[str, set[str]] = {}  # by connection, the clients that it has brought
        self._dials = LoginLimits(DIALS_PER_MINUTE, 1_000 * DIALS_PER_MINUTE)
        self._dialling: dict[str, str] = {}  # proxies that are being called, and for which address

    def knows(self, client: str, now: int) -> bool:
        """Whether it is known here whose name that is."""
        return client in self._proxy.clients or self._owner(client, now) is not None

    def _owner(self, client: str, now: int) -> Owner | None:
        for owners in (self._owners, self._learned):
            owner = owners.get(client)
            if owner is not None and owner.until > now:
                return owner
        return None

    def owned(self, client: str, now: int) -> m.Owned:
        """Whose name that is, for another proxy."""
        known, owner = self._proxy.clients.get(client), self._owner(client, now)
        if owner is not None:
            return m.Owned(client, owner.digest, owner.until)
        if known is not None:
            return m.Owned(client, _digest(client, known.key), now + ASKED_NS)
        return m.Owned(client)

    def learn(self, owned: m.Owned, now: int) -> None:
        """Another proxy knows whose name that is."""
        if owned.digest and not self.knows(owned.client, now):
            owner = Owner(owned.client, owned.digest, min(owned.until, now + OWNED_NS))
            _remember(self._learned, owner)

    def restore(self, owners: Iterable[Owner]) -> None:
        self._owners = {one.client: one for one in owners}

    def refusal(self, peer: str, message: m.Message, now: int) -> str | None:
        """Why this is not done; None if it is. An empty reason is not even said."""
        if isinstance(message, m.Reach) and not message.key:
            return ""  # of a release that showed no key: it goes on without an answer
        reason = ""
        if isinstance(message, WithKey) and message.key:
            reason = self._wrong_key(peer, message, now)
        if not reason and isinstance(message, Creating) and message.terms is not None:
            reason = self._too_many(peer, message)
        if not reason and isinstance(message, Question):
            reason = self._no_call(peer, message.at)
        return reason or None

    # Keys and names

    def _wrong_key(self, peer: str, message: WithKey, now: int) -> str:
        client, address = message.client, self._address_of(peer)
        good = self._is_key(client, message.key, now)
        if good is None:
            return ""  # nobody has this name
        if wait_s := self.keys.wait_s(client, address):
            reason = f"wait {ceil(wait_s)} s"
            self._audit.record("login_throttled", client=client, address=address, reason=reason)
            return f"too many wrong keys before this one: {reason}"
        if not good:
            self._failed(client, address)
            return TAKEN
        if isinstance(message, m.Hello | m.Register):
            self.keys.settle(client, address, good=True)
        return ""

    def _is_key(self, client: str, key: str, now: int) -> bool | None:
        """Whether the client's key is this one; None if nobody owns the name."""
        known = self._proxy.clients.get(client)
        if known is not None:
            return hmac.compare_digest(known.key.encode(), key.encode())
        owner = self._owner(client, now)
        if owner is None:
            return None
        return hmac.compare_digest(owner.digest, _digest(client, key))

    def _failed(self, client: str, address: str) -> None:
        self.keys.settle(client, address, good=False)
        self._audit.record("login_failed", client=client, address=address, reason="wrong key")
        log.warning("%s gave a wrong key for %s", address, printable(client))

    def answered(self, listener: str, client: str, reason: str) -> None:
        """Another proxy has refused what this peer asked for the client."""
        if reason == TAKEN:
            self._failed(client, self._address_of(listener))

    def accepted(self, message: m.Message, now: int) -> None:
        """That was done: from the first registration on, the name belongs to its key."""
        if not isinstance(message, Creating) or message.terms is None:
            return
        known = self._proxy.clients.get(message.client)
        if known is None or known.key != message.key or not known.terms.lasting:
            return
        before = self._owners.get(message.client)
        owner = Owner(message.client, _digest(message.client, message.key), now + OWNED_NS)
        _remember(self._owners, owner)
        self._learned.pop(message.client, None)
        if (
            before is None
            or before.digest != owner.digest
            or before.until + OWNED_NS // 30 < owner.until
        ):
            self._own(owner)  # not with every word

    # Accesses

    def _too_many(self, peer: str, message: Creating) -> str:
        if message.client in self._proxy.clients:
            return ""
        created = self._created.setdefault(peer, set())
        created.add(message.client)
        if len(created) <= ACCESSES_MAX:
            return ""
        created.discard(message.client)
        return f"one connection brings at most {ACCESSES_MAX} clients: open another one"

    # Calls

    def _no_call(self, peer: str, at: str) -> str:
        if at in ("", self._proxy.address, *self._dialling) or self._is_named(at):
            return ""
        address = self._address_of(peer)
        under_way = Counter(self._dialling.values())[address]
        if under_way >= DIALS_MAX or self._dials.wait_s("", address):
            return "too many proxies were to be called for this address: try again later"
        return ""

    def on_call(self, peer: str, at: str) -> None:
        """A proxy is called for this peer; `on_dialled` follows."""
        if not self._is_named(at):
            self._dialling.setdefault(at, self._address_of(peer))

    def asker_of(self, at: str) -> str:
        """The address for which a proxy that is not named is being called; empty: it is not known."""
        return self._dialling.get(at, "")

    def on_dialled(self, at: str, good: bool) -> None:
        """A proxy has answered, or cannot be reached."""
        address = self._dialling.pop(at, None)
        if address is not None and not good:
            self._dials.settle("", address, good=False)

    def on_gone(self, peer: str) -> None:
        self._created.pop(peer, None)


def _remember(owners: dict[str, Owner], owner: Owner) -> None:
    """The entry becomes the latest; beyond the maximum, the oldest is forgotten."""
    owners.pop(owner.client, None)
    owners[owner.client] = owner
    if len(owners) > OWNERS_MAX:
        del owners[next(iter(owners))]


def _digest(client: str, key: str) -> bytes:
    return blake2b(key.encode(), key=client.encode()[:64], digest_size=32).digest()
