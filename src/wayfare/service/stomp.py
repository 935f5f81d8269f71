"""STOMP 1.2, as ActiveMQ speaks it: a JMS broker, with selectors.

A subscription is a destination, or a destination and a selector: `/topic/news ? price > 40`. In
STOMP every property is a text, and ActiveMQ reads it as a number of the kind it is compared
with: `price > 40` matches 41, and `price > 40.0` also 40.5.

All subscriptions are durable ones of JMS, acknowledged one by one when `deliver` has returned. So
the broker keeps what comes for a client that is away, as long as it runs itself: publications
are not written to its disk. Nobody can ask it which subscriptions a client has; so there are notes
of them (`stomp_notes`).

A broker sends a copy for each subscription that matches, and in a network of brokers each hop
makes more of them, if topics of one client overlap: only the first one counts.

The library has a thread that reads. What it reads goes to the event loop by one bridge, and what
is sent goes through one thread of our own, for a broker that is short of memory does not read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any

from stomp import StompConnection12
from stomp.exception import StompException

from wayfare.errors import Closed, Refused, UsageError
from wayfare.service import line
from wayfare.service.addresses import ANYBODY, Place, Scheme, place
from wayfare.service.headers import headers, read
from wayfare.service.inbox import Inbox
from wayfare.service.line import CLOSING_S, Line
from wayfare.service.stomp_notes import Notes
from wayfare.service.system import Access, Deliver, Lost, Publication, Traits, unfit

SCHEMES = {"stomp": Scheme(61613, safe="stomp+ssl"), "stomp+ssl": Scheme(61612, tls=True)}
TOPIC = "/topic/"
AHEAD_MAX = 100  # publications of a subscription that are sent ahead of acknowledgements
# ... to a client proxy, which takes all that comes: as many as ActiveMQ allows. If some waited at the broker, those of
# another subscription would overtake them, and a ping would prove nothing.
PROXY_AHEAD_MAX = 32_766
AHEAD_BYTES_MAX = 64 * 1024 * 1024  # of them: then the broker is not read on until a disk has some
CROSS_MAX = 100  # frames that are taken before others have their turn
BRIDGE_MAX = 1_000  # frames between the thread that reads and the event loop
SEEN_MAX = 32_766  # publications whose copies are known: all of one subscription may come first
NOTES_MAX = 1_000  # notes that were left behind
HEADER_MAX = 10_240  # bytes of a property with its name
TEXT_MAX = 5_000  # bytes of a destination or a subscription: some characters are written as two
HEADERS_MAX = 990  # properties; a broker takes 1,000 headers
TOO_LARGE = re.compile("maximum .* exceeded")  # as ActiveMQ says it
BEAT_MS = 10_000
NOTES_ID = "notes"
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
LITERAL = re.compile(r"'(?:[^']|'')*'")
# Headers that STOMP and JMS have themselves. Properties of such a name get a prefix: some of
# them, with a value that makes no sense, cost the publisher its connection.
RESERVED = re.compile(
    r"JMS.*|AMQ.*|wayfare\..*|ack|browser|content-length|content-type|correlation-id|destination"
    r"|expires|id|message-id|original-destination|persistent|priority|receipt|receipt-id"
    r"|redelivered|reply-to|selector|subscription|timestamp|transaction|transformation.*|type"
)
PREFIX = "wayfare."

# What goes wrong is told in a sentence, where it matters.
logging.getLogger("stomp.py").setLevel(logging.CRITICAL)

Frame = Any  # of the library: cmd, headers, body


class Stomp:
    scheme = "stomp"
    trust = ANYBODY
    traits = Traits(suspends=True)

    def check(self, subscription: str) -> None:
        destination, mark, selector = split(subscription)
        reason = complaint(destination) or complaint(subscription, destination)
        if not reason and mark and not selector:
            reason = "there is no selector after the ?"
        if not reason and "'" in LITERAL.sub("", selector):
            reason = "a quote in its selector is not closed"
        if reason:
            raise UsageError(f"{subscription!r:.80} is no STOMP subscription: {reason}")

    def topic(self, *words: str) -> str:
        return TOPIC + ".".join(words)

    def subscription(self, topic: str) -> str:
        return topic

    async def open(
        self,
        address: str,
        name: str,
        deliver: Deliver,
        lost: Lost,
        *,
        resume: bool = False,
        lasting: bool = False,
    ) -> Access:
        ahead = PROXY_AHEAD_MAX if lasting else AHEAD_MAX
        access = StompAccess(place(address, SCHEMES, self.trust), name, deliver, lost, ahead)
        await access.connect(resume)
        return access


def split(subscription: str) -> tuple[str, str, str]:
    destination, mark, selector = subscription.partition("?")
    return destination.strip(), mark, selector.strip()


def complaint(text: str, destination: str | None = None) -> str | None:
    """Say why this can be neither destination nor, with its destination, subscription."""
    name = (text if destination is None else destination).removeprefix(TOPIC)
    if CONTROL.search(text):
        return "it has a control character"
    if not (destination or text).startswith(TOPIC) or not name:
        return f"its destination is empty: write {TOPIC}name"
    if "," in name:
        return "its destination has a comma: ActiveMQ takes that for several"
    return unfit(text, TEXT_MAX)


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


class StompAccess(Line):
    def __init__(self, place: Place, name: str, deliver: Deliver, lost: Lost, ahead: int) -> None:
        super().__init__(place, lost)
        for text in (name, place.user or "", place.password or ""):
            if CONTROL.search(text):
                raise UsageError("a name or password for STOMP has no control characters")
        self._name, self._deliver = name, deliver
        self._loop = asyncio.get_running_loop()
        self._connection = StompConnection12(
            [(place.host, place.port)],
            prefer_localhost=False,
            try_loopback_connect=False,
            reconnect_sleep_initial=0,
            reconnect_attempts_max=1,
            timeout=line.ANSWER_S,
            heartbeats=(BEAT_MS, BEAT_MS),
            auto_decode=False,
        )
        if place.tls:
            cert, key = place.trust.cert or (None, None)
            self._connection.set_ssl([(place.host, place.port)], key, cert, place.trust.ca or None)
        self._bridge = Bridge(self._loop, self._on_frame, failed=self.confused, full=self._is_ahead)
        self._connection.set_listener("wayfare", self._bridge)
        self._sender = ThreadPoolExecutor(1, "stomp-sender")
        self._unsent: deque[Callable[[], object]] = deque()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._disconnected = asyncio.Event()
        self._answers: dict[str, asyncio.Future[None]] = {}
        self._numbers = count(1)
        self._subscribed: dict[str, str] = {}  # subscription -> its id in this connection
        self._seen: dict[str, None] = {}  # publications that came last
        self._ahead = ahead  # publications of one subscription
        self._unacknowledged = 0
        self._ahead_bytes = 0  # of payloads that were not given on
        self._ends = False  # what comes is of no interest any more
        self._sizes: dict[int, int] = {}  # bytes of publications that are not answered
        self._notes = Notes(f"/queue/wayfare.{digest(f'{name}@{place}')}")
        self._noting = asyncio.Lock()
        # Whether the broker had kept what was subscribed to, and what came; None: nobody knows.
        self.resumed: bool | None = False
        self._said = ""  # the last complaint of the broker
        self._inbox: Inbox[tuple[Publication, str]] = Inbox(self._give, failed=self.end)
        self._stopping: asyncio.Future[None] | None = None

    # ---- coming and going -------------------------------------------------------------

    async def connect(self, resume: bool) -> None:
        try:
            await self._loop.run_in_executor(self._sender, self._connect)
            await self.answer(self._connected)
            await self._pick_up(resume)
            self.welcome()
        except (Closed, Refused) as error:
            await self._hang_up("given up")
            raise self.place.unanswered(self._said or self.gone or error) from None
        except BaseException:
            await self._hang_up("given up")
            raise

    def _connect(self) -> None:
        try:
            self._connection.connect(
                self.place.user, self.place.password, headers={"client-id": self._name}
            )
        except (StompException, OSError, TypeError):  # the last one, when it is closed at once
            raise self.place.unanswered(self._why()) from None
        with suppress(AttributeError, OSError):  # it may be gone already
            self._connection.transport.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.gone is not None:
            self._stop()

    def _why(self) -> object:
        """The library says that nobody answers, whatever it is: try again without it."""
        security, host = self.place.security(), self.place.host
        if security is not None:
            try:
                with (
                    socket.create_connection((host, self.place.port), line.ANSWER_S) as plain,
                    security.wrap_socket(plain, server_hostname=host),
                ):
                    pass
            except ssl.SSLError as error:
                return error
            except OSError:
                pass
        return "nobody answers"

    async def _pick_up(self, resume: bool) -> None:
        """Find out what was left by an earlier connection, and go on or clean up."""
        await self._ask(
            self._connection.subscribe,
            self._notes.queue,
            NOTES_ID,
            "client-individual",
            {"activemq.prefetchSize": NOTES_MAX},
        )
        await self._note(None)
        left, kept = self._notes.left()
        if left and resume:
            self.resumed = kept
            await self._begin(left)
            await self._note(left)
        elif left:
            # It does not matter if somebody has removed one before.
            await asyncio.gather(*map(self._forget, left), return_exceptions=True)
            await self._note([])

    async def close(self, *, suspend: bool = False) -> None:
        self._take_no_more()
        if self.gone is None:
            with suppress(Closed, Refused, TimeoutError):
                if not suspend:
                    await self._unsubscribe(list(self._subscribed))
                    for one in self._notes.all():
                        self._send(self._connection.ack, one)
                async with asyncio.timeout(CLOSING_S):
                    self.leave("it was closed")
                    self._send(self._connection.disconnect)
                    await self._disconnected.wait()
            await self._hang_up("it was closed")
        if self._stopping is not None:
            await self._stopping

    async def _hang_up(self, reason: str) -> None:
        if self.leave(reason) or self._stopping is None:
            self.cut()
        assert self._stopping is not None
        await self._stopping

    def _take_no_more(self) -> None:
        """Give nothing on any more, but hear what is said of the end."""
        self._ends = True
        self._inbox.stop()
        self._bridge.resume()

    def _is_ahead(self) -> bool:
        return self._ahead_bytes > AHEAD_BYTES_MAX and not self._ends

    def cut(self) -> None:
        self._take_no_more()
        self._stopping = self._loop.run_in_executor(None, self._stop)

    def _stop(self) -> None:
        """End the connection and its threads, if need be without a goodbye."""
        transport = self._connection.transport
        with suppress(Exception):  # of a library that closes what it has closed before
            if self.place.tls:  # it would wait for an answer to its goodbye, however long
                transport.socket.shutdown(socket.SHUT_RDWR)
        with suppress(Exception):
            transport.disconnect_socket()
        self._sender.shutdown(wait=False)  # it may wait for an answer yet
        if transport.io_thread is not None:
            transport.io_thread.join(CLOSING_S)

    # ---- what comes -------------------------------------------------------------------

    def _on_frame(self, kind: str, frame: Frame) -> None:
        if kind == "message":
            self._on_message(frame.headers, frame.body or b"")
        elif kind == "receipt":
            self._answer(frame.headers.get("receipt-id"), None)
        elif kind == "error":
            self._said = str(frame.headers.get("message", "it says ERROR"))
            self._answer(frame.headers.get("receipt-id"), self._said)
        elif kind == "connected":
            if not self._connected.done():
                self._connected.set_result(None)
        else:
            self._disconnected.set()
            self.end(self._said or "the broker closed the connection")

    def _answer(self, receipt: str | None, refusal: str | None) -> None:
        answer = self._answers.pop(receipt or "", None)
        if answer is None or answer.done():
            return
        if refusal is None:
            answer.set_result(None)
        else:
            answer.set_exception(Refused(refusal))

    def _on_message(self, found: dict[str, str], body: bytes) -> None:
        acknowledgement = found.get("ack", "")
        if found.get("subscription") == NOTES_ID:
            self._notes.take(acknowledgement, found.get("message-id", ""), body)
            return
        if self.gone is not None:
            return
        if not self._is_new(found.get("message-id", "")):
            self._send(self._connection.ack, acknowledgement)
            return
        self._unacknowledged += 1
        self._ahead_bytes += len(body)
        if self._unacknowledged > self._ahead * (len(self._subscribed) + 1):
            self.end("the broker sends more than was asked for")
            return
        properties, mark = read(
            (name.removeprefix(PREFIX), value)
            for name, value in found.items()
            if name.startswith(PREFIX) or not RESERVED.fullmatch(name)
        )
        publication = Publication(found.get("destination", ""), body, properties, mark)
        self._inbox.put((publication, acknowledgement))

    def _is_new(self, number: str) -> bool:
        """Whether no copy of this publication came before."""
        if number in self._seen:
            return False
        self._seen[number] = None
        if len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return True

    async def _give(self, item: tuple[Publication, str]) -> None:
        publication, acknowledgement = item
        await self._deliver(publication)
        self._ahead_bytes -= len(publication.payload)
        self._bridge.resume()
        if self.gone is None:
            self._unacknowledged -= 1
            self._send(self._connection.ack, acknowledgement)

    # ---- what is sent -----------------------------------------------------------------

    def _send(self, function: Callable[..., object], *arguments: object) -> None:
        self._unsent.append(partial(function, *arguments))
        if len(self._unsent) == 1:
            self._sender.submit(self._send_all)

    def _send_all(self) -> None:
        with suppress(Exception):  # then the connection is gone, as the library tells, too
            while self._unsent:
                self._unsent.popleft()()

    async def _ask(self, function: Callable[..., object], *arguments: Any) -> None:
        """Send a frame, the last argument are its headers, and wait for the answer."""
        self.alive()
        receipt = str(next(self._numbers))
        answer = self._answers[receipt] = self._loop.create_future()
        *first, asked = arguments
        self._send(function, *first, {**asked, "receipt": receipt})
        try:
            await self.answer(answer)
        finally:
            self._answers.pop(receipt, None)

    async def _note(self, subscriptions: list[str] | None) -> None:
        """Write down what is subscribed to, and drop what was written before.

        Without any, this only tells that all there was has been read.
        """
        async with self._noting:
            body, came = self._notes.write(subscriptions)
            asked = {"persistent": "true"}
            await self._ask(self._connection.send, self._notes.queue, body, None, asked)
            await self.answer(came)
        if subscriptions is not None:
            for one in self._notes.older():
                self._send(self._connection.ack, one)

    # ---- what the service calls -------------------------------------------------------

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        new = [text for text in dict.fromkeys(subscriptions) if text not in self._subscribed]
        self.alive()
        if new:
            await self._note([*self._subscribed, *new])
            await self._begin(new)

    async def _begin(self, subscriptions: Sequence[str]) -> None:
        asking = [self._begin_one(text) for text in subscriptions]
        done = await asyncio.gather(*asking, return_exceptions=True)
        for error in filter(None, done):
            if isinstance(error, Refused):
                await self._note(list(self._subscribed))
            raise error

    async def _begin_one(self, text: str) -> None:
        destination, _, selector = split(text)
        number = self._subscribed[text] = f"s{next(self._numbers)}"
        asked = {"activemq.subscriptionName": digest(text), "activemq.prefetchSize": self._ahead}
        if selector:
            asked["selector"] = selector
        try:
            await self._ask(
                self._connection.subscribe, destination, number, "client-individual", asked
            )
        except Refused as error:
            del self._subscribed[text]
            raise Refused(f"{self.place} refuses {text!r:.80}: {error}") from None

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        self.alive()
        await self._unsubscribe([text for text in subscriptions if text in self._subscribed])
        await self._note(list(self._subscribed))

    async def _unsubscribe(self, subscriptions: Sequence[str]) -> None:
        numbers = [self._subscribed.pop(text) for text in subscriptions]
        ended = (self._ask(self._connection.unsubscribe, number, {}) for number in numbers)
        await asyncio.gather(*ended)
        await asyncio.gather(*map(self._forget, subscriptions))

    async def _forget(self, text: str) -> None:
        """Remove a durable subscription that nobody uses."""
        name = digest(text)
        await self._ask(self._connection.unsubscribe, name, {"activemq.subscriptionName": name})

    async def publish(self, publication: Publication) -> None:
        topic = publication.topic
        reason = complaint(topic)
        if reason or "*" in topic or ">" in topic:
            reason = reason or "* and > are for subscriptions"
            raise UsageError(f"{topic!r:.80} is no STOMP topic: {reason}")
        made: dict[str, object] = {
            (PREFIX + name if RESERVED.fullmatch(name) else name).replace("\\", "\\\\"): value
            for name, value in headers(publication)
        }
        if len(made) > HEADERS_MAX:
            raise UsageError(f"STOMP carries at most {HEADERS_MAX} properties, not {len(made)}")
        for name, value in made.items():
            text = f"{name}{value}"
            # Those two are written as two characters each.
            if 1 + len(text.encode()) + text.count(":") + text.count("\\") > HEADER_MAX:
                raise UsageError(f"the property {name:.60} has more than {HEADER_MAX} bytes")
        made["content-length"] = size = len(publication.payload)
        self.alive()
        number = next(self._numbers)
        self._sizes[number] = size
        try:
            await self._ask(self._connection.send, topic, publication.payload, None, made)
        except Refused as error:
            del self._sizes[number]
            raise Refused(f"{self.place} refuses {topic!r:.80}: {error}") from None
        except Closed:
            # Which one it was the broker does not say; the largest is too large in any case.
            if TOO_LARGE.search(self.gone or "") and size == max(self._sizes.values()):
                raise UsageError(f"{self.place} takes no {size} bytes: {self.gone}") from None
            raise
        del self._sizes[number]


class Bridge:
    """What the library calls in its thread, on its way to the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[str, Frame], None],
        *,
        failed: Callable[[Exception], None],
        full: Callable[[], bool],
    ) -> None:
        self._loop, self._take, self._failed, self._full = loop, take, failed, full
        self._frames: deque[tuple[str, Frame]] = deque()
        self._waits = False  # until there is room for more

    def on_connected(self, frame: Frame) -> None:
        self._put("connected", frame)

    def on_message(self, frame: Frame) -> None:
        self._put("message", frame)

    def on_receipt(self, frame: Frame) -> None:
        self._put("receipt", frame)

    def on_error(self, frame: Frame) -> None:
        self._put("error", frame)

    def on_disconnected(self) -> None:
        self._put("disconnected", None)

    def on_heartbeat_timeout(self) -> None:
        pass  # on_disconnected is called, too

    def on_send(self, frame: Frame) -> None:
        pass

    def _put(self, kind: str, frame: Frame) -> None:
        while len(self._frames) >= BRIDGE_MAX and not self._loop.is_closed():
            time.sleep(0.001)  # so the broker is not read on
        self._frames.append((kind, frame))
        if len(self._frames) == 1:
            with suppress(RuntimeError):  # there is nobody any more who wants to know
                self._loop.call_soon_threadsafe(self._cross)

    def _cross(self) -> None:
        for _ in range(min(len(self._frames), CROSS_MAX)):
            if self._full():
                self._waits = True
                return
            try:
                self._take(*self._frames.popleft())
            except Exception as error:
                self._failed(error)
        if self._frames:
            self._loop.call_soon(self._cross)

    def resume(self) -> None:
        if self._waits and not self._full():
            self._waits = False
            self._loop.call_soon(self._cross)
