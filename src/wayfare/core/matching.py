"""Matching: which of many filters does a notification satisfy."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from wayfare.core.filters import Filter
from wayfare.core.predicates import Attributes

Key = TypeVar("Key", bound=Hashable)


class FilterIndex(Generic[Key]):
    """Filters by key. The same history of calls gives the same order of results."""

    __slots__ = ("_filters",)

    def __init__(self) -> None:
        self._filters: dict[Key, Filter] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: object) -> bool:
        return key in self._filters

    def add(self, key: Key, given: Filter) -> None:
        """File the filter under this key; KeyError if the key is taken."""
        if key in self._filters:
            raise KeyError(key)
        self._filters[key] = given

    def remove(self, key: Key) -> None:
        """Forget this key and its filter; KeyError if it is not there."""
        del self._filters[key]

    def match(self, attributes: Attributes) -> list[Key]:
        """The keys of the filters that match, each once."""
        return [key for key, given in self._filters.items() if given.matches(attributes)]
