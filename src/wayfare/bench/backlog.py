"""What it takes to keep notifications for clients that are away.

So many clients wait at one broker for the same notifications. First they were there all the time,
then they come from elsewhere, each with a reply of its own that says it all again. In both cases the
broker keeps each notification once; a client has a number, a reference and a time for it. Beside it:
the same backlogs with a copy for every client.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from wayfare.core import codec
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.effects import LinkDown, Received
from wayfare.core.filters import Filter
from wayfare.core.history import Backlog, Limits, Stored, size_of
from wayfare.core.messages import BrokerId, ClientId, LinkId, Notification

NEIGHBOUR = BrokerId("there")
PAYLOAD = 200  # bytes
WANTED = Filter.parse("topic = 'news'")


def frames_of(seed: int, count: int, **more: str) -> list[bytes]:
    """Notifications as they come from the network: nothing in them is shared."""
    random = Random(seed)
    return [
        codec.encode(
            Notification(
                ClientId("ticker"),
                number,
                {"topic": "news", "price": number, **more},
                random.randbytes(PAYLOAD),
            )
        )[4:]
        for number in range(1, count + 1)
    ]


def decoded(frame: bytes) -> Notification:
    message = codec.decode(frame)
    assert isinstance(message, Notification)
    return message


def _broker(clients: int, previous: m.Previous) -> Broker:
    """A broker with so many clients, all of them away."""
    broker = Broker(BrokerId("here"), [NEIGHBOUR], limits=Limits(backlog_count=1_000_000))
    broker.step(Received(LinkId(NEIGHBOUR), m.Announce((NEIGHBOUR,))), 0)
    for client in range(clients):
        link, name = LinkId(f"link{client}"), ClientId(f"client{client}")
        attach = m.Attach(name, 2, 0, (WANTED,), (), previous, bool(previous))
        broker.step(Received(link, attach), 0)
        broker.step(LinkDown(link), 0)
    return broker


def _waiting_here(clients: int, frames: list[bytes]) -> Broker:
    broker = _broker(clients, ())
    for frame in frames:
        broker.step(Received(LinkId(NEIGHBOUR), decoded(frame)), 0)
    return broker


def _come_from_elsewhere(clients: int, frames: list[bytes]) -> Broker:
    broker = _broker(clients, ((NEIGHBOUR, 1),))
    for client in range(clients):
        kept = tuple(m.Kept(decoded(frame), 0) for frame in frames)
        reply = m.Reply(BrokerId("here"), ClientId(f"client{client}"), 2, True, kept, old_epoch=1)
        broker.step(Received(LinkId(NEIGHBOUR), m.Update(errands=(reply,))), 0)
    return broker


def _copies(clients: int, frames: list[bytes]) -> list[Backlog]:
    backlogs = [Backlog() for _ in range(clients)]
    limits = Limits(backlog_count=1_000_000)
    for backlog in backlogs:
        for frame in frames:
            notification = decoded(frame)
            backlog.put(Stored(notification, size_of(notification)), 0, limits)
    return backlogs


def bytes_of(build: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    built = build()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del built
    return used


def run(
    seed: int = 1, quick: bool = False, clients: int = 200, notifications: int = 1000
) -> Iterator[dict[str, Any]]:
    """Bytes of memory, as Python counts them."""
    if quick:
        clients, notifications = 20, 100
    frames = frames_of(seed, notifications)
    empty = bytes_of(lambda: _broker(clients, ()))
    copies = bytes_of(lambda: _copies(clients, frames))
    for case, build in (("here", _waiting_here), ("from elsewhere", _come_from_elsewhere)):
        used = bytes_of(lambda build=build: build(clients, frames)) - empty  # type: ignore[misc]
        yield {
            "bench": "backlog",
            "case": case,
            "clients": clients,
            "notifications": notifications,
            "megabytes": round(used / 1e6, 2),
            "bytes_per_client_and_notification": round(used / clients / notifications, 1),
            "megabytes_with_copies": round(copies / 1e6, 2),
            "share_of_copies": round(used / copies, 3),
        }
