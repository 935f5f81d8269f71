"""A mobility proxy as a process: connections, accesses, a clock and a file for `Proxy`."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wayfare.errors import Closed, UsageError, WayfareError
from wayfare.net.alarm import Alarm
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.security import Tls, reload, server_context
from wayfare.net.stalls import Stalls, watch
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.adapters import adapter, check
from wayfare.service.addresses import ANYBODY, context_of
from wayfare.service.admission import Admission, Owner, Question
from wayfare.service.buffer import DEFAULT_LIMITS, Limits
from wayfare.service.client_proxy import Record
from wayfare.service.errands import Errand, Errands, name_of
from wayfare.service.gate import Gate
from wayfare.service.proxy import Proxy
from wayfare.service.proxy_addresses import TLS, is_among, is_safe, only, with_port
from wayfare.service.secret import Secret
from wayfare.service.store import Store, Stored
from wayfare.service.system import Publication, Trust
from wayfare.service.wire import WIRES_MAX, Wires, listen

STATUS_S = 60.0  # between two lines of figures in the log
RETRY_S = 1.0  # until the system is looked for again
CLOCK_NS = time.time_ns() - time.monotonic_ns()

log = logging.getLogger(__name__)

# What only a client, or another proxy on its behalf, can say.
WithKey = m.Register | m.Change | m.Renew | m.MoveOut | m.Download | m.Release | m.Leave


class Server:
    """One proxy, beside one access point."""

    def __init__(
        self,
        access: str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        address: str = "",
        told: str = "",
        store: Path | None = None,
        durability: str = "disk",
        peers: Sequence[str] = (),
        limits: Limits = DEFAULT_LIMITS,
        trust: Trust = ANYBODY,
        tls: Tls | None = None,
        audit: Audit | None = None,
        bans: Bans | None = None,
        secret: str | None = None,
    ) -> None:
        """`address` is where others reach it, if that is not where it listens; clients are `told`
        another address of the access point, if theirs is not that of the proxy.

        With `tls`, clients and other proxies call it tls://host:port. With a `store`, what it has
        promised is on disk: it goes on after a crash.

        With a `secret`, it speaks only with proxies that know the same, and asks those in `peers` whose a name is
        before somebody new gets it.

        It calls no other proxies than `peers`. If there are none: those that know the `secret`, in private networks, and those
        on this machine for clients that are here, too.
        """
        self._access = access
        context_of(trust)  # so that it is told at once what is wrong with its files
        self._system = adapter(access, trust)
        self._listen = (host, port)
        self._tls = tls
        self._safety = None if tls is None else server_context(tls)
        if is_safe(address) and tls is None:
            raise UsageError(f"{address} is with TLS: give a certificate and its key, by --tls")
        self._address = address
        self._told = told or access
        for one in (access, self._told):
            check(one)
        self._file = store
        self._durability = durability
        self._limits = limits
        self._is_named = is_among(peers)
        self._secret = Secret(secret)
        permit = only(peers, lambda at: self.admission.asker_of(at), proves=bool(secret))
        self._wires = Wires(self._hear, permit, trust, wires_max(), self._is_named, self._secret)
        self._peers = peers
        self._audit = audit or Audit("", "service")
        self._bans = bans or Bans()
        self._watching: list[asyncio.Task[None]] = []
        self._stalls = Stalls(now)
        self._errands: dict[str, Errands] = {}
        self._alarm = Alarm(self._tick)
        self._listener: asyncio.Server | None = None
        self._store: Store | None = None
        # Until what they say is safe. In order: who is hung up on may be dialled again.
        self._unsent: list[e.Send | e.Dial | e.Hang] = []
        self._safe: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False  # what comes until the last access is closed is kept all the same
        self.arrived = 0
        self.proxy: Proxy
        self._gate: Gate
        self._is_asked: Callable[[str], bool] = lambda _: (
            False
        )  # whether the gate waits for a proxy

    async def start(self) -> str:
        """Listen, and go on where the last process was; the address where others reach it."""
        self._over = asyncio.get_running_loop().create_future()
        host, port = self._listen
        try:
            self._listener = await listen(self._wires, host, port, self._safety)
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        port = self._listener.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        address = with_port(self._address, port) or f"{shown}:{port}"
        if self._safety is not None and not is_safe(address):
            address = TLS + address
        public = without_login(self._told)
        self.proxy = Proxy(address, public, self._system, self._limits, self._file is not None)
        self._secret.address = address
        self._audit.node = self._audit.node or address
        self.admission = Admission(
            self.proxy, self._audit, self._wires.address_of, self._own, self._is_named
        )
        self._wires.dialled = self.admission.on_dialled
        self._gate = Gate(
            self.proxy,
            self._wires,
            self.admission,
            self._secret,
            self._peers,
            self._bans,
            self._audit,
            now,
            self._perform,
            self._step,
            self._hear,
        )
        self._wires.refuses = self._gate.banned
        self._is_asked = self._gate.claims.is_asking
        if self._file is not None:
            try:
                self._store = Store(
                    self._file, self._durability, f"the proxy {address} at {public}"
                )
                self._warn_of(self._store)
                self._store.forget_owners(now())
                self.admission.restore(self._store.owners())
                rolled_back = bool(self._store.rollback)
                for record, kept in self._store.load():
                    effects = self.proxy.restore(record, kept, now(), rolled_back=rolled_back)
                    self._perform(effects)
            except WayfareError:
                await self.stop()
                raise
        self._stalls.come_by()
        watches = (self._bans.watch(self._gate.mind_bans), watch(self._mind_stall))
        self._watching = [asyncio.create_task(one) for one in watches]
        self._arm()
        if self._system.traits.advertises:
            self._look()
        return address

    def _warn_of(self, store: Store) -> None:
        if store.rollback:
            log.warning(
                "%s is older than what the proxy had written (%s): it goes on with what is there, and clients"
                " that may miss something get a gap. See that the disk is sound, and restore no old copies",
                store.path,
                store.rollback,
            )

    async def serve(self) -> None:
        """Until it cannot go on: an error says why, mostly StoreError."""
        assert self._over is not None
        self._look()
        while not (await asyncio.wait([self._over], timeout=STATUS_S))[0]:
            log.info("%s: %s", self.proxy.address, self.status())
        self._over.result()

    def _look(self) -> None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_for_the_system())

    async def _look_for_the_system(self) -> None:
        """Who starts a proxy wants to know now, and not with the first client.

        Where the system advertises, the one who looks stays: then clients that come, and publish at once, are
        heard everywhere.
        """
        stays = self._system.traits.advertises
        told = await self._visit(stays, "")
        while stays:
            await asyncio.sleep(RETRY_S)
            told = await self._visit(stays, told)

    async def _visit(self, stays: bool, told: str) -> str:
        """Open an access, and tell what is wrong with it, if it was not `told` before: that."""

        async def ignored(_: Publication) -> None:
            pass

        name, lost = name_of("probe", self.proxy.address), asyncio.Event()
        try:
            access = await self._system.open(self._access, name, ignored, lambda _: lost.set())
            try:
                if stays:
                    await lost.wait()
            finally:
                await access.close()
        except Exception as error:
            is_plain = isinstance(error, WayfareError)
            if is_plain and str(error) != told:
                log.warning(
                    "%s (it is tried again%s)", error, "" if stays else " with every client"
                )
            elif str(error) != told:
                log.exception("%s could not be asked", self.proxy.access)
            return str(error)
        return ""

    def reload(self) -> None:
        """Read the files of TLS again, for connections from now on; if they are no good, all stays."""
        try:
            if self._tls is not None and self._safety is not None:
                reload(self._tls, self._safety)
        except UsageError as error:
            log.error("the old certificate is shown: %s", error)
        context_of.cache_clear()
        self._audit.reopen()
        self._audit.record("reloaded", what="certificates", ok=True)
        self._gate.mind_bans()

    def _mind_stall(self) -> None:
        """If this process did not run for a while, clients and proxies get that much more time."""
        if for_ns := self._stalls.come_by():
            log.warning("%s did not run for %.1f s", self.proxy.address, for_ns / 1e9)
            self._step(e.Stalled(for_ns))

    def _tick(self) -> None:
        self._mind_stall()
        self._step(e.Tick())

    async def stop(self) -> None:
        self._stopping = True
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._alarm.clear()
        if self._watching:  # it had begun
            self._gate.claims.stop()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._listener is not None:
            self._listener.close()
        self._wires.close()
        suspend = self._store is not None
        stopping = [errands.stop(suspend=suspend) for errands in self._errands.values()]
        await asyncio.gather(*stopping)
        self._errands.clear()
        if self._store is not None:
            if self._over is not None and not self._over.done():
                self._flush()
            self._store.close()
            self._store = None
        self._audit.record("stopped")
        self._audit.close()

    def status(self) -> dict[str, int]:
        """What it does, in figures."""
        clients = self.proxy.clients.values()
        return {
            "clients": len(clients),
            "away": sum(one.state == "away" for one in clients),
            "kept": sum(len(one.buffer.kept) for one in clients),
            "kept_bytes": sum(one.buffer.size for one in clients),
            "connections": len(self._wires),
            "arrived": self.arrived,
        }

    # ---- the host of the core ----------------------------------------------------------

    def _hear(self, event: e.Event) -> None:
        """What comes by a connection. Subscriptions that are none of the system get no further."""
        if not self._gate.admits(event):
            return
        match event:
            case e.Received(peer, m.Register() | m.Change() | m.MoveOut() as message):
                wanted = message.added if isinstance(message, m.Change) else message.subscriptions
                if reason := self._complaint(message.client, wanted):
                    self._perform([e.Send(peer, m.Refused(message.client, reason))])
                    return
            case e.Received(peer, m.Downloaded(client) as message):
                if reason := self._complaint(client, message.subscriptions):
                    event = e.Received(peer, m.Refused(client, reason))  # for whoever asked there
        self._step(event)
        if isinstance(event, e.Received):
            self.admission.accepted(event.message, now())
        if isinstance(event, e.Received) and isinstance(said := event.message, WithKey):
            known = self.proxy.clients.get(said.client)
            is_known = known is not None and known.key == said.key
            self._wires.be_patient(event.peer, is_known)
            if is_known:
                self._gate.on_known(event.peer, said.client)

    def _own(self, owner: Owner) -> None:
        if self._store is not None:
            self._note(owner)

    def _complaint(self, client: str, wanted: tuple[str, ...]) -> str:
        known = self.proxy.clients.get(client)
        try:
            m.check_subscriptions(wanted)
            for text in wanted:
                if known is None or text not in known.subscriptions:
                    self._system.check(text)
        except UsageError as error:
            return str(error)[:1000]
        return ""

    def _step(self, event: e.Event) -> None:
        if self._over is not None and not self._over.done():
            effects = self.proxy.step(event, now())
            if isinstance(event, e.Received) and isinstance(event.message, Question):
                self._count_calls(event.peer, effects)
            self._perform(effects)
            self._arm()

    def _count_calls(self, peer: str, effects: Sequence[e.Effect]) -> None:
        """Count the calls that are made for this peer, and no question that waits or needs no call."""
        for effect in effects:
            if isinstance(effect, e.Dial) and not self._wires.is_connected(effect.peer):
                self.admission.on_call(peer, effect.peer)

    def _arm(self) -> None:
        if not self._stopping:
            self._alarm.set(self.proxy.next_deadline(), now())

    def _perform(self, effects: Sequence[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.Send() | e.Dial() | e.Hang():
                    self._unsent.append(effect)
                case e.Open(client, _, resume):
                    self._ask(e.Open(client, self._access, resume))
                case e.Shut() | e.Subscribe() | e.Unsubscribe() | e.Publish():
                    self._ask(effect)
                case e.Keep() | e.Trim() | e.Save() | e.Erase():
                    self._note(effect)
                case _:
                    raise AssertionError(f"no effect of a proxy: {effect}")
        if self._safe is None:
            self._say()

    def _say(self) -> None:
        unsent, self._unsent = self._unsent, []
        for effect in unsent:
            match effect:
                case e.Send(peer, message):
                    self._wires.send(peer, message)
                case e.Dial(peer):
                    self._wires.dial(peer)
                case e.Hang(peer):
                    if not self._is_asked(peer):  # else its answer would be lost
                        self._wires.hang(peer)

    # ---- what is kept ------------------------------------------------------------------

    def _note(self, effect: Stored) -> None:
        assert self._store is not None
        self._store.note(effect)
        if self._safe is None:
            loop = asyncio.get_running_loop()
            self._safe = loop.create_future()
            loop.call_soon(self._flush)  # with all that happens in this turn

    def _flush(self) -> None:
        """Nothing is said before what it is about is safe."""
        safe, self._safe = self._safe, None
        if self._store is None or safe is None:
            return
        try:
            self._store.commit(self._record)
        except Exception as error:  # whatever it is, what was noted is not safe
            self._unsent.clear()
            if self._over is not None and not self._over.done():
                self._over.set_exception(error)
            safe.set_exception(Closed(f"the proxy cannot go on: {error}"))
            safe.exception()  # nobody may wait for it
            return
        safe.set_result(None)
        self._say()

    def _record(self, client: str) -> Record | None:
        return self.proxy.record(client) if client in self.proxy.clients else None

    # ---- accesses ----------------------------------------------------------------------

    def _ask(self, errand: Errand) -> None:
        if not self._stopping:
            self._of(errand.client).ask(errand)

    def _of(self, client: str) -> Errands:
        errands = self._errands.get(client)
        if errands is None:
            for other in [one for one, each in self._errands.items() if each.idle]:
                del self._errands[other]

            async def deliver(publication: Publication) -> None:
                # Who returns from here has promised to keep it.
                if self._over is None or self._over.done():
                    raise Closed("the proxy cannot go on")
                self.arrived += 1
                self._step(e.Arrived(client, publication))
                if self._safe is not None:
                    await asyncio.shield(self._safe)

            def unwanted(_: str | Publication, error: Exception) -> None:
                log.warning("%s: the system will not have it: %s", client, error)

            name = name_of(client, self.proxy.address)
            errands = Errands(
                client, name, self._system, self._step, deliver, unwanted, lasting=True
            )
            self._errands[client] = errands
        return errands


def now() -> int:
    """Nanoseconds since 1970, for a time that is kept has to mean something to the next process."""
    return time.monotonic_ns() + CLOCK_NS


def wires_max() -> int:
    """Half of the files that a process may have open: the others are for accesses."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WIRES_MAX if files == resource.RLIM_INFINITY else min(WIRES_MAX, files // 2)


def without_login(access: str) -> str:
    """An address as everybody may know it."""
    scheme, _, rest = access.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
