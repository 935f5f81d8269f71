"""Entries that become wider with the distance from their client: in one broker, and in a tree."""

from collections import deque
from itertools import accumulate
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.core.codec import decode, encode
from wayfare.core.filters import EVERYTHING, NOTHING, Filter
from wayfare.core.messages import AHEAD_MAX, UPDATE_MAX, ClientId, Entry, Update
from wayfare.core.reduction import STRATEGIES
from wayfare.core.routing import Routing, near_and_here
from wayfare.sim import topology
from wayfare.sim.tables import Tables, add_place, differences

HERE = 9  # the place of a session
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def f(text):
    return Filter.parse(text)


def chain(*texts):
    return tuple(map(f, texts))


def e(*texts, client=""):
    first, *ahead = chain(*texts)
    return Entry(first, client, tuple(ahead))


def tables(*neighbours, strategy="covering"):
    here = Routing(neighbours, STRATEGIES[strategy])
    for name in neighbours:
        here.apply(name, Update(add_ads=(Entry(EVERYTHING, "tom" * (strategy == "simple")),)))
    here.updates()
    return here


def subs_for(here, neighbour):
    """What a neighbour is told of subscriptions: added, removed."""
    told = [update for name, update in here.updates() if name == neighbour]
    return (
        [entry for update in told for entry in update.add_subs],
        [entry for update in told for entry in update.remove_subs],
    )


def places(here, **attributes):
    near, of_sessions = near_and_here(here.destinations.find(attributes))
    return near + of_sessions


# Entries


def test_one_hop_farther_an_entry_is_what_was_ahead():
    entry = e("x = 1", "x < 5", "x < 9", client="anna")
    assert entry.shifted() == e("x < 5", "x < 9", client="anna")
    assert entry.shifted().shifted() == e("x < 9", client="anna")
    assert e("x < 9").shifted() == e("x < 9")
    assert entry.widest() == f("x < 9")
    assert e("x = 1").widest() == f("x = 1")


def test_what_does_not_become_wider_any_more_is_not_said_twice():
    assert Entry.along(chain("x = 1", "x < 5", "x < 5", "x < 5")) == e("x = 1", "x < 5")
    assert Entry.along(chain("x < 5", "x < 5")) == e("x < 5")
    assert Entry.along(chain("x = 1", "x = 1", "x < 5")) == e("x = 1", "x = 1", "x < 5")
    assert Entry.along(chain("x = 1"), "anna") == e("x = 1", client="anna")


@pytest.mark.parametrize(
    "bad",
    [
        (),
        tuple(f(f"x < {n}") for n in range(AHEAD_MAX + 2)),
        (f("x = 1"), NOTHING),
        (f("x = 1 or y = 1"),),
    ],
)
def test_no_entry_is_made_of_a_bad_chain(bad):
    with pytest.raises(ValueError, match="entry"):
        Entry.along(bad)


def test_a_chain_of_just_the_limit_is_an_entry():
    assert len(Entry.along([f(f"x < {n}") for n in range(AHEAD_MAX + 1)]).ahead) == AHEAD_MAX


def test_an_entry_reads_as_the_filters_on_its_way():
    assert str(e("x = 1", "x < 5", client="anna")) == "anna: x = 1 -> x < 5"
    assert str(e("x = 1")) == "x = 1"


# One broker


@every_strategy
def test_the_place_has_the_exact_filter_and_the_neighbours_the_chain(strategy):
    here = tables("faro", strategy=strategy)
    given = f("x = 1"), HERE, (chain("x in (1, 2)", "x < 5", "true"),)
    here.subscribe("anna", *given)
    owner = "anna" if strategy == "simple" else ""
    told = [e("x in (1, 2)", "x < 5", "true", client=owner)] if strategy != "flooding" else []
    assert subs_for(here, "faro") == (told, [])
    assert (places(here, x=1), places(here, x=2)) == ([HERE], [])
    here.unsubscribe("anna", *given)
    assert subs_for(here, "faro") == ([], told)
    assert here.destinations.counts() == {}


def test_nothing_may_be_wanted_yet_and_everything_ahead():
    here = tables("faro")
    here.subscribe("anna", NOTHING, HERE, (chain("x = 1", "x < 5"), chain("y = 1")))
    assert subs_for(here, "faro") == ([e("x = 1", "x < 5"), e("y = 1")], [])
    assert here.destinations.counts() == {}
    here.unsubscribe("anna", NOTHING, HERE, (chain("x = 1", "x < 5"), chain("y = 1")))
    assert subs_for(here, "faro")[0] == []
    assert here.out_subs["faro"].entries == {}


def test_a_bad_chain_changes_nothing():
    here = tables("faro")
    with pytest.raises(ValueError, match="entry"):
        here.subscribe("anna", f("x = 1"), HERE, ((),))
    assert here.destinations.counts() == {}
    assert here.updates() == []


def test_what_a_neighbour_said_counts_as_it_is_and_goes_on_as_it_is_one_hop_farther():
    here = tables("faro", "porto")
    here.apply("porto", Update(add_subs=(e("x = 1", "x < 5", "true"),)))
    assert subs_for(here, "faro") == ([e("x < 5", "true")], [])
    assert list(here.in_subs["porto"]) == [e("x = 1", "x < 5", "true")]
    assert (places(here, x=1), places(here, x=2)) == ([1], [])


def test_entries_that_are_the_same_farther_on_are_one_there_until_the_last_goes():
    here = tables("faro", "porto", strategy="identity")
    here.apply("porto", Update(add_subs=(e("x = 1", "x < 5"), e("x = 2", "x < 5"), e("x < 5"))))
    assert subs_for(here, "faro") == ([e("x < 5")], [])
    here.subscribe("anna", f("x = 3"), HERE, (chain("x < 5"),))
    here.apply("porto", Update(remove_subs=(e("x = 1", "x < 5"), e("x < 5"))))
    assert subs_for(here, "faro") == ([], [])
    here.apply("porto", Update(remove_subs=(e("x = 2", "x < 5"),)))
    assert subs_for(here, "faro") == ([], [])
    here.unsubscribe("anna", f("x = 3"), HERE, (chain("x < 5"),))
    assert subs_for(here, "faro") == ([], [e("x < 5")])


def test_the_widest_filter_decides_where_an_entry_goes():
    here = Routing(["faro", "porto"], STRATEGIES["covering"])
    here.apply("faro", Update(add_ads=(e("x = 9"),)))
    here.subscribe("anna", f("x = 1"), HERE, (chain("x = 1", "x < 5", "x < 10"),))
    assert subs_for(here, "faro") == ([e("x = 1", "x < 5", "x < 10")], [])
    here.apply("faro", Update(add_ads=(e("x = 12"),), remove_ads=(e("x = 9"),)))
    assert subs_for(here, "faro") == ([], [e("x = 1", "x < 5", "x < 10")])
    here.apply("faro", Update(add_ads=(e("x = 8"),)))
    assert subs_for(here, "faro") == ([e("x = 1", "x < 5", "x < 10")], [])
    here.apply("porto", Update(add_subs=(e("y = 1 and x = 1", "y = 1 and x = 2", "x < 9"),)))
    assert subs_for(here, "faro") == ([e("y = 1 and x = 2", "x < 9")], [])


def test_a_move_is_told_as_one_update_without_a_blackout():
    here = tables("faro")
    here.subscribe("anna", f("x = 1"), HERE, (chain("x < 3", "x < 5"),))
    here.updates()
    here.subscribe("anna", f("x = 2"), HERE, (chain("x < 4", "x < 6"),))
    here.unsubscribe("anna", f("x = 1"), HERE, (chain("x < 3", "x < 5"),))
    [(_, update)] = here.updates()
    assert update == Update(add_subs=(e("x < 4", "x < 6"),), remove_subs=(e("x < 3", "x < 5"),))


def test_a_publisher_is_told_of_interest_here_and_not_of_what_is_ahead():
    here = tables("faro", "porto")
    here.apply("porto", Update(add_subs=(e("x = 1", "x < 5"),)))
    assert here.is_wanted(f("x = 1"), HERE)
    assert not here.is_wanted(f("x = 2"), HERE)
    here.subscribe("anna", f("x = 2"), HERE, (chain("x < 5"),))
    assert here.is_wanted(f("x = 2"), HERE + 1)
    assert not here.is_wanted(f("x = 2"), HERE)
    assert not here.is_wanted(f("x = 3"), HERE + 1)
    here.apply("porto", Update(remove_subs=(e("x = 1", "x < 5"),)))
    assert not here.is_wanted(f("x = 1"), HERE)


def test_a_client_is_looked_for_where_an_entry_of_its_own_covers_its_subscription():
    here = tables("faro", "lisbon", "porto", strategy="simple")
    here.apply("faro", Update(remove_ads=(e("true", client="tom"),)))
    here.apply("lisbon", Update(remove_ads=(e("true", client="tom"),)))
    here.apply("faro", Update(add_subs=(e("x < 5", "true", client="anna"),)))
    here.apply("lisbon", Update(add_subs=(e("x < 5", "true", client="bert"),)))
    assert here.towards("anna", [f("x = 1")], None) == {"faro", "porto"}
    here.apply("lisbon", Update(add_subs=(e("x = 1", client="anna"),)))
    assert here.towards("anna", [f("x = 1")], None) == {"lisbon"}


def test_pieces_of_an_update_are_as_long_as_their_filters_allow():
    here = tables("faro", strategy="identity")
    count = UPDATE_MAX // 3 + 1
    for n in range(count):
        here.subscribe("anna", NOTHING, HERE, (chain(f"x = {n}", f"x < {n + 1}", "true"),))
    told = [len(update.add_subs) for _, update in here.updates()]
    assert told == [count - 1, 1]


# Covering and merging


def test_a_wide_chain_stands_for_narrow_ones_and_for_plain_filters():
    here = tables("faro")
    here.subscribe("anna", NOTHING, HERE, (chain("x < 3", "x < 5"),))
    here.updates()
    here.subscribe("bert", NOTHING, HERE, (chain("x < 2", "x < 4", "x < 5"),))
    here.subscribe("carl", f("x < 3"), HERE)
    assert subs_for(here, "faro") == ([], [])
    here.subscribe("dora", NOTHING, HERE, (chain("x < 1", "x < 6"),))  # wider in the end
    assert subs_for(here, "faro") == ([e("x < 1", "x < 6")], [])
    here.subscribe("emil", f("x < 4"), HERE)  # wider here, but narrower at the next hop
    assert subs_for(here, "faro") == ([e("x < 4")], [])
    here.unsubscribe("anna", NOTHING, HERE, (chain("x < 3", "x < 5"),))
    assert subs_for(here, "faro") == ([e("x < 2", "x < 4", "x < 5")], [e("x < 3", "x < 5")])


def test_a_plain_filter_stands_for_a_chain_whose_widest_it_covers():
    for strategy in ("covering", "merging"):
        here = tables("faro", strategy=strategy)
        here.subscribe("anna", NOTHING, HERE, (chain("x = 1", "x between 1 and 2"),))
        here.subscribe("bert", f("x between 0 and 1"), HERE)
        here.updates()
        assert len(here.out_subs["faro"].sent()) == 2
        here.subscribe("carl", f("x between 1 and 3"), HERE)
        assert subs_for(here, "faro")[1][0] == e("x = 1", "x between 1 and 2")
        here.unsubscribe("carl", f("x between 1 and 3"), HERE)
        assert e("x = 1", "x between 1 and 2") in subs_for(here, "faro")[0]


def test_chains_are_not_merged_but_cover_what_is():
    here = tables("faro", strategy="merging")
    here.subscribe("anna", NOTHING, HERE, (chain("x = 1", "x < 5"), chain("x = 2", "x < 6")))
    assert subs_for(here, "faro") == ([e("x = 1", "x < 5"), e("x = 2", "x < 6")], [])
    here.subscribe("bert", f("x = 2"), HERE)
    assert subs_for(here, "faro") == ([], [])
    here.subscribe("bert", f("x = 1"), HERE)
    assert subs_for(here, "faro") == ([e("x in (1, 2)")], [])


def test_chains_with_the_same_filter_here_come_and_go_by_themselves():
    here = tables("faro")
    for name, last in (("anna", "x < 5 and y = 1"), ("bert", "x < 5 and y = 2")):
        here.subscribe(name, NOTHING, HERE, (chain("x = 1 and y = 1 and z = 1", last),))
    first, second = (e("x = 1 and y = 1 and z = 1", f"x < 5 and y = {n}") for n in (1, 2))
    assert subs_for(here, "faro") == ([first, second], [])
    here.unsubscribe("anna", NOTHING, HERE, ((first.filter, *first.ahead),))
    assert subs_for(here, "faro") == ([], [first])
    here.unsubscribe("bert", NOTHING, HERE, ((second.filter, *second.ahead),))
    assert subs_for(here, "faro") == ([], [second])


# A tree

EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "e"), ("c", "f")]
NEAR = topology.neighbours(EDGES)
VALUES = range(7)
KEYS = (1, 2)


class Sub(NamedTuple):
    """A subscription of a local session."""

    broker: str
    client: str
    filter: Filter
    place: int
    ahead: tuple[tuple[Filter, ...], ...] = ()

    def chains(self):
        """What the neighbours are to know, hop after hop."""
        return self.ahead or tuple((part,) for part in self.filter.parts())


class Ad(NamedTuple):
    """An advertisement of a local session."""

    broker: str
    client: str
    filter: Filter


class Net:
    """Brokers whose updates travel as frames, on links that are in order, each at its own pace."""

    def __init__(self, strategy, seed):
        self.strategy = STRATEGIES[strategy]
        self.routings = {name: Routing(NEAR[name], self.strategy) for name in NEAR}
        self.links = {(a, b): deque() for a in NEAR for b in NEAR[a]}
        self.random = Random(seed)
        self.there = {}

    def toggle(self, one):
        add = one not in self.there
        routing = self.routings[one.broker]
        if isinstance(one, Ad):
            (routing.advertise if add else routing.unadvertise)(one.client, one.filter)
        else:
            (routing.subscribe if add else routing.unsubscribe)(*one[1:])
        if add:
            self.there[one] = None
        else:
            del self.there[one]
        self.tell(one.broker)

    def tell(self, broker):
        for other, update in self.routings[broker].updates():
            self.links[broker, other].append(encode(update))

    def travel(self):
        """One update arrives, if there is any."""
        ways = [way for way, link in self.links.items() if link]
        if ways:
            way = sender, receiver = self.random.choice(ways)
            self.routings[receiver].apply(sender, decode(self.links[way].popleft()[4:]))
            self.tell(receiver)
        return bool(ways)

    def settle(self):
        while self.travel():
            pass

    def wrong(self):
        """What is otherwise than the definition says."""
        owner = ClientId if self.strategy.per_client else lambda _: ClientId("")
        ads, subs = ({name: [] for name in NEAR} for _ in range(2))
        here = {name: {} for name in NEAR}
        for one in self.there:
            if isinstance(one, Ad):
                parts = one.filter.parts()
                ads[one.broker] += [Entry(part, owner(one.client)) for part in parts]
                continue
            subs[one.broker] += [Entry.along(c, owner(one.client)) for c in one.chains()]
            for part in one.filter.parts():
                add_place(here[one.broker], part, one.place)
        wanted = Tables(self.strategy, EDGES, ads, subs)
        return [
            what
            for name, routing in self.routings.items()
            for what in differences(name, routing, wanted, here[name])
        ]


@st.composite
def widening(draw):
    """Filters of which each covers the one before it."""
    length = draw(st.integers(1, 3))
    key = draw(st.sampled_from(["", " and k = 1", " and k in (1, 2)"]))
    if draw(st.booleans()):
        values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=2, unique=True)
        sets = accumulate([set(draw(values)) for _ in range(length)], set.union)
        return tuple(f(f"x in ({', '.join(map(str, sorted(one)))}){key}") for one in sets)
    low = high = draw(st.sampled_from(VALUES))
    out = []
    for _ in range(length):
        out.append(f(f"x between {low} and {high}{key}"))
        low, high = low - draw(st.integers(0, 1)), high + draw(st.integers(0, 2))
    return tuple(out)


ODD = [f(text) for text in ("x = 1", "x < 3", "x > 2", "k = 1", "true", "x in (1, 5)", "x <> 1")]
anything = st.lists(st.sampled_from(ODD), min_size=1, max_size=3).map(tuple)


@st.composite
def pools(draw, chains):
    """Subscriptions and advertisements that come and go, all different."""
    brokers, clients = st.sampled_from([*NEAR]), st.sampled_from("pqr")
    out = {}
    for n in range(draw(st.integers(1, 6))):
        some = tuple(draw(st.lists(chains, min_size=1, max_size=2)))
        exact = Filter.of([one[0].conjunctions[0] for one in some])
        place = HERE + n
        ahead = some if draw(st.integers(0, 3)) else ()
        if ahead and not draw(st.integers(0, 3)):
            exact = NOTHING
        out[Sub(draw(brokers), draw(clients), exact, place, ahead)] = None
    for _ in range(draw(st.integers(1, 3))):
        out[Ad(draw(brokers), draw(clients), draw(chains)[-1])] = None
    return list(out)


@st.composite
def runs(draw, chains):
    """A pool; which of it comes or, if it is there, goes, and how many updates travel meanwhile."""
    pool = draw(pools(chains))
    index = st.integers(0, len(pool) - 1)
    toggles = draw(st.lists(st.tuples(index, st.integers(0, 3)), max_size=14))
    # First everything once, so that much is there.
    start = [(i, draw(st.integers(0, 3))) for i in draw(st.permutations(range(len(pool))))]
    return [(pool[i], pause) for i, pause in start + toggles], draw(st.integers(0, 2**32))


def run(strategy, given):
    steps, seed = given
    net = Net(strategy, seed)
    for one, pause in steps:
        net.toggle(one)
        for _ in range(pause):
            net.travel()
    net.settle()
    return net


def take_all_back(net):
    for one in net.random.sample(list(net.there), len(net.there)):
        net.toggle(one)
        net.travel()
    net.settle()


def leftovers(routing):
    tables = [*routing.out_ads.values(), *routing.out_subs.values()]
    return [
        *(table for one in (routing.in_ads, routing.in_subs) for table in one.values() if table),
        *(table.entries for table in tables if table.entries),
        *(table.sent() for table in tables if table.sent()),
        *filter(None, (routing._subs.of, routing._ads.of, routing.destinations.counts())),
        *filter(None, (routing._subs_by_overlap, *routing._ads_from.values(), routing._only_here)),
        *routing._only_here_counts,
    ]


def assert_overlaps_are_found(net, name, routing):
    """Interest is about what is wanted here, however it goes on."""
    wanted = routing.destinations.counts().items()
    for offered in ODD:
        there = {place for one, counts in wanted if one.overlaps(offered) for place in counts}
        for place in (-1, *there):
            assert routing.is_wanted(offered, place) == bool(there - {place})


@every_strategy
@given(given=runs(widening() | anything))
@settings(max_examples=120, deadline=None)
def test_every_table_is_what_the_definition_says_and_in_the_end_empty(strategy, given):
    net = run(strategy, given)
    assert net.wrong() == []
    for name, routing in net.routings.items():
        if strategy != "flooding":
            assert_overlaps_are_found(net, name, routing)
    take_all_back(net)
    assert net.there == {}
    assert [what for one in net.routings.values() for what in leftovers(one)] == []


def at_hop(chain, hop):
    """The filter of a broker so many hops from the client."""
    return chain[min(hop, len(chain)) - 1]


@pytest.mark.parametrize("strategy", [one for one in STRATEGIES if one != "flooding"])
@given(given=runs(widening()))
@settings(max_examples=120, deadline=None)
def test_each_broker_wants_what_the_chains_say_at_its_distance(strategy, given):
    """Without tables, strategies and orders: who is how far away, and what is wanted there."""
    net = run(strategy, given)
    subs = [one for one in net.there if isinstance(one, Sub)]
    ads = [one for one in net.there if isinstance(one, Ad)]
    paths = {name: topology.paths(EDGES, name) for name in NEAR}
    for name, routing in net.routings.items():
        for attributes in ({"x": x, "k": k} for x in VALUES for k in KEYS):
            near, here = near_and_here(routing.destinations.find(attributes))
            asked = {NEAR[name][place] for place in near}
            wanted, offered = set(), set()
            for sub in subs:
                way = paths[name][sub.broker]
                chains = [at_hop(one, len(way) - 1) for one in sub.chains()] if way[1:] else []
                if any(one.matches(attributes) for one in chains):
                    wanted.add(way[1])
                    # Only those are told who are on the way to a publisher of such a thing.
                    if any(
                        ad.filter.matches(attributes) and name in paths[sub.broker][ad.broker]
                        for ad in ads
                    ):
                        offered.add(way[1])
            assert offered <= asked <= wanted
            assert {*here} == {
                sub.place for sub in subs if sub.broker == name and sub.filter.matches(attributes)
            }
