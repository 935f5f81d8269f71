"""What it takes to listen ahead: virtual clients that wait at one broker for the same notifications.

    same        they follow the same filter, and share a buffer
    different   each follows a filter of its own, which matches the same: a buffer of ids for each
    copies      without a shared store: so many times what one takes, by definition

beside one virtual client, and its one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wayfare.bench.backlog import NEIGHBOUR, bytes_of, decoded, frames_of
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.effects import Posted, Received
from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, ClientId, LinkId

HERE = BrokerId("here")
SAME = "location in myloc and topic = 'news'"
OWN = "location in myloc and topic in ('news', 'of {}')"


def _broker(filters: list[str], count: int) -> Broker:
    """A broker with a virtual client for each of these filters, none of whose clients are there."""
    broker = Broker(HERE, [NEIGHBOUR], limits=Limits(buffer_count=count))
    broker.step(Received(LinkId(NEIGHBOUR), m.Announce((NEIGHBOUR,))), 0)
    for client, text in enumerate(filters):
        followed = m.Followed(((text, None),), m.State("there"))
        shadow = m.Shadow(NEIGHBOUR, ClientId(f"client{client}"), 1, 0, 10**12, followed)
        broker.step(Posted(NEIGHBOUR, shadow), 0)
    return broker


def _filled(filters: list[str], frames: list[bytes]) -> Broker:
    broker = _broker(filters, len(frames))
    for frame in frames:
        broker.step(Received(LinkId(NEIGHBOUR), decoded(frame)), 0)
    kept = [len(buffer) for buffer in broker.replicator.ear.buffers()]
    assert {*kept} == {len(frames)}, "every virtual client waits for every notification"
    return broker


def run(
    seed: int = 1, quick: bool = False, clients: int = 100, notifications: int = 10_000
) -> Iterator[dict[str, Any]]:
    """Bytes of memory, as Python counts them."""
    if quick:
        clients, notifications = 20, 500
    frames = frames_of(seed, notifications, location=HERE)
    cases = {
        "one": [SAME],
        "same": [SAME] * clients,
        "different": [OWN.format(client) for client in range(clients)],
    }
    used = {
        case: bytes_of(lambda given=given: _filled(given, frames))  # type: ignore[misc]
        - bytes_of(lambda given=given: _broker(given, notifications))  # type: ignore[misc]
        for case, given in cases.items()
    }
    used["copies"] = clients * used["one"]
    for case in ("same", "different", "copies"):
        yield {
            "bench": "ahead",
            "case": case,
            "clients": clients,
            "notifications": notifications,
            "megabytes": round(used[case] / 1e6, 2),
            "megabytes_of_one": round(used["one"] / 1e6, 2),
            "times_one": round(used[case] / used["one"], 3),
        }
