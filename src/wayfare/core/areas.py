"""Where notifications are of use, and whether a client is known to be elsewhere.

A client whose place is not known is never elsewhere: neither that of an area that names locations, if the client has
said none, nor that of a circle, if its position is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from wayfare.core.messages import Area, BrokerId, State, check_area
from wayfare.core.places import Places
from wayfare.core.predicates import distance_m
from wayfare.errors import InvalidNotification


def is_outside(area: Area, state: State) -> bool:
    """Whether a client with this state is known to be outside this area."""
    if area.circle is None:
        return state.location != "" and state.location not in area.locations
    lat, lon, metres = area.circle
    return state.position is not None and distance_m(lat, lon, *state.position) > metres


def touches(area: Area, broker: BrokerId, places: Places) -> bool:
    """Whether a client in the range of this broker may be inside this area."""
    locations = places.locations(broker)
    return any(not is_outside(area, places.located(State(one))) for one in locations)


def area_of(given: Area | str | Sequence[str] | Sequence[float]) -> Area:
    """An area as applications say it: a location, several of them, or (latitude, longitude, metres)."""
    if isinstance(given, Area):
        area = given
    elif isinstance(given, str):
        area = Area((given,))
    else:
        area = _area_of_parts(given)
    check_area(area)
    return area


def _area_of_parts(given: object) -> Area:
    parts = given if isinstance(given, list | tuple) else ()
    names = tuple(one for one in parts if isinstance(one, str))
    if parts and len(names) == len(parts):
        return Area(names)
    numbers = [float(one) for one in parts if type(one) in (int, float)]
    if len(numbers) != 3 or len(parts) != 3:
        raise InvalidNotification(
            f"an area is locations, like ['R1', 'R2'], or a circle, like (52.52, 13.38, 500), not {given!r:.60}"
        )
    return Area((), (numbers[0], numbers[1], numbers[2]))
