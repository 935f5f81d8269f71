"""Somebody else's publish/subscribe system, as the mobility service sees it.

An adapter is one module with one class that is a `System`: it knows how to reach an access point,
and what can be expected of it. `open` gives an `Access`, the connection of one client (or of the
client proxy that stands in for it) to one access point.

The service asks for little: subscriptions are texts in the system's own language, publications
have a topic and bytes, and both can be stored. Whatever else a system can do is a trait.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

ID_PROPERTY = "wayfare-id"  # what adapters call the header that carries an id
SENDER_MAX = 256

Property = str | int | float | bool


class Id(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which publication of which sender: what tells a copy from another publication."""

    sender: str
    number: int

    def __str__(self) -> str:
        return f"{self.sender}/{self.number}"

    @staticmethod
    def parse(text: str | bytes | None) -> Id | None:
        """Read an id from a header. None if it is none of ours: headers come from anybody."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        sender, slash, digits = (text or "").rpartition("/")
        if not slash or not digits.isascii() or not digits.isdigit():
            return None
        if not 0 < len(sender) <= SENDER_MAX or len(digits) > 18:
            return None
        return Id(sender, int(digits))


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """A message of the system, in a form that can be stored and sent on."""

    topic: str
    payload: bytes = b""
    properties: dict[str, Property] = {}
    id: Id | None = None


class Traits(msgspec.Struct, frozen=True):
    """What a system gives beside publish and subscribe."""

    carries_ids: bool = True  # publications can have an id that leaves their payload alone
    # Keeps subscriptions, and what comes, of a client that is not connected; and gives again what
    # `deliver` has not returned from.
    suspends: bool = False
    mesh: bool = False  # access points talk to each other directly, not along a tree
    # Subscriptions go to where publishers are: what the first one publishes somewhere is heard near it
    # only, for a moment.
    advertises: bool = False


class Trust(msgspec.Struct, frozen=True):
    """For TLS, files in PEM: who signs for servers ("": whom this machine trusts), and what they are
    shown, a certificate and its key, if they ask."""

    ca: str = ""
    cert: tuple[str, str] | None = None


def unfit(text: str, most: int) -> str | None:
    """Say why this can be no topic or subscription of at most so many bytes."""
    if not text:
        return "it is empty"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it cannot be written in UTF-8"
    return f"it has more than {most} bytes" if size > most else None


# Called in order; the next one may be given before this has returned. A system that keeps gives a
# publication again until it has.
Deliver = Callable[[Publication], Coroutine[Any, Any, None]]
# Called once when the connection is gone without `close`, with the reason in words.
Lost = Callable[[str], None]


class Access(Protocol):
    """One connection to an access point. Every method raises `Closed` when it is gone."""

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        """Subscribe to all of them. Returns when the access point has them; not when others know."""

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        """Take back these subscriptions. `deliver` may be called for a while yet."""

    async def publish(self, publication: Publication) -> None:
        """Publish. Returns when the access point has it, where the system says so."""

    async def close(self, *, suspend: bool = False) -> None:
        """Leave. With `suspend`, a system that suspends keeps subscriptions and what comes."""


class Language(Protocol):
    """How things are said to a system."""

    traits: Traits

    def topic(self, *words: str) -> str:
        """Give a topic of these words (letters, digits, "-" and "_"), for the service's own use."""

    def subscription(self, topic: str) -> str:
        """Give the subscription to exactly this topic."""


class System(Language, Protocol):
    """An adapter."""

    scheme: str  # how its addresses begin: "mqtt" for "mqtt://host:port"
    trust: Trust  # of those with TLS

    def check(self, subscription: str) -> None:
        """Raise `UsageError` if this is no subscription of the system."""

    async def open(
        self,
        address: str,
        name: str,
        deliver: Deliver,
        lost: Lost,
        *,
        resume: bool = False,
        lasting: bool = False,
    ) -> Access:
        """Connect to the access point at `address` (mqtt://host:port) as client `name`.

        With `resume`, what was suspended under this name goes on; else anything left of it is
        forgotten. The access of a system that suspends has an attribute `resumed` then: whether
        subscriptions and all that came were kept, or None where nobody knows. With `lasting`, what
        the server keeps is to outlive a restart of it, if that is for the client to say. Raises `CannotConnect`: who does not answer, and what to do.
        """
