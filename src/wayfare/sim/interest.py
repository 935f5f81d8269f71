"""Whether publishers that watch an advertisement were told the truth, as far as anybody could know it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wayfare.core.covering import witness
from wayfare.core.filters import Filter
from wayfare.eventlog import Event
from wayfare.sim.histories import History, Span
from wayfare.sim.reach import Reach


def meet(a: Filter, b: Filter) -> bool:
    """Whether there certainly is a notification that matches both; `overlaps` says that there may be."""
    return any(
        witness(Filter.of([(*one, *other)])) is not None
        for one in a.conjunctions
        for other in b.conjunctions
    )


def early(events: Iterable[Event], clients: Mapping[str, History], reach: Reach) -> Iterator[str]:
    """Who was told that nobody is interested while somebody was, and had been for long enough.

    The first answer comes when all brokers have confirmed the advertisement, unless that took too long.
    But who lost nobody knows what, and who began anew, may have been forgotten for a while.
    """
    events = list(events)
    trips = 0 if reach.confirms_in_time else 2
    doubtful = {one.client for one in events if one.kind == "lost" and not one.count}
    known = {name: one for name, one in clients.items() if name not in doubtful}
    for event in events:
        name, offered = event.client, event.filter
        if event.kind != "unwanted" or name not in known or offered is None:
            continue
        publisher = known[name]
        if not any(
            span.filter == offered and _settled(span, publisher, event, trips, reach)
            for span in publisher.advertised
        ):
            continue
        for other, client in known.items():
            for span in client.subscribed if other != name else ():
                assert span.filter is not None
                if _settled(span, client, event, 1, reach) and meet(offered, span.filter):
                    yield f"{name} was told that nobody wants {offered}, but {other} does"


def _settled(span: Span, client: History, told: Event, trips: int, reach: Reach) -> bool:
    """Whether all brokers knew of it when this was said, which is before it was told, and did until then."""
    contact = client.contact(span.start, reach.client_ns, span.end)
    known = contact + trips * reach.tree_ns + reach.client_ns
    return known < told.time_ns < span.end
