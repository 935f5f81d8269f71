"""Brokers that announce themselves on the LAN: what they say, and which of them a client may call."""

from __future__ import annotations

import secrets
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address

from wayfare.net.addresses import Address
from wayfare.net.announcements import Announcement, announced
from wayfare.net.kinds import NAME
from wayfare.net.security import is_loopback, is_private

KIND = "_wayfare-broker._tcp.local."
LOOPBACK = "127.0.0.1"


class OtherNetwork(ValueError):
    """An announced broker is not part of the network that the client looks for."""


def announce(broker: str, network: str, address: Address) -> AbstractAsyncContextManager[None]:
    """Let clients on the LAN find this broker; one on loopback is announced there only."""
    interfaces = [LOOPBACK] if is_loopback(address.host) else []
    # Nobody can take this name in advance, to keep a broker from being announced.
    name = f"{broker}-{secrets.token_hex(4)}"
    return announced(
        KIND,
        name,
        address.host,
        address.port,
        {"broker": broker, "network": network, "tls": "yes" if address.tls else "no"},
        interfaces,
        unreachable="say in announce.host where clients on the LAN reach it",
        instead="leave out announce.network, and give clients a list of addresses",
        taken=f"another broker is announced as {name}: start this one again",
    )


def address_of(one: Announcement, network: str, *, tls: bool) -> Address:
    """Where a client may call an announced broker of this network ("": of any); ValueError, with a reason, if not.

    A broker with TLS has to show a certificate of the name that it announces. Addresses outside of this machine and
    private networks are not called, for anybody on the LAN may announce them.
    """
    said = one.properties
    name, safe = said.get("broker") or "", said.get("tls") == "yes"
    if network and said.get("network") != network:
        raise OtherNetwork("it belongs to another network")
    if tls and not safe:
        raise ValueError("it does not speak TLS")
    if not NAME.fullmatch(name):
        raise ValueError("it has no name")
    if not is_private(ip_address(one.host.partition("%")[0])):
        raise ValueError("its address is not one of a private network")
    return Address(one.host, one.port, safe, name if safe else "")
