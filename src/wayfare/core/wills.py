"""Last wills: what a broker publishes for a client that is gone for longer than a delay.

    connected --- the connection is lost ---> away ---- the delay is over ----> published, once
                                               |  the client is back, anywhere: its attachment brings a new will
                                               |  it has left for good: nothing is published
                                               +- its session expires, or is removed: published at once

A will belongs to a session, and every attachment brings it anew. So it is published only where the session is: when the
client turns up elsewhere, its session leaves, and the will with it. Its publisher has a name of its own, because the client
may number publications of its own meanwhile; its number is the attachment that it ended, so it is never published twice.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from wayfare.core.conditions import attr
from wayfare.core.filters import Filter
from wayfare.core.messages import WILL_SUFFIX, ClientId, Notification, Will
from wayfare.core.predicates import Attributes
from wayfare.core.sessions import Session
from wayfare.errors import InvalidNotification


def offer_of(attributes: Attributes) -> Filter:
    """The advertisement of a will: exactly this."""
    if not attributes:
        raise InvalidNotification("a will has at least one attribute: say what it is about")
    return Filter.where(reduce(and_, (attr(name) == value for name, value in attributes.items())))


def publisher_of(client: ClientId) -> ClientId:
    return ClientId(client + WILL_SUFFIX)


def notification_of(session: Session, will: Will) -> Notification:
    return Notification(publisher_of(session.client), session.epoch, will.attributes, will.payload)


def is_gone(session: Session) -> bool:
    """Whether the client of a session that has a will is away, and nobody has asked for the session."""
    if session.will is None or session.link is not None or session.leaving or session.orphan:
        return False
    gone_on = session.handing or (session.wait is not None and session.wait.pending)
    return not gone_on


def due_at(session: Session) -> int | None:
    """When the will of a session is to be published; None: it is not, or not before the session is open."""
    return session.will_at if session.wait is None and is_gone(session) else None
