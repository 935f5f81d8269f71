"""What subscriptions cost a broker, as a number, and what each account has spent.

The cost of a filter is the sum over its conjunctions, and that of a conjunction the sum over its predicates:
an equality is found by one look into a table, while a pattern or a negation has to be compared with every
notification, and with every other filter. Disjunctions are several conjunctions, so they cost more by
themselves.

    service = 'parking'                     1
    service = 'parking' and free > 0        3
    name like '%abc%'                       8
    x <> 1 or y <> 1                       16

A filter that follows its client costs the same wherever the client is: as if `myloc` stood for one location. The filter of
a queue group counts for a client that has a member in it, once. Addresses, of requesters and of members, are free: nobody can
do without them, and they are found by one look into a table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache

from wayfare.core import predicates as ps
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.markers import Marked
from wayfare.core.messages import ClientId
from wayfare.core.predicates import Predicate
from wayfare.core.reserved import is_address
from wayfare.core.templates import Template

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
# By operator: predicates that are made when it is known where the client is, and what it is like.
MARKED_WEIGHTS = {"in": 1, "<": 2, "<=": 2, ">": 2, ">=": 2, "near": 4, "not in": 8, "not near": 8}
MARKED_PATTERN = 8

# What a client wants, each thing under a key of its own: asked for again, it costs nothing.
Wants = dict[Hashable, Filter | Template]


def filters_of(some: Iterable[Filter]) -> Wants:
    """Subscriptions, as far as they cost anything."""
    return {one: one for one in some if not is_address(one)}


def templates_of(some: Iterable[Template]) -> Wants:
    """Filters that follow the client."""
    return {one: one for one in some}


@lru_cache(CACHED_MAX)
def cost_of(one: Filter | Template) -> int:
    clauses = one.clauses if isinstance(one, Template) else one.conjunctions
    return sum(sum(map(_weight, clause)) or EVERYTHING_COST for clause in clauses)


def _weight(p: Predicate | Marked) -> int:
    if isinstance(p, Marked):
        weight = MARKED_WEIGHTS.get(p.operator)
        if weight is None:
            return MARKED_PATTERN * (2 if p.operator.startswith("not ") else 1)
        return weight + (len(p.values) - 1) // VALUES_PER_POINT
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

    def __init__(self, wants: Callable[[ClientId], Wants]) -> None:
        self._sources = [wants]  # that say what a client wants now
        self._charges: dict[str, dict[ClientId, int]] = {}  # by account

    def count(self, wants: Callable[[ClientId], Wants]) -> None:
        """This counts, too."""
        self._sources.append(wants)

    def wants(self, client: ClientId) -> Wants:
        """All that counts for a client now."""
        wants: Wants = {}
        for source in self._sources:
            wants |= source(client)
        return wants

    def spent(self, account: str) -> int:
        """By its clients, counted now; those without subscriptions are forgotten."""
        clients = self._charges.get(account, {})
        counted = {client: _sum(self.wants(client)) for client in clients}
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
        self._charges.setdefault(account, {})[client] = _sum(self.wants(client))

    def charge(self, grants: Grants, wants: Wants) -> str:
        """A client asks for what makes this all that it wants. Returns why not, or ""."""
        account, client = grants.account, ClientId(grants.client)
        cost = _sum(wants)
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


def _sum(wants: Mapping[Hashable, Filter | Template]) -> int:
    return sum(map(cost_of, wants.values()))
