"""Profiles by digest: a client with many filters does not send them again to a new broker.

It sends a digest of its subscriptions and advertisements instead. Where its last broker still has the
same ones, the new broker asks for them over the tree; else the client has to send them after all.

    client                 new broker                 old broker
      |-- Attach(digest) ------>|------- Ask ------------->|
      |                         |<------ Profile ----------|
      |<-- Welcome -------------|   and on, as if the client had sent them all

      |<-- Resend --------------|<------ Profile(not found)
      |-- Attach(all) --------->|

Until then the attachment has not happened; what the client says meanwhile waits. A client that is asked
to send everything has the time of a greeting to do so; then its connection is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.deadlines import PROFILE
from wayfare.core.effects import Close, Effect, LinkDown, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import SECOND_NS, aged_messages, size_of
from wayfare.core.memory import BODY_BYTES
from wayfare.core.messages import Ask, Attach, LinkId, Profile, Terms
from wayfare.core.paths import Paths
from wayfare.core.sessions import Session, places, told
from wayfare.errors import ProtocolError

Step = Effect | Received | LinkDown  # an effect, or something that happens here next


def digest(
    subscriptions: Mapping[Filter, Terms | None] | Iterable[Filter],
    advertisements: Iterable[Filter] = (),
    watched: Iterable[Filter] = (),
) -> int:
    """Equal for equal profiles, in any process; never 0."""
    terms = subscriptions if isinstance(subscriptions, Mapping) else {}
    lines = sorted(f"sub {one} {terms.get(one)}" for one in subscriptions)
    lines += sorted(f"ad {one}" for one in advertisements)
    lines += sorted(f"watched {one}" for one in watched)
    return 1 + int.from_bytes(blake2b("\n".join(lines).encode(), digest_size=7).digest(), "big")


class Asking:
    """An attachment whose profile is not known yet."""

    __slots__ = ("bytes", "gone", "later", "message", "resent", "until")

    def __init__(self, message: Attach, until: int) -> None:
        self.message = message
        self.until = until  # then the client is asked itself; when it was asked, it is refused
        self.later: list[tuple[m.FromClient, int]] = []  # what it said since, and when
        self.bytes = 0  # of that
        self.resent = False  # the client has been asked: it says everything again
        self.gone = False  # the connection is no more, but what was said counts


class Profiles:
    """Attachments by digest at one broker."""

    __slots__ = ("_border", "_paths", "asking", "bytes")

    def __init__(self, border: Border, paths: Paths) -> None:
        self._border = border
        self._paths = paths
        self.asking: dict[LinkId, Asking] = {}
        self.bytes = 0  # of what was said meanwhile

    # At the new broker

    def on_attach(self, link: LinkId, message: Attach, now: int) -> list[Step]:
        """An attachment with a digest."""
        if link in self.asking:  # or a peer could be half attached for ever
            raise ProtocolError("Attach by digest twice on one connection")
        for session in self._border.of(message.client):
            if _digest_of(session) == message.digest:
                return [Received(link, _filled(message, _profile_of(session)))]
        limit = self._border.limits.answer_ns
        until = now + min(message.failover_ns or limit, limit)
        self.take_over(link, Asking(message, until))
        return self._ask(message, now)

    def _ask(self, message: Attach, now: int) -> list[Step]:
        name = self._paths.name
        ask = Ask(name, message.client, message.epoch, message.previous, message.digest)
        return self.on_ask(ask, now)

    def on_gap(self, now: int) -> list[Step]:
        """Repeat all questions without an answer: it or the question may have been lost."""
        messages = [asking.message for asking in self.asking.values() if not asking.resent]
        return [step for message in messages for step in self._ask(message, now)]

    def forget(self, link: LinkId) -> None:
        """The client on this link is attached, or gone."""
        asking = self.asking.pop(link, None)
        if asking is not None:
            self.bytes -= asking.bytes

    def take_over(self, link: LinkId, asking: Asking) -> None:
        """Wait for a profile, also where a broker did before its process ended."""
        self.asking[link] = asking
        self.bytes += asking.bytes
        self._arm(link, asking)

    def on_message(self, link: LinkId, message: m.FromClient, now: int) -> None:
        """A client speaks whose profile is not known yet."""
        asking = self.asking[link]
        if asking.resent:
            return
        size = BODY_BYTES
        if isinstance(message, m.Publish):
            size += size_of(message)
        asking.bytes += size
        self.bytes += size
        limits = self._border.limits
        if len(asking.later) >= limits.held_count or asking.bytes > limits.backlog_bytes:
            self.forget(link)
            raise ProtocolError("too many messages before the profile is known")
        asking.later.append((message, now))

    def on_profile(self, profile: Profile, now: int) -> list[Step]:
        if profile.broker != self._paths.name:
            self._paths.send(profile)
            return []
        for link, asking in self.asking.items():
            message, asked = asking.message, not asking.resent
            # Two processes under one name may use one epoch, and one of them was told to exceed the other.
            if asked and (message.client, message.epoch) == (profile.client, profile.epoch):
                if not profile.found:
                    return self._resend(link, now)
                self.forget(link)
                if self._border.is_stale(message.client, message.epoch):
                    return [Close(link, f"{message.client} is elsewhere now")]
                said = [_filled(message, profile), *aged_messages(asking.later, now)]
                steps: list[Step] = [Received(link, one) for one in said]
                return [*steps, LinkDown(link)] if asking.gone else steps
        return []

    def on_behind(self, link: LinkId, message: Attach, above: int, now: int) -> list[Effect]:
        """A client that begins anew has to attach with a higher epoch, within the time of a greeting."""
        self.forget(link)
        asking = Asking(message, now + self._border.limits.greeting_ns)
        asking.resent = True
        self.take_over(link, asking)
        return [Send(link, m.Resend(message.epoch, above))]

    def _resend(self, link: LinkId, now: int) -> list[Step]:
        """Ask the client itself, if it is still there."""
        asking = self.asking[link]
        if asking.gone:
            self.forget(link)
            return []
        asking.resent = True
        asking.later.clear()
        self.bytes -= asking.bytes
        asking.bytes = 0
        asking.until = now + self._border.limits.greeting_ns
        self._arm(link, asking)
        return [Send(link, m.Resend(asking.message.epoch))]

    def on_link_down(self, link: LinkId) -> None:
        asking = self.asking.get(link)
        if asking is None:
            return
        if asking.later and not asking.resent:
            asking.gone = True
        else:
            self.forget(link)

    def on_due(self, link: LinkId, now: int) -> list[Step]:
        """The old broker, or then the client itself, may not have sent the profile in time."""
        asking = self.asking.get(link)
        if asking is None:
            return []
        if asking.until > now:
            self._arm(link, asking)
            return []
        if not asking.resent:
            return self._resend(link, now)
        self.forget(link)
        seconds = self._border.limits.greeting_ns / SECOND_NS
        return [Close(link, f"it did not attach again within {seconds:g} s", again=True)]

    def extend_waits(self, by_ns: int, now: int) -> None:
        """Wait longer for profiles, but no longer from now than for a new one."""
        limits = self._border.limits
        for asking in self.asking.values():
            latest = now + (limits.greeting_ns if asking.resent else limits.answer_ns)
            asking.until = min(asking.until + by_ns, latest)

    def _arm(self, link: LinkId, asking: Asking) -> None:
        self._border.deadlines.arm(PROFILE, link, asking.until)

    # At the old broker

    def on_ask(self, ask: Ask, now: int) -> list[Step]:
        """Take a question to where the client was, the last place first."""
        while ask.previous:
            broker, epoch = ask.previous[0]
            if broker == self._paths.name:
                session = self._border.get(ask.client, epoch)
                if session is not None and _digest_of(session) == ask.digest:
                    profile = replace(_profile_of(session), broker=ask.broker, epoch=ask.epoch)
                    return self.on_profile(profile, now)
            elif self._paths.reaches(broker):
                self._paths.send_to(broker, ask)
                return []
            ask = replace(ask, previous=ask.previous[1:])
        return self.on_profile(Profile(ask.broker, ask.client, ask.epoch, False), now)


def _digest_of(session: Session) -> int:
    return digest(session.subscriptions, session.advertisements, session.watched)


def _profile_of(session: Session) -> Profile:
    filters, terms = told(session.subscriptions)
    nobody = m.BrokerId("")
    offered, watched = (
        tuple(session.advertisements),
        places(session.watched, session.advertisements),
    )
    return Profile(nobody, session.client, session.epoch, True, filters, terms, offered, watched)


def _filled(message: Attach, profile: Profile) -> Attach:
    """The attachment, as if the client had sent everything."""
    return replace(
        message,
        subscriptions=profile.subscriptions,
        terms=profile.terms,
        advertisements=profile.advertisements,
        watched=profile.watched,
        digest=0,
    )
