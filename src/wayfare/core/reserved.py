"""Names of attributes that are not for applications: addresses of clients, for replies and queue groups.

A client subscribes to an address of its own, by equality, and a client that knows the address can send something there. It
cannot be guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from wayfare.core.conditions import attr
from wayfare.core.filters import Filter
from wayfare.core.predicates import OneOf, Value, names
from wayfare.errors import InvalidNotification

REPLY_TO = "$reply_to"  # of a request: where replies go
REQUEST = "$request"  # of a request and of its replies: its number
INBOX = "$inbox"  # of a reply: the address of the requester
MEMBER = "$member"  # of what the coordinator of a queue group sends: the address of a member
GROUP = "$group"  # of what a member sends: the address of the coordinator
RESERVED = frozenset((REPLY_TO, REQUEST, INBOX, MEMBER, GROUP))
ADDRESSES = frozenset((INBOX, MEMBER, GROUP))
CONTROL = frozenset((MEMBER, GROUP))  # of what queue groups and their members say to each other


def check_unreserved(attributes: Mapping[str, Value]) -> None:
    """Raise InvalidNotification if an attribute is not for applications."""
    if not RESERVED.isdisjoint(attributes):
        name = next(name for name in attributes if name in RESERVED)
        raise InvalidNotification(
            f"{name} is reserved for requests and queue groups: give the attribute another name"
        )


def without_reserved(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """What an application sees of a request."""
    return {name: value for name, value in attributes.items() if name not in RESERVED}


def is_address(filter: Filter) -> bool:
    """Whether this is about exactly one address."""
    if len(filter.conjunctions) != 1 or len(filter.conjunctions[0]) != 1:
        return False
    (only,) = filter.conjunctions[0]
    named = isinstance(only, OneOf) and only.name in ADDRESSES
    return named and isinstance(only, OneOf) and only.kind == "text" and len(only.values) == 1


def listening_at(member: str) -> Filter:
    """What a member of a queue group subscribes to: this is its address."""
    return Filter.where(attr(MEMBER) == member)


def is_addressed(attributes: Mapping[str, Value]) -> bool:
    """Whether this is a reply, or said by a member of a queue group, and nothing else."""
    return attributes.keys() == {INBOX, REQUEST} or attributes.keys() == {GROUP}


def mentions(filter: Filter) -> bool:
    """Whether a filter names addresses."""
    return any(
        not ADDRESSES.isdisjoint(names(one))
        for conjunction in filter.conjunctions
        for one in conjunction
    )
