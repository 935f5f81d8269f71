"""What a neighbour is told of many entries: the tables keep up with the definition, without blackouts."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from strategies import part_filters, predicates_on, telling_attributes
from wayfare.core import predicates as ps
from wayfare.core.filters import EVERYTHING, Filter
from wayfare.core.messages import Entry
from wayfare.core.reduction import STRATEGIES, MergingTable, reduced

THINNING = ["identity", "covering", "merging"]
TABLES = ["simple", *THINNING]
every_table = pytest.mark.parametrize("name", TABLES)


def entry(text, client=""):
    return Entry(Filter.parse(text), client)


def entries(*texts):
    return {entry(text) for text in texts}


def table_of(name, *texts):
    """A table with these candidates, and its neighbour already told."""
    table = STRATEGIES[name].table()
    for text in texts:
        table.add(entry(text))
    table.difference()
    return table


# By example


def test_simple_routing_sends_every_clients_filter():
    given = [entry("x > 1", "anna"), entry("x > 1", "bert"), entry("x > 2", "anna")]
    assert reduced(STRATEGIES["simple"], given) == given


def test_identity_routing_sends_equal_filters_once():
    given = [entry("x > 1"), entry("x > 2"), entry("x > 1")]
    assert reduced(STRATEGIES["identity"], given) == given[:2]


def test_covering_sends_the_widest():
    given = [entry("x > 2"), entry("x > 1"), entry("y = 1"), entry("x > 3")]
    assert reduced(STRATEGIES["covering"], given) == [entry("x > 1"), entry("y = 1")]


def test_merging_sends_one_filter_for_several_that_differ_in_one_predicate():
    given = [entry("x between 1 and 2"), entry("x between 2 and 3"), entry("y = 1"), entry("y = 2")]
    assert set(reduced(STRATEGIES["merging"], given)) == entries("x between 1 and 3", "y in (1, 2)")


def test_flooding_sends_nothing():
    assert reduced(STRATEGIES["flooding"], [entry("x > 1")]) == []


def test_a_wider_filter_is_added_before_the_narrow_one_goes():
    table = table_of("covering", "x > 2")
    table.add(entry("x > 1"))
    assert table.difference() == ([entry("x > 1")], [entry("x > 2")])
    assert table.entries == {entry("x > 2"): False, entry("x > 1"): True}


def test_what_a_leaving_filter_covered_is_added_in_its_place():
    table = table_of("covering", "x > 1", "x > 2", "x > 3", "x > 4")
    table.remove(entry("x > 1"))
    assert table.difference() == ([entry("x > 2")], [entry("x > 1")])
    assert table.entries == {entry("x > 2"): True, entry("x > 3"): False, entry("x > 4"): False}


def test_a_covered_filter_comes_and_goes_unnoticed():
    table = table_of("covering", "x > 1")
    table.add(entry("x > 2"))
    assert table.difference() == ([], [])
    table.remove(entry("x > 2"))
    assert table.difference() == ([], [])


@every_table
def test_what_comes_and_goes_between_two_questions_is_not_mentioned(name):
    table = table_of(name, "x > 1")
    table.add(entry("y = 1"))
    table.remove(entry("y = 1"))
    table.remove(entry("x > 1"))
    table.add(entry("x > 1"))
    assert table.difference() == ([], [])


def test_a_merged_filter_shrinks_when_one_of_its_parts_goes():
    table = table_of("merging", "x = 1", "x = 2", "x = 3")
    table.remove(entry("x = 2"))
    assert table.difference() == ([entry("x in (1, 3)")], [entry("x in (1, 2, 3)")])


def test_merging_marks_the_candidates_that_are_sent_as_they_are():
    table = table_of("merging", "x = 1")
    assert table.entries == {entry("x = 1"): True}
    table.add(entry("x = 2"))
    table.difference()
    assert table.entries == {entry("x = 1"): False, entry("x = 2"): False}
    table.remove(entry("x = 2"))
    table.difference()
    assert table.entries == {entry("x = 1"): True}


def test_more_values_than_a_list_may_have_become_several_lists():
    numbers = range(ps.VALUES_MAX + 5)
    sent = reduced(STRATEGIES["merging"], [entry(f"x = {n}") for n in numbers])
    lists = [one.filter.conjunctions[0][0].values for one in sent]
    assert 1 < len(lists) < 5
    assert max(map(len, lists)) <= ps.VALUES_MAX
    assert sorted(value for values in lists for value in values) == list(numbers)


def test_what_would_be_too_long_a_filter_is_not_merged():
    long = " and ".join(f"y{i} = '{'y' * 999}'" for i in range(7))
    given = [entry(f"x = '{i}{'x' * 40}' and {long}") for i in range(30)]
    assert set(reduced(STRATEGIES["merging"], given)) == set(given)


def test_a_filter_by_itself_is_sent_as_it_is():
    alone = entry("x in (" + ", ".join(f"'{i}{'x' * 999}'" for i in range(7)) + ")")
    assert reduced(STRATEGIES["merging"], [alone]) == [alone]


def test_values_that_lie_in_a_range_are_left_out_of_the_list():
    table = table_of("merging", "x between 1 and 5", "x in (3, 9)")
    assert set(table.sent()) == entries("x between 1 and 5", "x = 9")


def test_imperfect_merging_bridges_small_holes():
    table = MergingTable(imperfection=0.2)
    for text in ("x between 0 and 5", "x between 6 and 10"):
        table.add(entry(text))
    assert table.difference() == ([entry("x between 0 and 10")], [])


# Whatever comes and goes

# Lists and ranges on two attributes, so that families are large, and texts that other predicates
# narrow further; beside them any filter at all.
_mergeable = [
    *(f"x = {n}" for n in range(4)),
    *(f"x in ({n}, {n + 2})" for n in range(3)),
    *(f"x between {n} and {n + 1}" for n in range(4)),
    *(f"x between {n} and {n + 1} and y = {k}" for n in range(3) for k in range(3)),
    *(f"x = {n} and y = {k}" for n in range(3) for k in range(3)),
    *(f"x = {n} and y between {k} and {k + 1}" for n in range(2) for k in range(3)),
    *("x > 0", "x < 2", "x >= 2", "x <> 1", "x > 0 and x <> 1", "exists x", "true"),
    *("y prefix 'a'", "y prefix 'a' and y >= 'am'", "y prefix 'a' and y <= 'am'", "y >= 'a'"),
    *("y >= 'a' and y < 'b'", "y >= 'a' and y < 'am'", "y >= 'am' and y < 'b'", "y like '%'"),
    *("y = 'a'", "y = 'ab'", "y in ('a', 'b')", "y suffix 'b' and y >= 'a'", "y < 'b'"),
    *("lat between 0 and 1", "lat between 0 and 1 and near(0, 0, 1000)", "near(0, 0, 1000)"),
]
MERGEABLE = [Filter.parse(text) for text in _mergeable]
_single = predicates_on("x").map(lambda p: Filter.of([[p]]))


@st.composite
def pools(draw):
    """Entries that come and go, all different; some have other filters for the hops beyond."""
    source = draw(st.sampled_from([st.sampled_from(MERGEABLE), part_filters(), _single]))
    lengths = draw(st.sampled_from([st.just(1), st.integers(1, HOPS)]))
    chains = lengths.flatmap(lambda length: st.tuples(*[source] * length))
    return list(dict.fromkeys(map(Entry.along, draw(st.lists(chains, min_size=1, max_size=8)))))


HOPS = 3


def at_hop(entry, hop):
    """The filter that an entry is so many hops from here."""
    return (entry.filter, *entry.ahead)[min(hop, len(entry.ahead))]


@st.composite
def histories(draw):
    """Entries, and at each step one to be added or, if it is there, removed; and when to tell."""
    pool = draw(pools())
    steps = draw(
        st.lists(st.tuples(st.integers(0, len(pool) - 1), st.booleans()), min_size=1, max_size=24)
    )
    return pool, steps


def candidates_for(name, pool):
    """Under simple routing, entries are per client; let every second one belong to another."""
    if not STRATEGIES[name].per_client:
        return pool
    return [replace(each, client=f"c{i % 2}") for i, each in enumerate(pool)]


@every_table
@given(history=histories(), data=st.data())
@settings(max_examples=150)
def test_the_neighbour_always_has_what_the_definition_says_and_never_a_blackout(
    name, history, data
):
    pool, steps = history
    candidates = candidates_for(name, pool)
    table = STRATEGIES[name].table()
    there, before, neighbour = {}, {}, set()
    for which, tell in [*steps, (None, True)]:
        if which is not None:
            one = candidates[which]
            if one in there:
                del there[one]
                table.remove(one)
            else:
                there[one] = None
                table.add(one)
            assert (one in table) == (one in there)
        if tell:
            added, removed = table.difference()
            assert not neighbour & set(added)
            assert len(set(added)) == len(added)
            assert set(removed) <= neighbour
            during = neighbour | set(added)
            after = during - set(removed)
            assert after == set(table.sent()) == set(reduced(STRATEGIES[name], there))
            for staying in before.keys() & there.keys():
                assert_served(staying, neighbour, data)
                assert_served(staying, during, data)
                assert_served(staying, after, data)
            neighbour, before = after, dict(there)
    assert table.entries.keys() == there.keys()


def assert_served(entry, sent, data):
    """Whatever the entry matches, here or farther on, something that was sent matches there too."""
    for hop in range(HOPS):
        wanted, there = at_hop(entry, hop), [at_hop(one, hop) for one in sent]
        if any(one.covers(wanted) for one in there):
            continue
        # Merged filters may cover it only together: the lists of one family, or a list and a range.
        attributes = data.draw(telling_attributes(wanted, *there))
        if wanted.matches(attributes):
            assert any(one.matches(attributes) for one in there)


@pytest.mark.parametrize("name", THINNING)
@given(pool=pools(), data=st.data())
@settings(max_examples=80)
def test_what_is_sent_matches_exactly_what_the_candidates_match(name, pool, data):
    sent = reduced(STRATEGIES[name], pool)
    for hop in range(HOPS):
        given, there = ([at_hop(one, hop) for one in some] for some in (pool, sent))
        telling = telling_attributes(*given, *there)
        for attributes in data.draw(st.lists(telling, min_size=1, max_size=4)):
            wanted = any(each.matches(attributes) for each in given)
            assert any(each.matches(attributes) for each in there) == wanted


@pytest.mark.parametrize("name", THINNING)
@given(pool=pools(), data=st.data())
@settings(max_examples=80)
def test_the_order_in_which_filters_come_does_not_matter(name, pool, data):
    other = data.draw(st.permutations(pool))
    tables = []
    for order in (pool, other):
        table = STRATEGIES[name].table()
        for each in order:
            table.add(each)
        tables.append(set(table.difference()[0]))
    assert tables[0] == tables[1]


@pytest.mark.parametrize("name", THINNING)
@given(pool=pools())
def test_reducing_again_changes_nothing_and_nothing_sent_is_covered(name, pool):
    sent = reduced(STRATEGIES[name], pool)
    assert len(set(sent)) == len(sent)
    if name == "covering":
        assert reduced(STRATEGIES[name], sent) == sent
    if name != "identity":
        for one in sent:
            covering = [
                other
                for other in sent
                if all(at_hop(other, hop).covers(at_hop(one, hop)) for hop in range(HOPS))
            ]
            assert covering == [one]


@every_table
@given(pool=pools())
def test_an_emptied_table_takes_everything_back(name, pool):
    table = STRATEGIES[name].table()
    candidates = candidates_for(name, pool)
    for one in candidates:
        table.add(one)
    sent = set(table.difference()[0])
    for one in candidates:
        table.remove(one)
    added, removed = table.difference()
    assert (added, set(removed), table.entries) == ([], sent, {})


# Merging where several predicates speak of one attribute: normalising may drop the merged range, and
# a list stands behind `near` where a range stands before it.


def test_a_merged_range_may_vanish_behind_a_pattern():
    given = [entry("y > 'ab' and y like 'a_%'"), entry("y >= 'a' and y < 'am' and y like 'a_%'")]
    table = MergingTable()
    for one in given:
        table.add(one)
    assert table.difference() == ([entry("y like 'a_%'")], [])
    assert reduced(STRATEGIES["merging"], given) == [entry("y like 'a_%'")]


def test_lists_and_ranges_beside_near_are_all_sent():
    given = [entry(f"{lat} and near(0, 0, 1000000)") for lat in ("lat < 1", "lat = 2")]
    for order in (given, given[::-1]):
        table = MergingTable()
        for one in order:
            table.add(one)
        assert set(table.difference()[0]) == set(given)
        assert set(reduced(STRATEGIES["merging"], order)) == set(given)


CROWDED = [
    Filter.parse(f"{pattern} and {span} and {other}")
    for pattern in ("y prefix 'a'", "y like 'a_%'", "y <> 'ab'")
    for span in ("true", "y >= 'a' and y < 'am'", "y > 'ab'", "y < 'b'", "y >= 'am' and y < 'b'")
    for other in ("true", "z = 1", "z = 2")
] + [
    Filter.parse(f"{circle} and {lat} and {lon}")
    for circle in ("true", "near(0, 0, 1000)", "near(0, 0, 200000)")
    for lat in ("true", "lat between 0 and 1", "lat < 1", "lat > 0", "lat = 0")
    for lon in ("true", "lon = 0", "lon between 0 and 1")
]


@pytest.mark.parametrize("name", ["covering", pytest.param("merging")])
def test_crowded_attributes_are_reduced_like_any_others(name):
    for seed in range(150):
        random = Random(seed)
        pool = random.sample(list(dict.fromkeys(CROWDED)), 8)
        table, there, neighbour = STRATEGIES[name].table(), {}, set()
        for _ in range(20):
            one = Entry(random.choice(pool))
            if one in there:
                del there[one]
                table.remove(one)
            else:
                there[one] = None
                table.add(one)
            added, removed = table.difference()
            neighbour = (neighbour | set(added)) - set(removed)
            assert neighbour == set(reduced(STRATEGIES[name], there)), f"seed {seed}"


def test_everything_covers_everything():
    given = [Entry(each) for each in (*MERGEABLE, EVERYTHING)]
    for name in ("covering", "merging"):
        assert reduced(STRATEGIES[name], given) == [Entry(EVERYTHING)]


def test_of_entries_that_are_the_same_at_every_hop_the_one_that_reads_first_is_sent():
    once, twice = entry("x > 1"), replace(entry("x > 1"), ahead=(Filter.parse("x > 1"),))
    for name in ("covering", "merging"):
        for order in ([once, twice], [twice, once]):
            table = STRATEGIES[name].table()
            for one in order:
                table.add(one)
            assert table.sent() == reduced(STRATEGIES[name], order) == [once]
