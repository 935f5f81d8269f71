"""Wayfare: publish/subscribe for clients that move."""

from wayfare.core.conditions import Condition, Constant, attr, near
from wayfare.core.filters import Filter
from wayfare.errors import FilterError, FilterSyntaxError, WayfareError

__all__ = [
    "Condition",
    "Constant",
    "Filter",
    "FilterError",
    "FilterSyntaxError",
    "WayfareError",
    "attr",
    "near",
]
