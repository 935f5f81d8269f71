"""Applications that want something of the past of a place: what is published there, and what of it counts on arrival.

    parking     notices by parking space: the newest of each space counts, if it says that the space is free
    warnings    traffic warnings: all of the last five minutes count
    chat        messages of a place: the last twenty count, however old they are
    sensors     readings, several each second: the newest of each sensor counts

What counts is computed from the publications alone. The terms with which an application subscribes are something
else: they say what is kept for it, by time, by count, by both, or by meaning (`semantic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from wayfare.core.filters import Filter
from wayfare.core.messages import Nullify, Terms
from wayfare.core.predicates import Attributes, Value
from wayfare.sim.links import SECOND_NS

POLICIES = {
    "time": "what is not older than the application says",
    "count": "the last N",
    "both": "the last N, if they are not older",
    "semantic": "the newest of each key, except what a later notification nullified",
    "fitting": "whichever of these suits the application",
}
HOUR_NS = 3600 * SECOND_NS
FREE, TAKEN = "free", "taken"


class Said(msgspec.Struct, frozen=True):
    """A publication about a place."""

    time: int
    key: tuple[str, int]  # publisher, number
    attributes: Attributes


class Application(msgspec.Struct, frozen=True):
    """What is published for it, and what it wants."""

    about: str
    rate: float  # publications of a usual place, per second
    payload: int  # bytes of each
    next: Callable[[Random, dict[Value, Value]], dict[str, Value]]  # given what is known of a place
    counts: Callable[[Sequence[Said], int], list[Said]]  # of all that was said of a place until now
    age_ns: int  # policies by time keep what is not older
    reach_ns: int  # with other policies, it asks for the past of so long
    last: int  # policies by count keep so many of a place
    semantic: Terms
    fitting: str  # the policy that suits it

    def terms(self, policy: str) -> Terms:
        """What to keep."""
        policy = self.policy(policy)
        if policy == "semantic":
            return self.semantic
        by_time, by_count = policy in ("time", "both"), policy in ("count", "both")
        return Terms(
            last=self.last if by_count else None, younger_ns=self.age_ns if by_time else None
        )

    def policy(self, name: str) -> str:
        return self.fitting if name == "fitting" else name

    def since_ns(self, policy: str) -> int:
        """How far back it asks."""
        policy = self.policy(policy)
        return self.age_ns if policy in ("time", "both") else self.reach_ns


# What is published


def _parking_notice(random: Random, known: dict[Value, Value]) -> dict[str, Value]:
    """A space becomes free, or is taken."""
    space = random.randrange(12)
    known[space] = TAKEN if known.get(space) == FREE else FREE
    return {"space": space, "state": known[space]}


def _warning(random: Random, _known: dict[Value, Value]) -> dict[str, Value]:
    return {"road": random.randrange(4), "danger": random.choice(("accident", "ice", "queue"))}


def _chat_message(random: Random, _known: dict[Value, Value]) -> dict[str, Value]:
    return {"author": random.randrange(5)}


def _reading(random: Random, _known: dict[Value, Value]) -> dict[str, Value]:
    return {"sensor": random.randrange(3), "value": random.randrange(1000)}


# What counts


def _free_spaces(said: Sequence[Said], _now: int) -> list[Said]:
    newest = {one.attributes["space"]: one for one in said}
    return [one for one in newest.values() if one.attributes["state"] == FREE]


def _valid(said: Sequence[Said], now: int) -> list[Said]:
    return [one for one in said if one.time >= now - VALID_NS]


def _last_messages(said: Sequence[Said], _now: int) -> list[Said]:
    return list(said[-MESSAGES:])


def _newest_readings(said: Sequence[Said], _now: int) -> list[Said]:
    return list({one.attributes["sensor"]: one for one in said}.values())


VALID_NS = 300 * SECOND_NS
MESSAGES = 20

APPLICATIONS = {
    "parking": Application(
        "the newest notice of each space, if it is free",
        rate=0.2,
        payload=20,
        next=_parking_notice,
        counts=_free_spaces,
        age_ns=120 * SECOND_NS,
        reach_ns=HOUR_NS,
        last=24,
        semantic=Terms(key="space", nullify=Nullify(Filter.parse("state = 'taken'"), ("space",))),
        fitting="semantic",
    ),
    "warnings": Application(
        "all of the last five minutes",
        rate=0.05,
        payload=200,
        next=_warning,
        counts=_valid,
        age_ns=VALID_NS,
        reach_ns=HOUR_NS,
        last=15,
        semantic=Terms(key=("road", "danger")),
        fitting="time",
    ),
    "chat": Application(
        "the last twenty messages",
        rate=0.1,
        payload=100,
        next=_chat_message,
        counts=_last_messages,
        age_ns=120 * SECOND_NS,
        reach_ns=HOUR_NS,
        last=MESSAGES,
        semantic=Terms(key="author"),
        fitting="count",
    ),
    "sensors": Application(
        "the newest reading of each sensor",
        rate=2.0,
        payload=8,
        next=_reading,
        counts=_newest_readings,
        age_ns=10 * SECOND_NS,
        reach_ns=60 * SECOND_NS,
        last=6,
        semantic=Terms(key="sensor"),
        fitting="semantic",
    ),
}
