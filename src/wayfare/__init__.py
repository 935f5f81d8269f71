"""Wayfare: publish/subscribe for clients that move."""

from wayfare.core.conditions import Condition, attr, near
from wayfare.core.filters import Filter
from wayfare.errors import WayfareError

__all__ = ["Condition", "Filter", "WayfareError", "attr", "near"]
