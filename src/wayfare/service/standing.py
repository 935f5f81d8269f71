"""What the proxy of a client knows of its subscriptions, and up to which change it has confirmed them.

The access point has a subscription first, then the proxy: else the proxy would keep what the client does not hear,
and hand it out at the next move, behind what came later.
"""

from __future__ import annotations

from collections.abc import Collection

Change = tuple[tuple[str, ...], tuple[str, ...], int]  # added, removed, and which change that is


class Standing:
    def __init__(self) -> None:
        self.active: set[str] = set()  # subscriptions that the access point has
        self.changes = 0  # of subscriptions
        self.confirmed = 0  # until which change the proxy has them, too
        self._told: set[str] = set()
        self._told_upto = 0  # the change that these have
        self._told_at_first = 0  # ... had when the stay began
        self._partial = False  # the proxy was told of some, not of all, and of no change

    def fit(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Those of them that a proxy may stand in for."""
        return tuple(text for text in wanted if text in self.active or text in self._told)

    def begin(self, told: Collection[str], wanted: Collection[str]) -> int:
        """A stay begins, and this is what the proxy knows: which change it is, if it is all that is wanted."""
        self._told = set(told)
        self._partial = self._told != set(wanted)
        self._told_upto = self._told_at_first = 0 if self._partial else self.changes
        return self._told_upto

    def tell(self, wanted: Collection[str]) -> Change | None:
        """What the proxy is to be told."""
        fit = self.fit(wanted)
        added = tuple(text for text in fit if text not in self._told)
        removed = tuple(sorted(self._told.difference(fit)))
        self._told = set(fit)
        is_all = self._told == set(wanted)
        if added or removed or (is_all and self._partial):
            self._partial = not is_all
            change = self.changes if is_all else 0
            self._told_upto = change or self._told_upto
            return added, removed, change
        if is_all and self.confirmed == self._told_upto:
            self.confirmed = self._told_upto = self.changes  # they are the same as before
        return None

    def confirm(self, change: int) -> None:
        self.confirmed = max(self.confirmed, change)

    def stands(self) -> None:
        """The proxy has what the stay began with."""
        self.confirm(self._told_at_first)
