"""The oracle can fail: for every rule there is a story that breaks it, and one that only just does not."""

import pytest
from msgspec.structs import replace

from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.handoff import HELD_TOO_MUCH, NO_ANSWER
from wayfare.core.history import Marks, Stored
from wayfare.core.messages import (
    Attach,
    ClientId,
    Entry,
    Gap,
    LinkId,
    Notification,
    Publish,
)
from wayfare.core.sessions import Wait
from wayfare.eventlog import Event
from wayfare.sim import LinkSpec, World, check
from wayfare.sim.histories import histories
from wayfare.sim.interest import early
from wayfare.sim.links import MS_NS
from wayfare.sim.oracle import check_deliveries
from wayfare.sim.quiet import check_outlived, check_quiet, tables_of
from wayfare.sim.reach import Reach, reach
from wayfare.sim.verdict import Violation

TREE, NEAR = 100, 10  # how long a message takes: across the tree, between client and broker
REACH = Reach(tree_ns=TREE, client_ns=NEAR)
BASELINE = replace(REACH, at_once=False)  # what comes before the tree is complete may be lost
HIGH, LOW = {"price": 41}, {"price": 39}
RECEIVING = 3 * NEAR  # until a client that is back has what waited: Attach, Welcome, Deliver
MOVING = 2 * TREE  # until a session has come to where its client is: there and back again
LATE = 1_000_000


class Story:
    """Events, told one by one; ticker and anna are there from the start."""

    def __init__(self, subscribed_at=0, advertised_at=0):
        self.events = []
        self.numbers = {}
        self.tell(0, "attached", "ticker").tell(0, "attached", "anna")
        if advertised_at is not None:
            self.tell(advertised_at, "advertised", "ticker", filter=Filter.parse("price > 0"))
        if subscribed_at is not None:
            self.tell(subscribed_at, "subscribed", "anna", filter=Filter.parse("price > 40"))

    def tell(self, time, kind, client, **facts):
        self.events.append(Event(time, kind, client=client, **facts))
        self.events.sort(key=lambda event: event.time_ns)
        return self

    def publish(self, time, attributes=HIGH, client="ticker"):
        number = self.numbers[client] = self.numbers.get(client, 0) + 1
        return self.tell(time, "published", client, number=number, attributes=attributes)

    def deliver(self, time, number=1, attributes=HIGH, client="anna", publisher="ticker"):
        facts = {"publisher": publisher, "number": number, "attributes": attributes}
        return self.tell(time, "delivered", client, **facts)

    def lose(self, time, count):
        return self.tell(time, "lost", "anna", count=count, reason="backlog_count")

    def unsubscribe(self, time):
        return self.tell(time, "unsubscribed", "anna", filter=Filter.parse("price > 40"))

    def verdict(self, reach=REACH):
        return check_deliveries(self.events, reach)

    def broken(self, reach=REACH):
        return [one.rule for one in self.verdict(reach).violations]


# Complete


def test_what_is_required_and_not_delivered_is_missing():
    verdict = Story().publish(1000).verdict()
    assert verdict.violations == (Violation("complete", "anna did not get ticker 1"),)
    assert (verdict.published, verdict.delivered, verdict.required) == (1, 0, 1)


def test_what_is_delivered_is_not_missing():
    verdict = Story().publish(1000).deliver(1200).verdict()
    assert verdict.violations == ()
    assert (verdict.published, verdict.delivered, verdict.required) == (1, 1, 1)


def test_many_missing_ones_are_told_by_the_first_five():
    story = Story()
    for time in range(1000, 1007):
        story.publish(time)
    (found,) = story.verdict().violations
    assert found.what == "anna did not get ticker 1, ticker 2, ticker 3, ticker 4, ticker 5"


def test_every_client_is_looked_at_for_itself():
    story = Story().publish(1000).deliver(1200)
    story.tell(0, "attached", "bert").tell(
        0, "subscribed", "bert", filter=Filter.parse("price > 9")
    )
    assert story.verdict().violations == (Violation("complete", "bert did not get ticker 1"),)


def test_what_does_not_match_is_not_required():
    assert Story().publish(1000, LOW).verdict().required == 0


def test_a_subscription_counts_from_when_it_has_settled():
    just = LATE + NEAR + TREE
    assert Story(subscribed_at=LATE).publish(just).broken() == ["complete"]
    assert Story(subscribed_at=LATE).publish(just - 1).broken() == []


def test_a_subscription_counts_from_when_it_was_confirmed():
    def confirmed(published_at, asked_at=LATE):
        story = Story(subscribed_at=LATE).publish(published_at)
        wanted = Filter.parse("price > 40")
        return story.tell(LATE + 5, "confirmed", "anna", filter=wanted, since_ns=asked_at).broken()

    assert confirmed(LATE + 5) == ["complete"]
    assert confirmed(LATE + 4) == []
    assert confirmed(LATE + 5, asked_at=LATE - 1) == []  # of an earlier subscription to the same


def test_an_advertisement_counts_at_once():
    assert Story(advertised_at=LATE).publish(LATE).broken() == ["complete"]
    assert Story(advertised_at=LATE).publish(LATE - 1).broken() == []


def test_for_published_algorithms_it_counts_from_when_subscriptions_have_come_back():
    just = LATE + NEAR + 2 * TREE
    assert Story(advertised_at=LATE).publish(just).broken(BASELINE) == ["complete"]
    assert Story(advertised_at=LATE).publish(just - 1).broken(BASELINE) == []


def test_without_an_advertisement_nothing_is_required():
    assert Story(advertised_at=None).publish(LATE).broken() == []


def test_an_advertisement_that_does_not_match_requires_nothing():
    story = Story(advertised_at=None)
    story.tell(0, "advertised", "ticker", filter=Filter.parse("topic = 'gas'"))
    assert story.publish(LATE).broken() == []


def test_an_advertisement_has_to_stand_until_the_broker_has_the_publication():
    def withdrawn_at(time):
        story = Story().publish(1000)
        return story.tell(time, "unadvertised", "ticker", filter=Filter.parse("price > 0")).broken()

    assert withdrawn_at(1000 + NEAR) == ["complete"]
    assert withdrawn_at(1000 + NEAR - 1) == []


def test_a_subscription_has_to_stand_until_the_notification_is_through():
    just = 1000 + NEAR + TREE + RECEIVING
    assert Story().publish(1000).unsubscribe(just).broken() == ["complete"]
    assert Story().publish(1000).unsubscribe(just - 1).broken() == []


def test_a_client_has_to_stay_until_the_notification_is_through():
    just = 1000 + NEAR + TREE + RECEIVING
    assert Story().publish(1000).tell(just, "detached", "anna").broken() == ["complete"]
    assert Story().publish(1000).tell(just - 1, "detached", "anna").broken() == []


def test_a_client_that_comes_back_for_long_enough_gets_what_it_missed():
    def stays(duration):
        story = Story().tell(900, "detached", "anna").publish(1000).tell(LATE, "attached", "anna")
        return story.tell(LATE + duration, "detached", "anna").broken()

    assert stays(RECEIVING) == ["complete"]
    assert stays(RECEIVING - 1) == []


def test_every_session_may_have_to_wait_for_the_one_before_it():
    def stays(duration):
        story = Story().tell(900, "detached", "anna").publish(1000)
        for time, broker in ((1100, "porto"), (1200, "lisbon"), (1300, "lisbon"), (LATE, "faro")):
            story.tell(time, "attached", "anna", broker=broker)
            story.tell(time + 1, "detached", "anna")
        story.events.pop()
        return story.tell(LATE + duration, "detached", "anna").broken()

    assert stays(RECEIVING + 2 * MOVING) == ["complete"]
    assert stays(RECEIVING + 2 * MOVING - 1) == []


def test_a_subscription_made_while_away_counts_from_the_next_attachment():
    def published(time):
        story = Story(subscribed_at=None).tell(900, "detached", "anna")
        story.tell(1000, "subscribed", "anna", filter=Filter.parse("price > 40"))
        return story.tell(LATE, "attached", "anna").publish(time).broken()

    assert published(LATE + NEAR + TREE) == ["complete"]
    assert published(LATE + NEAR + TREE - 1) == []


def test_a_publication_needs_time_to_reach_the_broker():
    def published_until(time):
        return Story().publish(1000).tell(time, "detached", "ticker").broken()

    assert published_until(1000 + NEAR) == ["complete"]
    assert published_until(1000 + NEAR - 1) == []


def test_a_publication_made_while_away_counts_when_the_publisher_is_back():
    story = Story().tell(900, "detached", "ticker").publish(1000)
    assert story.broken() == []
    assert story.tell(LATE, "attached", "ticker").broken() == ["complete"]


def test_who_leaves_before_the_broker_has_it_has_published_nothing():
    def leaves(time):
        story = Story().publish(1000).tell(time, "left", "ticker").tell(time, "detached", "ticker")
        return story.tell(LATE, "attached", "ticker").broken()

    assert leaves(1000 + NEAR) == ["complete"]
    assert leaves(1000 + NEAR - 1) == []


def test_who_has_left_wants_nothing():
    story = Story().tell(500, "left", "anna").tell(500, "detached", "anna").publish(1000)
    assert story.broken() == []


def test_who_comes_back_after_leaving_wants_again_what_it_wanted():
    def published(time):
        story = Story().tell(500, "left", "anna").tell(500, "detached", "anna")
        return story.tell(LATE, "attached", "anna").publish(time).broken()

    assert published(LATE + NEAR + TREE) == ["complete"]
    assert published(LATE + NEAR + TREE - 1) == []


def test_another_process_of_a_client_wants_only_what_it_asks_for_itself():
    def story():
        story = Story().tell(500, "detached", "anna").tell(500, "replaced", "anna")
        return story.tell(LATE, "attached", "anna").publish(2 * LATE)

    assert story().broken() == []
    wanted = Filter.parse("price > 40")
    assert story().tell(LATE, "subscribed", "anna", filter=wanted).broken() == ["complete"]


def test_what_is_on_its_way_when_a_publisher_begins_anew_may_be_overtaken():
    def replaced(time):
        story = Story().publish(1000).tell(time, "detached", "ticker")
        return story.tell(time, "replaced", "ticker").broken()

    assert replaced(1000 + NEAR + TREE) == ["complete"]
    assert replaced(1000 + NEAR + TREE - 1) == []


def test_a_publisher_that_waited_no_longer_may_not_reach_everybody():
    def waited(time, reason=NO_ANSWER):
        story = Story().publish(1000).tell(time, "lost", "ticker", count=0, reason=reason)
        assert story.broken() == ["complete"]
        return story.broken(BASELINE)

    assert waited(1000 - 2 * TREE - 1) == ["complete"]
    assert waited(1000 - 2 * TREE) == []
    assert waited(1000 + NEAR + TREE) == []
    assert waited(1000 + NEAR + TREE + 1) == ["complete"]
    assert waited(1000, "another") == ["complete"]


def test_a_filter_asked_for_twice_has_to_be_withdrawn_twice():
    def withdrawn(*times):
        story = Story().tell(1, "subscribed", "anna", filter=Filter.parse("price > 40"))
        for time in times:
            story.unsubscribe(time)
        return story.publish(LATE).broken()

    assert withdrawn(500) == ["complete"]
    assert withdrawn(500, 600) == []


def test_withdrawing_what_was_never_asked_for_changes_nothing():
    story = Story(subscribed_at=None).unsubscribe(5)
    assert story.publish(LATE).broken() == []
    assert story.tell(10, "unadvertised", "anna", filter=Filter.parse("a = 1")).broken() == []


def test_one_of_several_filters_is_enough():
    story = Story().tell(0, "subscribed", "anna", filter=Filter.parse("price < 5"))
    assert story.publish(1000).verdict().required == 1


def test_a_full_window_is_given_its_time():
    """Where deliveries may have waited for an acknowledgement, the client has to stay for longer."""

    def stays(duration, window):
        story = Story().publish(900, LOW).publish(1000).tell(1000 + duration, "detached", "anna")
        return story.broken(Reach(TREE, NEAR, window))

    at_once = NEAR + TREE + RECEIVING
    one_wait = 2 * NEAR + ACK_DELAY_NS
    assert stays(at_once, window=3) == ["complete"]
    assert stays(at_once + one_wait - 1, window=2) == []
    assert stays(at_once + one_wait, window=2) == ["complete"]
    assert stays(at_once + 2 * one_wait - 1, window=1) == []


def test_what_a_broker_forgot_before_it_welcomed_a_client_is_not_required():
    """If a store was lost, a client that was never welcomed cannot know that it had been heard."""

    def attached_for(duration, first_ns=0, **reach):
        story = Story(subscribed_at=None).tell(first_ns, "detached", "anna")
        story.tell(1000, "attached", "anna")
        story.tell(1000, "subscribed", "anna", filter=Filter.parse("price > 40"))
        story.publish(1000 + 2 * NEAR + TREE).tell(1000 + duration, "detached", "anna")
        return story.tell(LATE, "attached", "anna").broken(Reach(TREE, NEAR, **reach))

    outage = {"outage_ns": 1}
    assert attached_for(2 * NEAR - 1) == ["complete"]
    assert attached_for(2 * NEAR - 1, **outage) == []
    assert attached_for(2 * NEAR, **outage) == ["complete"]
    assert attached_for(2 * NEAR - 1, first_ns=2 * NEAR, **outage) == ["complete"]
    assert attached_for(2 * NEAR - 1, first_ns=2 * NEAR - 1, **outage) == []


def test_who_left_is_welcomed_anew():
    def story(kind):
        out = Story().tell(500, kind, "anna").tell(500, "detached", "anna")
        out.tell(1000, "attached", "anna")
        out.tell(1000, "subscribed", "anna", filter=Filter.parse("price > 40"))
        out.publish(1000 + 2 * NEAR + TREE).tell(1000 + 2 * NEAR - 1, "detached", "anna")
        return out.tell(LATE, "attached", "anna").broken(Reach(TREE, NEAR, outage_ns=1))

    assert story("left") == story("replaced") == []
    assert story("became") == ["complete"]


# Once, in order


def test_a_second_copy_is_found():
    verdict = Story().publish(1000).deliver(1200).deliver(1300).verdict()
    assert verdict.violations == (Violation("once", "anna got ticker 1 twice"),)
    assert verdict.delivered == 2


def test_a_second_copy_is_found_behind_others():
    story = Story().publish(1000).publish(1001)
    assert story.deliver(1200, 1).deliver(1201, 2).deliver(1300, 1).broken() == ["once"]


def test_another_process_of_a_client_may_get_what_the_first_one_got():
    wanted = Filter.parse("price > 40")
    story = Story().publish(1000).deliver(1200).tell(1250, "replaced", "anna")
    story.tell(1260, "attached", "anna").tell(1270, "subscribed", "anna", filter=wanted)
    assert story.deliver(1300).broken() == []
    assert story.verdict().delivered == 2
    assert story.deliver(1400).broken() == ["once"]


def test_another_process_may_be_told_that_what_the_first_one_got_is_lost():
    """It had not confirmed it, and nobody else knows."""
    wanted = Filter.parse("price > 40")
    story = Story().publish(1000).deliver(1200).tell(1250, "replaced", "anna")
    story.tell(1260, "attached", "anna").tell(1270, "subscribed", "anna", filter=wanted)
    assert story.lose(1300, 1).broken() == []
    assert story.lose(1301, 1).broken() == ["gap"]


def test_what_the_first_process_got_twice_is_found_too():
    story = Story().publish(1000).deliver(1200).deliver(1201).tell(1250, "replaced", "anna")
    assert story.broken() == ["once"]


def test_a_wrong_order_is_found():
    story = Story().publish(1000).publish(1001).deliver(1200, 2).deliver(1201, 1)
    assert story.verdict().violations == (Violation("fifo", "anna got ticker 1 after 2"),)


def test_order_counts_across_a_hole():
    story = Story()
    for time in (1000, 1001, 1002):
        story.publish(time)
    story.deliver(1200, 3).deliver(1201, 1).deliver(1202, 2)
    assert story.broken() == ["fifo", "fifo"]


def test_two_publishers_have_no_order_between_them():
    story = Story().tell(0, "attached", "gas")
    story.tell(0, "advertised", "gas", filter=Filter.parse("price > 0"))
    story.publish(1000).publish(1001, client="gas").publish(1002).publish(1003, client="gas")
    story.deliver(1200, 1, publisher="gas").deliver(1201, 2, publisher="gas")
    assert story.deliver(1202, 1).deliver(1203, 2).broken() == []


def test_what_was_not_required_has_to_come_once_and_in_order_too():
    story = Story(subscribed_at=999).publish(1000).publish(1001)
    assert story.verdict().required == 0
    assert story.deliver(1200, 2).deliver(1201, 1).deliver(1202, 1).broken() == ["fifo", "once"]


# Wanted


@pytest.mark.parametrize(
    ("tell", "what"),
    [
        (lambda: Story().deliver(1200), "anna got ticker 1, which nobody has published"),
        (
            lambda: Story().deliver(1200, publisher="nobody"),
            "anna got nobody 1, which nobody has published",
        ),
        (
            lambda: Story().deliver(999).publish(1000),
            "anna got ticker 1, which nobody has published",
        ),
        (
            lambda: Story().publish(1000).deliver(1200, attributes={"price": 42}),
            "anna got ticker 1 with other attributes",
        ),
        (
            lambda: Story().publish(1000, LOW).deliver(1200, attributes=LOW),
            "anna got ticker 1, which it does not want",
        ),
        (
            lambda: Story(subscribed_at=None).publish(1000).deliver(1200),
            "anna got ticker 1, which it does not want",
        ),
        (
            lambda: Story().publish(1000).unsubscribe(1199).deliver(1200),
            "anna got ticker 1, which it does not want",
        ),
        (
            lambda: Story(subscribed_at=1201).publish(1000).deliver(1200),
            "anna got ticker 1, which it does not want",
        ),
    ],
)
def test_what_nobody_asked_for_is_found(tell, what):
    assert Violation("wanted", what) in tell().verdict().violations


def test_what_is_wanted_at_the_moment_of_delivery_may_come():
    assert Story().publish(1000).deliver(1200).unsubscribe(1200).broken() == []
    assert Story(subscribed_at=1200).publish(1000).deliver(1200).broken() == []


def test_an_int_and_an_equal_float_are_the_same_attributes():
    assert Story().publish(1000).deliver(1200, attributes={"price": 41.0}).broken() == []


# Gaps


def test_a_loss_that_was_told_is_no_violation():
    verdict = Story().publish(1000).lose(1200, 1).verdict()
    assert verdict.violations == ()
    assert (verdict.delivered, verdict.lost) == (0, 1)


def test_a_gap_that_tells_too_little_is_found():
    (found,) = Story().publish(1000).publish(1001).lose(1200, 1).verdict().violations
    assert found == Violation("complete", "anna did not get ticker 2 (no gap is at its place)")


def test_a_gap_that_tells_too_much_is_found():
    (found,) = Story().publish(1000).lose(1200, 2).verdict().violations
    assert found == Violation("gap", "anna was told of 2 lost, but misses 1 at most")


def test_a_gap_about_what_was_delivered_is_found():
    assert Story().publish(1000).deliver(1200).lose(1201, 1).broken() == ["gap"]


def test_a_gap_about_what_the_client_never_wanted_is_found():
    assert Story().publish(1000, LOW).lose(1200, 1).broken() == ["gap"]


def test_a_gap_may_be_about_what_was_possible_only():
    """Not required, because the subscription was not settled; but it may have been in the backlog."""
    assert Story(subscribed_at=999).publish(1000).lose(1200, 1).broken() == []


def test_gaps_add_up():
    story = Story().publish(1000).publish(1001).publish(1002)
    assert story.lose(1200, 1).lose(1300, 2).broken() == []
    assert story.lose(1400, 1).broken() == ["gap"]


def test_a_gap_of_nobody_knows_how_many_covers_any_loss():
    verdict = Story().publish(1000).publish(1001).lose(1200, 0).verdict()
    assert verdict.violations == ()
    assert verdict.lost == 0
    assert Story().lose(1200, 0).broken() == []


def test_a_gap_of_nobody_knows_how_many_does_not_cover_what_is_published_later():
    assert Story().publish(1200).lose(1200, 0).broken() == []
    assert Story().publish(1201).lose(1200, 0).broken() == ["complete"]


def test_a_gap_may_be_about_what_a_client_withdrew_while_away():
    """Its broker could not know, and kept it."""

    def published(time):
        story = Story().tell(200, "detached", "anna")
        story.tell(300, "attached", "anna", broker="porto").tell(
            400, "detached", "anna"
        ).unsubscribe(500)
        story.tell(2000, "attached", "anna", broker="faro")
        return story.publish(time).lose(LATE, 1).broken()

    assert published(2000 + NEAR + MOVING) == []
    assert published(2000 + NEAR + MOVING + 1) == ["gap"]


# How long messages took


def test_reach_is_the_longest_way_through_the_tree():
    world = World(broker_link=LinkSpec(10 * MS_NS), client_link=LinkSpec(2 * MS_NS))
    world.add_brokers([("hub", "a"), ("a", "far"), ("hub", "b"), ("hub", "c")])
    assert reach(world) == Reach(tree_ns=30 * MS_NS, client_ns=0)
    world.add_client("anna", "b")
    world.settle()
    assert reach(world) == Reach(tree_ns=30 * MS_NS, client_ns=2 * MS_NS)
    for pipe in world.link("hub", "c"):
        pipe.shape(LinkSpec(100 * MS_NS))
    assert reach(world).tree_ns == 120 * MS_NS


def test_reach_counts_slow_brokers():
    world = World()
    world.add_brokers([("a", "b"), ("b", "c")])
    world.broker("b").worst_ns = 5 * MS_NS
    assert reach(world).tree_ns == 25 * MS_NS
    world.add_client("anna", "a")
    assert reach(world).client_ns == 7 * MS_NS


def test_reach_remembers_connections_that_are_gone():
    world = World(client_link=LinkSpec(7 * MS_NS))
    world.add_brokers([], alone="a")
    anna = world.add_client("anna", "a")
    world.settle()
    anna.detach()
    world.settle()
    assert not world.connections
    assert reach(world) == Reach(tree_ns=0, client_ns=7 * MS_NS)


# Interest

PRICE = Filter.parse("price > 0")
KNOWN = NEAR + 2 * TREE + NEAR  # an advertisement went there, subscriptions came back, it was told


def told_early(story, reach=REACH):
    return [*early(story.events, histories(story.events), reach)]


def unwanted(time, **more):
    return Story(**more).tell(time, "unwanted", "ticker", filter=PRICE)


def test_that_nobody_is_interested_must_not_be_told_while_somebody_is():
    assert told_early(unwanted(KNOWN + 1)) == [
        "ticker was told that nobody wants price > 0, but anna does"
    ]


def test_a_new_advertisement_need_not_settle_unless_confirmations_take_too_long():
    for new in (unwanted(KNOWN), unwanted(LATE, advertised_at=LATE - KNOWN)):
        assert told_early(new) != []
        for slow in ({"confirm_ns": 4 * TREE - 1}, {"at_once": False}, {"outage_ns": 1}):
            assert told_early(new, Reach(TREE, NEAR, **slow)) == []
        assert told_early(new, Reach(TREE, NEAR, confirm_ns=4 * TREE)) != []


def test_until_a_subscription_has_settled_it_may():
    assert told_early(unwanted(LATE, subscribed_at=LATE - TREE - 2 * NEAR)) == []
    assert told_early(unwanted(LATE, subscribed_at=LATE - TREE - 2 * NEAR - 1)) != []
    assert told_early(unwanted(LATE, advertised_at=None)) == []
    cheap = {"filter": Filter.parse("price < 50")}
    another = Story().tell(LATE - 1, "advertised", "ticker", **cheap)
    assert told_early(another.tell(LATE, "unwanted", "ticker", **cheap)) == []


def test_who_is_interested_has_to_stay_so():
    assert told_early(unwanted(LATE).unsubscribe(LATE)) == []
    assert told_early(unwanted(LATE).unsubscribe(LATE + 1)) != []
    assert told_early(unwanted(LATE).tell(LATE - 1, "left", "anna")) == []
    gone = unwanted(LATE).tell(LATE - 1, "left", "anna").unsubscribe(LATE + 1)
    assert told_early(gone) == []  # it had left before


def test_a_filter_that_only_may_overlap_is_no_interest_and_its_own_is_none():
    other = Story(subscribed_at=None).tell(LATE, "unwanted", "ticker", filter=PRICE)
    assert told_early(other) == []
    other.tell(0, "subscribed", "ticker", filter=PRICE)
    other.tell(0, "subscribed", "anna", filter=Filter.parse("price < 0"))
    assert told_early(other) == []


@pytest.mark.parametrize("who", ["anna", "ticker"])
def test_who_lost_nobody_knows_what_may_have_been_forgotten(who):
    lost = {"reason": "no answer"}
    assert told_early(unwanted(LATE).tell(5, "lost", who, count=0, **lost)) == []
    assert told_early(unwanted(LATE).tell(5, "lost", who, count=1, **lost)) != []


@pytest.mark.parametrize("routing", ["flooding", "covering"])
def test_a_publisher_that_believes_what_is_not_true_is_found(routing):
    world = settled_world(routing)
    [publisher] = [one for one in world.clients.values() if one.core.advertisements]
    [offered] = publisher.core.advertisements
    publisher.watch(offered)
    world.settle()
    assert check(world).violations == ()
    believes = f"{publisher.name} believes that nobody wants {offered}"
    publisher.core.wanted[offered] = False
    assert check(world).violations == (Violation("interest", believes),)
    publisher.core.wanted.clear()
    asked = f"{publisher.name} was not told whether anybody wants {offered}"
    assert check(world).violations == (Violation("interest", asked),)


@pytest.mark.parametrize("routing", ["flooding", "covering"])
def test_a_publisher_that_believes_in_somebody_who_is_gone_is_found(routing):
    """Where notifications are flooded, it has to believe in somebody."""
    world = settled_world(routing)
    [publisher] = [one for one in world.clients.values() if one.core.advertisements]
    [offered] = publisher.core.advertisements
    publisher.watch(offered)
    for client in world.clients.values():
        for filter in list(client.core.subscriptions):
            client.unsubscribe(filter)
    world.settle()
    assert check(world).violations == ()
    floods = routing == "flooding"
    publisher.core.wanted[offered] = not floods
    who = "nobody" if floods else "somebody"
    believes = f"{publisher.name} believes that {who} wants {offered}"
    assert check(world).violations == (Violation("interest", believes),)


# Quiet


def settled_world(routing="covering"):
    world = World(routing=routing)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    world.add_client("ticker", "faro").advertise("price > 0")
    world.add_client("anna", "porto").subscribe("price > 10")
    world.add_client("bert", "porto").subscribe("price > 40")
    world.settle()
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    assert check(world).violations == ()
    return world


def tidy_words(world):
    found = check(world).violations
    assert all(one.rule == "tidy" for one in found)
    assert list(found) == check_quiet(world)
    return [one.what for one in found]


def test_an_earlier_process_that_is_still_connected_is_found():
    world = settled_world()
    world.broker("porto").core.relocation.on_began = lambda *_: []
    world.begin_anew("anna", "faro")
    world.settle()
    found = tidy_words(world)
    assert "porto has a session of anna, which is not here" in found
    assert "porto keeps the connection anna#1" in found


def entry(text, client=""):
    return Entry(Filter.parse(text), ClientId(client))


GHOST = entry("price > 70")


def ghost_in_ads(world):
    world.broker("porto").core.routing.in_ads["lisbon"][GHOST] = None


def ghost_in_subs(world):
    world.broker("lisbon").core.routing.in_subs["porto"][GHOST] = None


def forgotten_in_ad(world):
    world.broker("porto").core.routing.in_ads["lisbon"].clear()


def forgotten_in_sub(world):
    world.broker("lisbon").core.routing.in_subs["porto"].clear()


def ghost_out_ad(world):
    world.broker("faro").core.routing.out_ads["lisbon"].entries[GHOST] = False


def ghost_out_sub(world):
    world.broker("porto").core.routing.out_subs["lisbon"].entries[GHOST] = False


def forgotten_out_ad(world):
    del world.broker("faro").core.routing.out_ads["lisbon"].entries[entry("price > 0")]


def forgotten_out_sub(world):
    del world.broker("porto").core.routing.out_subs["lisbon"].entries[entry("price > 40")]


def ghost_destination(world):
    world.broker("lisbon").core.routing.destinations.add(GHOST.filter, 0)


def forgotten_destination(world):
    world.broker("lisbon").core.routing.destinations.remove(Filter.parse("price > 10"), 0)


def doubled_destination(world):
    world.broker("lisbon").core.routing.destinations.add(Filter.parse("price > 10"), 0)


def forgotten_wish_of_a_session(world):
    host = world.broker("porto").core
    (session,) = host.border.of("bert")
    host.routing.destinations.remove(Filter.parse("price > 40"), session.place)


@pytest.mark.parametrize(
    ("tamper", "what"),
    [
        (ghost_in_ads, "porto in_ads lisbon is {price > 0, price > 70}, should be {price > 0}"),
        (ghost_in_subs, "lisbon in_subs porto is {price > 10, price > 70}, should be {price > 10}"),
        (forgotten_in_ad, "porto in_ads lisbon is {}, should be {price > 0}"),
        (forgotten_in_sub, "lisbon in_subs porto is {}, should be {price > 10}"),
        (ghost_out_ad, "faro out_ads lisbon is {price > 0, price > 70}, should be {price > 0}"),
        (
            ghost_out_sub,
            "porto out_subs lisbon is {price > 10, price > 40, price > 70},"
            " should be {price > 10, price > 40}",
        ),
        (forgotten_out_ad, "faro out_ads lisbon is {}, should be {price > 0}"),
        (
            forgotten_out_sub,
            "porto out_subs lisbon is {price > 10}, should be {price > 10, price > 40}",
        ),
    ],
)
def test_a_table_that_differs_is_found(tamper, what):
    world = settled_world()
    tamper(world)
    assert tidy_words(world) == [what]


@pytest.mark.parametrize("tamper", [ghost_destination, forgotten_destination, doubled_destination])
def test_a_wrong_destination_is_found(tamper):
    world = settled_world()
    tamper(world)
    (found,) = tidy_words(world)
    assert found.startswith("lisbon destinations is ")


def test_a_forgotten_wish_of_a_session_is_found():
    world = settled_world()
    forgotten_wish_of_a_session(world)
    (found,) = tidy_words(world)
    assert found.startswith("porto destinations is ")


@pytest.mark.parametrize("routing", ["flooding", "simple", "identity", "covering", "merging"])
def test_ghosts_are_found_under_every_routing(routing):
    world = settled_world(routing)
    ghost_in_ads(world)
    ghost_in_subs(world)
    assert len(tidy_words(world)) == 2


@pytest.mark.parametrize("routing", ["simple", "identity", "covering", "merging"])
def test_what_the_clients_want_now_is_what_counts(routing):
    """The application asked, but the message has not been sent: to the oracle, the tables are wrong."""
    world = settled_world(routing)
    world.clients["anna"].core.subscribe(Filter.parse("price < 5"))
    words = tidy_words(world)
    assert any(one.startswith("lisbon in_subs porto") for one in words)
    assert any(one.startswith("faro in_subs lisbon") for one in words)
    assert any(one.startswith("porto destinations") for one in words)


def test_a_message_on_its_way_is_found():
    world = settled_world()
    world.pipes["porto", "lisbon"].cut()
    world.pipes["porto", "lisbon"].send(Notification(ClientId("ticker"), 9, {}))
    assert tidy_words(world) == ["1 messages on their way from porto to lisbon"]


def test_a_publication_that_waits_is_found():
    world = settled_world()
    world.clients["ticker"].core.outbox.append(Publish(2, {"price": 1}))
    assert tidy_words(world) == ["ticker still has publications to send"]


def test_a_backlog_that_is_left_is_found():
    world = settled_world()
    (session,) = world.broker("porto").core.border.of(ClientId("anna"))
    stored = Stored(Notification(ClientId("ticker"), 9, {}), 1)
    session.backlog.put(stored, world.now, world.limits)
    assert tidy_words(world) == ["porto keeps 1 for anna"]


def outlived_words(world):
    world.outlive()
    return [one.what for one in check_outlived(world)]


def test_a_deadline_that_is_left_is_found():
    world = settled_world()
    world.clients["anna"].detach(leave=True)
    world.settle()
    assert outlived_words(world) == []
    world.broker("faro").core.next_deadline = lambda: 5
    assert outlived_words(world) == ["faro still waits for a deadline"]


def test_a_tombstone_that_is_left_is_found():
    world = settled_world()
    world.outlive()
    world.broker("porto").core.border.bury(ClientId("carl"), 1, world.now)
    assert [one.what for one in check_outlived(world)] == [
        "porto still waits for a deadline",
        "porto still has tombstones",
    ]


def test_a_session_that_waits_is_found():
    world = settled_world()
    (session,) = world.broker("porto").core.border.of(ClientId("anna"))
    session.wait = Wait((), world.now)
    assert tidy_words(world) == ["porto waits for the session of anna"]


def test_a_second_session_of_a_client_is_found():
    world = settled_world()
    border = world.broker("porto").core.border
    (session,) = border.of(ClientId("anna"))
    border.open(Attach(ClientId("anna"), 0, 0), LinkId("ghost"))
    border.renew(session, Attach(ClientId("anna"), 1, 0, (*session.subscriptions,)), session.link)
    assert "porto has several sessions of anna" in tidy_words(world)


def test_a_session_at_the_wrong_broker_is_found():
    world = settled_world()
    world.clients["anna"].home = "faro"
    assert "porto has a session of anna, which is not here" in tidy_words(world)


def test_a_session_of_somebody_who_left_is_found():
    world = settled_world()
    world.clients["bert"].left = True
    assert "porto has a session of bert, which is not here" in tidy_words(world)


def test_a_fault_between_peers_is_found():
    world = settled_world()
    world.broken.append("porto closed anna#1: it was rude")
    assert tidy_words(world) == ["porto closed anna#1: it was rude"]


def test_somebody_who_breaks_the_protocol_is_a_violation():
    world = settled_world()
    anna = world.clients["anna"]
    anna.pipes[anna.core.link].send(Notification(ClientId("anna"), 1, {}))
    world.settle()
    assert check(world).violations[0].what.startswith("porto closed anna#1: Notification")


def test_while_somebody_is_away_its_backlog_and_deadline_are_no_violation():
    world = settled_world()
    world.clients["anna"].detach()
    world.settle()
    world.clients["ticker"].publish({"price": 50})
    world.settle()
    (session,) = world.broker("porto").core.border.of(ClientId("anna"))
    assert len(session.backlog) == 1
    assert check_quiet(world) == []
    world.clients["anna"].attach()
    world.settle()
    assert check(world).violations == ()


# The tables by definition, beside tables by hand

#   ticker: price > 0, and gas: topic = 'gas'        at faro
#   anna 10-20, bert 20-30                           at porto
#   carla 12-15, dora 10-20 like anna, emil oil      at lisbon, where nobody offers anything

A, B, C = "price between 10 and 20", "price between 20 and 30", "price between 12 and 15"
OIL = "topic = 'oil' and price < 0"  # overlaps no offer
AB = "price between 10 and 30"
ANY, GAS = "price > 0", "price > 0 and topic = 'gas'"

BY_HAND = {
    # routing: ads that faro tells, subs that porto tells lisbon, subs that lisbon tells faro
    "flooding": ([], [], []),
    "simple": (
        [(ANY, "ticker"), (GAS, "gas")],
        [(A, "anna"), (B, "bert")],
        [(A, "anna"), (B, "bert"), (C, "carla"), (A, "dora")],
    ),
    "identity": ([ANY, GAS], [A, B], [A, B, C]),
    "covering": ([ANY], [A, B], [A, B]),
    "merging": ([ANY], [AB], [AB]),
}


def entries(row):
    return {entry(*one) if type(one) is tuple else entry(one) for one in row}


@pytest.mark.parametrize("routing", BY_HAND)
def test_tables_are_those_computed_by_hand(routing):
    world = World(routing=routing)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    for name, home, offer in (("ticker", "faro", ANY), ("gas", "faro", GAS)):
        world.add_client(name, home).advertise(offer)
    for name, home, wish in (
        ("anna", "porto", A),
        ("bert", "porto", B),
        ("carla", "lisbon", C),
        ("dora", "lisbon", A),
        ("emil", "lisbon", OIL),
    ):
        world.add_client(name, home).subscribe(wish)
    world.settle()
    ads, porto, lisbon = map(entries, BY_HAND[routing])
    tables = tables_of(world)
    assert set(tables.told_ads("faro", "lisbon")) == ads
    assert set(tables.told_ads("lisbon", "porto")) == ads
    assert tables.told_ads("porto", "lisbon") == tables.told_ads("lisbon", "faro") == []
    assert set(tables.told_subs("porto", "lisbon")) == porto
    assert set(tables.told_subs("lisbon", "faro")) == lisbon
    assert tables.told_subs("faro", "lisbon") == tables.told_subs("lisbon", "porto") == []
    # and the brokers came to the same
    assert set(world.broker("faro").core.routing.in_subs["lisbon"]) == lisbon
    assert set(world.broker("lisbon").core.routing.in_subs["porto"]) == porto
    assert check(world).violations == ()


@pytest.mark.parametrize("routing", BY_HAND)
def test_who_left_is_in_no_table(routing):
    world = World(routing=routing)
    world.add_brokers([("porto", "lisbon")])
    world.add_client("ticker", "porto").advertise(ANY)
    anna = world.add_client("anna", "lisbon")
    anna.subscribe(A)
    world.settle()
    anna.detach(leave=True)
    world.settle()
    assert tables_of(world).told_subs("lisbon", "porto") == []
    assert check(world).violations == ()


def test_a_filter_with_or_is_in_the_tables_by_its_parts():
    world = World()
    world.add_brokers([("porto", "lisbon")])
    world.add_client("ticker", "porto").advertise(ANY)
    world.add_client("anna", "lisbon").subscribe(f"{C} or {B}")
    world.settle()
    assert set(tables_of(world).told_subs("lisbon", "porto")) == entries([B, C])


# Whole runs in which a link breaks a rule


def test_a_notification_that_gets_lost_is_found():
    world = settled_world()
    world.pipes["lisbon", "porto"].receive = lambda _: None
    world.clients["ticker"].publish({"price": 50})
    world.settle()
    assert check(world).violations == (
        Violation("complete", "anna did not get ticker 2"),
        Violation("complete", "bert did not get ticker 2"),
    )


@pytest.fixture
def without_marks(monkeypatch):
    """Nobody looks whether a notification has come before."""
    monkeypatch.setattr(Marks, "pass_on", lambda *_: True)


def test_a_notification_that_comes_twice_is_found(without_marks):
    world = settled_world()
    pipe = world.pipes["lisbon", "porto"]
    honest = pipe.receive
    pipe.receive = lambda event: [honest(event), honest(event)]
    world.clients["ticker"].publish({"price": 20})
    world.settle()
    assert check(world).violations == (Violation("once", "anna got ticker 2 twice"),)


def with_an_overtaking():
    world = settled_world()
    pipe = world.pipes["lisbon", "porto"]
    honest, waiting = pipe.receive, []

    def hold_the_first_back(event):
        waiting.insert(0, event)
        if len(waiting) == 2:
            for one in waiting:
                honest(one)

    pipe.receive = hold_the_first_back
    world.clients["ticker"].publish({"price": 20})
    world.clients["ticker"].publish({"price": 21})
    world.settle()
    return check(world).violations


def test_notifications_that_overtake_each_other_are_found(without_marks):
    assert with_an_overtaking() == (Violation("fifo", "anna got ticker 2 after 3"),)


def test_what_was_overtaken_and_not_delivered_is_found():
    assert with_an_overtaking() == (Violation("complete", "anna did not get ticker 2"),)


@pytest.mark.parametrize("late", [False, True])
def test_a_gap_that_a_link_passes_on_too_late_is_found(late):
    """The link loses 2, and says so before 3, or behind it."""
    world = settled_world()
    pipe = world.pipes["lisbon", "porto"]
    honest, lost = pipe.receive, Received("lisbon", Gap(1, "the link was broken"))
    pipe.receive = lambda _: None
    world.clients["ticker"].publish({"price": 20})
    world.settle()
    pipe.receive = honest
    if not late:
        world.broker("porto").receive(lost)
    world.clients["ticker"].publish({"price": 21})
    world.settle()
    if late:
        world.broker("porto").receive(lost)
        world.settle()
    missing = Violation("complete", "anna did not get ticker 2 (no gap is at its place)")
    assert check(world).violations == ((missing,) if late else ())


# What a broker refuses


@pytest.mark.parametrize(("reason", "missing"), [(None, ["complete"]), (HELD_TOO_MUCH, [])])
def test_what_a_broker_refused_to_hold_is_published_with_the_next_attachment(reason, missing):
    """By then anna does not want it any more."""
    story = Story().publish(1000).tell(1000 + NEAR, "detached", "ticker", reason=reason)
    story.unsubscribe(LATE // 2).tell(LATE, "attached", "ticker")
    assert story.broken() == missing


# The place of a gap


def stream(*told, published=3):
    """Anna is told this in order: "1" is the first notification, "gap" a loss of unknown size, "gap 2" of two.

    And "unanswered" is the loss of an unknown number because her old broker did not answer in time.
    """
    story = Story()
    for time in range(1000, 1000 + published):
        story.publish(time)
    for time, one in enumerate(told, start=1300):
        word, _, count = one.partition(" ")
        if word == "gap":
            story.lose(time, int(count or 0))
        elif word == "unanswered":
            story.tell(time, "lost", "anna", count=0, reason=NO_ANSWER)
        else:
            story.deliver(time, int(word))
    return story


MISPLACED = Violation("complete", "anna did not get ticker 2 (no gap is at its place)")


@pytest.mark.parametrize("gap", ["gap", "gap 1"], ids=["unknown size", "one"])
def test_a_gap_reports_a_loss_only_at_its_place(gap):
    """2 is missing: the gap has to come behind 1 and before 3."""
    assert stream("1", gap, "3").broken() == []
    too_early = stream(gap, "1", "3").verdict().violations
    too_late = stream("1", "3", gap).verdict().violations
    assert too_early == too_late == (MISPLACED,)


def test_a_loss_without_any_gap_is_named_alone():
    assert stream("1", "3").verdict().violations == (
        Violation("complete", "anna did not get ticker 2"),
    )


def test_a_gap_that_is_too_late_for_one_loss_may_report_another():
    story = stream("1", "3", "gap", "5", published=5)
    assert story.verdict().violations == (MISPLACED,)


def test_each_loss_needs_a_gap_of_its_own_place():
    assert stream("1", "gap", "3", "gap", "5", published=5).broken() == []
    assert stream("1", "gap", "3", "5", published=5).broken() == ["complete"]


def test_deliveries_of_another_publisher_do_not_limit_the_place_of_a_gap():
    story = Story().tell(0, "attached", "gas")
    story.tell(0, "advertised", "gas", filter=Filter.parse("price > 0"))
    story.publish(1000).publish(1001, client="gas").publish(1002, client="gas").publish(1003)
    story.deliver(1300, 1).deliver(1301, 2, publisher="gas").lose(1302, 0).deliver(1303, 2)
    assert story.verdict().violations == (
        Violation("complete", "anna did not get gas 1 (no gap is at its place)"),
    )


def test_a_gap_may_be_of_what_nothing_came_before():
    assert stream("gap", "2", published=2).broken() == []


def test_a_gap_may_be_of_what_nothing_comes_behind():
    assert stream("1", "gap", published=2).broken() == []


def test_a_later_gap_may_be_of_the_same():
    assert stream("gap", "1", "gap", "3").broken() == []


def test_a_gap_with_a_number_reports_no_more_losses_than_that():
    assert stream("1", "gap 2", "4", published=4).broken() == []
    (found,) = stream("1", "gap 1", "4", published=4).verdict().violations
    assert found == Violation("complete", "anna did not get ticker 3 (no gap is at its place)")


def test_numbers_of_gaps_at_other_places_do_not_make_up_for_one_that_is_too_low():
    """2 and 3 are missing behind 1, and 5 behind 4; three are reported, but not where they are missing."""
    assert stream("1", "gap 2", "4", "gap 1", "6", published=6).broken() == []
    assert stream("1", "gap 1", "4", "gap 2", "6", published=6).broken() == ["complete"]


def test_losses_are_assigned_to_gaps_so_that_as_many_as_possible_are_reported():
    """gas 1 may be reported by either gap, and ticker 1 only by the first one."""
    story = Story().tell(0, "attached", "gas")
    story.tell(0, "advertised", "gas", filter=Filter.parse("price > 0"))
    story.publish(1000, client="gas").publish(1001).publish(1002)
    assert story.lose(1300, 1).deliver(1301, 2).lose(1302, 1).broken() == []


def test_behind_a_time_out_the_gap_of_a_late_reply_may_come_later():
    """What the reply brings was overtaken: 2 is missing between the two gaps."""
    assert stream("unanswered", "1", "3", "unanswered").broken() == []
    assert stream("1", "unanswered", "3", "4", "unanswered", published=4).broken() == []


@pytest.mark.parametrize(
    "told",
    [
        ("1", "3", "unanswered"),  # there was no time-out before
        ("1", "3", "unanswered", "4", "unanswered"),  # 2 was overdue before the time-out
        ("unanswered", "1", "3", "gap"),  # another gap than that of a late reply
        ("gap", "1", "3", "unanswered"),
        ("unanswered", "unanswered", "1", "3"),  # both come too early
    ],
)
def test_no_other_gap_may_come_later(told):
    assert stream(*told, published=4 if "4" in told else 3).verdict().violations == (MISPLACED,)


def test_a_late_reply_reports_only_what_was_published_before_it():
    story = stream("unanswered", "1", "unanswered", published=1).publish(1400).publish(1401)
    assert story.deliver(1500, 3).broken() == ["complete"]


def test_a_gap_for_another_process_reports_nothing_to_the_first_one():
    def story(gap_at):
        wanted = Filter.parse("price > 40")
        out = Story().publish(1000).deliver(1200, 1).publish(1201)
        out.tell(LATE, "detached", "anna").tell(LATE, "replaced", "anna")
        out.tell(LATE + 1, "attached", "anna").tell(LATE + 1, "subscribed", "anna", filter=wanted)
        return out.lose(gap_at, 0).broken()

    assert story(LATE - 1) == []
    assert story(LATE + 2) == ["complete"]


def test_what_another_process_gets_again_does_not_limit_the_place_of_a_gap():
    """2 is missing to the first process, which was told of it behind 1."""
    wanted = Filter.parse("price > 40")
    story = stream("1", "gap").tell(1350, "replaced", "anna")
    story.tell(1360, "attached", "anna").tell(1360, "subscribed", "anna", filter=wanted)
    assert story.deliver(1400, 1).deliver(1401, 3).broken() == []


def recovered(*losses):
    """1 is reported as lost, and comes nevertheless."""
    story = Story().publish(1000).lose(1300, 1)
    for loss in losses:
        story.lose(1400, loss)
    return story.deliver(1500, 1).broken()


def test_what_was_reported_as_lost_may_come_behind_a_gap_of_unknown_size():
    """Then a broker gave up asking for what the client got before, and does not know what it was told."""
    assert recovered() == ["gap"]
    assert recovered(0) == []


def test_what_is_published_behind_a_gap_of_unknown_size_was_not_reported_before():
    story = Story().lose(1300, 1).lose(1400, 0).publish(1500).deliver(1700, 1)
    assert story.broken() == ["gap"]
