"""A run as lines of text that people can read and tests can compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wayfare.core import messages as m
from wayfare.core.late import REPORT
from wayfare.core.predicates import Value
from wayfare.core.syntax import value_text
from wayfare.eventlog import Event
from wayfare.sim.links import MS_NS
from wayfare.sim.world import World


def attributes_text(attributes: Mapping[str, Value]) -> str:
    """{price: 41, road: 'A5'}"""
    return "{" + ", ".join(f"{name}: {value_text(v)}" for name, v in attributes.items()) + "}"


def _filters(word: str, entries: tuple[m.Entry, ...]) -> list[str]:
    return [f"{word} {one}" for one in entries]


def _update(update: m.Update) -> str:
    changes = [
        *_filters("+ad", update.add_ads),
        *_filters("+sub", update.add_subs),
        *_filters("-sub", update.remove_subs),
        *_filters("-ad", update.remove_ads),
        *(TEXTS[type(errand)](errand) for errand in update.errands),
        *map(_slow, update.slow),
    ]
    if not changes:  # otherwise they only go along
        changes = [*_probe(update.probe), *([TEXTS[m.Echo](update.echo)] if update.echo else [])]
    return f"Update({', '.join(changes)})"


def _slow(slow: m.Slow) -> str:
    how = f"for {slow.for_ns / 1e9:g} s" if slow.for_ns else "no more"
    return f"Slow({slow.publisher} {how})"


def _probe(probe: m.Probe | None) -> list[str]:
    return [] if probe is None else [f"Probe(ads {probe.ads}, subs {probe.subs})"]


def _announce(announce: m.Announce) -> str:
    begun = (f"{one.client} anew at epoch {one.epoch}" for one in announce.begun)
    old = (f"{one.client} unclaimed at {one.broker}, {one.epoch}" for one in announce.unclaimed)
    sought = (f"{one.client} sought before epoch {one.epoch}" for one in announce.sought)
    brokers = filter(None, [" ".join(announce.brokers)])
    return f"Announce({', '.join([*brokers, *begun, *old, *sought])})"


def _attach(attach: m.Attach) -> str:
    held = [
        f"epoch {attach.epoch}",
        f"delivered {attach.delivered}",
        *(f"sub {one}" for one in attach.subscriptions),
        *(
            f"ad {one}{', watched' if place in attach.watched else ''}"
            for place, one in enumerate(attach.advertisements)
        ),
        *(["digest"] if attach.digest else []),
        *([f"expires {attach.expires_ns / 1e9:g} s"] if attach.expires_ns else []),
        *([_state(attach.state)] if attach.state is not None and attach.state.location else []),
        *(f"follows {text}" for text, _ in (attach.followed.follows if attach.followed else ())),
    ]
    return f"Attach({', '.join(held)})"


def _request(request: m.Request) -> str:
    asked = " ".join(f"{broker}:{epoch}" for broker, epoch in request.previous)
    return (
        f"Request({request.client} at {request.broker}, epoch {request.epoch},"
        f" delivered {request.delivered}, was at {asked})"
    )


def _missed(settled: m.Settled) -> str:
    missed = [f"{who} {number}" for who, some in settled.missed.items() for number in some]
    return "".join(f", {one}" for one in [*missed, *(["more"] if settled.more else [])])


def _reply(reply: m.Reply) -> str:
    if reply.published and not reply.found:
        exceed = f", and to exceed {reply.above}" if reply.above else ""
        return f"Reply(to {reply.broker}, {reply.client} has published {reply.published}{exceed})"
    if reply.above and not reply.found:
        return f"Reply(to {reply.broker}, {reply.client} is to exceed {reply.above})"
    if reply.unreachable:
        return f"Reply(to {reply.broker}, where {reply.client} was cannot be reached)"
    if not reply.found:
        return f"Reply(to {reply.broker}, {reply.client} is not here)"
    kept = [
        "a report"
        if one.ask == REPORT
        else f"{one.notification.publisher} {one.notification.number}"
        for one in reply.kept
    ]
    lost = [f"{reply.lost if reply.exact else 'some'} lost: {reply.why}"] if reply.lost else []
    more = ["..."] if reply.more else []
    return f"Reply({', '.join([f'to {reply.broker}', reply.client, *kept, *lost, *more])})"


def _past_reply(reply: m.PastReply) -> str:
    kept = [f"{one.notification.publisher} {one.notification.number}" for one in reply.kept]
    asked = [f"{reply.asked} more to reply"] if reply.asked else []
    forgotten = [] if reply.complete else ["some forgotten"]
    more = ["..."] if reply.more else []
    return f"PastReply({', '.join([f'to {reply.broker}', *kept, *asked, *forgotten, *more])})"


def _publish(publish: m.Publish) -> str:
    retain = publish.retain
    word = "" if retain is None else ", clear " if retain.clear else ", retain "
    key = "" if retain is None else ", ".join(retain.names)
    where = "" if publish.area is None else f" in {_area(publish.area)}"
    return f"Publish({publish.number} {attributes_text(publish.attributes)}{where}{word}{key})"


def _area(area: m.Area) -> str:
    if area.circle is None:
        return " ".join(area.locations)
    lat, lon, metres = area.circle
    return f"{metres:g} m around {lat:g}, {lon:g}"


def _retained(value: m.Retained) -> str:
    one, retain = value.notification, value.retain
    word = "clears" if retain.clear else "by"
    key = ", ".join(retain.names)
    return f"Retained({one.publisher} {one.number} {word} {key}, version {value.version})"


def _state(state: m.State) -> str:
    where = [f"at {state.location}"] if state.location else []
    return ", ".join([*where, *([attributes_text(state.values)] if state.values else [])])


TEXTS: dict[type, Callable[[Any], str]] = {
    m.Notification: lambda one: f"Notification({one.publisher} {one.number})",
    m.Uncertain: lambda one: f"Uncertain({one.notification.publisher} {one.notification.number})",
    m.Retained: _retained,
    m.Values: lambda one: f"Values({', '.join(map(_retained, one.values))})",
    m.Announce: _announce,
    m.Update: _update,
    m.Request: _request,
    m.Reply: _reply,
    m.Fetch: lambda one: (
        f"Fetch({one.client} at {one.broker}, epoch {one.epoch}, delivered {one.delivered}"
        f"{', everywhere' if one.everywhere else ''})"
    ),
    m.Ask: lambda one: f"Ask({one.client} at {one.broker}, epoch {one.epoch})",
    m.Profile: lambda one: (
        f"Profile(to {one.broker}, {one.client}"
        f"{f': {len(one.subscriptions)} subs' if one.found else ' is not known'})"
    ),
    m.Prepare: lambda one: (
        f"Prepare({one.client} at {one.broker}: {', '.join(map(str, one.advertisements))})"
    ),
    m.Resend: lambda one: f"Resend(epoch {one.epoch}{f', above {one.above}' if one.above else ''})",
    m.Interest: lambda one: f"Interest({one.filter} is {'wanted' if one.wanted else 'unwanted'})",
    m.Enlist: lambda one: f"Enlist({one.group}: {one.filter})",
    m.Convene: lambda one: f"Convene(at {one.broker}, {one.enlist.group}: {one.enlist.filter})",
    m.PastRequest: lambda one: (
        f"PastRequest(to {one.broker}: {one.filter}{', of others' if one.others else ''})"
    ),
    m.PastReply: _past_reply,
    m.NoResponders: lambda one: f"NoResponders({one.number})",
    m.Searched: lambda one: f"Searched({one.client}, epoch {one.epoch})",
    m.Tunnel: lambda one: (
        f"Tunnel(to {one.broker}, {TEXTS[type(one.message)](one.message) if one.message else 'gone'})"
    ),
    m.Echo: lambda one: f"Echo({', '.join([f'ads {one.ads}', f'subs {one.subs}', *one.missing])})",
    m.Attach: _attach,
    m.Detach: lambda one: "Detach(leave)" if one.leave else "Detach()",
    m.Subscribe: lambda one: f"Subscribe({one.filter})",
    m.Unsubscribe: lambda one: f"Unsubscribe({one.filter})",
    m.Advertise: lambda one: f"Advertise({one.filter}{', watched' if one.watch else ''})",
    m.Unadvertise: lambda one: f"Unadvertise({one.filter})",
    m.Publish: _publish,
    m.Ack: lambda one: f"Ack({', '.join([str(one.number), *_probe(one.probe)])})",
    m.Welcome: lambda one: f"Welcome(epoch {one.epoch}, published {one.published})",
    m.Deliver: lambda one: (
        f"Deliver({one.number}: {one.notification.publisher} {one.notification.number})"
    ),
    m.Current: lambda one: (
        f"Current({one.number}: {one.notification.publisher} {one.notification.number})"
    ),
    m.Late: lambda one: (
        f"Late({one.number}: {one.notification.publisher} {one.notification.number})"
    ),
    m.Gap: lambda one: f"Gap({one.number}, {one.reason})",
    m.Settled: lambda one: f"Settled({one.number}, gap of epoch {one.gap}{_missed(one)})",
    m.Published: lambda one: f"Published({one.number})",
    m.Follow: lambda one: f"Follow({one.text})",
    m.Unfollow: lambda one: f"Unfollow({one.text})",
    m.State: lambda one: f"State({_state(one)})",
    m.HereAck: lambda one: f"HereAck({one.number}{', asks' * one.asks})",
    m.CaughtUp: lambda one: f"CaughtUp(delivered {one.delivered})",
    m.Here: lambda one: (
        f"Here({one.number}: {one.notification.publisher} {one.notification.number}"
        f"{', past' if one.past else ''})"
    ),
    m.HereGap: lambda one: f"HereGap({one.number}, {one.reason})",
    m.Shadow: lambda one: (
        f"Shadow({one.client} at {one.broker}, epoch {one.epoch}:"
        f" {', '.join(text for text, _ in one.followed.follows)})"
    ),
    m.Forget: lambda one: f"Forget({one.client} before epoch {one.epoch})",
    m.Recall: lambda one: (
        f"Recall({one.client} at {one.broker}, epoch {one.epoch}{', and forget it' * one.forget})"
    ),
    m.Recalled: lambda one: (
        f"Recalled({one.client}, {len(one.kept)} kept{f', {one.lost} lost' if one.lost else ''})"
    ),
}


class Trace:
    """Writes down what happens in a world: links between brokers, and what applications see.

    With `clients`, also what clients and their brokers say to each other. Probes and echoes are not shown.
    """

    def __init__(self, world: World, *, clients: bool = False) -> None:
        self.lines: list[str] = []
        self.clients = clients
        self._world = world
        world.watchers.append(self._on_message)
        world.listeners.append(self._on_event)

    def line(self, subject: str, what: str) -> None:
        self.lines.append(f"{self._world.now / MS_NS:8.1f} ms  {subject:<22}  {what}".rstrip())

    def _on_message(self, sender: str, receiver: str, message: m.AnyMessage) -> None:
        brokers = self._world.brokers
        if type(message) is m.Update and message == m.Update(
            probe=message.probe, echo=message.echo
        ):
            return
        if self.clients or (sender in brokers and receiver in brokers):
            self.line(f"{sender} -> {receiver}", TEXTS[type(message)](message))

    def _on_event(self, event: Event) -> None:
        if event.kind == "delivered":
            assert event.attributes is not None
            what = f"{event.publisher} {event.number} {attributes_text(event.attributes)}"
            what += f" ({event.reason})" if event.reason else ""
            self.line(f"{event.client} <=", what)
        elif event.kind == "lost":
            count = event.count or "nobody knows how many"
            self.line(f"{event.client} <=", f"{count} lost: {event.reason}")
        elif event.kind == "settled":
            self.line(f"{event.client} <=", f"of an unknown number, {event.count} lost")
        elif event.kind in ("wanted", "unwanted"):
            who = "somebody" if event.kind == "wanted" else "nobody"
            self.line(f"{event.client} <=", f"{who} wants {event.filter}")
        elif event.kind == "confirmed":
            self.line(f"{event.client} <=", f"{event.filter} is in effect everywhere")
