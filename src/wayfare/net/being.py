"""What a client says of itself, for subscriptions that follow it: where it is, and any other value.

    client.location = "R12"            or a point: (52.5163, 13.3777)
    client.state["battery"] = 0.2

Every change is one `State`, which the client's core is told, and whoever listens for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from os import PathLike
from pathlib import Path

from msgspec.structs import replace

from wayfare.core import changes
from wayfare.core.changes import Change
from wayfare.core.markers import my
from wayfare.core.messages import (
    AREA_MAX,
    AREAS_MAX,
    ATTRIBUTES_MAX,
    LOCATION_MAX,
    State,
)
from wayfare.core.places import Places
from wayfare.core.predicates import Value, checked_value, near
from wayfare.core.values import plain
from wayfare.errors import FilterError, UsageError
from wayfare.net import maps

Location = str | tuple[float, float]
Areas = Mapping[str, Sequence[str]]
Changes = Mapping[str, float | Sequence[Value]]
Map = Places | str | PathLike[str]


class Values(MutableMapping[str, Value]):
    """`client.state`: what `my.<name>` stands for."""

    def __init__(self, get: Callable[[], State], be: Callable[[State], None]) -> None:
        self._get, self._be = get, be

    def __getitem__(self, name: str) -> Value:
        return self._get().values[name]

    def __setitem__(self, name: str, value: Value | None) -> None:
        if value is None:  # as where something is published
            self.pop(name, None)
            return
        state = self._get()
        try:
            values = {**state.values, my[name].name: checked_value(value)}
        except FilterError as error:
            raise UsageError(f"state[{name!r:.60}] cannot be {value!r:.60}: {error}") from None
        if len(values) > ATTRIBUTES_MAX:
            raise UsageError(f"the state of a client has at most {ATTRIBUTES_MAX} values")
        self._be(replace(state, values=values))

    def __delitem__(self, name: str) -> None:
        state = self._get()
        values = dict(state.values)
        del values[name]
        self._be(replace(state, values=values))

    def __iter__(self) -> Iterator[str]:
        return iter(self._get().values)

    def __len__(self) -> int:
        return len(self._get().values)

    def __repr__(self) -> str:
        return repr(dict(self._get().values))


class Being:
    """How one client becomes something else; `be` is told of it."""

    def __init__(
        self,
        areas: Areas | None,
        places: Map | None,
        get: Callable[[], State],
        be: Callable[[State], None],
    ) -> None:
        self.values = Values(get, be)
        self.areas = _checked_areas(areas)
        self._places = places if isinstance(places, Places) else _read(places)
        self._get, self._be = get, be

    @property
    def location(self) -> Location | None:
        state = self._get()
        return state.location or state.position

    @location.setter
    def location(self, there: Location | None) -> None:
        if there is None:
            self._be(replace(self._get(), location="", position=None, areas=self.areas))
        elif isinstance(there, str):
            if not 0 < len(there) <= LOCATION_MAX:
                raise UsageError(
                    f"a location is a name of 1 to {LOCATION_MAX} characters, not {there!r:.60}"
                )
            place = self._places.places.get(there)
            position = None if place is None else place.position
            self._be(replace(self._get(), location=there, position=position, areas=self.areas))
        else:
            self._be(replace(self._get(), location="", position=_point(there), areas=self.areas))


def _read(places: str | PathLike[str] | None) -> Places:
    return Places() if places is None else maps.read(Path(places))


def _point(there: tuple[float, float]) -> tuple[float, float]:
    try:
        lat, lon = map(plain, there)
        near(lat, lon, 0)
    except (FilterError, TypeError, ValueError) as error:
        why = f" ({error})" if isinstance(error, FilterError) else ""
        raise UsageError(
            f"a location is a name, or a pair of latitude and longitude, not {there!r:.60}{why}"
        ) from None
    return float(lat), float(lon)


def _checked_areas(areas: Areas | None) -> dict[str, tuple[str, ...]]:
    found = {name: tuple(area) for name, area in (areas or {}).items()}
    if len(found) > AREAS_MAX:
        raise UsageError(f"areas are of at most {AREAS_MAX} locations, not {len(found)}")
    for name, area in found.items():
        if not 0 < len(area) <= AREA_MAX:
            raise UsageError(f"the area of {name!r:.60} is 1 to {AREA_MAX} locations")
    return found


def declared(given: Changes) -> dict[str, Change]:
    """How values change, as brokers are told."""
    found: dict[str, Change] = {}
    for name, change in given.items():
        if isinstance(change, Sequence):
            found[my[name].name] = tuple(map(checked_value, change))
        else:
            found[my[name].name] = plain(change)
    changes.check(found)
    return found


def is_changes(given: object) -> bool:
    """Whether these are names, each with how a value changes."""
    if not isinstance(given, Mapping):
        return False
    try:
        declared(given)
    except (FilterError, TypeError):
        return False
    return all(not isinstance(change, str) for change in given.values())


def is_areas(given: object) -> bool:
    """Whether these are locations, each with locations."""
    return isinstance(given, Mapping) and all(
        _is_name(name)
        and isinstance(area, Sequence)
        and not isinstance(area, str)
        and all(map(_is_name, area))
        for name, area in given.items()
    )


def _is_name(given: object) -> bool:
    return isinstance(given, str) and 0 < len(given) <= LOCATION_MAX
