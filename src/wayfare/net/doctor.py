"""What is wrong with a configuration, or with brokers that run, and what to do.

    file     -> what it says, alone and beside the other files
    address  -> resolve, connect, TLS, Hello: who is there, and does it speak as we do
    status   -> links, failures, neighbours and clocks, as the process tells them

Nothing is changed: no broker is joined, no client attached, and no file written.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from wayfare.core.codec import decode
from wayfare.core.messages import PROTOCOL_VERSION, Hello
from wayfare.errors import CannotConnect, CodecError, ConfigError, UsageError
from wayfare.net import config, configured, network
from wayfare.net.addresses import Address, host_and_port
from wayfare.net.checks import (
    EVERYWHERE,
    FAIL,
    OK,
    WARN,
    Finding,
    check_account_limits,
    check_ahead,
    check_listening,
    check_security,
    check_settings,
    check_store,
    check_sums,
    check_times,
    check_use,
    use_of,
)
from wayfare.net.http import fetch
from wayfare.net.security import (
    NO_CHECK_TIME,
    OUT_OF_TIME,
    Tls,
    client_context,
    names_of,
    neighbour_context,
)
from wayfare.net.status import BrokerStatus, Status

TIMEOUT_S = 5.0  # for each address
HELLO_BYTES = 8_192  # more is no Hello
CLOCK_S = 5.0  # that clocks may differ


class Met(msgspec.Struct, frozen=True):
    """Somebody who answered at an address."""

    name: str
    address: Address
    at: tuple[str, int]  # resolved


class Asked(msgspec.Struct, frozen=True):
    """A process that told its status."""

    where: str
    status: Status
    ahead_s: float  # of our clock


class Doctor:
    """One examination."""

    def __init__(self, *, ca: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self.findings: list[Finding] = []
        self._ca, self._timeout_s = ca, timeout_s
        self._met: list[Met] = []
        self._asked: list[Asked] = []
        self._sites: dict[str, configured.Broker] = {}  # by file

    def tell(self, level: str, about: str, says: str) -> None:
        self.findings.append(Finding(level, about, says))

    async def examine(self, files: Iterable[str], places: Iterable[str]) -> list[Finding]:
        """Everything about these files, and what is at these addresses (of brokers, or http://)."""
        places = list(places)
        for file in (*files, *filter(_is_file, places)):
            await self._file(file)
        for place in places:
            if _is_file(place):
                continue
            if place.startswith("http://"):
                await self._ask(*_of_http(place))
            else:
                await self._meet(Address.parse(place), client_context(self._ca))
        self._compare_files()
        self._compare_met()
        self._compare_asked()
        return self.findings

    # Files

    async def _file(self, file: str) -> None:
        try:
            found = config.read(file)
        except ConfigError as error:
            for mistake in error.mistakes:
                self.tell(FAIL, file, str(mistake).removeprefix(f"{file}:").strip())
            return
        except UsageError as error:
            self.tell(FAIL, file, str(error))
            return
        self.tell(OK, file, "is a good configuration")
        self.findings += [one.about(file) for one in check_settings(found.settings)]
        self.findings += [one.about(file) for one in check_sums(found.settings)]
        self.findings += check_account_limits(found.settings)
        self.findings += check_security(file, found.settings.security)
        self.findings += [one.about(file) for one in check_ahead(found.settings.ahead)]
        if isinstance(found, configured.Broker):
            await self._site(file, found)
        else:
            await self._city(file, found)

    async def _site(self, file: str, site: configured.Broker) -> None:
        self._sites[file] = site
        self.findings += check_listening(file, site)
        self.findings += check_store(site.name, site.settings.durability)
        status = site.settings.status
        tls = site.settings.security.tls
        try:
            context, own_context = neighbour_context(tls), _own_context(tls)
        except UsageError:
            return  # check_security has told it
        if site.listen.port:
            here = msgspec.structs.replace(site.listen, host=_callable(site.listen.host))
            await self._meet(here, own_context, site.name, own=True)
        for name, address in {**site.peers, **site.neighbours}.items():
            if address is not None:
                await self._meet(address, context, name)
        if status.port:
            asked = await self._ask(_callable(status.host), status.port, own=True)
            for one in asked.status.brokers if asked is not None else []:
                self._compare_running(file, site, one)

    def _compare_running(self, file: str, site: configured.Broker, one: BrokerStatus) -> None:
        links = {link.name for link in one.links}
        if one.name != site.name:
            says = f"{one.name} tells its status where {site.name} should: stop one of them"
            self.tell(FAIL, file, says)
        elif links != {*site.neighbours}:
            says = (
                f"{site.name} runs with other neighbours ({_names(links)}) than it has in its file"
            )
            self.tell(WARN, file, f"{says} ({_names(site.neighbours)}): restart it")

    async def _city(self, file: str, city: configured.Network) -> None:
        for name in city.brokers:
            self.findings += check_store(name, network.settings_of(name, city).durability)
        status = city.settings.status
        if status.port and await self._ask(_callable(status.host), status.port, own=True):
            return
        ports = {name: port for name, port in city.brokers.items() if port}
        if not ports and not status.port:
            says = (
                "its brokers have any free ports, and no status.port, so nobody can find them: give"
            )
            self.tell(WARN, file, f"{says} it a status.port")
        tls = city.settings.security.tls
        try:
            context = _own_context(tls)
        except UsageError:
            return  # check_security has told it
        for name, port in ports.items():
            here = Address(_callable(city.host), port, tls=tls is not None)
            await self._meet(here, context, name, own=True)

    # Addresses

    async def _meet(
        self, address: Address, context: ssl.SSLContext | None, name: str = "", *, own: bool = False
    ) -> None:
        """See who is there: this broker, if a name is given."""
        about = str(address)
        try:
            at = await self._resolve(address)
            hello, certificate = await self._hello(address, context)
        except _Trouble as trouble:
            nobody = own and trouble.nobody
            says = f"{name} does not run: start it" if nobody else str(trouble)
            self.tell(WARN if nobody else FAIL, about, says)
            return
        if hello.version != PROTOCOL_VERSION:
            says = (
                f"{hello.name} speaks version {hello.version} of the protocol, and this is version"
            )
            self.tell(FAIL, about, f"{says} {PROTOCOL_VERSION}: run the same release everywhere")
            return
        if name and hello.name != name:
            says = f"{hello.name} is there, and not {name}: correct the address, or the name"
            self.tell(FAIL, about, says)
            return
        self._met.append(Met(hello.name, address, at))
        self.tell(OK, about, f"{hello.name} is there, and speaks version {hello.version}")
        if address.tls:
            self._certificate(about, hello.name, certificate, must_name=bool(name) and not own)

    async def _resolve(self, address: Address) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise _Trouble(
                f"the name {address.host} is not resolved within {self._timeout_s:g} s: see to DNS"
            ) from None
        except OSError:
            raise _Trouble(
                f"there is no host named {address.host}: correct the name, or see to DNS"
            ) from None
        host, port = found[0][4][:2]
        return str(host), int(port)

    async def _hello(
        self, address: Address, context: ssl.SSLContext | None
    ) -> tuple[Hello, dict[str, Any] | None]:
        connected = False
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=context if address.tls else None
                )
                try:
                    connected = True
                    length = int.from_bytes(await reader.readexactly(4), "big")
                    if length > HELLO_BYTES:
                        raise _Trouble("something else than a broker is there: correct the port")
                    first = decode(await reader.readexactly(length))
                    certificate = writer.get_extra_info("peercert")
                finally:
                    writer.transport.abort()
        except TimeoutError:
            says = "it says nothing" if connected else "nothing answers"
            what = "; see whether it runs, and to firewalls in between"
            if connected and await _tells_status(address):
                says, what = "it tells a status there, and listens elsewhere", ": correct the port"
                what += f", or ask http://{address.host}:{address.port}"
                raise _Trouble(says + what) from None
            if connected and not address.tls:
                what = "; maybe it wants TLS: try wayfares://"
            elif address.tls and not connected:
                what += "; if it has no TLS, call it with wayfare://"
            raise _Trouble(f"{says} within {self._timeout_s:g} s{what}") from None
        except ssl.SSLCertVerificationError as error:
            if context is not None and error.verify_code in OUT_OF_TIME:
                raise _Trouble(await self._out_of_time(address, context)) from None
            raise _Trouble(
                f"its certificate is not trusted ({error.verify_message}): name the CA that signed it"
            ) from None
        except ssl.SSLError as error:
            if "CERTIFICATE_REQUIRED" in (error.reason or ""):
                raise _Trouble(
                    "it wants a certificate from whoever calls: ask with the --config of a neighbour"
                ) from None
            raise _Trouble(
                f"TLS fails ({error.reason}): if it has no TLS, call it with wayfare://"
            ) from None
        except ConnectionRefusedError:
            raise _Trouble("nobody listens there: start it, or correct the port", True) from None
        except asyncio.IncompleteReadError as error:
            if address.tls and not error.partial:
                raise _Trouble(
                    "it closes the connection without a word: see whether the certificate that it is"
                    " shown, if any, is good, and whether it is a broker at all"
                ) from None
            raise _Trouble("something else than a broker is there: correct the port") from None
        except CodecError:
            raise _Trouble("something else than a broker is there: correct the port") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise _Trouble(f"it cannot be reached: {reason}") from None
        if not isinstance(first, Hello):
            raise _Trouble("something else than a broker is there: correct the port")
        return first, certificate

    async def _out_of_time(self, address: Address, context: ssl.SSLContext) -> str:
        """Since when the certificate there is not good any more, or that it is another one's fault."""
        context.verify_flags |= NO_CHECK_TIME
        try:
            async with asyncio.timeout(self._timeout_s):
                _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            certificate = writer.get_extra_info("peercert")
            writer.transport.abort()
        except OSError as error:
            return f"its certificate has expired, or is not valid yet ({error}): renew it"
        finally:
            context.verify_flags &= ~NO_CHECK_TIME
        found = check_times(str(address), certificate, time.time())
        if found.level == FAIL:
            return found.says
        return "the certificate of the CA that signed its own has expired, or is not valid yet: renew that"

    def _certificate(
        self, about: str, name: str, certificate: dict[str, Any] | None, must_name: bool
    ) -> None:
        if not certificate:
            return
        names = names_of(certificate)
        if must_name and name not in names:
            says = (
                f"its certificate is of {_names(names)}, and not of {name}: give it one of its name"
            )
            self.tell(FAIL, about, says)
        self.findings.append(check_times(about, certificate, time.time()))

    # Status

    async def _ask(self, host: str, port: int, *, own: bool = False) -> Asked | None:
        began = time.time()
        try:
            status = await fetch(host, port)
        except CannotConnect as error:
            self.tell(WARN if own else FAIL, f"http://{host}:{port}", str(error))
            return None
        ahead_s = status.time_s - (began + time.time()) / 2
        asked = Asked(f"http://{host}:{port}", status, ahead_s)
        self._asked.append(asked)
        for one in status.brokers:
            self._broker(one)
        return asked

    def _broker(self, one: BrokerStatus) -> None:
        if one.failure:
            self.tell(FAIL, one.name, f"it stopped: {one.failure}")
        down = [link for link in one.links if not link.up]
        for link in down:
            says = (
                f"has no link to {link.name}, for which {link.kept} messages wait: see whether it"
            )
            self.tell(
                FAIL, one.name, f"{says} runs, and whether one of both has the other's address"
            )
        self.findings += check_use(one)
        if not down and not one.failure:
            self.tell(
                OK,
                one.name,
                f"runs, and its links are up: {_names(link.name for link in one.links)}"
                + (f" ({use})" if (use := use_of(one)) else ""),
            )

    # What only shows side by side

    def _compare_files(self) -> None:
        files = {site.name: file for file, site in self._sites.items()}
        for file, site in self._sites.items():
            if files[site.name] != file:
                says = f"{files[site.name]} is of a broker named {site.name}, too: name one differently"
                self.tell(FAIL, file, says)
        sites = {site.name: site for site in self._sites.values()}
        for file, site in self._sites.items():
            for name, address in site.neighbours.items():
                other = sites.get(name)
                if other is None:
                    continue
                if site.name not in other.neighbours:
                    says = f"has the neighbour {name}, which does not know {site.name}"
                    self.tell(FAIL, file, f"{says}: write {site.name} into {files[name]}")
                elif address is None and other.neighbours[site.name] is None:
                    says = (
                        f"waits for {name} to call, and {name} waits as well: give one of them the"
                    )
                    self.tell(FAIL, file, f"{says} other's address")
                for key in ("routing", "relocation"):
                    mine, theirs = getattr(site.settings, key), getattr(other.settings, key)
                    if mine != theirs and site.name < name:
                        says = f"{site.name} has {key} {mine}, and {name} has {theirs}: give all the same"
                        self.tell(FAIL, file, says)

    def _compare_met(self) -> None:
        first: dict[str, Met] = {}
        for one in self._met:
            other = first.setdefault(one.name, one)
            if other.at != one.at:
                says = (
                    f"a broker named {one.name} is also at {other.address}: if these are two, name"
                )
                self.tell(FAIL, str(one.address), f"{says} one of them differently")

    def _compare_asked(self) -> None:
        brokers = [(asked.where, one) for asked in self._asked for one in asked.status.brokers]
        known: dict[str, tuple[str, BrokerStatus]] = {}
        for where, one in brokers:
            other, _ = known.setdefault(one.name, (where, one))
            if other != where:
                says = f"{other} has a broker of this name, too: name one of them differently"
                self.tell(FAIL, one.name, says)
        for _, one in brokers:
            for link in one.links:
                there = known.get(link.name)
                if there is not None and all(back.name != one.name for back in there[1].links):
                    says = f"has the neighbour {link.name}, which does not know {one.name}: make it known"
                    self.tell(FAIL, one.name, says)
        for _, one in brokers:
            for peer, why in one.ahead.trouble.items():
                says = (
                    f"cannot tell {peer} what to listen to, {one.ahead.dropped} messages are lost"
                )
                self.tell(WARN, one.name, f"{says}: {why}")
        for asked in self._asked:
            if abs(asked.ahead_s) > CLOCK_S:
                says = (
                    f"its clock is {asked.ahead_s:+.0f} s from ours: certificates, and clients that"
                )
                self.tell(WARN, asked.where, f"{says} begin anew, go by the clock, so set it")
        versions = {asked.status.version for asked in self._asked}
        if len(versions) > 1:
            says = f"different releases run ({_names(sorted(versions))}): bring them to the same"
            self.tell(WARN, self._asked[0].where, says)


def _own_context(tls: Tls | None) -> ssl.SSLContext:
    """To call a broker whose certificate was looked at in its file.

    It is shown its own only if it insists: a bad one would keep us from seeing who is there.
    """
    context = neighbour_context(tls if tls is not None and tls.require else None)
    context.verify_mode = ssl.CERT_NONE
    return context


def _is_file(place: str) -> bool:
    return place.endswith(".toml") or Path(place).is_file()


def _of_http(place: str) -> tuple[str, int]:
    try:
        return host_and_port(place.removeprefix("http://").partition("/")[0], "http://host:port")
    except ValueError as error:
        raise UsageError(f"{place!r} is no address: {error}") from None


async def _tells_status(address: Address) -> bool:
    try:
        await fetch(address.host, address.port)
    except CannotConnect:
        return False
    return True


class _Trouble(Exception):
    """Why nobody was met."""

    def __init__(self, says: str, nobody: bool = False) -> None:
        super().__init__(says)
        self.nobody = nobody  # there is nobody at all


def _callable(host: str) -> str:
    return EVERYWHERE.get(host, host)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
