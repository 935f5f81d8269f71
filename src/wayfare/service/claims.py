"""Whose name is it? A proxy asks the others before it lets somebody new have a name.

    client -- Register ann --> N -- Whose ann --> O, P      the proxies of --peers, which know the secret
                               N <-- Owned ann, digest of the key -- O
    what the client said is done now, if its key is that one

What the client says meanwhile waits. A proxy that does not answer in time is not waited for, and not asked for a
while: it is better that a client can come than that a name is safe while its owner's proxy is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from wayfare.net.logs import printable
from wayfare.net.security import network_of
from wayfare.service import effects as e
from wayfare.service import messages as m

CLAIM_S = 2.0  # that other proxies have to answer
UNREACHABLE_S = 10.0  # that a proxy is not asked which did not answer
CLAIMS_MAX = 1_000  # names that are asked about at a time: who comes with another one may try again
CLAIMS_OF_ADDRESS_MAX = 100  # ... for one address, or one /64 of IPv6
HELD_MAX = 100  # messages that wait for one name: the next one is refused
CHECKED_S = (
    60.0  # that a name counts as free once nobody has claimed it, if all proxies have answered
)
CHECKED_MAX = 10_000  # such names: then all are asked about again
UNANSWERED_MAX = 10_000  # questions to one proxy without an answer; then the oldest are forgotten

TOO_MANY = "too many new clients come at once: try again"

log = logging.getLogger(__name__)

Claiming = m.Hello | m.Register | m.MoveOut | m.Download  # what a name is taken by


class Claim:
    """One name that others are asked about."""

    def __init__(self, asked: Sequence[str], network: str) -> None:
        self.network = network  # where the client is that comes with the name
        self.silent = set(asked)  # have not answered
        self.held: list[e.Received] = []
        self.timer: asyncio.TimerHandle | None = None


class Claims:
    """Of one proxy."""

    def __init__(
        self,
        peers: Sequence[str],
        address_of: Callable[[str], str],
        is_known: Callable[[str], bool],
        ask: Callable[[str, m.Whose], None],
        resume: Callable[[list[e.Received]], None],
    ) -> None:
        """
        peers      the proxies to ask; none: every name is free
        address_of where a peer is
        is_known   whether this proxy knows whose name that is
        ask        sends a question
        resume     does what was said while it was not known whose name it is
        """
        self.peers = tuple(peers)
        self._address_of, self._is_known = address_of, is_known
        self._ask, self._resume = ask, resume
        self._claims: dict[str, Claim] = {}
        self._checked: dict[str, float] = {}  # names that are free, and until when that counts
        self._unreachable: dict[str, float] = {}  # proxies that are not asked, and until when
        self._unanswered: dict[
            str, Counter[str]
        ] = {}  # by proxy, how often it was asked about a name

    def is_asking(self, peer: str) -> bool:
        """Whether an answer of this proxy is waited for."""
        return any(peer in claim.silent for claim in self._claims.values())

    def hold(self, event: e.Received) -> str | None:
        """Whether this has to wait: None if not, "" if so, or why it cannot even wait."""
        client: str = getattr(event.message, "client", "")
        claim = self._claims.get(client)
        if claim is None:
            if not self._is_claim(client, event.message):
                return None
            asked, network = self._reachable(), network_of(self._address_of(event.peer))
            if not asked:
                return None
            if self._is_full(network):
                return TOO_MANY
            claim = self._begin(client, asked, network)
        if len(claim.held) >= HELD_MAX:
            return TOO_MANY
        claim.held.append(event)
        return ""

    def _is_full(self, network: str) -> bool:
        claims = self._claims.values()
        if len(claims) >= CLAIMS_MAX:
            return True
        return sum(claim.network == network for claim in claims) >= CLAIMS_OF_ADDRESS_MAX

    def _is_claim(self, client: str, message: m.Message) -> bool:
        if not self.peers or not isinstance(message, Claiming) or not message.key:
            return False
        if self._is_known(client):
            return False
        return self._checked.get(client, 0.0) < asyncio.get_running_loop().time()

    def _reachable(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [peer for peer in self.peers if self._unreachable.get(peer, 0.0) <= now]

    def _miss(self, peer: str) -> None:
        self._unreachable[peer] = asyncio.get_running_loop().time() + UNREACHABLE_S

    def _begin(self, client: str, asked: Sequence[str], network: str) -> Claim:
        claim = self._claims[client] = Claim(asked, network)
        loop = asyncio.get_running_loop()
        claim.timer = loop.call_later(CLAIM_S, self._give_up, client)
        for peer in asked:
            self._count(peer, client)
            self._ask(peer, m.Whose(client))
        return claim

    def _count(self, peer: str, client: str) -> None:
        unanswered = self._unanswered.setdefault(peer, Counter())
        unanswered[client] += 1
        if len(unanswered) > UNANSWERED_MAX:
            del unanswered[next(iter(unanswered))]

    def accepts(self, peer: str, client: str) -> bool:
        """Whether this proxy owes an answer about the name; if so, it owes one less. The claim may be over."""
        unanswered = self._unanswered.get(peer, Counter())
        if client not in unanswered:
            return False
        unanswered[client] -= 1
        if not unanswered[client]:
            del unanswered[client]
        return True

    def on_answer(self, peer: str, client: str) -> None:
        """A proxy has said whose name it is, or cannot say."""
        claim = self._claims.get(client)
        if claim is not None:
            claim.silent.discard(peer)
            if not claim.silent or self._is_known(client):
                self._end(client)

    def on_gone(self, peer: str) -> None:
        """A proxy cannot be asked; or the connection of a client is gone."""
        self._unanswered.pop(peer, None)
        for client, claim in list(self._claims.items()):
            claim.held = [event for event in claim.held if event.peer != peer]
            if peer in claim.silent:
                log.warning("%s cannot say whose name %s is", peer, printable(client))
                self._miss(peer)
                self.on_answer(peer, client)

    def _give_up(self, client: str) -> None:
        claim = self._claims[client]
        silent = sorted(claim.silent)
        for peer in silent:
            self._miss(peer)
        claim.silent.clear()
        log.warning(
            "no answer from %s: %s may come all the same", ", ".join(silent), printable(client)
        )
        self._end(client)

    def _end(self, client: str) -> None:
        claim = self._claims.pop(client)
        if claim.timer is not None:
            claim.timer.cancel()
        if not claim.silent:
            self._check(client)
        self._resume(claim.held)

    def _check(self, client: str) -> None:
        """Nobody has claimed the name: that counts until a proxy that has not answered is asked again."""
        now = asyncio.get_running_loop().time()
        missed = [until for until in self._unreachable.values() if until > now]
        if len(self._checked) >= CHECKED_MAX:
            self._checked.clear()
        self._checked[client] = min([now + CHECKED_S, *missed])

    def stop(self) -> None:
        for claim in self._claims.values():
            if claim.timer is not None:
                claim.timer.cancel()
        self._claims.clear()
