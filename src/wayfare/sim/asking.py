"""The oracle's rules for requests: each ends once, and gets each reply that came in time, once.

Requests and replies are ordinary notifications: whether they arrive is judged as for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wayfare.core.requests import NO_RESPONDERS
from wayfare.core.reserved import INBOX, REQUEST
from wayfare.eventlog import Event
from wayfare.sim.hosts import ClientHost
from wayfare.sim.verdict import Violation


def check_requests(
    clients: dict[str, ClientHost],
    events: list[Event],
    has_responder: Callable[[str, int, int], bool],
) -> Iterator[Violation]:
    """`has_responder` says whether somebody has to get a publication of a client, and is there until this time."""
    for name, client in clients.items():
        if client.requests is None:
            continue
        for request, (publication, deadline, many) in client.asked.items():
            came = _replies(events, name, client.requests.inbox, request)
            in_time = [(who, number) for time, who, number in came if time < deadline]
            answers = [one for _, one in client.answers if one.request == request]
            got = [(one.reply.publisher, one.reply.number) for one in answers if one.reply]
            ends = [one.reason for one in answers if one.reply is None]
            end = max((time for time, one in client.answers if one.request == request), default=0)
            what = f"request {request} of {name}"
            unheard = ends == [NO_RESPONDERS]
            if got != (in_time if many else in_time[:1]) and not unheard:
                yield Violation("request", f"{what} was given {got}, but {in_time} came in time")
            if len(ends) != (1 if many or not got else 0):
                yield Violation("request", f"{what} ended {len(ends)} times")
            if unheard and publication and has_responder(name, publication, end):
                yield Violation("request", f"{what} was told that nobody subscribes to it")
        if client.requests.pending:
            yield Violation("tidy", f"{name} still waits for replies")


def _replies(
    events: list[Event], client: str, inbox: str, request: int
) -> list[tuple[int, str, int]]:
    """What came to the reply address for this request, and when."""
    return [
        (event.time_ns, event.publisher or "", event.number or 0)
        for event in events
        if event.kind == "delivered"
        and event.client == client
        and event.attributes is not None
        and event.attributes.get(INBOX) == inbox
        and event.attributes.get(REQUEST) == request
    ]
