"""Home: the session stays where the client attached first; other brokers tunnel.

    client <-> visited broker <=== Tunnel ===> home broker

What Mobile IP or a central proxy would do. For the home broker a client elsewhere has a connection
like any other, only that what is sent there travels over the tree; so nothing is lost and nothing
comes twice. The price is the way home and back for every notification.
"""

from __future__ import annotations

from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.effects import Close, Effect, LinkDown, Pause, Received, Resume, Send
from wayfare.core.messages import BrokerId, LinkId, Tunnel
from wayfare.core.paths import Paths
from wayfare.core.relocation import Relocation
from wayfare.errors import ProtocolError


def tunnelled(visited: BrokerId, link: LinkId) -> LinkId:
    """What the home broker calls a connection elsewhere: no host gives such a name to one of its own."""
    return LinkId(f"\0{visited}\0{link}")


def is_tunnel(link: LinkId) -> bool:
    return link.startswith("\0")


class Home(Relocation):
    name = "home"

    def __init__(self, border: Border, paths: Paths) -> None:
        super().__init__(border, paths)
        self._visitors: dict[LinkId, BrokerId] = {}  # who is here, and their homes
        # Whose home this is, and where they are.
        self._away: dict[LinkId, tuple[BrokerId, LinkId]] = {}

    # At the broker that is visited

    def visits(self, message: m.Attach) -> bool:
        return message.home not in ("", self.paths.name)

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        if self.visits(message):
            if self._visitors.setdefault(link, message.home) != message.home:
                raise ProtocolError("Attach twice on one connection, with two homes")
            if self.paths.towards(message.home) is None:
                del self._visitors[link]
                why = f"nobody knows the broker {message.home}, its home"
                return [Close(link, why, again=True)]
            return self._tell_home(link, message)
        if message.previous:
            for session in self.border.of(message.client):  # there is one at most
                return self._renew(session, link, message, now)
        return super().on_attach(link, message, now)

    def on_stranger(self, link: LinkId, message: m.FromClient, now: int) -> list[Effect]:
        if link not in self._visitors:
            return super().on_stranger(link, message, now)
        return self._tell_home(link, message)

    def on_stranger_down(self, link: LinkId, now: int) -> list[Effect]:
        if link not in self._visitors:
            return []
        effects = self._tell_home(link, None)
        del self._visitors[link]
        return effects

    def _tell_home(self, link: LinkId, message: m.FromClient | None) -> list[Effect]:
        home = self._visitors[link]
        return self._send(Tunnel(home, self.paths.name, link, message))

    # At home

    def outward(self, effects: list[Effect]) -> list[Effect]:
        """What is for a client elsewhere goes through the tunnel.

        But its connection is not here: a publisher elsewhere cannot be paused, or resumed.
        """
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Pause | Resume) and is_tunnel(effect.link):
                continue
            there = self._away.get(effect.link) if isinstance(effect, Send | Close) else None
            if there is None:
                out.append(effect)
            elif isinstance(effect, Send):
                assert isinstance(effect.message, m.ToClient)
                out += self._send(Tunnel(there[0], *there, effect.message))
            else:
                assert isinstance(effect, Close)
                del self._away[effect.link]
                out += self._send(Tunnel(there[0], *there, None, effect.reason, effect.again))
        return out

    # On the way

    def on_gap(self, neighbour: BrokerId, now: int) -> list[Effect | Received | LinkDown]:
        """Tunnels that lead there have a hole: their clients attach again, and send again."""
        there = self.paths.towards
        visitors = [link for link, home in self._visitors.items() if there(home) == neighbour]
        away = [link for link, (visited, _) in self._away.items() if there(visited) == neighbour]
        for link in visitors:
            del self._visitors[link]
        for link in away:
            del self._away[link]
        closed = [Close(link, "the way to its home was broken", again=True) for link in visitors]
        return [*closed, *map(LinkDown, away)]

    def on_tunnel(self, message: Tunnel, now: int) -> list[Effect | Received | LinkDown]:
        if message.broker != self.paths.name:
            return [*self._send(message)]
        if message.visited == self.paths.name:
            return [*self._come_out(message)]
        link = tunnelled(message.visited, message.link)
        if message.message is None:
            self._away.pop(link, None)
            return [LinkDown(link)]
        self._away[link] = message.visited, message.link
        return [Received(link, message.message)]

    def _come_out(self, message: Tunnel) -> list[Effect]:
        link = message.link
        if link not in self._visitors:
            return []
        if message.message is not None:
            return [Send(link, message.message)]
        del self._visitors[link]
        return [Close(link, message.reason, again=message.again)]

    def _send(self, message: Tunnel) -> list[Effect]:
        hop = self.paths.towards(message.broker)
        return [] if hop is None else [Send(LinkId(hop), message)]
