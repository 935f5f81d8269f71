"""Ping: whether what one access point has subscribed to is known where another one is.

Who has new subscriptions publishes requests, through the system itself, at intervals; who has the old
ones publishes a response to each. A response has come by the paths that the new subscriptions made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b

from wayfare.service.messages import Sync
from wayfare.service.system import Language, Publication

SLOWEST = 32  # intervals grow up to so many times the first
TAG = re.compile("[0-9-]{1,64}")
UNANSWERED = "did not answer by way of the system"
UNHEARD = 8  # intervals until a request is repeated of which nobody knows whether it is out


class Ping:
    """The topics of one client's pings, in one direction: `in` or `out`."""

    __slots__ = ("_language", "_of", "_prefix", "_request", "_response", "_tag")

    def __init__(self, language: Language, client: str, direction: str, tag: str = "") -> None:
        plain = client.isascii() and client.replace("-", "a").replace("_", "a").isalnum()
        word = client if plain else blake2b(client.encode(), digest_size=16).hexdigest()
        self._language, self._of, self._tag = language, (client, direction), tag
        self._prefix = language.topic("wayfare-service", "ping", "")
        self._request = language.topic("wayfare-service", "ping", word, f"{direction}-request")
        self._response = language.topic("wayfare-service", "ping", word, f"{direction}-response")
        self._response += f"-{tag}" if tag else ""

    def tagged(self, tag: str) -> Ping:
        """The same, with responses of its own: a subscription of before must not bring them."""
        return Ping(self._language, *self._of, tag)

    @property
    def requests(self) -> str:
        """The subscription of who answers."""
        return self._language.subscription(self._request)

    @property
    def responses(self) -> str:
        """The subscription of who asks."""
        return self._language.subscription(self._response)

    def request(self, nonce: str) -> Publication:
        return Publication(self._request, f"{nonce} {self._tag}".rstrip().encode())

    def answer(self, publication: Publication, name: str) -> Publication | None:
        """The response to a request, by who has this name; None if it is none."""
        if publication.topic != self._request:
            return None
        nonce, _, tag = publication.payload[:128].decode("utf-8", "replace").partition(" ")
        suffix = f"-{tag}" if TAG.fullmatch(tag) else ""
        return Publication(self._response + suffix, f"{nonce} {name}".encode())

    def is_response(self, publication: Publication) -> bool:
        return publication.topic == self._response

    def is_of_the_service(self, publication: Publication) -> bool:
        """Whether it is a ping at all, anybody's: who subscribes to everything hears them."""
        return publication.topic.startswith(self._prefix)


class Waiting:
    """One synchronisation under way: what to do when, and whether it is over."""

    __slots__ = (
        "_due",
        "_end",
        "_interval",
        "_nonce",
        "_ping",
        "_rests",
        "_silent",
        "_sync",
        "answered",
        "unanswered",
    )

    def __init__(
        self, sync: Sync, ping: Ping, nonce: str, answerers: Iterable[str], now: int
    ) -> None:
        self._sync = sync
        self._ping = ping
        self._nonce = nonce
        # Each of them has to answer; with a delay, it is the time that does.
        self._silent = {"none": set(), "ping": set(answerers), "delay": {""}}[sync.kind]
        self._due = now if sync.kind == "ping" else now + sync.delay_ns
        self._end = now + max(sync.patience_ns, sync.interval_ns, 1)
        self._interval = sync.interval_ns
        self._rests = sync.kind == "delay"  # only time has to pass
        self.answered = False  # by all
        self.unanswered: tuple[str, ...] = ()  # who was silent when patience was at its end

    @property
    def over(self) -> bool:
        return not self._silent

    @property
    def deadline(self) -> int | None:
        return None if self.over else self._due

    def extend(self, for_ns: int) -> None:
        """Nothing could be heard for so long."""
        self._end += for_ns

    def due(self, now: int) -> Publication | None:
        """What to publish now, if anything."""
        if self.over or now < self._due:
            return None
        if self._rests or now >= self._end:
            self.unanswered = () if self._rests else tuple(sorted(self._silent))
            self._silent.clear()
            return None
        self._next(now + UNHEARD * self._interval, now)
        return self._ping.request(self._nonce)

    def published(self, publication: Publication, now: int) -> None:
        """A request is out, and another one may follow. On a slow link they must not pile up."""
        if not self.over and not self._rests and publication == self._ping.request(self._nonce):
            self._next(min(self._due, now + self._interval), now)
            self._interval = min(2 * self._interval, SLOWEST * self._sync.interval_ns)

    def _next(self, due: int, now: int) -> None:
        self._due = min(due, max(self._end, now + 1))

    def hear(self, publication: Publication, now: int) -> bool:
        """True if this was the last response that was waited for, and there is no delay behind it."""
        nonce, _, name = publication.payload.partition(b" ")
        if self._ping.is_response(publication) and nonce == self._nonce.encode():
            self.settle(name.decode("utf-8", "replace"))
            self.answered = self.answered or self.over
            if self.over and not self._rests and self._sync.delay_ns:
                self._rests, self._silent, self._due = True, {""}, now + self._sync.delay_ns
        return self.over

    def settle(self, name: str) -> None:
        """This one has answered, or is not waited for any more."""
        self._silent.discard(name)
