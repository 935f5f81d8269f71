"""What replicators of different brokers say to each other: directly, over connections of their own.

    Post(broker, message)  ->  waits  ->  Hello (Challenge, Proof) Peer, message ...   ->  Posted(broker, message)

Each way has its own connection, which is made when it is needed and closed when it is not. Nothing is sent twice:
what cannot be sent is dropped, and counted. The leases of virtual clients see to the rest.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from wayfare.core.codec import encode
from wayfare.core.messages import (
    AnyMessage,
    BrokerId,
    Challenge,
    Hello,
    Peer,
    Peers,
    Ping,
    Proof,
    Recalled,
    Refused,
)
from wayfare.errors import UsageError
from wayfare.net.addresses import Address
from wayfare.net.connection import Connection, Owner, Traffic
from wayfare.net.door import Door
from wayfare.net.limits import NetLimits
from wayfare.net.logs import printable, tell
from wayfare.net.wire import explained

IDLE_S = 60.0  # without a word from a replicator; then its connection is closed
RETRY_S = (0.2, 30.0)  # after a failed call, growing
CALL_S = 5.0  # until a call has failed
WAITING_MAX = 1_000  # messages for a broker that is being called
WAITING_BYTES_MAX = 8 * 1024 * 1024  # of them

logger = logging.getLogger("wayfare.broker")


class Way:
    """The way to one other broker."""

    __slots__ = (
        "bytes",
        "called_at",
        "connection",
        "open",
        "retry_at",
        "used_at",
        "wait",
        "waiting",
    )

    def __init__(self) -> None:
        self.connection: Connection | None = None  # on its way to be open, or open
        self.open = False  # it was told what we are
        self.waiting: deque[bytes] = deque()  # until it is
        self.bytes = 0
        self.called_at = self.used_at = 0.0
        self.retry_at = 0.0  # not before that it is called again
        self.wait = RETRY_S[0]


class PeerNet:
    """The ways from one broker to all others, and theirs to it."""

    def __init__(
        self,
        name: str,
        host: Owner,
        door: Door,
        limits: NetLimits,
        posted: Callable[[BrokerId, Peers], None],
    ) -> None:
        """`host` owns the turns of the loop; `posted` is told what comes."""
        self.sent = self.dropped = self.heard = 0  # messages
        self.traffic = Traffic()
        self.trouble: dict[str, str] = {}  # why what is for a broker is dropped
        self.incoming: dict[Connection, BrokerId] = {}
        self._name, self._host, self._door, self._limits = name, host, door, limits
        self._posted = posted
        self._addresses: dict[str, Address] = {}
        self._ways: dict[BrokerId, Way] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def meet(self, addresses: Mapping[str, Address | None]) -> None:
        """These brokers are there; without an address, they may come, and nothing can be said to them."""
        known = {name: there for name, there in addresses.items() if name != self._name}
        self._addresses |= {name: there for name, there in known.items() if there is not None}
        self._door.expect({*self._addresses, *known})

    @property
    def addresses(self) -> Mapping[str, Address]:
        return self._addresses

    def connections(self) -> Iterable[Connection]:
        """All that are open."""
        ways = [way.connection for way in self._ways.values() if way.open and way.connection]
        return [*self.incoming, *ways]

    # Out

    def post(self, broker: BrokerId, message: Peers) -> None:
        address = self._addresses.get(broker)
        if address is None:
            self._drop(broker, 1, "nobody knows its address: name it in [peers]")
            return
        way = self._ways.setdefault(broker, Way())
        now = way.used_at = time.monotonic()
        frame = encode(message)
        if way.open and way.connection is not None:
            self.sent += 1
            way.connection.send(frame)
        elif way.connection is None and now < way.retry_at:
            self.dropped += 1
        elif len(way.waiting) >= WAITING_MAX or way.bytes + len(frame) > WAITING_BYTES_MAX:
            self._drop(broker, 1, "it does not answer, and too much waits for it")
        else:
            way.waiting.append(frame)
            way.bytes += len(frame)
            if way.connection is None:
                self._call(broker, way, address)

    def _call(self, broker: BrokerId, way: Way, address: Address) -> None:
        way.called_at = time.monotonic()
        way.connection = Connection(self, self._name, self._limits, stranger=True, called=True)
        task = asyncio.get_running_loop().create_task(self._connect(broker, way, address))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _connect(self, broker: BrokerId, way: Way, address: Address) -> None:
        connection, loop = way.connection, asyncio.get_running_loop()
        assert connection is not None
        try:
            tls = self._door.outwards() if address.tls else None
            async with asyncio.timeout(CALL_S):
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=tls
                )
        except (OSError, UnicodeError, UsageError) as error:  # TimeoutError is an OSError
            why = explained(error) or f"no answer within {CALL_S:g} s"
            self._fail(broker, way, f"{address}: {why}")

    def _fail(self, broker: BrokerId, way: Way, why: str) -> None:
        """What waits is lost; and it is not called again for a while."""
        count = len(way.waiting)
        way.connection, way.open, way.bytes = None, False, 0
        way.waiting.clear()
        way.retry_at = time.monotonic() + way.wait * random.uniform(0.5, 1.0)
        way.wait = min(2 * way.wait, RETRY_S[1])
        self._drop(broker, count, why)

    def _drop(self, broker: str, count: int, why: str) -> None:
        self.dropped += count
        if self.trouble.get(broker) != why:
            self.trouble[broker] = why
            tell(
                logger,
                logging.WARNING,
                "not_posted",
                "%(broker)s cannot tell %(peer)s what it has to listen to: %(reason)s",
                broker=self._name,
                peer=broker,
                reason=printable(why),
            )

    def _opened(self, broker: BrokerId, way: Way) -> None:
        """It knows, or will know in a moment, that we are a peer: send what waits."""
        connection = way.connection
        assert connection is not None
        connection.admit(f"~{broker}")
        connection.count_in(self.traffic)
        connection.send(encode(Peer()))
        self.sent += len(way.waiting)
        for frame in way.waiting:
            connection.send(frame)
        way.waiting.clear()
        way.open, way.bytes = True, 0

    # In

    def admit(self, connection: Connection) -> bool:
        """A stranger says that it is a peer; False if it is refused."""
        if not self._door.knows(connection):
            return False
        connection.owner = self
        connection.admit(f"~{connection.peer}")
        connection.count_in(self.traffic)
        self.incoming[connection] = BrokerId(connection.peer)
        return True

    # What connections report

    def on_connected(self, connection: Connection) -> None:
        """We have called."""

    def on_messages(self, connection: Connection, messages: list[AnyMessage]) -> None:
        broker = self.incoming.get(connection)
        for message in messages:
            if connection.closing:
                return
            if type(message) is Ping:
                connection.answer(message)
                if broker is None:
                    self._is_well(connection)
            elif broker is None:
                self._answered(connection, message)
            elif not isinstance(message, Peers):
                connection.refuse(f"{type(message).__name__} from a peer")
            elif not isinstance(message, Recalled) and message.broker not in ("", broker):
                connection.refuse(f"{broker} speaks for {message.broker}")
            else:
                self.heard += 1
                self._posted(broker, message)

    def _to(self, connection: Connection) -> tuple[BrokerId, Way] | None:
        """Whom we called by this connection."""
        for broker, way in self._ways.items():
            if way.connection is connection:
                return broker, way
        return None

    def _is_well(self, connection: Connection) -> None:
        """It beats, so it takes what we say."""
        if (found := self._to(connection)) is not None:
            broker, way = found
            way.wait = RETRY_S[0]
            self.trouble.pop(broker, None)

    def _answered(self, connection: Connection, message: AnyMessage) -> None:
        """Whom we called has said something."""
        if (found := self._to(connection)) is None:
            return
        broker, way = found
        door, kind = self._door, type(message).__name__
        if isinstance(message, Refused):
            self._fail(broker, way, f"it refused: {message.reason}")
            connection.close(message.reason)
        elif way.open or not isinstance(message, Hello | Challenge | Proof):
            connection.refuse(f"{kind} from a peer that was called")
        elif not isinstance(message, Hello):
            if door.prove(connection, message) and door.trusts(connection):
                self._opened(broker, way)
        elif message.name != broker:
            connection.refuse(f"{broker} was called, and {message.name} is there: see to [peers]")
        elif not door.challenge(connection, broker) and door.trusts(connection):
            self._opened(broker, way)

    def on_closing(self, connection: Connection) -> None:
        self._host.on_closing(connection)

    def on_closed(self, connection: Connection) -> None:
        self._host.on_closed(connection)
        self.incoming.pop(connection, None)
        if (found := self._to(connection)) is None:
            return
        broker, way = found
        if way.open:  # it is called again when there is something to say
            way.connection, way.open = None, False
        else:
            self._fail(broker, way, connection.reason or "it closed the connection")

    def on_output(self, connection: Connection) -> None:
        self._host.on_output(connection)

    # Time

    def beat(self) -> None:
        """Close what nobody has used for a while, and who does not say what it is."""
        now = time.monotonic()
        for way in self._ways.values():
            if way.connection is None:
                continue
            if way.open and now - way.used_at > IDLE_S:
                way.connection.close("nothing to say")
            elif not way.open and now - way.called_at > 2 * CALL_S:
                way.connection.abort("it does not say what it is")

    async def stop(self) -> None:
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for connection in self.connections():
            connection.close(f"{self._name} stops")
