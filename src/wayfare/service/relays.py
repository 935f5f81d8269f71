"""What clients ask their old proxies, by way of the new one, and who hears the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from wayfare.service import messages as m
from wayfare.service.messages import SECOND_NS

RELAYS_MAX = 30_000  # questions to other proxies that are not answered yet
LISTENER_MAX = 100  # ... of one peer
SILENT_NS = 150 * SECOND_NS  # then nobody waits for the answer any more
TAKEN = "another client has this name: choose another one, or give the key that it began with"

Question = m.Reach | m.Download | m.Release
Answer = m.Batch | m.Downloaded | m.Released | m.Refused


class Relay(msgspec.Struct, gc=False):
    """One question that is not answered yet."""

    question: Question
    listener: str  # the peer that asked
    since: int  # nothing was said

    def not_found(self, at: str, reason: str, reached: bool = True) -> m.Downloaded:
        return not_found(self.question, at, reason, reached)


def not_found(question: Question, at: str, reason: str, reached: bool = True) -> m.Downloaded:
    """The answer to a question that the proxy there has none to."""
    download, stay = 0, 0
    if isinstance(question, m.Download):
        download, stay = question.download, question.stay
    return m.Downloaded(
        question.client, download, at, stay, 0, None, reason[:1000], found=False, reached=reached
    )


class Relays:
    """The open ones, by the old proxy that was asked."""

    def __init__(self) -> None:
        self._open: dict[str, dict[tuple[str, type[Question]], Relay]] = {}
        self._listeners: Counter[str] = Counter()
        self.look_at: int | None = None  # when to look for those that nobody answers

    def __len__(self) -> int:
        return self._listeners.total()

    def open(self, at: str, question: Question, listener: str, now: int) -> str:
        """Why that cannot be; else nothing. A question that is asked again takes the place of the first."""
        asked = question.client, type(question)
        before = self._open.get(at, {}).get(asked)
        if before is not None and _key(before.question) != _key(question):
            return TAKEN  # or it would hear what is not for it
        if before is None and len(self) >= RELAYS_MAX:
            return "the proxy has too many questions open: try again"
        is_again = before is not None and before.listener == listener
        if not is_again and self._listeners[listener] >= LISTENER_MAX:
            return f"a client asks {LISTENER_MAX} questions at once: wait for answers"
        if before is not None:
            self._discount(before)
        self._listeners[listener] += 1
        self._open.setdefault(at, {})[asked] = Relay(question, listener, now)
        if self.look_at is None:
            self.look_at = now + SILENT_NS
        return ""

    def find(self, at: str, answer: Answer) -> Relay | None:
        """What this is the answer to."""
        return self._open.get(at, {}).get((answer.client, _asked(answer)))

    def close(self, at: str, client: str, asked: type[Question]) -> bool:
        """Whether nothing is asked of that proxy any more."""
        there = self._open.get(at, {})
        relay = there.pop((client, asked), None)
        if relay is not None:
            self._discount(relay)
        if not there:
            self._open.pop(at, None)
        return not there

    def _discount(self, relay: Relay) -> None:
        self._listeners[relay.listener] -= 1
        if not self._listeners[relay.listener]:
            del self._listeners[relay.listener]

    def lose(self, at: str) -> list[Relay]:
        """That proxy is gone: what it will not answer."""
        lost = list(self._open.pop(at, {}).values())
        for relay in lost:
            self._discount(relay)
        return lost

    def forget(self, listener: str) -> list[str]:
        """That peer is gone: the proxies of which nothing is asked any more. Who left is let go all the same."""
        if listener not in self._listeners:
            return []
        return self._close_all(
            lambda relay: relay.listener == listener and not isinstance(relay.question, m.Release)
        )

    def stop(self, client: str, key: str) -> list[str]:
        """The client goes on without what it downloads: the proxies of which nothing is asked any more."""
        return self._close_all(
            lambda relay: (
                isinstance(relay.question, m.Download)
                and (relay.question.client, relay.question.key) == (client, key)
            )
        )

    def extend(self, for_ns: int) -> None:
        """No answer could be heard for so long."""
        for there in self._open.values():
            for relay in there.values():
                relay.since += for_ns

    def expire(self, now: int) -> list[str]:
        """Nobody waits for these any more: the proxies of which nothing is asked any more."""
        if self.look_at is None or now < self.look_at:
            return []
        idle = self._close_all(lambda relay: now >= relay.since + SILENT_NS)
        self.look_at = now + SILENT_NS // 2 if self._open else None
        return idle

    def _close_all(self, ends: Callable[[Relay], bool]) -> list[str]:
        found = [
            (at, client, asked)
            for at, there in self._open.items()
            for (client, asked), relay in there.items()
            if ends(relay)
        ]
        return [at for at, client, asked in found if self.close(at, client, asked)]

    def downloading(self, client: str, listener: str) -> list[str]:
        """The proxies from which this peer downloads."""
        asked = {at: there.get((client, m.Download)) for at, there in self._open.items()}
        return [at for at, relay in asked.items() if relay and relay.listener == listener]


def _key(question: Question) -> str:
    return question.key


def _asked(answer: Answer) -> type[Question]:
    if isinstance(answer, m.Released):
        return m.Release
    if isinstance(answer, m.Downloaded) and answer.download == 0:
        return m.Reach
    return m.Download
