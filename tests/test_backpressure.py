"""Publishers are slowed before the backlog of a connected client overflows, for a bounded time."""

import pytest

from wayfare.core.backpressure import LEASE_NS, SLOWED_MAX
from wayfare.core.broker import Broker
from wayfare.core.effects import LinkDown, Pause, Pressed, Received, Resume, Send, Stalled, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.messages import (
    Ack,
    Advertise,
    Attach,
    Deliver,
    Gap,
    Notification,
    Publish,
    Slow,
    State,
    Subscribe,
    Terms,
    Update,
)
from wayfare.core.places import Place, Places
from wayfare.core.virtual import Ahead
from wayfare.sim import World, check
from wayfare.sim.faults import Crash, Cut, Faults, Stall
from wayfare.sim.links import MS_NS

X = Filter.parse("x > 0")
# Congested when 4 wait, and not any more when 2 do.
LIMITS = Limits(backlog_count=8, window=2, burst_count=20)


def broker(*neighbours, **limits):
    fields = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__} | limits
    return Broker("porto", neighbours, limits=Limits(**fields))


def attach(here, client, *filters, terms=None, now=0):
    here.step(Received(client, Attach(client, 1, 0)), now)
    for filter in filters:
        here.step(Received(client, Subscribe(filter, terms)), now)


def hear(here, numbers, publisher="tom", came_from="faro", now=0):
    """Notifications come from a neighbour; returns what is said of congestion."""
    effects = []
    for number in numbers:
        note = Notification(publisher, number, {"x": 1})
        effects += here.step(Received(came_from, note), now)
    return of_congestion(effects)


def of_congestion(effects):
    return [
        one for one in effects if not (type(one) is Send and type(one.message) in (Deliver, Gap))
    ]


def slow(neighbour, for_ns, publisher="tom"):
    return Send(neighbour, Update(slow=(Slow(publisher, for_ns),)))


def backlog(here, client="anna"):
    return here.border.of(client)[0].backlog


def received_all(here, now=0, client="anna"):
    """The client acknowledges everything; returns what is said of congestion."""
    effects = []
    while backlog(here, client).acked < backlog(here, client).sent:
        effects += here.step(Received(client, Ack(backlog(here, client).sent)), now)
    return of_congestion(effects)


def test_where_a_publisher_comes_from_is_told_once_beyond_the_high_mark_and_at_the_low_mark():
    here = broker("faro")
    attach(here, "anna", X)
    assert hear(here, range(1, 7)) == []  # 2 are on their way, 4 wait
    assert hear(here, [7]) == [slow("faro", LEASE_NS)]
    assert hear(here, range(8, 20)) == []  # what was under way
    assert received_all(here) == [slow("faro", 0)]
    assert here.next_deadline() is None or not here.backpressure.slowed


def test_what_was_under_way_is_not_lost_and_what_comes_later_is_beyond_the_bound():
    here = broker("faro", slow_publishers_ns=3 * SECOND_NS)
    attach(here, "anna", X)
    hear(here, range(1, 29))
    assert (len(backlog(here)), backlog(here).why) == (28, "")
    hear(here, [29], now=1)
    assert (len(backlog(here)), backlog(here).why) == (28, "backlog_count")
    hear(here, [30], now=3 * SECOND_NS)
    assert len(backlog(here)) == 8


def test_a_publisher_that_is_here_is_paused():
    here = broker()
    attach(here, "anna", X)
    attach(here, "tom")
    here.step(Received("tom", Advertise(X)), 0)
    effects = []
    for number in range(1, 9):
        effects += here.step(Received("tom", Publish(number, {"x": 1})), 0)
    assert [one for one in effects if type(one) is Pause] == [Pause("tom")]
    assert received_all(here) == [Resume("tom")]


def test_a_lease_is_renewed_until_the_bound_and_then_not_again_in_this_episode():
    here = broker("faro", slow_publishers_ns=5 * SECOND_NS)
    attach(here, "anna", X)
    hear(here, range(1, 8))
    told = []
    while here.backpressure.slowed:
        now = here.next_deadline()
        told += [(now, one.message.slow[0].for_ns) for one in here.step(Tick(), now)]
    assert [at for at, _ in told] == [1 * SECOND_NS, 2 * SECOND_NS, 3 * SECOND_NS]
    assert [at + for_ns for at, for_ns in told][-1] == 5 * SECOND_NS
    assert hear(here, range(8, 100), now=6 * SECOND_NS) == []
    assert received_all(here, now=7 * SECOND_NS) == []
    assert hear(here, range(100, 107), now=8 * SECOND_NS) == [slow("faro", LEASE_NS)]


def test_a_broker_between_tells_where_the_next_notification_comes_from():
    here = broker("faro", "lagos")
    ask = Received("faro", Update(slow=(Slow("tom", LEASE_NS),)))
    assert here.step(ask, 0) == []
    assert hear(here, [1], came_from="lagos") == [slow("lagos", LEASE_NS)]
    assert hear(here, [2], came_from="lagos") == []
    assert here.step(ask, SECOND_NS) == [slow("lagos", LEASE_NS)]
    assert here.step(Received("faro", Update(slow=(Slow("tom", 0),))), SECOND_NS) == [
        slow("lagos", 0)
    ]
    assert not here.backpressure.slowed


def test_nobody_is_asked_for_its_own_sake():
    """A publisher that has moved comes from a neighbour that wanted it to be slowed."""
    here = broker("faro", "lagos")
    here.step(Received("faro", Update(slow=(Slow("tom", LEASE_NS),))), 0)
    assert hear(here, [1], came_from="faro") == []
    here.step(Received("lagos", Update(slow=(Slow("tom", LEASE_NS),))), 0)
    assert hear(here, [2], came_from="faro") == []
    assert here.backpressure.slowed["tom"].told["faro"] == LEASE_NS


def test_a_lease_that_nobody_renews_ends():
    here = broker("faro")
    attach(here, "tom")
    asked = Update(slow=(Slow("tom", 5 * LEASE_NS),))  # no lease is longer than ours
    assert here.step(Received("faro", asked), 0) == [Pause("tom")]
    assert here.step(Tick(), LEASE_NS) == [Resume("tom")]
    assert here.step(Tick(), 2 * LEASE_NS) == []


def test_a_publisher_that_comes_back_is_still_slowed():
    here = broker("faro")
    here.step(Received("faro", Update(slow=(Slow("tom", LEASE_NS),))), 0)
    effects = here.step(Received("tom", Attach("tom", 1, 0)), 0)
    assert Pause("tom") in effects
    here.step(LinkDown("tom"), 1)
    assert here.step(Tick(), LEASE_NS) == []


def test_nobody_is_slowed_for_a_client_that_is_gone():
    here = broker("faro")
    attach(here, "anna", X)
    hear(here, range(1, 20))
    assert of_congestion(here.step(LinkDown("anna"), 1)) == [slow("faro", 0)]
    hear(here, [20], now=2)
    assert len(backlog(here)) == LIMITS.backlog_count


@pytest.mark.parametrize(("seconds", "slowed"), [(0, False), (1, True), (100, True)])
def test_a_subscription_says_for_how_long(seconds, slowed):
    here = broker("faro")
    attach(here, "anna", X, terms=Terms(slow_ns=seconds * SECOND_NS))
    assert bool(hear(here, range(1, 20))) == slowed
    at_most = min(seconds * SECOND_NS, LIMITS.slow_publishers_ns)
    by = here.backpressure.slowed["tom"].by if slowed else {1: 0}
    assert [*by.values()] == [at_most]


def test_each_publisher_is_slowed_as_the_subscription_says_that_wants_it():
    here = broker("faro")
    attach(here, "anna", X)
    here.step(Received("anna", Subscribe(Filter.parse("y > 0"), Terms(slow_ns=0))), 0)
    hear(here, range(1, 20))
    note = Notification("tim", 1, {"y": 1})
    assert of_congestion(here.step(Received("faro", note), 0)) == []
    assert [*here.backpressure.slowed] == ["tom"]


def test_without_the_limit_nobody_is_slowed():
    here = broker("faro", slow_publishers_ns=0)
    attach(here, "anna", X)
    assert hear(here, range(1, 20)) == []
    assert len(backlog(here)) == LIMITS.backlog_count


def test_a_broker_that_did_not_run_does_not_count_that_time():
    here = broker("faro", slow_publishers_ns=3 * SECOND_NS)
    attach(here, "anna", X)
    hear(here, range(1, 20))
    here.step(Stalled(60 * SECOND_NS), 60 * SECOND_NS)
    hear(here, [20], now=61 * SECOND_NS)
    assert len(backlog(here)) == 20


def test_the_past_that_a_client_asks_for_slows_nobody_and_is_not_lost():
    here = broker("faro", past_count=50)
    attach(here, "anna")
    hear(here, range(1, 21))
    here.step(Received("anna", Subscribe(X, since_ns=SECOND_NS)), 1)
    assert (len(backlog(here)), backlog(here).why, here.backpressure.slowed) == (20, "", {})
    received_all(here, now=2)
    assert not here.backpressure.episodes


def test_no_more_publishers_are_slowed_than_a_broker_remembers():
    here = broker("faro")
    for number in range(SLOWED_MAX + 5):
        here.step(Received("faro", Update(slow=(Slow(f"p{number}", LEASE_NS),))), 0)
    assert len(here.backpressure.slowed) == SLOWED_MAX
    here.step(Tick(), LEASE_NS)
    assert not here.backpressure.slowed


# In the simulator

NO_FAULTS = Faults()


def congested(hops, unread_ns, *, burst_count=300, count=1_000, faults=NO_FAULTS, **terms):
    """Tom publishes every millisecond, anna is some hops away and does not read for a while; olga does."""
    world = World(1, limits=Limits(backlog_count=100, burst_count=burst_count))
    world.add_brokers(
        [(f"b{i}", f"b{i + 1}") for i in range(hops)], alone="b0" if not hops else None
    )
    anna, olga = world.add_client("anna", "b0"), world.add_client("olga", f"b{hops}")
    tom = world.add_client("tom", f"b{hops}")
    tom.advertise("x > 0")
    anna.subscribe("x > 0", Terms(**terms) if terms else None)
    olga.subscribe("x > 0")
    world.settle()
    world.plan(faults)
    anna.stop_reading(unread_ns)
    for x in range(1, count + 1):
        world.agenda.at(world.now + x * MS_NS, lambda x: tom.publish({"x": x}), x)
    world.settle()
    return world


def late_ns(world, client):
    """The longest that a notification took to this client."""
    published = {one.number: one.time_ns for one in world.events if one.kind == "published"}
    return max(
        one.time_ns - published[one.number]
        for one in world.events
        if one.kind == "delivered" and one.client == client
    )


def lost(world, client):
    return sum(one.count for one in world.events if one.kind == "lost" and one.client == client)


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_a_reader_that_pauses_within_the_bound_gets_everything(hops):
    world = congested(hops, 2 * SECOND_NS)
    assert [one.notification.number for one in world.clients["anna"].received] == [*range(1, 1_001)]
    assert len(world.clients["olga"].received) == 1_000
    assert check(world).violations == ()


@pytest.mark.parametrize("hops", [0, 3])
def test_a_reader_that_pauses_for_longer_delays_others_by_the_bound_once_and_gets_a_gap(hops):
    world = congested(hops, 60 * SECOND_NS)
    assert lost(world, "anna") > 0
    assert lost(world, "anna") + len(world.clients["anna"].received) == 1_000
    assert len(world.clients["olga"].received) == 1_000
    assert 9 * SECOND_NS < late_ns(world, "olga") < 11 * SECOND_NS
    assert check(world).violations == ()


def test_a_reader_for_which_nobody_is_slowed_delays_nobody():
    world = congested(3, 5 * SECOND_NS, slow_ns=0)
    assert lost(world, "anna") > 0
    assert late_ns(world, "olga") < SECOND_NS
    assert check(world).violations == ()


@pytest.mark.parametrize(
    "faults",
    [
        Faults(crashes=(Crash("b0", 1_000 * MS_NS, 500 * MS_NS),)),
        Faults(crashes=(Crash("b1", 1_000 * MS_NS, 500 * MS_NS),)),
        Faults(crashes=(Crash("b3", 1_000 * MS_NS, 500 * MS_NS),)),
        Faults(cuts=(Cut("b1", "b2", 1_000 * MS_NS, 5_000 * MS_NS),)),
        Faults(stalls=(Stall("b0", 1_000 * MS_NS, 20_000 * MS_NS),)),
    ],
    ids=["reader's broker", "broker between", "publisher's broker", "cut", "stalled"],
)
def test_leases_end_whatever_breaks(faults):
    world = congested(3, 3 * SECOND_NS, burst_count=2_000, faults=faults)
    assert not world.paused
    assert len(world.clients["olga"].received) == 1_000
    assert lost(world, "anna") + len(world.clients["anna"].received) == 1_000
    assert check(world).violations == ()


def slowed(count, unread_ns):
    """Tom publishes this many, one each millisecond, and is slowed after a second: anna does not read for that long."""
    world = congested(3, 0, count=1)
    anna, tom = world.clients["anna"], world.clients["tom"]
    anna.stop_reading(unread_ns)
    for x in range(2, count + 1):
        world.agenda.at(world.now + x * MS_NS, lambda x: tom.publish({"x": x}), x)
    world.run_until(world.now + SECOND_NS)
    assert world.paused
    return world, anna, tom


def test_a_publisher_that_moves_while_it_is_slowed_is_slowed_there():
    world, anna, tom = slowed(2_000, 4 * SECOND_NS)
    tom.attach("b2")
    world.settle()
    assert [one.notification.number for one in anna.received] == [*range(1, 2_001)]
    assert not world.paused
    assert check(world).violations == ()


def test_a_reader_that_moves_while_publishers_are_slowed_lets_them_go():
    world, anna, _ = slowed(1_000, 60 * SECOND_NS)
    anna.disconnect()
    world.run_until(world.now + SECOND_NS)
    assert not world.paused
    anna.attach("b2")
    world.settle()
    assert lost(world, "anna") + len(anna.received) == 1_000
    assert check(world).violations == ()


# Clients that follow their location, and queue groups

LOCATED = "location = 'R1'"


def readers(how, *, slow_ns=None, worker=None, work_ns=MS_NS, **limits):
    """Tom publishes at faro. Anna reads at porto: what she subscribes to, what she follows, or as a member of a group."""
    places = Places({"R1": Place((), "porto", None)})
    limits = Limits(**{"backlog_count": 100, "burst_count": 2_000, **limits})
    world = World(1, limits=limits, ahead=Ahead(places, places.next_brokers))
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    tom, anna = world.add_client("tom", "faro"), world.add_client("anna", "porto")
    tom.advertise("exists location")
    terms = None if slow_ns is None else Terms(slow_ns=slow_ns)
    if how == "follow":
        anna.be(State("R1", None, {}, {}))
        anna.follow("location in myloc", terms)
    elif how == "plain":
        anna.subscribe(LOCATED, terms)
    else:
        world.worker = worker or working(world, work_ns)
        anna.join("workers", LOCATED, away_ns=100 * SECOND_NS, slow_ns=slow_ns)
    world.settle()
    return world, tom, anna


def working(world, for_ns):
    """The application of a member works so long on each notification, on one after the other."""
    free = [0]

    def work(client, member, work):
        free[0] = max(free[0], world.now) + for_ns
        world.agenda.at(free[0], lambda _: client.done(member, work.number), None)

    return work


def publish(world, tom, count, every_ns=0):
    for x in range(1, count + 1):
        world.agenda.at(
            world.now + x * every_ns, lambda x: tom.publish({"location": "R1", "x": x}), x
        )


def got(world, anna):
    """What anna got, by an ordinary subscription or one that follows her, or as a member."""
    notes = [one.notification for one in anna.received]
    notes += [work.notification for _, _, _, work in world.handed]
    return [one.attributes["x"] for one in notes]


@pytest.mark.parametrize("every_ns", [0, MS_NS // 100], ids=["at once", "one by one"])
@pytest.mark.parametrize("how", ["plain", "follow", "group"])
def test_who_reads_loses_nothing_in_a_burst(how, every_ns):
    world, tom, anna = readers(how)
    publish(world, tom, 1_000, every_ns)
    world.settle()
    assert got(world, anna) == [*range(1, 1_001)]
    assert not world.lacking and not world.paused
    assert sum(host.core.backpressure.begun for host in world.brokers.values()) > 0
    assert check(world).violations == ()


def told_of(world):
    """How many losses were reported, to clients or to members."""
    to_members = (count for reports in world.lacking.values() for _, count in reports)
    return sum(one.count for one in world.events if one.kind == "lost") + sum(to_members)


@pytest.mark.parametrize("how", ["follow", "group"])
def test_who_does_not_read_for_longer_delays_others_by_the_bound_once_and_is_told(how):
    world, tom, anna = readers(how, worker=lambda *_: None)
    olga = world.add_client("olga", "faro")
    olga.subscribe(LOCATED)
    world.settle()
    anna.stop_reading(60 * SECOND_NS)
    publish(world, tom, 1_000, MS_NS)
    world.run_until(world.now + 50 * SECOND_NS)
    assert len(olga.received) == 1_000
    assert 9 * SECOND_NS < late_ns(world, "olga") < 11 * SECOND_NS
    world.worker = working(world, MS_NS)
    for _, _, member, work in list(world.handed):
        anna.done(member, work.number)
    world.settle()
    assert told_of(world) > 0
    assert sorted({*got(world, anna)}) == sorted(got(world, anna))
    assert told_of(world) + len(got(world, anna)) == 1_000


@pytest.mark.parametrize("how", ["plain", "follow", "group"])
def test_a_reader_may_say_that_nobody_is_slowed_for_it(how):
    world, tom, anna = readers(how, slow_ns=0, work_ns=100 * MS_NS)
    anna.stop_reading(5 * SECOND_NS)
    publish(world, tom, 1_000, MS_NS)
    world.run_until(world.now + SECOND_NS // 2)
    assert not world.paused
    world.settle()
    assert told_of(world) > 0
    assert told_of(world) + len(got(world, anna)) == 1_000


def test_a_group_is_slow_for_as_long_as_one_of_its_members_allows():
    world, tom, _ = readers("group", slow_ns=0, work_ns=100 * MS_NS)
    olga = world.add_client("olga", "lisbon")
    olga.join("workers", LOCATED, away_ns=100 * SECOND_NS)
    world.settle()
    publish(world, tom, 200)
    world.settle()
    assert sorted(one.notification.attributes["x"] for *_, one in world.handed) == [*range(1, 201)]
    assert not world.lacking


def test_a_member_that_publishes_to_its_own_group_is_not_slowed():
    """What it is done with would wait behind what it publishes, and the queue would never become shorter."""
    world, _, anna = readers("group")
    anna.advertise("exists location")
    anna.confirm()
    world.settle()
    began = world.now
    publish(world, anna, 1_000)
    world.settle()
    assert got(world, anna) == [*range(1, 1_001)]
    assert not world.lacking
    assert world.handed[-1][0] - began < world.limits.slow_publishers_ns


def test_publishers_go_on_when_a_group_has_no_members_any_more():
    world, tom, anna = readers("group", work_ns=SECOND_NS)
    publish(world, tom, 300, MS_NS)
    world.run_until(world.now + SECOND_NS)
    assert world.paused
    for member, _ in list(anna.memberships.values()):
        anna.quit(member)
    world.run_until(world.now + SECOND_NS)
    assert not world.paused


def test_publishers_go_on_when_a_client_follows_nothing_any_more():
    world, tom, anna = readers("follow")
    anna.stop_reading(30 * SECOND_NS)
    publish(world, tom, 600, MS_NS)
    world.run_until(world.now + SECOND_NS)
    assert world.paused
    for template in list(anna.core.following.counts):
        anna.unfollow(template)
    world.run_until(world.now + SECOND_NS)
    assert not world.paused
    world.settle()
    assert not any(host.core.backpressure.episodes for host in world.brokers.values())


def test_the_bounds_are_those_of_where_a_client_is_by_now():
    """An episode once went by what the subscriptions meant where it began."""
    places = Places({"R1": Place(("R2",), "porto", None), "R2": Place(("R1",), "porto", None)})
    world = World(1, limits=Limits(backlog_count=100), ahead=Ahead(places, places.next_brokers))
    world.add_brokers([], alone="porto")
    tom, tim = world.add_client("tom", "porto"), world.add_client("tim", "porto")
    anna = world.add_client("anna", "porto")
    for one in (tom, tim):
        one.advertise("exists location")
    areas = {"R2": ("R1", "R2")}
    anna.be(State("R1", None, {}, areas))
    anna.follow("location in myloc", Terms(slow_ns=SECOND_NS))
    anna.follow("location in myloc and x > 0")
    world.settle()
    anna.stop_reading(5 * SECOND_NS)
    for x in range(400):
        tom.publish({"location": "R1", "x": x})
    world.run_until(world.now + 100 * MS_NS)
    anna.be(State("R2", None, {}, areas))
    world.run_until(world.now + 100 * MS_NS)
    for x in range(1, 400):
        tim.publish({"location": "R2", "x": x})
    world.run_until(world.now + 100 * MS_NS)
    assert "tim" in world.brokers["porto"].core.backpressure.slowed
    world.settle()


def test_what_was_kept_for_a_client_that_comes_is_not_lost_beyond_the_limit():
    """What 15 subscriptions kept is put into its backlog at once; publishers are not the cause."""
    places = Places({"R1": Place((), "porto", None), "R2": Place((), "faro", None)})
    limits = Limits(backlog_count=10, buffer_count=1_000, window=4)
    world = World(1, limits=limits, ahead=Ahead(places, lambda _broker: ["porto", "faro"]))
    world.add_brokers([("porto", "faro")])
    tom, anna = world.add_client("tom", "faro"), world.add_client("anna", "porto")
    tom.advertise("exists location")
    anna.be(State("R1", None, {}, {}))
    anna.follow("location in myloc")
    world.settle()
    for x in range(30):
        tom.publish({"location": "R2", "x": x})
    world.settle()
    anna.be(State("R2", None, {}, {}))
    anna.attach("faro")
    world.settle()
    assert got(world, anna) == [*range(30)]
    assert told_of(world) == 0


def test_near_a_limit_in_sum_who_publishes_for_a_client_that_follows_is_slowed():
    world, _, anna = readers("follow", buffer_count=20)
    anna.stop_reading(30 * SECOND_NS)
    core = world.brokers["porto"].core
    for number in range(1, 400):
        note = Notification("tim", number, {"location": "R1", "text": "x" * 1_000})
        core.step(Received("lisbon", note), world.now)
    assert core.border.memory.largest() is core.replicator.virtual["anna"]
    core.backpressure.slowed.clear()
    core.step(Pressed(), world.now)
    assert [*core.backpressure.slowed] == ["tim"]
