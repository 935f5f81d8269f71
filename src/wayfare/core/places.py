"""Where things are: the movement graph of locations, their coordinates, and whose range they are in.

    reach(x, q)       ploc: the locations that are at most q steps from x
    around(xs)        a circle that holds all of these locations
    locations(b)      what is in the range of broker b; by default a location of its own name
    next_brokers(b)   nlb: the brokers of the locations that are one step away

A step not written down for both directions goes in one only: streets may be one-way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from wayfare.core.changes import EVERYWHERE as EVERYWHERE
from wayfare.core.messages import LOCATION_MAX, BrokerId, Latitude, Longitude, State
from wayfare.core.predicates import distance_m
from wayfare.core.prediction import Movement
from wayfare.core.templates import Around
from wayfare.errors import ModelError

LOCATIONS_MAX = 100_000

Name = Annotated[str, Meta(min_length=1, max_length=LOCATION_MAX)]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says of one location."""

    next: tuple[Name, ...] = ()  # where one can go from here
    broker: str | None = None  # in whose range it is
    position: tuple[Latitude, Longitude] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    places: dict[Name, Place]


class Places:
    """A map. Without any places it says of every broker that it has a location of its own name."""

    def __init__(self, places: Mapping[str, Place] | None = None) -> None:
        self.places = dict(places or {})
        if len(self.places) > LOCATIONS_MAX:
            raise ModelError(f"a map has at most {LOCATIONS_MAX} places")
        for name, place in self.places.items():
            for other in place.next:
                if other not in self.places:
                    raise ModelError(f"{name} leads to {other}, which is no place of this map")
        self._of: dict[BrokerId, list[str]] = {}
        for name, place in self.places.items():
            if place.broker is not None:
                self._of.setdefault(BrokerId(place.broker), []).append(name)
        self._reached: dict[tuple[str, int], tuple[str, ...]] = {}

    def reach(self, location: str, steps: int) -> tuple[str, ...]:
        """ploc: the locations at most so many steps away, with this one, the nearest first."""
        known = self._reached.get((location, steps))
        if known is not None:
            return known
        if steps >= EVERYWHERE:
            found = dict.fromkeys([location, *self.places])
        else:
            found = {location: None}
            edge = [location]
            for _ in range(steps):
                edge = [
                    there
                    for here in edge
                    if here in self.places
                    for there in self.places[here].next
                    if there not in found and not found.setdefault(there)
                ]
                if not edge:
                    break
        if location in self.places:  # else anybody could fill our memory
            self._reached[location, steps] = tuple(found)
        return tuple(found)

    def around(
        self, locations: Iterable[str], centre: tuple[float, float] | None = None
    ) -> Around | None:
        """A circle that holds all of these locations, round the first by default; None: nowhere."""
        places = (self.places.get(name) for name in locations)
        known = [one.position for one in places if one is not None and one.position is not None]
        if centre is None and not known:
            return None
        lat, lon = centre or known[0]
        return Around(lat, lon, max((distance_m(lat, lon, *one) for one in known), default=0.0))

    def located(self, state: State) -> State:
        """The same with the position of its location, if the client has said none."""
        place = self.places.get(state.location)
        if state.position is not None or place is None or place.position is None:
            return state
        return replace(state, position=place.position)

    def locations(self, broker: BrokerId) -> tuple[str, ...]:
        """What is in the range of a broker."""
        return tuple(self._of.get(broker, (broker,)))

    def next_brokers(self, broker: BrokerId) -> tuple[BrokerId, ...]:
        """nlb: whose range a client may come to next, by one step of the movement graph."""
        steps = (
            there
            for here in self.locations(broker)
            if here in self.places
            for there in self.places[here].next
        )
        brokers = (self.places[there].broker or there for there in steps)
        return tuple(dict.fromkeys(BrokerId(one) for one in brokers if one != broker))

    def brokers(self) -> tuple[BrokerId, ...]:
        return tuple(self._of)


def of_movement(movement: Movement, coverage: float) -> Places:
    """The movement graph of a mined model: every broker a location, its likely successors the next."""
    brokers: dict[str, None] = {}
    for one in movement.moves:
        brokers[one.broker] = brokers[one.to] = None
    return Places(
        {
            name: Place(next=tuple(movement.successors(BrokerId(name), coverage)), broker=name)
            for name in brokers
        }
    )


def of_edges(edges: Iterable[tuple[str, str]]) -> Places:
    """A movement graph in which every location is the range of a broker of its name."""
    near: dict[str, list[str]] = {}
    for a, b in edges:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    return Places({name: Place(next=tuple(there), broker=name) for name, there in near.items()})


def decode(data: bytes, form: str = "json") -> Places:
    """The map that a file holds, as JSON or TOML; ModelError if it holds none."""
    try:
        file = (msgspec.toml if form == "toml" else msgspec.json).decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"it is no map ({error}): {REMEDY}") from None
    return Places(file.places)


REMEDY = 'it has to read like {"places": {"R1": {"next": ["R2"], "broker": "b1"}, "R2": {}}}'
