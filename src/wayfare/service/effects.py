"""The boundary of the service's core: events in, effects out.

Proxies and client libraries have no I/O. A host calls `step(event, now)` with what happened, performs
the returned effects in order, and steps a `Tick` whenever `next_deadline()` is reached.

An access is the connection of one client, or of the client proxy that stands in for it, to an access
point of the publish/subscribe system below. What is asked of one access is done in the order asked.
"""

from __future__ import annotations

import msgspec

from wayfare.service.messages import Message
from wayfare.service.system import Publication

# A peer is one connection to a library or a proxy, named by the host.

# Events


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message arrived from a peer."""

    peer: str
    message: Message


class PeerGone(msgspec.Struct, frozen=True, gc=False):
    """The connection to a peer is gone; or could not be had, after `Dial`."""

    peer: str
    reason: str = ""


class Opened(msgspec.Struct, frozen=True, gc=False):
    """The access of this client is there. `resumed`: with the subscriptions it had; None: nobody knows."""

    client: str
    resumed: bool | None = None


class Subscribed(msgspec.Struct, frozen=True, gc=False):
    """The access point has these subscriptions."""

    client: str
    subscriptions: tuple[str, ...]


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """The system delivered a publication."""

    client: str
    publication: Publication


class Published(msgspec.Struct, frozen=True, gc=False):
    """The access point has this publication."""

    client: str
    publication: Publication


class AccessGone(msgspec.Struct, frozen=True, gc=False):
    """The access broke, or could not be had."""

    client: str
    reason: str = ""


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed."""


class Stalled(msgspec.Struct, frozen=True, gc=False):
    """The process did not run for so long, and read nothing: whoever was to answer gets that time, too."""

    for_ns: int


Event = (
    Received | PeerGone | Opened | Subscribed | Arrived | Published | AccessGone | Tick | Stalled
)

# Effects


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send the message to a peer. Nothing happens if it is gone: `PeerGone` says so, or did."""

    peer: str
    message: Message


class Dial(msgspec.Struct, frozen=True, gc=False):
    """Connect to the proxy at this address, which is then the peer of this name."""

    peer: str


class Hang(msgspec.Struct, frozen=True, gc=False):
    """Close the connection to a peer, when what was sent is out. No `PeerGone` follows."""

    peer: str


class Open(msgspec.Struct, frozen=True, gc=False):
    """Connect this client to an access point."""

    client: str
    access: str
    resume: bool = False


class Shut(msgspec.Struct, frozen=True, gc=False):
    """Close its access. No `AccessGone` follows."""

    client: str
    suspend: bool = False


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    client: str
    subscriptions: tuple[str, ...]


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    client: str
    subscriptions: tuple[str, ...]


class Publish(msgspec.Struct, frozen=True, gc=False):
    client: str
    publication: Publication


# What is to be kept on disk, by a proxy that does.


class Keep(msgspec.Struct, frozen=True, gc=False):
    """A publication is in the buffer of this client."""

    client: str
    number: int
    arrived: int
    publication: Publication


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Those of these numbers are not needed any more."""

    client: str
    numbers: tuple[int, ...]


class Save(msgspec.Struct, frozen=True, gc=False):
    """What is known of this client is something else now: ask the proxy for its `record`."""

    client: str


class Erase(msgspec.Struct, frozen=True, gc=False):
    """This client is not known any more."""

    client: str


# To the application of a library.


class Deliver(msgspec.Struct, frozen=True, gc=False):
    publication: Publication


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Publications are missing here; None: nobody knows how many."""

    lost: int | None
    reason: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A local subscription stayed behind: the client is elsewhere now."""

    subscription: str


class Moved(msgspec.Struct, frozen=True, gc=False):
    """The library is done with moving in, or out."""

    attached: bool


class Failed(msgspec.Struct, frozen=True, gc=False):
    """Moving did not work out; the library is where it was, or away."""

    reason: str
    refused: bool = False  # by the proxy, which would do so again


Effect = (
    Send
    | Dial
    | Hang
    | Open
    | Shut
    | Subscribe
    | Unsubscribe
    | Publish
    | Keep
    | Trim
    | Save
    | Erase
    | Deliver
    | Gap
    | Ended
    | Moved
    | Failed
)
