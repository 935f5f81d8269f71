"""Cells: which parts of a line a range touches, and which parts of the earth a circle does.

Cells are of sizes that are powers of 4. The size follows the width, so that there are few of them:
what looks for a value looks once for each size that is in use.
"""

from __future__ import annotations

from math import asin, cos, degrees, floor, frexp, ldexp, pi, radians, sin

from wayfare.core import predicates as ps

GRID_CELLS_MAX = 16  # cells of one circle

Number = int | float


def range_cells(low: Number, high: Number) -> tuple[Number, list[tuple[int, bool]]]:
    """The size of the cells; those that the range touches, and whether it takes in all of each."""
    size = _cell_size(high - low)
    first = int(low // size)
    last = max(first, int(high // size))  # no number may be left between open ends
    return size, [(at, first < at < last) for at in range(first, last + 1)]


def _cell_size(width: Number) -> Number:
    """The power of 4 of which 2 to 8 fit into the width."""
    exponent = (frexp(min(width, 1e308))[1] - 2) // 2 * 2
    return 1 << exponent if exponent >= 0 else ldexp(1.0, max(exponent, -1022))


def circle_box(p: ps.Near) -> tuple[float, float, list[tuple[float, float]]]:
    """South, north, and from west to east: within them is all that the circle may touch."""
    # Both this and the test round; a millimetre and a part in 10**9 more is more than they do.
    angle = (p.metres + 0.001) / ps.EARTH_RADIUS_M * (1 + 1e-9)
    height = degrees(angle)
    south, north = p.lat - height, p.lat + height
    if south <= -90 or north >= 90 or angle >= pi / 2:
        spans = [(-180.0, 180.0)]
    else:
        width = degrees(asin(min(1.0, sin(angle) / cos(radians(p.lat))))) + 1e-9
        west, east = p.lon - width, p.lon + width
        spans = [(max(west, -180.0), min(east, 180.0))]
        if west <= -180:
            spans.append((west + 360 - 1e-9, 180.0))
        if east >= 180:
            spans.append((-180.0, east - 360 + 1e-9))
    return max(south, -90.0), min(north, 90.0), spans


def circle_cells(p: ps.Near) -> tuple[float, list[tuple[int, int]]]:
    """The size of the cells, and those that the circle may touch."""
    south, north, spans = circle_box(p)
    # Near a pole a small circle takes in many degrees.
    across = sum(east - west for west, east in spans) / GRID_CELLS_MAX
    size = 4.0 ** floor(frexp(max((north - south) / 2, across, 1e-6))[1] / 2)
    while True:
        rows = range(floor(south / size), floor(north / size) + 1)
        columns = dict.fromkeys(
            column
            for west, east in spans
            for column in range(floor(west / size), floor(east / size) + 1)
        )
        if len(rows) * len(columns) <= GRID_CELLS_MAX:
            return size, [(row, column) for row in rows for column in columns]
        size *= 4
