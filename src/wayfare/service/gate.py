"""What becomes of what a peer says, before the mobility proxy hears of it.

banned, by address or by name         the peer is told so, and disconnected
asks like a proxy, without a proof    refused, where proxies share a secret
new name                              waits until other proxies have said whose it is
wrong key, too many calls ...         refused: see `admission`
owner of a name, unasked              dropped, and the peer is disconnected
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from wayfare.errors import UsageError
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.logs import printable
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.admission import Admission
from wayfare.service.claims import Claims
from wayfare.service.proxy import Proxy
from wayfare.service.relays import not_found
from wayfare.service.secret import UNPROVEN, Secret
from wayfare.service.wire import STRANGER, Wires

log = logging.getLogger(__name__)


class Gate:
    """That of one proxy."""

    def __init__(
        self,
        proxy: Proxy,
        wires: Wires,
        admission: Admission,
        secret: Secret,
        peers: Sequence[str],
        bans: Bans,
        audit: Audit,
        now: Callable[[], int],
        perform: Callable[[Sequence[e.Effect]], None],
        step: Callable[[e.Event], None],
        hear: Callable[[e.Event], None],
    ) -> None:
        """
        peers      the proxies that are asked whose a name is, where there is a secret
        perform    does what is decided here
        step       tells the proxy that a peer is gone
        hear       takes what had to wait, as if it came now
        """
        self._proxy, self._wires, self._admission = proxy, wires, admission
        self._secret, self._bans, self._audit, self._now = secret, bans, audit, now
        self._perform, self._step, self._hear = perform, step, hear
        self._names: dict[str, set[str]] = {}  # by connection, the clients that it has spoken for
        self.claims = Claims(
            [one for one in peers if one != proxy.address] if secret else (),
            wires.address_of,
            lambda client: admission.knows(client, now()),
            self._ask_whose,
            self._resume,
        )

    def admits(self, event: e.Event) -> bool:
        """Whether to do what came; if not, it is answered."""
        match event:
            case e.PeerGone(peer, _):
                self._forget(peer)
                self.claims.on_gone(peer)
            case e.Received(peer, m.Owned() as owned):
                self._on_owned(peer, owned)
                return False
            case e.Received(peer, message) if peer.startswith(STRANGER):
                client: str = getattr(message, "client", "")
                if banned := self.banned(self._wires.address_of(peer), client):
                    self._turn_away(peer, client or "?", banned)
                    return False
                return self._admits_stranger(event, message)
            case e.Received(peer, message):
                if isinstance(message, m.Refused) and (asked := self._proxy.asked(peer, message)):
                    self._admission.answered(asked, message.client, message.reason)
        return True

    def _admits_stranger(self, event: e.Received, message: m.Message) -> bool:
        """The same, of what a peer says that has called."""
        peer, now = event.peer, self._now()
        if isinstance(message, m.Challenge | m.Proof):
            self._say(peer, self._secret.answer(peer, message))
            return False
        if not self._secret.is_trusted(peer, message):
            self._distrust(peer, message)
            return False
        if isinstance(message, m.Whose):
            self._say(peer, self._admission.owned(message.client, now))
            return False
        refusal = self._admission.refusal(peer, message, now)
        if refusal is None and not self._secret.has_proved(peer):
            refusal = self.claims.hold(event)
        if refusal:
            self._say(peer, self._refused(message, refusal))
        return refusal is None

    def _on_owned(self, peer: str, owned: m.Owned) -> None:
        """A proxy says whose a name is: only an answer to our own question counts, once."""
        if not self.claims.accepts(peer, owned.client):
            log.warning(
                "%s says whose name %s is, and was not asked: it is disconnected",
                peer,
                printable(owned.client),
            )
            self._disconnect(peer, "it answered a question that it was not asked")
            return
        self._admission.learn(owned, self._now())
        self.claims.on_answer(peer, owned.client)

    def on_known(self, peer: str, client: str) -> None:
        """This peer has shown the key of the client."""
        if peer.startswith(STRANGER):
            self._names.setdefault(peer, set()).add(client)

    def _distrust(self, peer: str, message: m.Message) -> None:
        address, client = self._wires.address_of(peer), getattr(message, "client", "?")
        log.warning("%s asks like a proxy, and has not proved that it knows the secret", address)
        self._audit.record(
            "refused", client=client, address=address, why="neighbour", reason=UNPROVEN
        )
        self._say(peer, m.Refused(client, UNPROVEN))

    def _refused(self, message: m.Message, reason: str) -> m.Message:
        own = self._proxy.address
        if isinstance(message, m.Reach | m.Download) and message.at not in ("", own):
            return not_found(message, message.at, reason, reached=False)
        client: str = getattr(message, "client", "?")
        return m.Refused(client, reason)

    def _say(self, peer: str, message: m.Message) -> None:
        self._perform([e.Send(peer, message)])

    # Bans

    def banned(self, address: str, client: str = "") -> str:
        """What a banned peer is told; nothing, if it is not."""
        ban = self._bans.of(address, client)
        if ban is None:
            return ""
        self._audit.record(
            "banned",
            target=ban.target,
            client=client,
            address=address,
            until=ban.ends,
            reason=ban.reason,
        )
        return ban.refusal()

    def mind_bans(self) -> None:
        """Disconnect whoever is banned now, by address or by name."""
        try:
            if not self._bans.refresh(self._audit):
                return
        except UsageError as error:
            log.warning("%s", error)
            return
        self._wires.hang_up_on_refused()
        for peer, names in list(self._names.items()):
            address = self._wires.address_of(peer)
            for client in sorted(names):
                if banned := self.banned(address, client):
                    self._turn_away(peer, client, banned)
                    break

    def _turn_away(self, peer: str, client: str, reason: str) -> None:
        """Tell a peer why its client is refused, and disconnect it, unless it is a proxy with other clients."""
        self._say(peer, m.Refused(client, reason))
        if self._secret.has_proved(peer):
            return
        self._disconnect(peer, reason)

    def _disconnect(self, peer: str, reason: str) -> None:
        self.claims.on_gone(peer)  # first: while an answer is waited for, nobody hangs up
        self._perform([e.Hang(peer)])
        self._forget(peer)
        self._step(e.PeerGone(peer, reason))

    def _forget(self, peer: str) -> None:
        """That connection is gone."""
        self._admission.on_gone(peer)
        self._names.pop(peer, None)
        self._secret.forget(peer)

    # Names

    def _ask_whose(self, peer: str, question: m.Whose) -> None:
        self._perform([e.Dial(peer), e.Send(peer, question)])

    def _resume(self, held: Sequence[e.Received]) -> None:
        """It is known now whose name these are about."""
        for event in held:
            self._hear(event)
