"""What clients ask their old proxies, by way of the new one, and who hears the answers."""

from __future__ import annotations

import msgspec

from wayfare.service import messages as m

RELAYS_MAX = 30_000  # questions to other proxies that are not answered yet
TAKEN = "another client has this name: choose another one"

Question = m.Reach | m.Download | m.Release
Answer = m.Batch | m.Downloaded | m.Released | m.Refused


class Relay(msgspec.Struct, frozen=True, gc=False):
    """One question that is not answered yet."""

    asked: type[Question]
    listener: str  # the peer that asked
    download: m.Download  # what it wants; of a release, nothing

    def not_found(self, at: str, reason: str, reached: bool = True) -> m.Downloaded:
        wanted = self.download
        return m.Downloaded(
            wanted.client,
            wanted.download,
            at,
            wanted.stay,
            0,
            None,
            reason,
            found=False,
            reached=reached,
        )


class Relays:
    """The open ones, by the old proxy that was asked."""

    def __init__(self) -> None:
        self._open: dict[str, dict[tuple[str, type[Question]], Relay]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def open(self, at: str, relay: Relay) -> str:
        """Why that cannot be; else nothing. A question that is asked again takes the place of the first."""
        client = relay.download.client
        before = self._open.get(at, {}).get((client, relay.asked))
        if before is not None and before.download.key != relay.download.key:
            return TAKEN  # or it would hear what is not for it
        if before is None and len(self) >= RELAYS_MAX:
            return "the proxy has too many questions open: try again"
        self._open.setdefault(at, {})[client, relay.asked] = relay
        return ""

    def find(self, at: str, answer: Answer) -> Relay | None:
        """What this is the answer to."""
        return self._open.get(at, {}).get((answer.client, _asked(answer)))

    def close(self, at: str, client: str, asked: type[Question]) -> bool:
        """Whether nothing is asked of that proxy any more."""
        there = self._open.get(at, {})
        there.pop((client, asked), None)
        if not there:
            self._open.pop(at, None)
        return not there

    def lose(self, at: str) -> list[Relay]:
        """That proxy is gone: what it will not answer."""
        return list(self._open.pop(at, {}).values())

    def forget(self, listener: str) -> list[str]:
        """That peer is gone: the proxies of which nothing is asked any more. Who left is let go all the same."""
        waiting = [
            (at, client, relay.asked)
            for at, there in self._open.items()
            for (client, _), relay in there.items()
            if relay.listener == listener and relay.asked is not m.Release
        ]
        return [at for at, client, asked in waiting if self.close(at, client, asked)]

    def downloading(self, client: str, listener: str) -> list[str]:
        """The proxies from which this peer downloads."""
        asked = {at: there.get((client, m.Download)) for at, there in self._open.items()}
        return [at for at, relay in asked.items() if relay and relay.listener == listener]


def _asked(answer: Answer) -> type[Question]:
    if isinstance(answer, m.Released):
        return m.Release
    if isinstance(answer, m.Downloaded) and answer.download == 0:
        return m.Reach
    return m.Download
