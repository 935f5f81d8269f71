"""What subscriptions cost a broker, as a number, and what each account has spent.

The cost of a filter is the sum over its conjunctions, and that of a conjunction the sum over its predicates:
an equality is found by one look into a table, while a pattern or a negation has to be compared with every
notification, and with every other filter. Disjunctions are several conjunctions, so they cost more by
themselves.

    service = 'parking'                     1
    service = 'parking' and free > 0        3
    name like '%abc%'                       8
    x <> 1 or y <> 1                       16
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from wayfare.core import predicates as ps
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.messages import ClientId
from wayfare.core.predicates import Predicate

EVERYTHING_COST = 16  # of a conjunction without predicates: every notification is delivered
VALUES_PER_POINT = 10  # of a list: `x in (...)`
CACHED_MAX = 10_000  # filters whose cost is remembered

WEIGHTS: dict[type, int] = {
    ps.OneOf: 1,
    ps.Between: 2,
    ps.Exists: 2,
    ps.Near: 4,
    ps.Like: 8,
    ps.NoneOf: 8,
    ps.Missing: 8,
}


@lru_cache(CACHED_MAX)
def cost_of(filter: Filter) -> int:
    return sum(sum(map(_weight, one)) or EVERYTHING_COST for one in filter.conjunctions)


def _weight(p: Predicate) -> int:
    weight = WEIGHTS[type(p)]
    if isinstance(p, ps.OneOf | ps.NoneOf):
        weight += (len(p.values) - 1) // VALUES_PER_POINT
    elif isinstance(p, ps.Like | ps.Near) and p.negated:
        weight *= 2
    return weight


class Costs:
    """What the clients of each account spend on subscriptions at this broker.

    A charge may be out of date, because a session has ended or a filter was withdrawn: before anything is
    refused, the account is counted again. So nothing has to be told here when a session ends.
    """

    def __init__(self, subscriptions: Callable[[ClientId], Iterable[Filter]]) -> None:
        self._subscriptions = subscriptions  # that a client has now
        self._charges: dict[str, dict[ClientId, int]] = {}  # by account

    def spent(self, account: str) -> int:
        """By its clients, counted now; those without subscriptions are forgotten."""
        clients = self._charges.get(account, {})
        counted = {client: sum(map(cost_of, self._subscriptions(client))) for client in clients}
        self._charges[account] = left = {one: cost for one, cost in counted.items() if cost}
        if not left:
            del self._charges[account]
        return sum(left.values())

    def payers(self) -> dict[str, list[ClientId]]:
        """Whose subscriptions count, by account: all that has to be saved."""
        return {account: list(clients) for account, clients in self._charges.items()}

    def knows(self, account: str, client: ClientId) -> bool:
        return client in self._charges.get(account, {})

    def know(self, account: str, client: ClientId) -> None:
        """Count what this client has already, from now on."""
        cost = sum(map(cost_of, self._subscriptions(client)))
        self._charges.setdefault(account, {})[client] = cost

    def charge(self, grants: Grants, asked: Iterable[Filter], *, instead: bool) -> str:
        """A client asks for these filters, beside or instead of what it has. Returns why not, or ""."""
        account, client = grants.account, ClientId(grants.client)
        kept = {} if instead else dict.fromkeys(self._subscriptions(client))
        cost = sum(map(cost_of, kept | dict.fromkeys(asked)))
        if self._others(account, client) + cost > grants.cost_max:
            spent = self.spent(account)
            if self._others(account, client) + cost > grants.cost_max:
                return (
                    f"the subscriptions of {client} would cost {cost}, and its account has used"
                    f" {spent} of {grants.cost_max} (subscription_cost): unsubscribe from others,"
                    " or use equality instead of patterns and negations"
                )
        self._charges.setdefault(account, {})[client] = cost
        return ""

    def _others(self, account: str, client: ClientId) -> int:
        clients = self._charges.get(account, {})
        return sum(clients.values()) - clients.get(client, 0)
