"""What one client may subscribe to, publish and advertise: lists of filters that allow, and lists that deny.

A client may ask for less than an allowed filter, never for more, and for nothing that overlaps a denied one:
a deny rule wins over every allow rule. The host says which rules hold for a connection (`Granted`) before the
first message of the client, and again when the rules change; the broker asks here before it acts on a
message. An attachment by digest is checked when its filters are known.

Everybody may subscribe to replies at one address, advertise replies, and publish a reply: only
clients that received a request from there know the address. A deny rule that names `$inbox` takes that away.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.requests import REPLIES
from wayfare.core.reserved import is_address, is_addressed, mentions

Granted = tuple[Filter, ...] | None  # None: everything

TOLD_MAX = 200  # characters of one filter in a refusal, and of all that are granted


class Grants(msgspec.Struct, frozen=True):
    """What a client may do."""

    client: str  # for texts
    subscribe: Granted = None
    publish: Granted = None
    advertise: Granted = None
    deny_subscribe: tuple[Filter, ...] = ()
    deny_publish: tuple[Filter, ...] = ()
    deny_advertise: tuple[Filter, ...] = ()
    account: str = ""  # whose quotas count what its subscriptions cost, and what is kept for it
    cost_max: int = 0  # of the subscriptions of that account, see `costs`; 0: no limit

    def is_limited(self) -> bool:
        """Whether there is anything that the client may not do."""
        allow = self.subscribe, self.publish, self.advertise
        deny = self.deny_subscribe, self.deny_publish, self.deny_advertise
        return any(one is not None for one in allow) or any(deny) or self.cost_max > 0

    def refusal(self, message: m.AnyMessage) -> str | None:
        """Why the client may not say this; None if it may."""
        if isinstance(message, m.Publish):
            return self.unpublishable(message)
        if isinstance(message, m.Subscribe | m.Enlist):
            return self.unsubscribable((message.filter,))
        if isinstance(message, m.Advertise):
            return self.unadvertisable((message.filter,))
        if isinstance(message, m.Attach):
            return (
                self.unsubscribable(message.subscriptions)
                or self.unadvertisable(message.advertisements)
                or (self.unpublishable(message.will) if message.will is not None else None)
            )
        return None

    def unsubscribable(self, asked: Iterable[Filter]) -> str | None:
        """Why the client may not subscribe to one of these filters; None if it may to all."""
        rules = "subscribe to", self.subscribe, self.deny_subscribe
        others = [one for one in asked if not is_address(one) or _is_denied(one, rules[2])]
        return self._exceeded(*rules, others)

    def unadvertisable(self, asked: Iterable[Filter]) -> str | None:
        rules = "advertise", self.advertise, self.deny_advertise
        own = [one for one in asked if one == REPLIES or is_address(one)]
        others = [one for one in asked if one not in own or _is_denied(one, rules[2])]
        return self._exceeded(*rules, others)

    def checks_publications(self) -> bool:
        return self.publish is not None or bool(self.deny_publish)

    def unpublishable(self, message: m.Publish | m.Will) -> str | None:
        attributes = message.attributes
        # Only names of attributes: this text goes into logs, and values do not.
        named = ", ".join(attributes) or "no attributes"
        what = f"a notification with {named}"
        reply = is_addressed(attributes)
        for denied in self.deny_publish:
            if denied.matches(attributes) and (mentions(denied) or not reply):
                return self._denied("publish", denied, what)
        if reply:
            return None
        if self.publish is None or any(one.matches(attributes) for one in self.publish):
            return None
        return self._told("publish", self.publish, what)

    def _exceeded(
        self, verb: str, granted: Granted, deny: tuple[Filter, ...], asked: Iterable[Filter]
    ) -> str | None:
        for one in asked:
            for denied in deny:
                if denied.overlaps(one):
                    return self._denied(verb, denied, str(one))
            if granted is not None and not all(
                any(g.covers(part) for g in granted) for part in one.parts()
            ):
                return self._told(verb, granted, str(one))
        return None

    def _told(self, verb: str, granted: tuple[Filter, ...], what: str) -> str:
        allowed = _short("; ".join(map(str, granted))) or "nothing"
        return f"{self.client} may not {verb} {_short(what)}: its account allows {verb} {allowed}"

    def _denied(self, verb: str, denied: Filter, what: str) -> str:
        rule = f"its account denies {verb} {_short(str(denied))}"
        return f"{self.client} may not {verb} {_short(what)}: {rule}"


def _is_denied(address: Filter, deny: tuple[Filter, ...]) -> bool:
    """Whether a rule is about replies; others have nothing to do with them."""
    return any(mentions(one) and one.overlaps(address) for one in deny)


def _short(text: str) -> str:
    return text if len(text) <= TOLD_MAX else text[: TOLD_MAX - 3] + "..."
