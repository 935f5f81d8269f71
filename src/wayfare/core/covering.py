"""Covering and overlap among many filters: what routing asks of its tables."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from wayfare.core.filters import Filter

Key = TypeVar("Key", bound=Hashable)


class CoverIndex:
    """A set of filters. Lists of members come in the order in which they were added."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[Filter, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, given: object) -> bool:
        return given in self._members

    def add(self, given: Filter) -> None:
        """Make the filter a member; KeyError if it is one."""
        if given in self._members:
            raise KeyError(given)
        self._members[given] = None

    def remove(self, given: Filter) -> None:
        """Forget the member; KeyError if it is none."""
        del self._members[given]

    def coverers(self, given: Filter) -> list[Filter]:
        """The members that cover this filter, itself included if it is one."""
        return [member for member in self._members if member.covers(given)]

    def covered(self, given: Filter) -> list[Filter]:
        """The members that this filter covers, itself included if it is one."""
        return [member for member in self._members if given.covers(member)]


class OverlapIndex(Generic[Key]):
    """Filters by key. Lists of keys come in the order in which they were added."""

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

    def overlapping(self, given: Filter) -> list[Key]:
        """The keys of the filters that may match something that this one matches."""
        return [key for key, other in self._filters.items() if other.overlaps(given)]

    def any(self, given: Filter) -> bool:
        """Whether there is such a key."""
        return any(other.overlaps(given) for other in self._filters.values())
