"""What the applications of a scenario do with requests and as members of queue groups.

A member takes each notification, and is done with it, at once; or by hand: it waits for `take` and `done`.
"""

from __future__ import annotations

from wayfare.core.membership import Membership, Work
from wayfare.core.messages import Notification
from wayfare.core.predicates import Value
from wayfare.core.requests import Answered
from wayfare.errors import UsageError
from wayfare.sim.hosts import ClientHost
from wayfare.sim.trace import Trace, attributes_text
from wayfare.sim.world import World


class Applications:
    """Those of all clients of a world; what they get is written into its trace."""

    def __init__(self, world: World, trace: Trace) -> None:
        self._world, self._trace = world, trace
        self._by_hand: dict[str, None] = {}  # addresses of members
        self._taken: dict[str, list[tuple[Membership, Work]]] = {}  # by client, not done
        self._requests: dict[str, list[Notification]] = {}  # by client, not answered
        world.reader, world.worker = self._read, self._work
        world.responder, world.answered = self._on_request, self._on_answer

    # Queue groups

    def join(
        self, name: str, group: str, filter: str, prefetch: int, away_ns: int, *, by_hand: bool
    ) -> None:
        member = self._world.client(name).join(group, filter, prefetch=prefetch, away_ns=away_ns)
        if by_hand:
            self._by_hand[member.address] = None

    def quit(self, name: str) -> None:
        client = self._world.client(name)
        for member in self._members(client):
            client.quit(member)

    def take(self, name: str) -> None:
        """The application asks once, and does not wait."""
        client = self._world.client(name)
        if not any(client.take(member) for member in self._members(client)):
            self._trace.line(f"{name} <=", "nothing to take")

    def done(self, name: str) -> None:
        client = self._world.client(name)
        for member, work in self._taken.pop(name, []):
            client.done(member, work.number)

    def _members(self, client: ClientHost) -> list[Membership]:
        members = [member for member, _ in client.memberships.values() if not member.left]
        if not members:
            raise UsageError(f"{client.name} is no member of a queue group: let it join")
        return members

    def _read(self, client: ClientHost, member: Membership) -> None:
        while member.address not in self._by_hand and client.take(member):
            pass

    def _work(self, client: ClientHost, member: Membership, work: Work) -> None:
        one = work.notification
        what = f"{one.publisher} {one.number} {attributes_text(one.attributes)}"
        again = f", redelivered {work.redelivered}" if work.redelivered else ""
        self._trace.line(f"{client.name} <=", f"{what} ({member.name}{again})")
        if member.address in self._by_hand:
            self._taken.setdefault(client.name, []).append((member, work))
        else:
            client.done(member, work.number)

    # Requests

    def reply(self, name: str, attributes: dict[str, Value]) -> None:
        """To the oldest request that it has not answered."""
        client = self._world.client(name)
        if not self._requests.get(name):
            raise UsageError(f"{name} has no request that it has not answered")
        client.reply(self._requests[name].pop(0), attributes)

    def _on_request(self, client: ClientHost, request: Notification) -> None:
        self._requests.setdefault(client.name, []).append(request)

    def _on_answer(self, client: ClientHost, answer: Answered) -> None:
        what = f"no answer to request {answer.request}: {answer.reason}"
        if answer.reply is not None:
            said = f"{answer.reply.publisher}: {attributes_text(answer.reply.attributes)}"
            what = f"answer to request {answer.request} of {said}"
        self._trace.line(f"{client.name} <=", what)
