"""Connections between client libraries and mobility proxies: frames of messages over TCP, or TLS.

A frame is four bytes of length, then a message. Whatever comes is hostile until it was decoded: who sends
something else, too much at once, or does not read, is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from struct import Struct

from wayfare.errors import CannotConnect, CodecError, UsageError
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.addresses import ANYBODY, context_of, distrusted
from wayfare.service.proxy_addresses import TLS, Permit, Place, anywhere, is_safe, where
from wayfare.service.secret import Secret
from wayfare.service.system import Trust

UNWRITTEN_MAX = 4 * m.FRAME_MAX  # bytes that the other end has not read: then it is cut off
WAITING_MAX = (
    4 * m.FRAME_MAX
)  # bytes for a proxy that is being called: then it is not called any more
WRITE_S = 20.0  # that the other end may take to read on
DIAL_S = 5.0  # until a proxy that does not answer counts as unreachable
HELLO_S = 10.0  # that who connects has for a first message
IDLE_S = 900.0  # that who speaks for no client may say nothing; who moves in by a slow link is silent for long
UNNAMED_S = 2.0  # that a call takes which fails, to a proxy that the operator has not named
LINGER_S = 2.0  # that a connection which is left has to get rid of what was sent
WIRES_MAX = 20_000  # connections of others to one proxy, if it may have twice as many files open
STRANGER = "#"  # how the names of peers begin that connected to us

NO_ANSWER = "no mobility proxy answers there, or this one may not call it (its log says which)"

log = logging.getLogger(__name__)
_length = Struct(">I")


class Wire(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        peer: str,
        received: Callable[[str, m.Message], None],
        gone: Callable[[Wire, str], None],
        made: Callable[[Wire], None] = lambda _: None,
    ) -> None:
        self.peer = peer
        self.address = ""  # of the other end, without its port
        self._received = received
        self._gone = gone
        self._made = made
        self._was_heard = False
        self._is_held = False  # what comes stays undecoded
        self._idle_s: float | None = None  # that it may say nothing; else as long as it likes
        self._paused = False  # the other end does not read on
        self._bytes = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(
            socket, "TCP_USER_TIMEOUT"
        ):  # who is not there any more is noticed by what is sent
            timeout = round(WRITE_S * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
        self._made(self)

    def expect(self) -> None:
        """Somebody connected: they have to say something soon."""
        self._idle_s = IDLE_S
        self._limit(HELLO_S, "it said nothing")

    def be_patient(self, patient: bool) -> None:
        """Whether it may be silent for as long as it likes."""
        if patient != (self._idle_s is None):
            self._idle_s = None if patient else IDLE_S
            self._rest()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._was_heard = True
        self._bytes += data
        self._decode()

    def hold(self) -> None:
        """Decode nothing but the answers to the greeting, until `release`."""
        self._is_held = True

    def release(self) -> None:
        """The greeting is over: decode what followed its last answer, and what comes from now on."""
        self._is_held = False
        self._decode()

    def _decode(self) -> None:
        at = 0
        while len(self._bytes) - at >= 4 and not self._ended and not self._is_held:
            (length,) = _length.unpack_from(self._bytes, at)
            if length > m.FRAME_MAX:
                self.abort(f"a frame of {length} bytes: there are at most {m.FRAME_MAX}")
                return
            if len(self._bytes) - at - 4 < length:
                break
            try:
                message = m.decode(bytes(self._bytes[at + 4 : at + 4 + length]))
            except CodecError as error:
                self.abort(str(error))
                return
            at += 4 + length
            self._rest()
            self._received(self.peer, message)
        del self._bytes[:at]

    async def greeted(self, secret: Secret | None = None) -> None:
        """Say hello, and wait until it turns out to be a mobility proxy; ConnectionError if not.

        With a secret, both ends have to prove that they know it. A held connection stays held: until the proof
        was checked, only the answer to each question is decoded, and anything else ends the connection.
        """
        welcome = await self._answer_to(m.Hello("?"))
        if self._ended or not isinstance(welcome, m.Welcome):
            raise ConnectionError("it is no mobility proxy")
        if secret:
            call = secret.call(self.peer)
            proof = call.proof(await self._answer_to(call.challenge(welcome)))
            call.check(await self._answer_to(proof))

    async def _answer_to(self, question: m.Message) -> m.Message:
        """Say that, and wait for what comes next; ConnectionError if nothing does, or if something came before."""
        if self._bytes:
            raise ConnectionError("it sent a message that it was not asked for during the greeting")
        answer: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()
        received, gone, is_held = self._received, self._gone, self._is_held

        def on_gone(_: Wire, reason: str) -> None:
            if not answer.done():
                answer.set_exception(ConnectionError(reason))

        def on_received(_: str, message: m.Message) -> None:
            self._received, self._gone, self._is_held = received, gone, is_held
            if not answer.done():
                answer.set_result(message)

        self._received, self._gone, self._is_held = on_received, on_gone, False
        self.send(question)
        return await answer

    def send(self, message: m.Message) -> None:
        self.write(m.encode(message))

    def write(self, frame: bytes) -> None:
        if self._transport is None or self._ended:
            return
        if len(frame) > m.FRAME_MAX:
            self.abort(f"a message of {len(frame)} bytes cannot be sent: {m.FRAME_MAX} at most")
            return
        self._transport.write(_length.pack(len(frame)) + frame)
        if self._transport.get_write_buffer_size() > UNWRITTEN_MAX:
            self.abort("it does not read what is sent")

    def pause_writing(self) -> None:
        self._paused = True
        self._limit(WRITE_S, f"it did not read on within {WRITE_S:.0f} s")

    def resume_writing(self) -> None:
        self._paused = False
        self._rest()

    def abort(self, reason: str) -> None:
        """Cut it off; `gone` is called with the reason."""
        self._reason = reason
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Leave, when what was sent is out. `gone` is not called."""
        self._gone = lambda *_: None
        self._ended = True
        if self._transport is not None:
            self._transport.close()
            self._limit(LINGER_S, "")

    def connection_lost(self, error: Exception | None) -> None:
        self._unlimit()
        self._ended = True
        if error is not None and not isinstance(error, OSError):
            log.error("a message could not be handled", exc_info=error)
        reason = str(error) if error is not None else self._reason
        if not self._was_heard and not self.peer.startswith((TLS, STRANGER)):
            reason += f"; if it wants TLS, call it {TLS}{self.peer}"
        self._gone(self, reason)

    def _rest(self) -> None:
        """Wait for the next word."""
        if self._ended or self._paused:
            return
        if self._idle_s is None:
            self._unlimit()
        else:
            self._limit(self._idle_s, f"it said nothing for {self._idle_s:.0f} s")

    def _limit(self, seconds: float, reason: str) -> None:
        self._unlimit()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort, reason)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Dialling:
    """A peer that is being called, and what it will be told."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.size = 0  # bytes
        self._frames: dict[object, bytes] = {}

    def put(self, message: m.Message) -> None:
        """A question that is asked again takes the place of the first."""
        key: object = object()
        if isinstance(message, m.Reach | m.Download | m.Release):
            key = type(message), message.client, message.at
        frame = m.encode(message)
        self.size += len(frame) - len(self._frames.pop(key, b""))
        self._frames[key] = frame

    def tell(self, wire: Wire) -> None:
        for frame in self._frames.values():
            wire.write(frame)


class Wires:
    """All connections of one library or proxy, by the names of the peers."""

    def __init__(
        self,
        step: Callable[[e.Event], None],
        permit: Permit = anywhere,
        trust: Trust = ANYBODY,
        most: int = WIRES_MAX,
        is_named: Callable[[str], bool] | None = None,
        secret: Secret | None = None,
    ) -> None:
        """With `is_named`, of a proxy: who is called has to be one, too, and who is not named is not told why.

        So nobody can use this proxy to find out what listens where. With a `secret`, who is called has to know it.
        """
        self._secret = secret
        self._is_named = is_named
        self.refuses: Callable[[str], str] = lambda _: ""  # why who comes from there may not
        self.dialled: Callable[[str, bool], None] = lambda *_: None  # who was called, and answered
        self._step = step
        self._most = most  # connections
        self._full = False  # and it was said that there are so many
        self._permit = permit
        self._trust = trust
        self._wires: dict[str, Wire] = {}
        self._dialling: dict[str, Dialling] = {}

    def __len__(self) -> int:
        return len(self._wires)

    def accept(self) -> Wire:
        """For who connects. Nobody can guess the name, and so nobody can name it in a message."""
        name = f"{STRANGER}{secrets.token_hex(8)}"
        return Wire(name, self._received, self._gone, self._welcome)

    def _welcome(self, wire: Wire) -> None:
        """It is there; whoever does not get through with TLS never is."""
        if reason := self.refuses(wire.address):
            wire.abort(reason)
            return
        if len(self._wires) < self._most:
            self._wires[wire.peer] = wire
            self._full = self._full and len(self._wires) > self._most * 9 // 10
            wire.expect()
            return
        wire.abort("too many connections")
        if not self._full:
            self._full = True
            log.warning(
                "%d connections are open: no more are taken until some are closed (see ulimit -n)",
                self._most,
            )

    def hang_up_on_refused(self) -> None:
        """Those who may not come any more."""
        for peer, wire in list(self._wires.items()):
            if peer.startswith(STRANGER) and (reason := self.refuses(wire.address)):
                wire.abort(reason)

    def address_of(self, peer: str) -> str:
        wire = self._wires.get(peer)
        return "" if wire is None else wire.address

    def is_connected(self, peer: str) -> bool:
        return peer in self._wires

    def be_patient(self, peer: str, patient: bool) -> None:
        if wire := self._wires.get(peer):
            wire.be_patient(patient)

    def dial(self, peer: str) -> None:
        if peer not in self._wires and peer not in self._dialling:
            self._dialling[peer] = Dialling(asyncio.create_task(self._dial(peer)))

    async def _dial(self, peer: str) -> None:
        wire = Wire(peer, self._received, self._gone)
        is_named = self._is_named is None or self._is_named(peer)
        most_s = DIAL_S if is_named else UNNAMED_S
        over_at = asyncio.get_running_loop().time() + most_s
        if self._is_named is not None:
            wire.hold()
        try:
            async with asyncio.timeout_at(over_at):
                await call(wire, await self._permit(peer), self._trust)
                if self._is_named is not None:
                    await wire.greeted(self._secret)
        except (OSError, TimeoutError, UsageError, ValueError) as error:  # of names: UnicodeError
            wire.close()
            reason = explained(error, most_s)
            if self._is_named is not None:
                log.warning("%s cannot be called: %s", peer, reason)
                reason = NO_ANSWER
            if not is_named:
                await asyncio.sleep(over_at - asyncio.get_running_loop().time())
            del self._dialling[peer]
            self.dialled(peer, False)
            self._step(e.PeerGone(peer, reason))
            return
        self.dialled(peer, True)
        self._wires[peer] = wire
        self._dialling.pop(peer).tell(wire)
        wire.release()

    def send(self, peer: str, message: m.Message) -> None:
        if dialling := self._dialling.get(peer):
            dialling.put(message)
            if dialling.size > WAITING_MAX:
                asyncio.get_running_loop().call_soon(self._give_up, peer, dialling)
        elif peer in self._wires:
            self._wires[peer].send(message)

    def _give_up(self, peer: str, dialling: Dialling) -> None:
        if self._dialling.get(peer) is dialling:
            self.hang(peer)
            self._step(e.PeerGone(peer, "too much is to be said to it, and it does not answer"))

    def hang(self, peer: str) -> None:
        if peer in self._dialling:
            self._dialling.pop(peer).task.cancel()
            self.dialled(peer, False)
        if peer in self._wires:
            self._wires.pop(peer).close()

    async def said(self, seconds: float) -> None:
        """Until those that are called have heard what waits for them; not longer than so many seconds."""
        if self._dialling:
            calls = [one.task for one in self._dialling.values()]
            await asyncio.wait(calls, timeout=seconds)

    def close(self) -> None:
        for peer in [*self._wires, *self._dialling]:
            self.hang(peer)

    def _received(self, peer: str, message: m.Message) -> None:
        self._step(e.Received(peer, message))

    def _gone(self, wire: Wire, reason: str) -> None:
        if self._wires.get(wire.peer) is wire:
            del self._wires[wire.peer]
            self._step(e.PeerGone(wire.peer, reason))


async def listen(
    wires: Wires, host: str, port: int, safety: ssl.SSLContext | None
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if safety is None:
        return await loop.create_server(wires.accept, host, port)
    return await loop.create_server(
        wires.accept,
        host,
        port,
        ssl=safety,
        ssl_handshake_timeout=HELLO_S,
        ssl_shutdown_timeout=LINGER_S,
    )


async def call(wire: Wire, place: Place, trust: Trust) -> None:
    """Connect to the peer of this wire, which is at that place; its certificate has its name."""
    loop = asyncio.get_running_loop()
    if not is_safe(wire.peer):
        transport, _ = await loop.create_connection(lambda: wire, *place)
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            wire.close()  # from the very port that we call: TCP has connected us with ourselves
            raise ConnectionRefusedError
        return
    try:
        await loop.create_connection(
            lambda: wire,
            *place,
            ssl=context_of(trust),
            server_hostname=where(wire.peer)[0],
            ssl_shutdown_timeout=LINGER_S,
        )
    except ssl.SSLCertVerificationError:
        raise
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError):
        plain = wire.peer.removeprefix(TLS)
        raise ConnectionError(f"it does not speak TLS: call it {plain}, without {TLS}") from None


def explained(error: Exception, seconds: float = DIAL_S) -> str:
    if (reason := distrusted(error)) is not None:
        return reason
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:.0f} s"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


async def ask(address: str, client: str = "?", trust: Trust = ANYBODY) -> m.Welcome:
    """Who is there? CannotConnect if it is no mobility proxy, or nobody."""
    answer: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()

    def received(_: str, message: m.Message) -> None:
        if not answer.done():
            answer.set_result(message)

    def gone(_: Wire, reason: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    wire = Wire(address, received, gone)
    try:
        async with asyncio.timeout(DIAL_S):
            await call(wire, where(address), trust)
            wire.send(m.Hello(client))
            welcome = await answer
    except (OSError, TimeoutError, UnicodeError) as error:
        raise CannotConnect(
            f"no mobility proxy answers at {address}: {explained(error)}; start one there, with:"
            " wayfare service proxy"
        ) from None
    finally:
        wire.close()
    if not isinstance(welcome, m.Welcome):
        raise CannotConnect(f"no mobility proxy is at {address}: it says something else")
    return welcome
