"""Tables of one broker, and of brokers in a line: who is told what, and in which order."""

import pytest

from wayfare.core import routing
from wayfare.core.filters import NOTHING, Filter
from wayfare.core.messages import Entry, Update
from wayfare.core.reduction import STRATEGIES
from wayfare.core.routing import LOCAL, Destinations, Routing, Sources, near_and_here
from wayfare.errors import ProtocolError

HERE = 9  # the place of a session


def places(found):
    near, here = near_and_here(found)
    return near + here


def f(text):
    return Filter.parse(text)


def e(text, client=""):
    return Entry(f(text), client)


def es(*texts):
    return tuple(e(text) for text in texts)


def tables(*neighbours, strategy="covering"):
    return Routing(neighbours, STRATEGIES[strategy])


# Destinations


def test_every_place_that_wants_a_notification_is_named_once_and_in_order():
    destinations = Destinations()
    destinations.add(f("x > 1"), 3)
    destinations.add(f("x > 1"), 1)
    destinations.add(f("x > 2"), 1)
    destinations.add(f("x > 2"), 2)
    assert places(destinations.find({"x": 3})) == [1, 2, 3]
    assert places(destinations.find({"x": 2})) == [1, 3]
    assert places(destinations.find({"x": 1})) == []


def test_a_place_that_asked_twice_has_to_withdraw_twice():
    destinations = Destinations()
    destinations.add(f("x > 1"), 1)
    destinations.add(f("x > 1"), 1)
    assert destinations.counts() == {f("x > 1"): {1: 2}}
    destinations.remove(f("x > 1"), 1)
    assert places(destinations.find({"x": 2})) == [1]
    destinations.remove(f("x > 1"), 1)
    assert places(destinations.find({"x": 2})) == []
    assert destinations.counts() == {}


def test_a_place_withdraws_for_itself_only():
    destinations = Destinations()
    destinations.add(f("x > 1"), 1)
    destinations.add(f("x > 1"), 2)
    destinations.remove(f("x > 1"), 1)
    assert places(destinations.find({"x": 2})) == [2]


# Sources


def test_only_the_first_and_the_last_of_a_source_are_news():
    sources = Sources()
    assert sources.add(e("x > 1"), LOCAL)
    assert not sources.add(e("x > 1"), LOCAL)
    assert sources.add(e("x > 1"), "porto")
    assert not sources.remove(e("x > 1"), LOCAL)
    assert sources.remove(e("x > 1"), LOCAL)
    assert sources.remove(e("x > 1"), "porto")
    assert sources.of == {}


def test_what_only_a_neighbour_has_is_not_beyond_it():
    sources = Sources()
    assert not sources.beyond(e("x > 1"), "porto")
    sources.add(e("x > 1"), "porto")
    assert not sources.beyond(e("x > 1"), "porto")
    assert sources.beyond(e("x > 1"), "faro")
    sources.add(e("x > 1"), LOCAL)
    assert sources.beyond(e("x > 1"), "porto")


# Advertisements flood


def test_an_advertisement_goes_to_every_neighbour():
    here = tables("faro", "porto")
    here.advertise("anna", f("x > 1"))
    assert here.updates() == [
        ("faro", Update(add_ads=es("x > 1"))),
        ("porto", Update(add_ads=es("x > 1"))),
    ]
    assert here.updates() == []


def test_nothing_goes_back_to_where_it_came_from():
    here = tables("faro", "porto")
    here.apply("faro", Update(add_ads=es("x > 1")))
    assert here.updates() == [("porto", Update(add_ads=es("x > 1")))]


def test_what_two_neighbours_have_goes_to_both():
    here = tables("faro", "porto")
    here.apply("faro", Update(add_ads=es("x > 1")))
    here.updates()
    here.apply("porto", Update(add_ads=es("x > 1")))
    assert here.updates() == [("faro", Update(add_ads=es("x > 1")))]
    here.apply("faro", Update(remove_ads=es("x > 1")))
    assert here.updates() == [("porto", Update(remove_ads=es("x > 1")))]


def test_two_clients_with_one_advertisement_are_one_advertisement():
    here = tables("porto")
    here.advertise("anna", f("x > 1"))
    here.updates()
    here.advertise("bert", f("x > 1"))
    assert here.updates() == []
    here.unadvertise("anna", f("x > 1"))
    assert here.updates() == []
    here.unadvertise("bert", f("x > 1"))
    assert here.updates() == [("porto", Update(remove_ads=es("x > 1")))]


def test_a_covered_advertisement_is_suppressed_and_comes_out_before_the_wide_one_goes():
    here = tables("porto")
    here.advertise("anna", f("x > 1"))
    here.updates()
    here.advertise("bert", f("x > 2"))
    assert here.updates() == []
    here.unadvertise("anna", f("x > 1"))
    assert here.updates() == [
        ("porto", Update(add_ads=es("x > 2"), remove_ads=es("x > 1"))),
    ]


# Subscriptions go towards advertisements


def test_without_an_advertisement_a_subscription_stays_where_it_is():
    here = tables("faro", "porto")
    here.subscribe("anna", f("x > 1"), HERE)
    assert here.updates() == []


def test_a_subscription_goes_towards_overlapping_advertisements_only():
    here = tables("faro", "lisbon", "porto")
    here.apply("faro", Update(add_ads=es("x > 0")))
    here.apply("lisbon", Update(add_ads=es("x < 0")))
    here.updates()
    here.subscribe("anna", f("x > 1"), HERE)
    assert here.updates() == [("faro", Update(add_subs=es("x > 1")))]


def test_a_subscription_waits_for_its_advertisement():
    here = tables("faro")
    here.subscribe("anna", f("x > 1"), HERE)
    here.subscribe("anna", f("x < -1"), HERE)
    here.apply("faro", Update(add_ads=es("x > 0")))
    assert here.updates() == [("faro", Update(add_subs=es("x > 1")))]


def test_a_subscription_is_withdrawn_with_the_last_advertisement_it_overlaps():
    here = tables("faro")
    here.subscribe("anna", f("x > 1"), HERE)
    here.apply("faro", Update(add_ads=es("x > 0", "y > 0")))
    here.updates()
    here.apply("faro", Update(remove_ads=es("x > 0")))
    assert here.updates() == []  # y may come with an x
    here.apply("faro", Update(remove_ads=es("y > 0")))
    assert here.updates() == [("faro", Update(remove_subs=es("x > 1")))]


def test_a_local_advertisement_draws_no_subscription_out():
    here = tables("faro")
    here.advertise("bert", f("x > 0"))
    here.updates()
    here.subscribe("anna", f("x > 1"), HERE)
    assert here.updates() == []
    assert places(here.destinations.find({"x": 2})) == [HERE]


def test_a_neighbours_subscription_is_not_sent_back_to_it():
    here = tables("faro", "porto")
    here.apply("faro", Update(add_ads=es("x > 0")))
    here.apply("porto", Update(add_ads=es("x > 0")))
    here.updates()
    here.apply("faro", Update(add_subs=es("x > 1")))
    assert here.updates() == [("porto", Update(add_subs=es("x > 1")))]
    assert places(here.destinations.find({"x": 2})) == [0]  # faro's place


def test_a_subscription_stays_as_long_as_somebody_has_it():
    here = tables("faro", "porto")
    here.apply("faro", Update(add_ads=es("x > 0")))
    here.subscribe("anna", f("x > 1"), HERE)
    here.apply("porto", Update(add_subs=es("x > 1")))
    here.updates()
    here.unsubscribe("anna", f("x > 1"), HERE)
    assert here.updates() == []
    here.apply("faro", Update(remove_ads=es("x > 0")))
    assert here.updates() == [
        ("faro", Update(remove_subs=es("x > 1"))),
        ("porto", Update(remove_ads=es("x > 0"))),
    ]


def test_what_a_leaving_subscription_covered_is_forwarded_first():
    here = tables("faro")
    here.apply("faro", Update(add_ads=es("x > 0")))
    here.updates()
    for text in ("x > 1", "x > 2", "x > 3"):
        here.subscribe("anna", f(text), HERE)
    assert here.updates() == [("faro", Update(add_subs=es("x > 1")))]
    here.unsubscribe("anna", f("x > 1"), HERE)
    assert here.updates() == [
        ("faro", Update(add_subs=es("x > 2"), remove_subs=es("x > 1"))),
    ]


def test_a_filter_of_two_conjunctions_is_two_entries():
    here = tables("faro")
    here.apply("faro", Update(add_ads=es("true")))
    here.updates()
    either = f("x > 1 or y > 1")
    here.subscribe("anna", either, HERE)
    assert here.updates() == [("faro", Update(add_subs=tuple(map(Entry, either.parts()))))]
    assert places(here.destinations.find({"x": 2, "y": 2})) == [HERE]
    here.unsubscribe("anna", either, HERE)
    assert here.updates() == [("faro", Update(remove_subs=tuple(map(Entry, either.parts()))))]


def test_a_filter_that_matches_nothing_is_no_entry():
    here = tables("faro")
    here.apply("faro", Update(add_ads=es("true")))
    here.updates()
    here.subscribe("anna", NOTHING, HERE)
    here.advertise("anna", NOTHING)
    assert here.updates() == []
    here.unsubscribe("anna", NOTHING, HERE)
    here.unadvertise("anna", NOTHING)
    assert here.updates() == []


def test_what_comes_and_goes_within_one_handler_is_never_mentioned():
    here = tables("faro")
    here.advertise("anna", f("x > 1"))
    here.unadvertise("anna", f("x > 1"))
    assert here.updates() == []


# Strategies


def test_simple_routing_tells_every_clients_filter():
    here = tables("faro", strategy="simple")
    here.apply("faro", Update(add_ads=(e("x > 0", "tom"),)))
    here.subscribe("anna", f("x > 1"), HERE)
    here.subscribe("bert", f("x > 1"), HERE + 1)
    here.advertise("anna", f("x > 2"))
    here.advertise("bert", f("x > 2"))
    assert here.updates() == [
        (
            "faro",
            Update(
                add_ads=(e("x > 2", "anna"), e("x > 2", "bert")),
                add_subs=(e("x > 1", "anna"), e("x > 1", "bert")),
            ),
        )
    ]
    here.unsubscribe("anna", f("x > 1"), HERE)
    assert here.updates() == [("faro", Update(remove_subs=(e("x > 1", "anna"),)))]


def test_identity_routing_tells_covered_filters_too():
    here = tables("faro", strategy="identity")
    here.advertise("anna", f("x > 1"))
    here.advertise("bert", f("x > 1"))
    here.advertise("anna", f("x > 2"))
    assert here.updates() == [("faro", Update(add_ads=es("x > 1", "x > 2")))]


def test_merging_tells_one_filter_for_many():
    here = tables("faro", strategy="merging")
    here.advertise("anna", f("x = 1"))
    here.updates()
    here.advertise("bert", f("x = 2"))
    assert here.updates() == [
        ("faro", Update(add_ads=es("x in (1, 2)"), remove_ads=es("x = 1"))),
    ]


def test_flooding_tells_nobody_anything():
    here = tables("faro", strategy="flooding")
    here.advertise("anna", f("x > 1"))
    here.subscribe("anna", f("x > 1"), HERE)
    here.unadvertise("anna", f("x > 1"))
    assert here.updates() == []
    assert places(here.destinations.find({"x": 2})) == [HERE]
    here.unsubscribe("anna", f("x > 1"), HERE)
    assert here.updates() == []
    assert places(here.destinations.find({"x": 2})) == []


# Updates that make no sense


def snapshot(here):
    out = [table.entries for table in (*here.out_ads.values(), *here.out_subs.values())]
    return repr([here.in_ads, here.in_subs, here.destinations.counts(), out])


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (Update(add_ads=es("y > 1", "y > 1")), "names an entry twice"),
        (Update(add_subs=es("y > 1", "y > 1")), "names an entry twice"),
        (Update(add_ads=es("y > 1"), remove_ads=es("y > 1")), "names an entry twice"),
        (Update(remove_subs=es("x > 1", "x > 1")), "names an entry twice"),
        (Update(add_ads=es("y > 1", "x > 0")), "adds what is there already"),
        (Update(add_ads=es("y > 1"), add_subs=es("x > 1")), "adds what is there already"),
        (Update(add_subs=es("y > 1"), remove_ads=es("y > 2")), "removes what is not there"),
        (Update(remove_subs=es("x > 1", "y > 1")), "removes what is not there"),
        (Update(add_ads=es("y > 1"), remove_subs=es("x > 0")), "removes what is not there"),
    ],
)
def test_an_inconsistent_update_is_refused_as_a_whole(update, reason):
    here = tables("faro", "porto")
    here.apply("faro", Update(add_ads=es("x > 0"), add_subs=es("x > 1")))
    here.updates()
    before = snapshot(here)
    with pytest.raises(ProtocolError, match=reason):
        here.apply("faro", update)
    assert snapshot(here) == before
    assert here.updates() == []


def test_a_filter_may_be_both_an_advertisement_and_a_subscription():
    here = tables("faro")
    here.apply("faro", Update(add_ads=es("x > 0"), add_subs=es("x > 0")))
    assert (here.in_ads["faro"], here.in_subs["faro"]) == ({e("x > 0"): None}, {e("x > 0"): None})


@pytest.mark.parametrize("strategy", ["identity", "covering", "merging"])
def test_entries_of_clients_are_refused_where_routing_is_by_filter(strategy):
    here = tables("faro", "porto", strategy=strategy)
    with pytest.raises(ProtocolError):
        here.apply("faro", Update(add_ads=(e("x > 0", "anna"),)))


def test_entries_of_nobody_are_refused_where_routing_is_by_client():
    here = tables("faro", "porto", strategy="simple")
    with pytest.raises(ProtocolError):
        here.apply("faro", Update(add_ads=es("x > 0")))


# Long updates


def test_a_long_update_comes_in_pieces_and_in_order(monkeypatch):
    monkeypatch.setattr(routing, "UPDATE_MAX", 3)
    here = tables("faro", strategy="identity")
    here.apply("faro", Update(add_ads=es("true")))
    for n in range(4):
        here.advertise("anna", f(f"a = {n}"))
        here.subscribe("anna", f(f"s = {n}"), HERE)
    first = here.updates()
    assert [update for _, update in first] == [
        Update(add_ads=es("a = 0", "a = 1", "a = 2")),
        Update(add_ads=es("a = 3")),
        Update(add_subs=es("s = 0", "s = 1", "s = 2")),
        Update(add_subs=es("s = 3")),
    ]
    for n in range(2):
        here.unadvertise("anna", f(f"a = {n}"))
        here.unsubscribe("anna", f(f"s = {n}"), HERE)
        here.subscribe("anna", f(f"n = {n}"), HERE)
    assert [update for _, update in here.updates()] == [
        Update(add_subs=es("n = 0", "n = 1")),
        Update(remove_subs=es("s = 0", "s = 1")),
        Update(remove_ads=es("a = 0", "a = 1")),
    ]


def test_an_update_of_just_the_limit_stays_in_one_piece(monkeypatch):
    monkeypatch.setattr(routing, "UPDATE_MAX", 3)
    here = tables("faro", strategy="identity")
    for n in range(3):
        here.advertise("anna", f(f"a = {n}"))
    assert here.updates() == [("faro", Update(add_ads=es("a = 0", "a = 1", "a = 2")))]


# Brokers in a line


class Line:
    """Brokers a - b - c - d ..., whose updates arrive at once; keeps what was said to whom."""

    def __init__(self, names, strategy="covering"):
        self.tables = {
            name: tables(*(n for n in names if abs(ord(n) - ord(name)) == 1), strategy=strategy)
            for name in names
        }
        self.said = []

    def settle(self):
        """Returns what was said since the last time, as (from, to, update)."""
        self.said = []
        queue = [
            (name, to, update) for name in self.tables for to, update in self.tables[name].updates()
        ]
        while queue:
            sender, receiver, update = queue.pop(0)
            self.said.append((sender, receiver, update))
            self.tables[receiver].apply(sender, update)
            queue += [(receiver, to, more) for to, more in self.tables[receiver].updates()]
        return self.said


def test_a_covered_subscription_stops_where_it_is_covered():
    line = Line("abcd")
    line.tables["d"].advertise("tom", f("x > 0"))
    line.tables["b"].subscribe("bert", f("x > 1"), HERE)
    line.settle()
    line.tables["a"].subscribe("anna", f("x > 2"), HERE)
    assert line.settle() == [("a", "b", Update(add_subs=es("x > 2")))]


def test_an_uncovered_subscription_goes_on_where_it_was_stopped():
    line = Line("abcd")
    line.tables["d"].advertise("tom", f("x > 0"))
    line.tables["b"].subscribe("bert", f("x > 1"), HERE)
    line.tables["a"].subscribe("anna", f("x > 2"), HERE)
    line.settle()
    line.tables["b"].unsubscribe("bert", f("x > 1"), HERE)
    swap = Update(add_subs=es("x > 2"), remove_subs=es("x > 1"))
    assert line.settle() == [("b", "c", swap), ("c", "d", swap)]


def test_an_uncovered_advertisement_goes_on_and_draws_the_subscriptions():
    line = Line("abc")
    line.tables["a"].subscribe("anna", f("x > 5"), HERE)
    line.tables["c"].advertise("tom", f("x > 0"))
    line.tables["b"].advertise("bert", f("x > 3"))
    line.settle()
    assert line.tables["a"].in_ads["b"] == {e("x > 0"): None}
    line.tables["c"].unadvertise("tom", f("x > 0"))
    assert line.settle() == [
        ("c", "b", Update(remove_ads=es("x > 0"))),
        ("b", "a", Update(add_ads=es("x > 3"), remove_ads=es("x > 0"))),
        ("b", "c", Update(remove_subs=es("x > 5"))),
    ]
    assert line.tables["b"].in_subs["a"] == {e("x > 5"): None}


def test_a_wide_subscription_replaces_the_narrow_ones_on_its_way():
    line = Line("abc")
    line.tables["c"].advertise("tom", f("x > 0"))
    line.tables["a"].subscribe("anna", f("x > 2"), HERE)
    line.settle()
    line.tables["b"].subscribe("bert", f("x > 1"), HERE)
    assert line.settle() == [
        ("b", "c", Update(add_subs=es("x > 1"), remove_subs=es("x > 2"))),
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_all_is_withdrawn_every_table_is_empty(strategy):
    line = Line("abcd", strategy)
    offers = [("d", "x > 0"), ("a", "x between 1 and 5"), ("b", "x = 7")]
    wishes = [("a", "x > 2"), ("b", "x > 1 or y = 1"), ("c", "x between 1 and 3"), ("a", "x = 7")]
    for name, text in offers:
        line.tables[name].advertise(name, f(text))
        line.settle()
    for name, text in wishes:
        line.tables[name].subscribe(name, f(text), HERE)
        line.settle()
    for name, text in offers[:2]:
        line.tables[name].unadvertise(name, f(text))
    for name, text in wishes:
        line.tables[name].unsubscribe(name, f(text), HERE)
    line.tables["b"].unadvertise("b", f("x = 7"))
    line.settle()
    for here in line.tables.values():
        assert here.destinations.counts() == {}
        assert not any(
            [*here.in_ads.values(), *here.in_subs.values()]
            + [table.entries for table in (*here.out_ads.values(), *here.out_subs.values())]
        )
