"""Links: latency, bandwidth with a queue, FIFO, loss with retransmission, up and down, wireless.

A link between brokers is reliable, as the live host makes it: what is lost is sent again, what was
on its way when the link went down is sent again when it is up. A client's connection is not: when it
breaks, what was on its way is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from operator import length_hint
from random import Random
from typing import Any

import msgspec

from wayfare.channel import Channel, Profile
from wayfare.core.codec import encode
from wayfare.core.effects import Received
from wayfare.core.messages import AnyMessage, LinkId
from wayfare.errors import UsageError

MS_NS = 1_000_000
SECOND_NS = 1000 * MS_NS
# Packets of a TCP connection on their way. RFC 3390, of 2002, lets 4380 bytes leave at first; 64 KiB is what a
# receiver can offer without further options.
WINDOW_FIRST, WINDOW_MOST = 3, 45


class LinkSpec(msgspec.Struct, frozen=True):
    """How a link behaves, each way."""

    latency_ns: int = 10 * MS_NS
    jitter_ns: int = 0  # up to this much more, drawn for each message
    bandwidth_bps: int | None = None  # None: no limit, nothing queues
    loss: float = 0.0  # share of transmissions that are lost
    retransmit_ns: int = 40 * MS_NS  # until a lost one is sent again
    least_bytes: int = 0  # that a message takes of the bandwidth, however short it is
    profile: Profile | None = None  # of a wireless link; all of the above comes on top of it
    tcp: bool = False  # by that link, messages go as in a Stream; else each is a packet, at once

    def __post_init__(self) -> None:
        times = (self.latency_ns, self.jitter_ns, self.retransmit_ns)
        if any(type(time) is not int or time < 0 for time in times):
            raise UsageError("the times of a link are whole nanoseconds, and not negative")
        if self.bandwidth_bps is not None and self.bandwidth_bps < 1:
            raise UsageError("the bandwidth of a link is at least 1 bit per second")
        if type(self.least_bytes) is not int or self.least_bytes < 0:
            raise UsageError("the least size of a message is whole bytes, and not negative")
        if not 0 <= self.loss < 1:
            raise UsageError(
                "the loss of a link is a share from 0 to below 1: something must arrive"
            )

    def channels(self, random: Random) -> Channels:
        """The wireless link itself, both ways, where there is one: up, and down."""
        if self.profile is None:
            return None, None
        ways = (self.profile.up, self.profile.down)
        up, down = (Channel(way, Random(random.getrandbits(64))) for way in ways)
        return up, down

    def streams(self, agenda: Agenda, channels: Channels) -> tuple[Stream | None, Stream | None]:
        """A connection over it, up and down, where there is TCP."""
        up, down = channels
        if not self.tcp or up is None or down is None:
            return None, None
        return connection(agenda, up, down)


def wireless(profile: Profile, *, tcp: bool = False) -> LinkSpec:
    """A link that is this and nothing else."""
    return LinkSpec(latency_ns=0, profile=profile, tcp=tcp)


Channels = tuple[Channel | None, Channel | None]
Action = tuple[Callable[[Any], None], Any]  # what to call, with what


class Agenda:
    """What happens when. What happens at the same time happens in the order in which it was said.

    A heap of times and a list of actions for each: cheaper than a heap of all actions, and
    ties are in order by themselves.
    """

    __slots__ = ("_due", "_left", "actions", "now", "times")

    def __init__(self) -> None:
        self.now = 0
        # Invariant: the heap holds the keys of `actions`, each once.
        self.times: list[int] = []
        self.actions: dict[int, list[Action]] = {}
        self._due: list[Action] = []  # what happens now
        self._left = iter(self._due)  # ... and has not happened yet

    def at(self, time: int, action: Callable[[Any], None], argument: Any = None) -> None:
        time = max(time, self.now)
        actions = self.actions.get(time)
        if actions is None:
            self.actions[time] = [(action, argument)]
            heappush(self.times, time)
        else:
            actions.append((action, argument))

    def run_until(self, time: int, most: float = inf) -> int:
        """Let everything happen up to this time, or about so many actions; says how many it was."""
        times, actions = self.times, self.actions
        done = 0
        while times and times[0] <= time:
            if done >= most:
                return done
            self.now = now = heappop(times)
            self._due = due = actions.pop(now)
            self._left = left = iter(due)
            for action, argument in left:
                action(argument)
            done += len(due)
        self.now = max(self.now, time)
        return done

    def cancel(self, is_meant: Callable[[Action], bool]) -> None:
        """Let nothing of this happen that is planned."""
        for _, due, done in self.ahead(max(self.times, default=self.now)):
            for at in range(done, len(due)):
                if is_meant(due[at]):
                    due[at] = (_nothing, None)  # not removed: the list may be under way

    def ahead(self, until: int) -> Iterator[tuple[int, list[Action], int]]:
        """Times up to this one with their actions, in order, and from which one on they are to come."""
        yield self.now, self._due, len(self._due) - length_hint(self._left)
        for time in sorted(time for time in self.actions if time <= until):
            yield time, self.actions[time], 0

    def next(self) -> int | None:
        return self.times[0] if self.times else None

    def __len__(self) -> int:
        return sum(map(len, self.actions.values()))


def _nothing(argument: Any) -> None:
    pass


class Stream:
    """One direction of a TCP connection over a wireless link: some packets on their way, the rest waits.

    What waits together shares packets, and what another connection sends has its turn in between. The window is that
    of slow start, and nothing shrinks it: the link loses nothing. Acknowledgements take time, and no bandwidth.
    """

    __slots__ = (
        "_agenda",
        "_back_ns",
        "_called",
        "_channel",
        "_dead",
        "_left",
        "_waiting",
        "_window",
        "under_way",
    )

    def __init__(self, agenda: Agenda, channel: Channel, back_ns: int) -> None:
        self._agenda, self._channel, self._back_ns = agenda, channel, back_ns
        self._waiting: deque[tuple[int, Action]] = deque()  # how many bytes, and what to call
        self._left = 0  # bytes of the first one that have left already
        self._window = WINDOW_FIRST
        self._called = self._dead = False
        self.under_way = 0  # packets that are not acknowledged

    def send(self, size: int, then: Callable[[Any], None], argument: Any) -> None:
        """So many bytes wait to leave; `then` is called when the last of them is there."""
        self._waiting.append((size, (then, argument)))
        if not self._called:  # what is sent at the same time goes together
            self._called = True
            self._agenda.at(self._agenda.now, self._go_on)

    def cut(self) -> None:
        """Nothing arrives any more."""
        self._dead = True
        self._waiting.clear()
        self.under_way = 0

    def __len__(self) -> int:
        return len(self._waiting) + self.under_way

    def _go_on(self, _: None) -> None:
        self._called = False
        while self._waiting and self.under_way < self._window:
            size, ended = self._packet()
            self.under_way += 1
            self._agenda.at(self._channel.send(self._agenda.now, size), self._arrived, ended)

    def _packet(self) -> tuple[int, list[Action]]:
        """As many of the bytes that wait as fit, and whose last one is among them."""
        filled, most = 0, self._channel.direction.payload
        ended: list[Action] = []
        while self._waiting:
            size, action = self._waiting[0]
            rest = size - self._left
            if filled + rest > most:
                self._left += most - filled
                return most, ended
            filled += rest
            self._left = 0
            ended.append(action)
            self._waiting.popleft()
        return filled, ended

    def _arrived(self, ended: list[Action]) -> None:
        if not self._dead:
            self._agenda.at(self._agenda.now + self._back_ns, self._acknowledged)
            for then, argument in ended:
                then(argument)

    def _acknowledged(self, _: None) -> None:
        if self._dead:
            return
        self.under_way -= 1
        self._window = min(self._window + 1, WINDOW_MOST)
        self._go_on(None)


def connection(agenda: Agenda, up: Channel, down: Channel) -> tuple[Stream, Stream]:
    """Both directions of a TCP connection over these channels."""
    return (
        Stream(agenda, up, down.direction.latency_ns),
        Stream(agenda, down, up.direction.latency_ns),
    )


class Pipe:
    """One direction of a link.

    What is on its way is on the agenda, and nowhere else: `_recall` takes it from there when the link
    goes down, which is rare.
    """

    __slots__ = (
        "_actions",
        "_agenda",
        "_careful",
        "_channel",
        "_down",
        "_free_at",
        "_gone",
        "_held",
        "_knows_last",
        "_last_arrival",
        "_latency_ns",
        "_random",
        "_stream",
        "_times",
        "bytes",
        "link",
        "messages",
        "receive",
        "spec",
        "worst_ns",
    )

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        spec: LinkSpec,
        link: LinkId,
        receive: Callable[[Received], None],
        channel: Channel | None = None,
        stream: Stream | None = None,
    ) -> None:
        self._agenda = agenda
        self._actions, self._times = agenda.actions, agenda.times  # at hand, for `send`
        self._random = random
        self.link = link  # what the receiving end calls it
        self.receive = receive
        self._channel = channel
        self._stream = stream  # over the channel; who has one is never cut, only dropped
        # Not on the agenda, because the link is down: what, and since when at the latest.
        self._held: list[tuple[Received, int]] = []
        self._free_at = 0  # when the last byte put on the line has left
        self._last_arrival = 0
        self._down = 0  # how many reasons there are for being down
        self._gone = False
        self.messages = 0
        self._knows_last = True
        self.bytes = 0  # counted where bandwidth is limited
        self.worst_ns = 0  # the longest that a message took
        self.shape(spec)

    def shape(self, spec: LinkSpec) -> None:
        """Behave like this from now on."""
        # Whether all that was sent counts in `_last_arrival`, and will.
        self._knows_last = self._is_limited(spec) and (not self.messages or self._knows_last)
        if self.messages:
            self._last_arrival = max(self._last_arrival, self._agenda.now + self.worst_ns)
        self.spec = spec
        self._latency_ns = spec.latency_ns
        self._set_careful()

    def _set_careful(self) -> None:
        """Whether sending needs a look at anything but the latency."""
        spec = self.spec
        overtaking = self._agenda.now + spec.latency_ns < self._last_arrival
        self._careful = self._gone or self._down > 0 or self._is_limited(spec) or overtaking
        if not self._careful:
            self.worst_ns = max(self.worst_ns, spec.latency_ns)

    def _is_limited(self, spec: LinkSpec) -> bool:
        limited = spec.bandwidth_bps is not None or self._channel is not None
        return limited or bool(spec.loss) or bool(spec.jitter_ns)

    def send(self, message: AnyMessage) -> None:
        self.messages += 1
        if self._careful:
            self._send_with_care(Received(self.link, message), self._agenda.now)
            return
        time = self._agenda.now + self._latency_ns
        actions = self._actions.get(time)
        if actions is None:
            self._actions[time] = [(self.receive, Received(self.link, message))]
            heappush(self._times, time)
        else:
            actions.append((self.receive, Received(self.link, message)))

    def _send_with_care(self, event: Received, since: int) -> None:
        if self._gone:
            return
        if self._down:
            self._held.append((event, since))
            return
        if self._stream is not None:
            self._stream.send(len(encode(event.message)), self.receive, event)
            return
        arrival = self._arrival(event.message)
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        if arrival - since > self.worst_ns:
            self.worst_ns = arrival - since
        actions = self._actions.get(arrival)  # as `Agenda.at`, which asks more
        if actions is None:
            self._actions[arrival] = [(self.receive, event)]
            heappush(self._times, arrival)
        else:
            actions.append((self.receive, event))

    def _arrival(self, message: AnyMessage) -> int:
        spec, random = self.spec, self._random
        left = self._agenda.now
        if spec.bandwidth_bps is not None:
            size = len(encode(message))
            if size < spec.least_bytes:
                size = spec.least_bytes
            self.bytes += size
            if left < self._free_at:
                left = self._free_at
            left += size * 8 * 1_000_000_000 // spec.bandwidth_bps
            self._free_at = left
        if self._channel is not None:
            left = self._channel.send(left, len(encode(message)))
        if spec.jitter_ns:
            left += random.randrange(spec.jitter_ns + 1)
        while spec.loss and random.random() < spec.loss:
            left += spec.retransmit_ns
        return left + spec.latency_ns

    def _mine(self, action: Action) -> bool:
        receive, event = action
        return receive == self.receive and type(event) is Received and event.link == self.link

    def _ahead(self) -> Iterator[tuple[int, list[Action], int]]:
        """Where on the agenda anything may be that is on its way: nothing takes longer than the worst."""
        return self._agenda.ahead(self._agenda.now + self.worst_ns)

    def _is_empty(self) -> bool:
        """Whether nothing is on its way for sure, without a look at the agenda."""
        return not self.messages or (self._knows_last and self._last_arrival < self._agenda.now)

    def __len__(self) -> int:
        """How many messages are on their way; of a stream, how many wait, and how many packets are."""
        if self._stream is not None:
            return len(self._stream)
        if self._is_empty():
            return len(self._held)
        ahead = self._ahead()
        return len(self._held) + sum(sum(map(self._mine, due[done:])) for _, due, done in ahead)

    def held(self) -> list[Received]:
        """What is sent again when the link comes up."""
        return [event for event, _ in self._held]

    def cut(self) -> None:
        """Go down; what is on its way stays with the sender. Who goes down twice comes up twice."""
        assert self._stream is None, "a client's connection is dropped"
        self._down += 1
        self._careful = True
        self._held += self._recall()

    @property
    def is_down(self) -> bool:
        return self._down > 0

    def heal(self) -> None:
        """Come up again, and send what did not arrive, in order."""
        if not self._down:
            return
        self._down -= 1
        if self._down:
            return
        self._last_arrival = self._free_at = self._agenda.now
        self._clear_channel()
        again, self._held = self._held, []
        for event, since in again:
            self._send_with_care(event, since)
        self._set_careful()

    def forget(self) -> None:
        """Begin from nothing when it comes up again: what is held for then is gone."""
        self._held.clear()

    def drop(self) -> None:
        """Go down for good; what is on its way is gone."""
        self._gone = self._careful = True
        self._recall()
        if self._stream is not None:
            self._stream.cut()
        self._held.clear()
        self._clear_channel()

    def _clear_channel(self) -> None:
        if self._channel is not None:
            self._channel.clear(self._agenda.now)

    def _recall(self) -> list[tuple[Received, int]]:
        """Take what is on its way off the agenda."""
        out: list[tuple[Received, int]] = []
        if self._is_empty():
            return out
        for time, due, done in self._ahead():
            for at in range(done, len(due)):
                if self._mine(due[at]):
                    out.append((due[at][1], time - self.worst_ns))
                    due[at] = (_nothing, None)  # not removed: the list may be under way
        return out
