"""Whether clients that asked for the past got it: all that brokers remember, where nothing goes wrong.

Each client is judged by what it asked for while it was attached, for long enough and without terms. Nothing is required
that its client may be too late for: a publisher's notifications come in their order, and a later one may have come by
another subscription. Nor is what is of use in an area, if its client was elsewhere before it must have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from wayfare.core.filters import Filter
from wayfare.eventlog import Event
from wayfare.sim.histories import History, histories, matches
from wayfare.sim.reach import Reach
from wayfare.sim.relevance import was_elsewhere
from wayfare.sim.verdict import Violation


class Asked(msgspec.Struct, frozen=True):
    """A client wants what was published within that time."""

    client: str
    time_ns: int
    filter: Filter
    since_ns: int


def check_remembered(
    events: Sequence[Event], asked: Sequence[Asked], reach: Reach
) -> tuple[int, list[Violation]]:
    """How many publications of the past had to come, and which did not, although all brokers remember them."""
    clients = histories(events)
    got: dict[str, set[tuple[str | None, int | None]]] = {}
    lost: dict[str, int] = {}  # when a client was last told of a loss
    for event in events:
        name = event.client or ""
        if event.kind == "delivered":
            got.setdefault(name, set()).add((event.publisher, event.number))
        elif event.kind == "lost":
            lost[name] = event.time_ns
    required, missing = 0, list[Violation]()
    for one in asked:
        if lost.get(one.client, -1) >= one.time_ns:
            continue
        for publication in _required(one, clients, reach):
            required += 1
            if (publication.client, publication.number) not in got.get(one.client, ()):
                what = f"{one.client} asked for the past, and did not get"
                text = f"{what} {publication.client} {publication.number}"
                missing.append(Violation("past", text))
    return required, missing


def _required(asked: Asked, clients: dict[str, History], reach: Reach) -> Iterator[Event]:
    client, time = clients[asked.client], asked.time_ns
    trips = 4 * (reach.tree_ns + reach.client_ns) + 2 * reach.tree_ns * client.moves
    heard = time + 3 * reach.client_ns
    if not any(one.start <= time and heard <= one.end for one in client.attached):
        return  # its request may be lost with the connection
    wanting = [one for one in client.subscribed if one.filter == asked.filter]
    held = next((one for one in wanting if one.start <= time < one.end), None)
    if held is None or held.limited or client.contact(time, trips, held.end) > held.end:
        return
    if any(one >= time for one in (*client.left, *client.replaced)):
        return
    others = [one for one in client.subscribed if one is not held and one.start <= time + trips]
    begins = time - asked.since_ns + 2 * reach.client_ns + reach.tree_ns
    received = client.contact(time, trips + reach.past_ns)
    for publisher in clients.values():
        if publisher.replaced or publisher.left:
            continue
        last = max(
            (
                number
                for number, one in publisher.published.items()
                if one.time_ns <= time + trips
                and any(
                    span.filter and matches(span.filter, one.attributes or {}) for span in others
                )
            ),
            default=0,
        )
        for number, one in publisher.published.items():
            if (
                last < number
                and begins <= one.time_ns <= time
                and one.reason is None
                and one.expires_ns is None
                and matches(asked.filter, one.attributes or {})
                and not (one.area and was_elsewhere(one.area, client, time, received))
                and _is_published(one, publisher, reach)
            ):
                yield one


def _is_published(event: Event, publisher: History, reach: Reach) -> bool:
    """Whether a broker has accepted it in the end, and its publisher had offered it until then."""
    end = publisher.contact(event.time_ns, 2 * reach.client_ns)
    return any(
        span.start <= event.time_ns
        and end + 2 * reach.tree_ns * (1 + publisher.moves) <= span.end
        and span.filter is not None
        and matches(span.filter, event.attributes or {})
        for span in publisher.advertised
    )
