"""Brokers as they are configured: what a file comes to, whatever it was written in."""

from __future__ import annotations

import msgspec

from wayfare.core.history import Limits
from wayfare.net.addresses import Address
from wayfare.net.limits import DEFAULT_NET_LIMITS, NetLimits
from wayfare.net.security import Tls

ADMIN_FILE = "admin.sock"  # beside a store


class Durability(msgspec.Struct, frozen=True):
    """How safe is what a broker acknowledges, and where it is kept if that is not in memory."""

    mode: str = "memory"
    directory: str = ""


class Status(msgspec.Struct, frozen=True):
    """Where a process tells about its brokers over HTTP; without a port, nowhere."""

    host: str = "127.0.0.1"
    port: int | None = None


class AdminApi(msgspec.Struct, frozen=True):
    """Where operators reach a process over HTTP, and the file of their tokens; without an address, nowhere."""

    listen: Address | None = None
    tokens: str = ""


class Announce(msgspec.Struct, frozen=True):
    """How brokers announce themselves on the LAN; without the name of a network, they do not."""

    network: str = ""
    host: str = ""  # where clients reach them; "": where they listen


class Security(msgspec.Struct, frozen=True):
    """Who may come in: files."""

    tls: Tls | None = None
    secret_file: str = ""
    accounts: str = ""
    audit: str = ""  # file of the audit log
    bans: str = ""


class Ahead(msgspec.Struct, frozen=True):
    """Where clients go, by the file of a map or of a mined model, and how far brokers listen ahead."""

    places: str = ""
    movement: str = ""
    coverage: float = 0.9
    nlb: str = "next"
    steps: int | None = 0
    dwell_ns: int | None = None  # None: it is measured; so is this:
    hop_ns: int | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all brokers of a network have in common, or one broker for itself."""

    routing: str
    relocation: str
    heartbeat_s: float
    limits: Limits
    durability: Durability
    status: Status = Status()
    security: Security = Security()
    net_limits: NetLimits = DEFAULT_NET_LIMITS
    ahead: Ahead = Ahead()
    admin: str = ""  # the path of the admin socket; "": there is none
    admin_api: AdminApi = AdminApi()
    announce: Announce = Announce()


class Broker(msgspec.Struct, frozen=True):
    """One broker, its neighbours, and where they are; those without an address call."""

    name: str
    listen: Address
    neighbours: dict[str, Address | None]
    settings: Settings
    peers: dict[str, Address] = {}


class Network(msgspec.Struct, frozen=True):
    """A tree of brokers on one machine: the port of each (0: any), and the links."""

    host: str
    brokers: dict[str, int]
    links: tuple[tuple[str, str], ...]
    settings: Settings
