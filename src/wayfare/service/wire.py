"""Connections between client libraries and mobility proxies: frames of messages over TCP, or TLS.

A frame is four bytes of length, then a message. Whatever comes is hostile until it was decoded: who sends
something else, too much at once, or does not read, is cut off.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from struct import Struct

from wayfare.errors import CannotConnect, CodecError, UsageError
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.addresses import ANYBODY, context_of, distrusted
from wayfare.service.system import Trust

TLS = "tls://"  # how addresses begin of proxies that speak it
PORT = 7500
UNWRITTEN_MAX = 4 * m.FRAME_MAX  # bytes that the other end has not read: then it is cut off
WRITE_S = 20.0  # that the other end may take to read on
DIAL_S = 5.0  # until a proxy that does not answer counts as unreachable
HELLO_S = 10.0  # that who connects has for a first message
LINGER_S = 2.0  # that a connection which is left has to get rid of what was sent
WIRES_MAX = 20_000  # connections of others to one proxy
STRANGER = "#"  # how the names of peers begin that connected to us
# Whom anybody may make a proxy connect to. What else is called private somewhere (link-local and reserved
# addresses, those of IPv4 within IPv6) may be a door to what only this machine should reach ...
PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"),
    )
)
# ... as is where clouds tell their machines secrets.
SECRETIVE = tuple(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254")))

log = logging.getLogger(__name__)
_length = Struct(">I")

Place = tuple[str, int]
# Where to connect to for an address that somebody named; UsageError if that is not permitted.
Permit = Callable[[str], Awaitable[Place]]


def where(address: str) -> Place:
    """Read `host:port`, or `host`, with or without TLS."""
    rest = address.removeprefix(TLS)
    host, colon, digits = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        host, digits = rest, str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    is_port = digits.isdecimal() and len(digits) <= 5 and 0 < int(digits) < 65_536
    if not host or not is_port or "/" in host:
        raise UsageError(
            f"{address!r:.80} is no address of a mobility proxy: write host:port, or {TLS}host:port"
        )
    return host, int(digits)


def is_safe(address: str) -> bool:
    """Whether TLS is spoken there."""
    return address.startswith(TLS)


async def anywhere(address: str) -> Place:
    return where(address)


def only(peers: Sequence[str]) -> Permit:
    """Permit these addresses; if there are none, hosts of this machine and of private networks.

    Clients say which proxy they come from. None of them is to make a proxy connect to whom it likes.
    """
    named = {(*where(peer), is_safe(peer)) for peer in peers}

    async def permit(address: str) -> Place:
        host, port = where(address)
        if (host, port, is_safe(address)) in named:
            return host, port
        if named:
            raise UsageError(f"{address} is not among the proxies that this one may ask (--peers)")
        ip = await _ip(host, port)
        if not any(ip in network for network in PRIVATE) or ip in SECRETIVE:
            raise UsageError(f"{address} is not in a private network: name it in --peers")
        return str(ip), port

    return permit


async def _ip(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Names are looked up in threads, for which others may wait: addresses are not."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ip = ipaddress.ip_address(found[0][4][0])
    return getattr(ip, "ipv4_mapped", None) or ip


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
        self._received = received
        self._gone = gone
        self._made = made
        self._was_heard = False
        self._bytes = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
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
        self._limit(HELLO_S, "it said nothing")

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._was_heard = True
        self._bytes += data
        at = 0
        while len(self._bytes) - at >= 4 and not self._ended:
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
            if self._transport is not None and self._transport.get_write_buffer_size() == 0:
                self._unlimit()
            self._received(self.peer, message)
        del self._bytes[:at]

    def send(self, message: m.Message) -> None:
        if self._transport is None or self._ended:
            return
        frame = m.encode(message)
        if len(frame) > m.FRAME_MAX:
            self.abort(f"a message of {len(frame)} bytes cannot be sent: {m.FRAME_MAX} at most")
            return
        self._transport.write(_length.pack(len(frame)) + frame)
        if self._transport.get_write_buffer_size() > UNWRITTEN_MAX:
            self.abort("it does not read what is sent")

    def pause_writing(self) -> None:
        self._limit(WRITE_S, f"it did not read on within {WRITE_S:.0f} s")

    def resume_writing(self) -> None:
        self._unlimit()

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
        if error is not None and not isinstance(error, ConnectionError | TimeoutError | OSError):
            log.error("a message could not be handled", exc_info=error)
        reason = str(error) if error is not None else self._reason
        if not self._was_heard and not self.peer.startswith((TLS, STRANGER)):
            reason += f"; if it wants TLS, call it {TLS}{self.peer}"
        self._gone(self, reason)

    def _limit(self, seconds: float, reason: str) -> None:
        self._unlimit()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort, reason)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Wires:
    """All connections of one library or proxy, by the names of the peers."""

    def __init__(
        self,
        step: Callable[[e.Event], None],
        permit: Permit = anywhere,
        trust: Trust = ANYBODY,
    ) -> None:
        self._step = step
        self._permit = permit
        self._trust = trust
        self._wires: dict[str, Wire] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[m.Message]] = {}  # until the peer is there

    def __len__(self) -> int:
        return len(self._wires)

    def accept(self) -> Wire:
        """For who connects. Nobody can guess the name, and so nobody can name it in a message."""
        name = f"{STRANGER}{secrets.token_hex(8)}"
        return Wire(name, self._received, self._gone, self._welcome)

    def _welcome(self, wire: Wire) -> None:
        """It is there; whoever does not get through with TLS never is."""
        if len(self._wires) >= WIRES_MAX:
            wire.abort("too many connections")
        else:
            self._wires[wire.peer] = wire
            wire.expect()

    def dial(self, peer: str) -> None:
        if peer not in self._wires and peer not in self._dialling:
            self._waiting[peer] = []
            self._dialling[peer] = asyncio.create_task(self._dial(peer))

    async def _dial(self, peer: str) -> None:
        wire = Wire(peer, self._received, self._gone)
        try:
            async with asyncio.timeout(DIAL_S):
                await call(wire, await self._permit(peer), self._trust)
        except (OSError, TimeoutError, UsageError, ValueError) as error:  # of names: UnicodeError
            self._undial(peer)
            self._step(e.PeerGone(peer, explained(error)))
            return
        waiting = self._undial(peer)
        self._wires[peer] = wire
        for message in waiting:
            wire.send(message)

    def _undial(self, peer: str) -> list[m.Message]:
        del self._dialling[peer]
        return self._waiting.pop(peer)

    def send(self, peer: str, message: m.Message) -> None:
        if peer in self._waiting:
            self._waiting[peer].append(message)
        elif peer in self._wires:
            self._wires[peer].send(message)

    def hang(self, peer: str) -> None:
        if peer in self._dialling:
            self._dialling[peer].cancel()
            self._undial(peer)
        if peer in self._wires:
            self._wires.pop(peer).close()

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


def explained(error: Exception) -> str:
    if (reason := distrusted(error)) is not None:
        return reason
    if isinstance(error, TimeoutError):
        return f"no answer within {DIAL_S:.0f} s"
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
