"""The proxy of thin devices: one line of JSON each way, for whatever cannot host a local broker.

    device                                                         proxy, at its border broker
      {"hello": "meter7"}                        ->
                                                 <-   {"welcome": "meter7", "n": 0, "memory": "1k3..", ...}
      {"subscribe": "free > 0"}                  ->
                                                 <-   {"memory": "1x0.."}
                                                 <-   {"n": 1, "notification": {"free": 3}, ...}
      {"ack": 1}                                 ->

For every device there is its counterpart, a client with the same interface; docs/thin.md has all lines.
What a device does wrong it is told, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any, NamedTuple, Unpack

import msgspec

from wayfare.core.codec import NAME_MAX
from wayfare.errors import LoginFailed, NotConfirmed, UsageError, WayfareError
from wayfare.net import payloads, thin_memory
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.counterpart import BEGINNING, Counterpart, Facts, position_of
from wayfare.net.login_limits import LoginLimits
from wayfare.net.logs import printable, tell
from wayfare.net.options import Options
from wayfare.net.security import check_secret, is_loopback
from wayfare.net.wills import Will

LINE_MAX = 65_536  # bytes of a line
DEVICES_MAX = 1_000  # whose counterparts are here
STRANGERS_MAX = 100  # connections beside those of devices
MISTAKES_MAX = 10  # of one connection
CONFIRMING_MAX = 16  # confirmations that one connection waits for
GREETING_S = 10.0  # until a connection has said hello
ANSWER_S = 30.0  # that a line may take
IDLE_S = 600.0  # without a line
CLOSING_S = 5.0  # that a device may take to read the rest
STAY_S = 3600.0  # that a counterpart waits for its device
FAILED_S = 0.5  # that a failed login takes at least, wherever it was found out

logger = logging.getLogger("wayfare.thin")


class Login(NamedTuple):
    """What a device logs in with at the broker."""

    account: str | None
    password: str | None

    def is_like(self, other: Login) -> bool:
        """In the same time, however much of it is the same."""
        mine, theirs = (msgspec.json.encode(one) for one in (self, other))
        return hmac.compare_digest(mine, theirs)


class Seat:
    """What is here of one device."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # one hello after the other
        self.counterpart: Counterpart | None = None
        self.login = Login(None, None)
        self.device: Device | None = None  # its connection
        self.ends: asyncio.TimerHandle | None = None  # when it has been away for too long


class Thin:
    """A listener for devices, at one broker."""

    def __init__(
        self,
        broker: str,
        *,
        secret: str | None = None,
        devices: int = DEVICES_MAX,
        idle_s: float = IDLE_S,
        stay_s: float = STAY_S,
        limits: LoginLimits | None = None,
        audit: Audit | None = None,
        bans: Bans | None = None,
        **options: Unpack[Options],
    ) -> None:
        """`secret` is the one that brokers share; `options` are those of every counterpart."""
        check_secret(secret)
        self.limits = limits or LoginLimits()
        self.audit = audit or Audit(broker, "thin")
        self._bans = bans or Bans()
        self._watching: asyncio.Task[None] | None = None
        self._served: dict[asyncio.Task[None], Device] = {}
        self.broker, self.secret = broker, secret
        self.idle_s, self.stay_s = idle_s, stay_s
        self._devices, self._options = devices, options
        self._seats: dict[str, Seat] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._endings: set[asyncio.Task[int]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen there; returns the port."""
        try:
            self._server = await asyncio.start_server(
                self._on_connection, host, port, limit=LINE_MAX, ssl=tls
            )
        except OSError as error:
            raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}") from None
        self._watching = asyncio.create_task(self._bans.watch(self._mind_bans))
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Sessions wait at the broker for their devices, here or elsewhere."""
        if self._server is not None:
            self._server.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for name in list(self._seats):
            self._clear(name)
        await asyncio.gather(*self._endings, return_exceptions=True)
        await asyncio.sleep(0)  # connections that were cut off end now
        self.audit.record("stopped")
        self.audit.close()

    def reload(self) -> None:
        """Go on with the audit log in a new file, after the old one was renamed, and read the bans."""
        self.audit.reopen()
        self._mind_bans()

    def _mind_bans(self) -> None:
        """Dismiss whoever is banned now."""
        try:
            if not self._bans.refresh(self.audit):
                return
        except UsageError as error:
            tell(logger, logging.WARNING, "bans_unread", "%(reason)s", reason=error)
            return
        for device in list(self._served.values()):
            if reason := self.banned(device, device.name, device.account):
                device.dismiss(reason)

    def banned(self, device: Device, *names: str) -> str:
        """What a banned device is told; nothing, if it is not."""
        ban = self._bans.of(device.address, *names)
        if ban is None:
            return ""
        self.audit.record(
            "banned",
            target=ban.target,
            client=device.name,
            address=device.address,
            until=ban.ends,
            reason=ban.reason,
        )
        return ban.refusal()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        device = Device(self, reader, writer)
        crowded = len(self._connections) >= self._devices + STRANGERS_MAX
        self._connections.add(task)
        self._served[task] = device
        try:
            if reason := self.banned(device):
                device.dismiss(reason)
            elif crowded:
                device.dismiss("too many are connected here: come back later")
            else:
                await device.serve()
        except (asyncio.CancelledError, OSError):
            pass  # we stop, or it is gone
        finally:
            if device.name:
                self._on_gone(device)
            await _close(writer)
            self._connections.discard(task)
            self._served.pop(task, None)

    # Counterparts

    async def log_in(self, device: Device, name: str, login: Login, facts: Facts) -> Counterpart:
        """The counterpart of a device that says hello, unless too many of its passwords were wrong."""
        seat = self._seats.get(name)
        if login.password is None and (seat is None or seat.login.password is None):
            return await self.seat(device, name, login, facts)  # there is nothing to guess
        account = login.account or name
        began = asyncio.get_running_loop().time()
        who = {"account": account, "client": name, "address": device.address}
        try:
            async with self.limits.attempt(account, device.address) as attempt:
                if attempt.wait_s:
                    reason = f"wait {ceil(attempt.wait_s)} s"
                    self.audit.record("login_throttled", **who, reason=reason)
                    raise UsageError(f"too many failed logins before this one: {reason}")
                try:
                    mine = await self.seat(device, name, login, facts)
                    attempt.good = True
                except LoginFailed:
                    attempt.good = False
                    raise
        except LoginFailed as error:
            self._tell_failed(account, device)
            self.audit.record("login_failed", **who, reason=str(error))
            await asyncio.sleep(began + FAILED_S - asyncio.get_running_loop().time())
            raise UsageError(
                f"{account} cannot log in: no such account, or not its password"
            ) from None
        self.audit.record("login_ok", **who)
        return mine

    def _tell_failed(self, account: str, device: Device) -> None:
        tell(
            logger,
            logging.WARNING,
            "login_failed",
            "%(account)s could not log in from %(address)s: no such account, or not its password",
            account=printable(account),
            address=device.address,
        )

    async def seat(self, device: Device, name: str, login: Login, facts: Facts) -> Counterpart:
        """The counterpart of a device that says hello, as it is or anew; LoginFailed, too."""
        memory = seen = None
        will, late = _will(facts), facts.get("late", False)
        if type(late) is not bool:
            raise UsageError(f"late is true or false, not {late!r:.60}")
        if "ack" in facts:
            seen = position_of(facts["ack"])
        if "memory" in facts:
            memory = thin_memory.opened(facts["memory"], self.secret, name)
            if seen is None:
                raise UsageError(
                    'with a memory, say "ack" too: the last n that came with or after it'
                )
        if name not in self._seats:
            self._make_room()
        seat = self._seats.setdefault(name, Seat())
        async with seat.lock:
            mine = seat.counterpart
            if mine is not None and not mine.failed and not seat.login.is_like(login):
                raise LoginFailed(f"{name} is here with another account or password")
            if seat.ends is not None:
                seat.ends.cancel()
                seat.ends = None
            if seat.device is not None:
                seat.device.dismiss(f"{name} has connected again")
            if mine is not None and (mine.failed or (memory and memory.epoch > mine.epoch)):
                await mine.close(0)
                mine = seat.counterpart = None
            if mine is None:
                options: Options = {**self._options, "account": login.account}
                options["password"], options["will"] = login.password, will
                options["late"] = late
                mine = Counterpart(
                    self.broker, name, memory, seen or BEGINNING, secret=self.secret, **options
                )
                mine.vouch(device.address)
                try:
                    await mine.open()
                except BaseException:
                    if seat.device is None and self._seats.get(name) is seat:
                        del self._seats[name]
                    raise
                seat.counterpart, seat.login = mine, login
            elif seen is not None:
                mine.ack(seen)
            seat.device, device.name = device, name
            self._seats[name] = seat  # whoever was in front of us may have failed
            await mine.be_back(will, late=late)
        return mine

    def _make_room(self) -> None:
        """Whoever is away for longest makes room; its session waits at the broker."""
        if len(self._seats) < self._devices:
            return
        away = [one for one, seat in self._seats.items() if seat.ends is not None]
        if not away:
            raise UsageError(f"{self._devices} devices are here already: come back later")
        self._clear(away[0])

    def _on_gone(self, device: Device) -> None:
        seat = self._seats.get(device.name)
        if seat is None or seat.device is not device:
            return  # it is back already
        seat.device = None
        if seat.counterpart is None or seat.counterpart.failed:
            self._clear(device.name)
            return
        seat.counterpart.be_gone()
        self._seats[device.name] = self._seats.pop(device.name)  # in the order of their leaving
        loop = asyncio.get_running_loop()
        seat.ends = loop.call_later(self.stay_s, self._clear, device.name)

    def _clear(self, name: str) -> None:
        seat = self._seats.pop(name)
        if seat.ends is not None:
            seat.ends.cancel()
        if seat.counterpart is not None:
            task = asyncio.create_task(seat.counterpart.close(0))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)


def _will(facts: Facts) -> Will | None:
    """What a hello says of the will of its device."""
    if "will" not in facts:
        if more := [name for name in WILL[1:] if name in facts]:
            raise UsageError(f'{more[0]} says more of a will: say "will" too')
        return None
    delay, retain = facts.get("will_delay", 0.0), facts.get("will_retain", ())
    return Will(facts["will"], delay=delay, retain=retain)


async def _close(writer: asyncio.StreamWriter) -> None:
    """What was written is still sent, if the device reads it."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSING_S):
            await writer.wait_closed()
    except (OSError, asyncio.CancelledError):  # TimeoutError is an OSError
        writer.transport.abort()


class Device:
    """One connection of a device."""

    def __init__(
        self, proxy: Thin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = ""  # it has said hello
        self.account = ""  # ... and whose account it uses
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._counterpart: Counterpart | None = None
        self.address = (writer.get_extra_info("peername") or ("",))[0]
        self._line = self._mistakes = 0
        self._confirming: set[asyncio.Task[None]] = set()
        self._ended = False

    @property
    def mine(self) -> Counterpart:
        assert self._counterpart is not None
        return self._counterpart

    async def serve(self) -> None:
        telling = None
        try:
            async with asyncio.timeout(GREETING_S):
                line = await self._read()
            while line is not None:
                if line.strip():
                    async with asyncio.timeout(ANSWER_S):
                        await self._obey(line)
                        await self._writer.drain()
                    if self._counterpart is None or self._ended:
                        return
                    telling = telling or asyncio.create_task(self._tell_news())
                async with asyncio.timeout(self._proxy.idle_s):
                    line = await self._read()
                await asyncio.sleep(0)  # others have their turn
        except TimeoutError:
            self.dismiss("nothing came, or could be done, for too long: connect again")
        finally:
            tasks = [*self._confirming, *([telling] if telling is not None else [])]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _read(self) -> bytes | None:
        """The next line; None if there is none, or none that could be read."""
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            self.dismiss(f"a line has at most {LINE_MAX} bytes")
            return None
        self._line += 1
        return line

    async def _obey(self, line: bytes) -> None:
        try:
            word, facts = understood(line)
            if (word == "hello") == (self._counterpart is not None):
                raise UsageError('the first line, and only that, is {"hello": "your name"}')
            await WORDS[word].obey(self, facts[word], facts)
        except (WayfareError, ValueError) as error:
            self._mistakes += 1
            self.tell_error(str(error))
            if self._mistakes >= MISTAKES_MAX:
                self.dismiss(f"{self._mistakes} mistakes are enough")

    async def _tell_news(self) -> None:
        mine = self.mine
        try:
            while not self._ended:
                for facts in mine.news():
                    self.tell(facts)
                await self._writer.drain()
                mine.check()
                await mine.fresh.wait()
        except WayfareError as error:
            self.dismiss(str(error))
        except OSError:
            self._writer.close()

    def tell(self, facts: Facts) -> None:
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(facts) + b"\n")

    def tell_error(self, sentence: str) -> None:
        self.tell({"error": sentence, "line": self._line} if self._line else {"error": sentence})

    def dismiss(self, why: str) -> None:
        """This connection is over; what was told is still sent."""
        if not self._ended:
            self._ended = True
            self.tell({"error": why})
            self._writer.close()
            self._reader.feed_eof()

    # Words

    async def on_hello(self, name: Any, facts: Facts) -> None:
        login = Login(facts.get("account"), facts.get("password"))
        if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
            raise UsageError(f"hello says your name, a text of 1 to {NAME_MAX} characters")
        if login.password is not None and not self._is_private():
            raise UsageError("a password would cross the network in clear: connect by TLS")
        self.account = str(login.account or name)
        if reason := self._proxy.banned(self, name, self.account):
            raise UsageError(reason)
        self._counterpart = await self._proxy.log_in(self, name, login, facts)
        self.tell(self._counterpart.welcome())

    def _is_private(self) -> bool:
        return self._writer.get_extra_info("ssl_object") is not None or is_loopback(self.address)

    async def on_subscribe(self, text: Any, facts: Facts) -> None:
        self.mine.want(text, **{name: facts[name] for name in TERMS if name in facts})

    async def on_unsubscribe(self, text: Any, facts: Facts) -> None:
        self.mine.unwant(text)

    async def on_advertise(self, text: Any, facts: Facts) -> None:
        self.mine.announce(text)

    async def on_unadvertise(self, text: Any, facts: Facts) -> None:
        await self.mine.retract(text)

    async def on_publish(self, attributes: Any, facts: Facts) -> None:
        clear = facts.get("clear", False)
        if type(clear) is not bool:
            raise UsageError(f"clear is true or false, not {clear!r:.60}")
        payload, number = payloads.found(facts), facts.get("number")
        retain = facts.get("retain", ())
        more = {"expires": facts.get("expires"), "area": facts.get("area")}
        if clear and any(one is not None for one in more.values()):
            raise UsageError("clear leaves nothing that could expire: leave expires, and area")
        await self.mine.say(attributes, payload, number, retain, clear=clear, **more)

    async def on_location(self, there: Any, facts: Facts) -> None:
        self.mine.location = tuple(there) if isinstance(there, list) else there

    async def on_state(self, values: Any, facts: Facts) -> None:
        if not isinstance(values, dict):
            raise UsageError(f"state is an object of names and values, not {values!r:.60}")
        for name, value in values.items():
            if value is not None:
                self.mine.state[name] = value
            else:
                self.mine.state.pop(name, None)

    async def on_ack(self, seen: Any, facts: Facts) -> None:
        self.mine.ack(position_of(seen))

    async def on_flush(self, mark: Any, facts: Facts) -> None:
        await self.mine.flush()
        self.tell({"flushed": mark})

    async def on_confirm(self, mark: Any, facts: Facts) -> None:
        if len(self._confirming) >= CONFIRMING_MAX:
            raise UsageError(f"{CONFIRMING_MAX} confirmations are under way: wait for one of them")
        task = asyncio.create_task(self._confirm(mark))
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirm(self, mark: Any) -> None:
        """Meanwhile the device may say something else."""
        try:
            await self.mine.confirm()
            self.tell({"confirmed": mark})
        except NotConfirmed as error:
            self.tell({"unconfirmed": mark, "missing": error.missing, "why": str(error)})
        except WayfareError:
            pass  # its counterpart cannot go on, which the device is told

    async def on_bye(self, mark: Any, facts: Facts) -> None:
        self._ended = True  # there are no more news
        await self.mine.leave()
        self.tell({"bye": mark})


class Word(NamedTuple):
    """What a line may say, and beside that."""

    obey: Callable[[Device, Any, Facts], Awaitable[None]]
    beside: tuple[str, ...] = ()


TERMS = ("last", "younger", "key", "nullify", "same", "since")
WILL = ("will", "will_delay", "will_retain")
WORDS = {
    "hello": Word(Device.on_hello, ("account", "password", "memory", "ack", "late", *WILL)),
    "subscribe": Word(Device.on_subscribe, TERMS),
    "unsubscribe": Word(Device.on_unsubscribe),
    "advertise": Word(Device.on_advertise),
    "unadvertise": Word(Device.on_unadvertise),
    "publish": Word(
        Device.on_publish,
        ("number", "payload", "payload_base64", "retain", "clear", "expires", "area"),
    ),
    "location": Word(Device.on_location),
    "state": Word(Device.on_state),
    "ack": Word(Device.on_ack),
    "flush": Word(Device.on_flush),
    "confirm": Word(Device.on_confirm),
    "bye": Word(Device.on_bye),
}


def understood(line: bytes) -> tuple[str, Facts]:
    """The word of a line, and all that it says; UsageError if it makes no sense."""
    try:
        facts = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"a line is an object in JSON: {error}") from None
    if not isinstance(facts, dict):
        raise UsageError('a line is an object in JSON, like {"subscribe": "free > 0"}')
    word = next((one for one in WORDS if one in facts), "")
    if not word:
        raise UsageError(f"a line says one of {', '.join(WORDS)}")
    if unknown := [one for one in facts if one != word and one not in WORDS[word].beside]:
        allowed = ", ".join(WORDS[word].beside) or "nothing else"
        raise UsageError(f"beside {word} a line says {allowed}, not {unknown[0]!r:.60}")
    return word, facts
