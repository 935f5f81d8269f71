"""Which adapter is for which address. The clients of other systems are loaded only when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from wayfare.errors import UsageError
from wayfare.service.addresses import ANYBODY, place, scheme_of
from wayfare.service.system import System, Trust

# scheme: module, and what makes the adapter
ADAPTERS = {
    "mqtt": ("mqtt", "Mqtt"),
    "mqtts": ("mqtt", "Mqtt"),
    "amqp": ("amqp", "Amqp"),
    "amqps": ("amqp", "Amqp"),
    "nats": ("nats", "Nats"),
    "nats+tls": ("nats", "Nats"),
    "redis": ("redis", "Redis"),
    "rediss": ("redis", "Redis"),
    "redis+envelope": ("redis", "enveloped"),
    "rediss+envelope": ("redis", "enveloped"),
    "stomp": ("stomp", "Stomp"),
    "stomp+ssl": ("stomp", "Stomp"),
    "wayfare": ("wayfare", "Wayfare"),
    "wayfares": ("wayfare", "Wayfare"),
}


def alike(one: str, other: str) -> bool:
    """Whether these addresses are of one kind of system, with or without TLS."""
    kind, *others = (ADAPTERS.get(scheme_of(address)) for address in (one, other))
    return kind is not None and others == [kind]


def refusal(access: str, kind: str) -> str:
    """Why a client of that kind of system does not go to an access point that a proxy names; else nothing."""
    if not alike(access, kind):
        return f"{access} is another kind of system than {kind}"
    if _is_safe(kind) and not _is_safe(access):
        return (
            f"{access} is without TLS, and {kind} was with it: all would cross the network in clear"
        )
    return ""


def _is_safe(address: str) -> bool:
    module, _ = ADAPTERS[scheme_of(address)]
    return bool(import_module(f"wayfare.service.{module}").SCHEMES[scheme_of(address)].tls)


def adapter(address: str, trust: Trust = ANYBODY) -> System:
    """Give the adapter for an address like mqtt://host:port."""
    scheme = scheme_of(address)
    if scheme not in ADAPTERS:
        known = ", ".join(ADAPTERS)
        raise UsageError(
            f"no publish/subscribe system is known by {scheme!r}: "
            f"write an address like mqtt://host:port, with one of {known}"
        )
    module, name = ADAPTERS[scheme]
    try:
        made = getattr(import_module(f"wayfare.service.{module}"), name)()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{scheme}:// needs the package {error.name}: pip install 'wayfare[service]'"
        ) from None
    made.trust = trust
    return cast(System, made)


def check(address: str) -> None:
    """What is no address is told at once, and not when somebody connects there."""
    adapter(address)
    module, _ = ADAPTERS[scheme_of(address)]
    place(address, import_module(f"wayfare.service.{module}").SCHEMES)
