"""The secret that the mobility proxies of one operator share.

    caller -- Hello ------------>                 called
           <--------- Welcome ---
           -- Challenge -------->
           <------- Challenge ---
           -- Proof ------------>                 now the caller is known to be a proxy
           <----------- Proof ---                 ... and so is who was called

With a secret, a proxy answers the questions of proxies (`Reach`, `Download` and `Release` without an address, `Whose`)
on connections that have proved it, and asks its own questions only there. A proof names both ends, so nobody in
between can pass it on to another proxy.
"""

from __future__ import annotations

from wayfare.core import messages as core
from wayfare.net.security import Proving, check_secret
from wayfare.service import messages as m

UNPROVEN = (
    "this proxy answers only proxies that know its secret: give all of them the same --secret-file"
)
NO_SECRET = (
    "this proxy has no secret, and the one that calls has: give all of them the same --secret-file"
)
DIFFERENT = "the two proxies have different secrets: give all of them the same --secret-file"

LABEL = "wayfare mobility proxy"  # of the proofs: those of brokers have another one

OfProxies = m.Reach | m.Download | m.Release | m.Whose


class Secret:
    """The secret of one proxy, if it has one, and which connections have proved to know it."""

    def __init__(self, secret: str | None = None) -> None:
        check_secret(secret)
        self.address = ""  # where other proxies reach this one
        self._secret = secret
        self._proving: dict[str, Proving] = {}  # by connection

    def __bool__(self) -> bool:
        return self._secret is not None

    def has_proved(self, peer: str) -> bool:
        proving = self._proving.get(peer)
        return proving is not None and proving.done

    def is_trusted(self, peer: str, message: m.Message) -> bool:
        """Whether this peer may say that; clients name the proxy that they ask about, and proxies do not."""
        if isinstance(message, m.Whose):
            return self.has_proved(peer)
        is_of_proxy = isinstance(message, OfProxies) and not message.at
        return not (self and is_of_proxy) or self.has_proved(peer)

    def forget(self, peer: str) -> None:
        self._proving.pop(peer, None)

    # A proxy that has called

    def answer(self, peer: str, message: m.Challenge | m.Proof) -> m.Message:
        """What to say to a peer that is about to prove what it knows."""
        if self._secret is None:
            return m.Refused("?", NO_SECRET)
        if isinstance(message, m.Challenge):
            proving = self._proving[peer] = Proving(
                self._secret, self.address, message.proxy, LABEL
            )
            proving.challenged(core.Challenge(message.nonce))
            return m.Challenge(proving.challenge().nonce, self.address)
        known = self._proving.get(peer)
        if known is None or not known.check(core.Proof(message.digest)):
            self.forget(peer)
            return m.Refused("?", DIFFERENT)
        return m.Proof(known.proof().digest)

    # A proxy that is called

    def call(self, at: str) -> Call:
        assert self._secret is not None
        return Call(self.address, at, Proving(self._secret, self.address, at, LABEL))


class Call:
    """The end of a connection that has called."""

    def __init__(self, address: str, at: str, proving: Proving) -> None:
        self._address, self._at, self._proving = address, at, proving

    def challenge(self, welcome: m.Welcome) -> m.Challenge:
        if welcome.proxy != self._at:  # or a proof could be passed on to another proxy
            raise ConnectionError(
                f"it was called {self._at}, and its address is {welcome.proxy}: call it so, also in --peers"
            )
        return m.Challenge(self._proving.challenge().nonce, self._address)

    def proof(self, answer: m.Message) -> m.Proof:
        if not isinstance(answer, m.Challenge):
            raise ConnectionError(_reason(answer, NO_SECRET))
        self._proving.challenged(core.Challenge(answer.nonce))
        return m.Proof(self._proving.proof().digest)

    def check(self, answer: m.Message) -> None:
        if not (isinstance(answer, m.Proof) and self._proving.check(core.Proof(answer.digest))):
            raise ConnectionError(_reason(answer, DIFFERENT))


def _reason(answer: m.Message, otherwise: str) -> str:
    return answer.reason if isinstance(answer, m.Refused) else otherwise
