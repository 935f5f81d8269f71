"""Current values: a new subscription gets the newest retained publication of each key, once, and then what is new."""

import asyncio
from contextlib import suppress
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

import wayfare
from live import tree
from test_bursts import chain
from test_kill import Processes
from test_net import live
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.deadlines import Deadlines
from wayfare.core.effects import LinkUp, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Notification, Retain, Retained
from wayfare.core.retained import FEW_FILTERS, Table, batches
from wayfare.core.routing import Destinations
from wayfare.errors import CannotConnect, InvalidNotification, UsageError
from wayfare.eventlog import Event
from wayfare.net.status import status_of
from wayfare.sim import World, check
from wayfare.sim.current import Judge
from wayfare.sim.faults import Cut, Faults, Rollback
from wayfare.sim.histories import histories
from wayfare.sim.oracle import check_deliveries
from wayfare.sim.reach import Reach

LINE = [("porto", "lisbon"), ("lisbon", "faro"), ("lisbon", "braga")]
MS = 1_000_000


def network(relocation="handoff", routing="covering", **limits):
    world = World(1, routing, limits=Limits(**limits), relocation=relocation)
    world.add_brokers(LINE)
    signs = world.add_client("signs", "faro")
    signs.advertise("exists road")
    world.settle()
    return world, signs


def got(client):
    return [
        (one.notification.attributes["road"], one.notification.attributes["free"], one.ask > 0)
        for one in client.received
    ]


def say(client, road, free, **options):
    client.publish({"road": road, "free": free}, retain="road", **options)


def subscribing():
    """A1 has a value, and anna has just subscribed: no broker has heard of it yet."""
    world, signs = network()
    say(signs, "A1", 3)
    world.settle()
    anna = world.add_client("anna", "porto")
    world.settle()
    anna.subscribe("exists road")
    return world, signs, anna


# In the simulator, judged by the oracle


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home", "naive"])
@pytest.mark.parametrize("routing", ["covering", "simple", "merging", "identity", "flooding"])
def test_a_late_subscription_gets_the_current_values_first(routing, relocation):
    if (routing, relocation) == ("flooding", "junction"):
        return
    world, signs = network(relocation, routing)
    for road, free in (("A1", 1), ("A2", 5), ("A1", 3), ("A3", 0)):
        say(signs, road, free)
    world.run_until(world.now + 1_000 * MS)
    anna = world.add_client("anna", "porto")
    anna.subscribe("free > 0")
    world.run_until(world.now + 1_000 * MS)
    say(signs, "A2", 6)
    world.settle()
    assert got(anna) == [("A2", 5, True), ("A1", 3, True), ("A2", 6, False)]
    verdict = check(world)
    assert verdict.violations == ()
    assert verdict.required == 3  # two values, and one publication


def test_each_subscription_gets_them_also_if_another_one_has_them():
    world, signs = network()
    anna = world.add_client("anna", "porto")
    wide = anna.subscribe("exists road")
    world.settle()
    say(signs, "A1", 3)
    world.settle()
    narrow = anna.subscribe("road = 'A1'")
    again = anna.subscribe("road = 'A1'")
    world.settle()
    assert [one.subscriptions for one in anna.received] == [[wide], [narrow], [again]]
    assert check(world).violations == ()


def test_without_them_on_request():
    world, signs = network()
    say(signs, "A1", 3)
    world.settle()
    anna = world.add_client("anna", "porto")
    anna.subscribe("exists road", current=False)
    world.settle()
    assert anna.received == []


def test_a_move_does_not_repeat_them_and_one_that_was_made_meanwhile_gets_them_once():
    world, signs = network()
    say(signs, "A1", 3)
    world.settle()
    anna = world.add_client("anna", "porto")
    anna.subscribe("exists road")
    world.settle()
    anna.disconnect()
    anna.subscribe("free > 0")
    say(signs, "A2", 2)
    world.settle()
    anna.attach("braga")
    anna.subscribe("free > 1")  # while its session is on its way
    world.settle()
    anna.attach("faro")
    world.settle()
    currents = [
        (*key, str(one.subscriptions[0]))
        for one, key in zip(anna.received, got(anna), strict=True)
        if one.ask
    ]
    assert currents == [
        ("A1", 3, True, "exists road"),
        ("A1", 3, True, "free > 0"),  # A2 comes by both, as it was missed
        ("A1", 3, True, "free > 1"),
    ]
    assert check(world).violations == ()


def test_the_values_wait_for_a_client_that_goes_before_they_come():
    world, signs, anna = subscribing()
    world.run_until(world.now + 3 * MS)  # the broker has heard of it
    anna.disconnect()
    say(signs, "A1", 4)
    world.settle()
    anna.attach("braga")
    world.settle()
    assert got(anna) == [("A1", 3, True), ("A1", 4, False)]
    assert check(world).violations == ()


def test_a_subscription_that_no_broker_heard_of_asks_again():
    world, _, anna = subscribing()
    anna.disconnect()  # with what it said
    world.settle()
    anna.attach("braga")
    world.settle()
    assert got(anna) == [("A1", 3, True)]


def test_a_value_comes_to_a_client_that_had_something_newer_before_it_left():
    """The past has the value, too, but the client takes nothing of the past that is older than what it has."""
    world, signs = network(past_count=10)
    anna = world.add_client("anna", "porto")
    anna.subscribe("free = 2")
    world.settle()
    say(signs, "A1", 1)
    say(signs, "A2", 2)
    world.settle()
    anna.detach(leave=True)
    anna.attach("porto")
    world.settle()
    anna.subscribe("free = 1", since_ns=world.now)
    world.settle()
    assert got(anna) == [("A2", 2, False), ("A1", 1, True)]
    assert check(world).violations == ()


def test_a_value_that_is_read_late_comes_once():
    """The confirmation overtakes what is not read, and the broker has forgotten that it sent the value."""
    world, signs = network(backlog_count=1, slow_publishers_ns=0)
    anna = world.add_client("anna", "porto")
    anna.subscribe("free > 0")
    world.settle()
    anna.stop_reading(1_000 * MS)
    say(signs, "A1", 1)
    say(signs, "A2", 2)
    world.run_until(world.now + 500 * MS)
    late = anna.subscribe("free > 0 and road = 'A1'")
    anna.confirm()
    world.settle()
    assert got(anna) == [("A1", 1, False), ("A2", 2, False)]
    assert late in anna.received[0].subscriptions
    assert check(world).violations == ()


def test_a_value_that_the_old_session_had_and_the_new_broker_hears_of_late_comes():
    world, signs = network()
    say(signs, "A1", 3)
    world.settle()
    anna = world.add_client("anna", "porto")
    anna.subscribe("free = 4")
    world.settle()
    world.plan(Faults(cuts=(Cut("lisbon", "braga", world.now, 500 * MS),)))
    say(signs, "A1", 4)
    world.run_until(world.now + 200 * MS)
    assert got(anna) == [("A1", 4, False)]
    anna.attach("braga")
    anna.subscribe("exists road")
    world.settle()
    assert got(anna) == [("A1", 4, False), ("A1", 4, True)]
    assert check(world).violations == ()


def test_several_writers_of_a_key_agree():
    world, signs = network()
    other = world.add_client("other", "porto")
    other.advertise("exists road")
    world.settle()
    for free in range(3):  # at the same time, at both ends of the tree
        say(signs, "A1", free)
        say(other, "A1", 10 + free)
    world.settle()
    at = [world.add_client(f"at-{name}", name) for name in world.brokers]
    for one in at:
        one.subscribe("exists road")
    world.settle()
    assert len({tuple(got(one)) for one in at}) == 1
    assert check(world).violations == ()


def test_a_key_that_is_cleared_has_no_value_and_what_cleared_it_is_a_notification():
    world, signs = network()
    bert = world.add_client("bert", "porto")
    bert.subscribe("exists road")
    say(signs, "A1", 3)
    world.settle()
    say(signs, "A1", -1, clear=True)
    world.settle()
    anna = world.add_client("anna", "porto")
    anna.subscribe("exists road")
    world.settle()
    assert got(bert) == [("A1", 3, False), ("A1", -1, False)]
    assert anna.received == []
    table = world.broker("porto").core.border.retained
    assert len(table) == 0
    assert len(table.values) == 1  # so that no older one comes back
    world.outlive()
    assert not table.values
    assert not table.bytes


def test_a_broker_that_lost_its_store_gets_the_values_from_its_neighbours():
    world, signs = network()
    say(signs, "A1", 3)
    world.settle()
    world.plan(Faults(rollbacks=(Rollback("porto", None, world.now + MS, 10 * MS),)))
    world.run_until(world.now + 20 * MS)
    anna = world.add_client("anna", "porto")
    anna.subscribe("exists road")  # before the neighbour has told its values
    world.settle()
    assert got(anna) == [("A1", 3, True)]
    other = world.add_client("other", "porto")
    other.advertise("exists road")
    say(other, "A1", 4)
    world.settle()
    versions = {host.core.border.retained.clock for host in world.brokers.values()}
    assert versions == {2}


def test_a_request_by_one_of_two_conditions_is_found_among_many():
    """The tables, in which they are looked up, know conditions and not filters."""
    table, tables = Table(["lisbon"], Limits(), Deadlines()), Destinations(1)
    filters = [Filter.parse(f"road = 'B{number}'") for number in range(FEW_FILTERS)]
    filters.append(Filter.parse("road = 'A1' or free = 3"))
    table.start_over("lisbon", 0)
    table.expect(7, dict(enumerate(filters)))
    for filter in filters:
        for part in filter.parts():
            tables.add(part, 7)
    note = Notification("signs", 1, {"road": "A1", "free": 3})
    requests, _ = table.expected(Retained(note, Retain(("road",)), 1), tables.find)
    assert requests == [(7, FEW_FILTERS)]


def test_what_a_forgetful_broker_accepts_before_it_hears_of_the_values_is_the_newer():
    def value(free, version, publisher="tom"):
        note = Notification(publisher, free, {"road": "A1", "free": free})
        return Retained(note, Retain(("road",)), version)

    table = Table(["lisbon"], Limits(), Deadlines())
    mine = table.accept(value(4, 0, "ann").notification, Retain(("road",)), "", 0)
    table.put(mine, 0)
    assert mine.version == 1
    assert table.merge(value(3, 57), 0) == (None, replace(mine, version=58))
    table.heard("lisbon")
    assert table.merge(value(5, 59), 0) == (value(5, 59), None)


# One broker


def values(*frees, account="", road=str):
    return [
        Retained(
            Notification("tom", free, {"road": road(free), "free": free}),
            Retain(("road",)),
            free,
            account,
        )
        for free in frees
    ]


def kept(table):
    return [one.notification.attributes["free"] for one in table.values.values()]


def test_beyond_a_limit_what_was_set_longest_ago_goes_and_is_counted():
    table = Table([], Limits(retained_count=3), Deadlines())
    for one in values(1, 2, 3):
        table.put(one, 0)
    table.put(replace(values(1)[0], version=9), 0)
    table.put(values(10)[0], 0)
    assert kept(table) == [3, 1, 10]
    assert table.evicted == 1
    table = Table([], Limits(retained_bytes=120), Deadlines())
    for one in values(1, 2, 3, 4):
        table.put(one, 0)
    assert len(table.values) == 2
    assert table.bytes <= 120


def test_an_account_beyond_its_limit_loses_its_own():
    table = Table([], Limits(account_retained_count=2), Deadlines())
    for one in [*values(1, account="city"), *values(2, 3, 4, account="shop")]:
        table.put(one, 0)
    assert kept(table) == [1, 3, 4]
    assert table.evicted == 1


def test_an_older_version_does_not_replace_a_newer_one():
    table = Table([], Limits(), Deadlines())
    newer, older = values(2, 1, road=lambda _: "A1")
    assert table.put(newer, 0)
    assert not table.put(older, 0)
    assert kept(table) == [2]


def test_true_is_another_key_than_1():
    table = Table([], Limits(), Deadlines())
    for value in (True, 1, 1.0):
        note = Notification("tom", 1, {"x": value, "free": 1})
        table.put(Retained(note, Retain(("x",)), table.clock + 1), 0)
    assert len(table) == 2


def test_a_broker_is_saved_with_its_values():
    broker = Broker("porto", ["lisbon"])
    broker.step(LinkUp("lisbon"), 0)
    for value in [*values(1, 2), replace(values(2)[0], version=5, retain=Retain(("road",), True))]:
        broker.step(Received("lisbon", value), 0)
    broker.step(Received("a", m.Attach("anna", 1, 0)), 0)
    (current,) = [
        effect.message
        for effect in broker.step(Received("a", m.Subscribe(Filter.parse("exists road"), ask=7)), 0)
        if isinstance(effect.message, m.Current)
    ]
    assert current == m.Current(1, values(1)[0].notification, 7)
    again = Broker("porto", ["lisbon"])
    again.load(broker.save())
    assert again.border.retained.save() == broker.border.retained.save()
    assert again.save() == broker.save()
    assert again.next_deadline() == broker.next_deadline()
    resumed = again.step(Received("b", m.Attach("anna", 2, 0, previous=(("porto", 1),))), 1)
    assert Send("b", current) in resumed


def test_values_are_told_in_frames_of_bounded_size():
    large = [
        replace(one, notification=replace(one.notification, payload=bytes(300_000)))
        for one in values(*range(10))
    ]
    messages = batches(large)
    assert [len(one.values) for one in messages] == [3, 3, 3, 1]
    assert [value for one in messages for value in one.values] == large
    assert [len(one.values) for one in batches(values(*range(2_500)))] == [1_000, 1_000, 500]
    assert batches([]) == []


def test_a_client_cannot_retain_by_what_is_not_there():
    _, signs = network()
    with pytest.raises(InvalidNotification, match="retained by lane, and has no such attribute"):
        signs.publish({"road": "A1", "free": 1}, retain=("road", "lane"))
    with pytest.raises(InvalidNotification, match="1 to 8 different attributes"):
        signs.publish({"road": "A1"}, retain=("road", "road"))


# The oracle finds what is wrong


def log(*delivered, first=1):
    """Tom retains 1 and 2 by the same key; anna subscribes, and gets this."""
    wanted = Filter.parse("exists road")
    attributes = {"road": "A1"}
    events = [
        Event(0, "attached", "tom", "b0"),
        Event(0, "attached", "anna", "b0"),
        Event(1, "advertised", "tom", filter=wanted),
        *(
            Event(100 * n * MS, "published", "tom", number=n, attributes=attributes, path=["road"])
            for n in (1, 2)
        ),
        Event(300 * MS, "subscribed", "anna", filter=wanted, count=1),
        *(
            Event(
                (310 + at) * MS,
                "delivered",
                "anna",
                publisher="tom",
                number=number,
                attributes=attributes,
                reason=reason,
                count=1 if reason else None,
                filter=wanted,
            )
            for at, (number, reason) in enumerate(delivered)
        ),
    ]
    return [one.rule for one in check_deliveries(events, Reach(MS, MS)).violations]


@pytest.mark.parametrize(
    ("delivered", "rules"),
    [
        ([(2, "current")], []),
        ([], ["current"]),
        ([(1, "current")], ["current"]),
        ([(2, "current"), (2, "current")], ["once"]),
        ([(2, "current"), (2, None)], ["once"]),
        ([(2, "current"), (1, "current")], ["stale"]),
        ([(2, "current"), (3, "current")], ["wanted"]),
    ],
    ids=str,
)
def test_the_oracle_finds_what_is_wrong(delivered, rules):
    assert log(*delivered) == rules


def test_the_oracle_demands_nothing_of_what_was_not_settled():
    world, signs = network()
    anna = world.add_client("anna", "porto")
    say(signs, "A1", 3)
    anna.subscribe("exists road")
    world.settle()
    assert check(world).violations == ()
    judge = Judge(world.events, histories(world.events), Reach(MS, MS))
    assert [*judge.violations()] == []


# Live


@live
async def test_what_follows_a_client_has_no_current_values():
    async with tree("porto-lisbon") as net, wayfare.connect(net.url("porto")) as anna:
        with pytest.raises(UsageError, match="leave out retained: it gets no current values"):
            anna.subscribe("place in myloc", retained=True)


@live
async def test_live():
    async with (
        tree("porto-lisbon", "faro-lisbon") as net,
        wayfare.connect(net.url("faro"), client_id="signs") as signs,
    ):
        await signs.advertise("exists road")
        await signs.publish({"road": "A1", "free": 3}, retain="road")
        await signs.publish({"road": "A2", "free": 5}, retain=["road"])
        await signs.publish({"road": "A1", "free": 4}, b"!", retain="road", confirm=True)
        async with wayfare.connect(net.url("faro"), client_id="bert") as bert:
            first = await bert.subscribe("exists road")
            some = [await first.get(5) for _ in range(2)]
            assert [(one["road"], one["free"], one.retained) for one in some] == [
                ("A2", 5, True),
                ("A1", 4, True),
            ]
            assert some[1].payload == b"!"
            second = await bert.subscribe("road = 'A1'")
            none = await bert.subscribe("exists road", retained=False)
            assert (await second.get(5))["free"] == 4
            await bert.move(net.url("porto"))
            await signs.clear({"road": "A1"}, confirm=True)
            one = await first.get(5)
            assert (dict(one), one.retained) == ({"road": "A1"}, False)
            assert dict(await second.get(5)) == dict(await none.get(5)) == {"road": "A1"}
            third = await bert.subscribe("exists road")
            assert (await third.get(5))["road"] == "A2"
            with pytest.raises(TimeoutError):
                await third.get(0.05)
            assert status_of(net.brokers["porto"]).retained == 1


@live
async def test_what_retain_may_be():
    async with tree("porto-lisbon") as net, wayfare.connect(net.url("porto")) as anna:
        await anna.advertise("exists road")
        for wrong in (7, [7], {"road"}, [""]):
            with pytest.raises(UsageError, match="retain names attributes"):
                await anna.publish({"road": "A1"}, retain=wrong)
        with pytest.raises(InvalidNotification, match="no such attribute"):
            await anna.publish({"road": "A1"}, retain="lane")
        with pytest.raises(InvalidNotification, match="at least one attribute"):
            await anna.clear({})


@live
async def test_a_client_with_a_store_gets_a_value_again_that_it_was_not_done_with():
    async with tree("porto-lisbon") as net:
        with TemporaryDirectory() as path:
            async with wayfare.connect(net.url("lisbon"), client_id="signs") as signs:
                await signs.advertise("exists road")
                await signs.publish({"road": "A1", "free": 3}, retain="road", confirm=True)
            at = {"client_id": "anna", "store": f"{path}/anna.db"}
            anna = await wayfare.connect(net.url("porto"), **at)
            some = await anna.subscribe("exists road", ack=True)
            assert (await some.get(5)).retained
            await anna.close()
            async with wayfare.connect(net.url("porto"), **at) as anna:
                some = await anna.subscribe("exists road", ack=True)
                one = await some.get(5)
                assert (one["free"], one.retained, one.redelivered) == (3, True, 1)
                await one.ack()
            async with wayfare.connect(net.url("porto"), **at) as anna:
                some = await anna.subscribe("exists road", ack=True)
                with pytest.raises(TimeoutError):
                    await some.get(0.1)


def test_values_survive_brokers_that_are_killed(tmp_path):
    async def main():
        net = Processes(tmp_path, "os")
        try:
            for name in ("b", "a", "c"):
                await net.start(name)
            async with wayfare.connect(net.urls("c")[0], client_id="signs") as signs:
                await signs.advertise("exists road")
                await signs.publish({"road": "A1", "free": 3}, retain="road", confirm=True)
            async with wayfare.connect(net.urls("a")[0]) as bert:
                some = await bert.subscribe("exists road")
                await some.get(10)  # it is everywhere
            for name in ("a", "b", "c"):
                await net.kill(name)
            for name in ("b", "a", "c"):
                await net.start(name)
            async with wayfare.connect(net.urls("a")[0]) as anna:
                return (await (await anna.subscribe("exists road")).get(10))["free"]
        finally:
            for process in net.running.values():
                process.kill()
                await process.wait()

    assert asyncio.run(main()) == 3


@pytest.mark.slow
def test_late_subscribers_get_the_newest_value_once_although_brokers_are_killed(tmp_path):
    """Values are replaced at b2 all the time; each subscriber begins somewhere else, and moves."""

    async def replace_values(signs, published, stop):
        while not stop.is_set():
            published.append(len(published))
            await signs.publish({"road": "A1", "free": published[-1]}, retain="road")
            await asyncio.sleep(0.002)

    async def late_subscriber(net, begins, goes, killed):
        """What it got until it has moved, a broker was killed, and some more has come."""
        mine = {"client_id": f"bert-{begins}-{goes}-{killed}", "timeout": 60, "failover": None}
        async with wayfare.connect(net.url(begins), **mine) as bert:
            some = await bert.subscribe("exists road")
            got = [await some.get(20) for _ in range(50)]
            moving = asyncio.create_task(bert.move(net.url(goes)))
            await net.disturb("kill", killed)
            with suppress(CannotConnect):  # that broker was just killed, and bert is where he was
                await moving
            got += [await some.get(20) for _ in range(150)]
            assert bert.lost == 0
        return got

    async def main():
        published, stop = [], asyncio.Event()
        async with (
            chain(tmp_path, 3, "os") as net,
            wayfare.connect(net.url(2), client_id="signs", timeout=60, failover=None) as signs,
        ):
            await signs.advertise("exists road")
            replacing = asyncio.create_task(replace_values(signs, published, stop))
            for begins, goes, killed in ((0, 1, 1), (1, 0, 2), (2, 0, 1), (0, 2, 0)):
                got = await late_subscriber(net, begins, goes, killed)
                numbers = [one["free"] for one in got]
                assert numbers == [*range(numbers[0], numbers[0] + 200)], "each once, in order"
                assert not any(one.retained for one in got[1:])
            stop.set()
            await replacing
            last = await signs.publish({"road": "A1", "free": -1}, retain="road", confirm=True)
            async with wayfare.connect(net.url(0), client_id="anna", timeout=60) as anna:
                early = await anna.subscribe("exists road")
                while (await early.get(20)).number != last:
                    pass
                late = await anna.subscribe("road = 'A1'")
                one = await late.get(20)
                assert (one["free"], one.retained) == (-1, True)
                with pytest.raises(TimeoutError):
                    await late.get(0.3)

    asyncio.run(main())


def test_what_waits_for_a_neighbour_that_never_comes_is_bounded():
    """Values that go, subscriptions that are withdrawn and sessions that end leave nothing behind."""
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("faro")], limits=Limits(retained_count=10))
    offer, wanted = Filter.parse("road >= 0"), Filter.parse("road = 1")
    link = m.LinkId("c")
    broker.step(Received(link, m.Attach(m.ClientId("c"), 1, 0, advertisements=(offer,))), 0)
    for number in range(1, 100):
        publish = m.Publish(number, {"road": number}, retain=Retain(("road",)))
        broker.step(Received(link, publish), 0)
        broker.step(Received(link, m.Subscribe(wanted, None, 0, number, 0)), 0)
        broker.step(Received(link, m.Unsubscribe(wanted)), 0)
    broker.step(Received(link, m.Subscribe(wanted, None, 0, 100, 0)), 0)
    saved = broker.border.retained.save()
    assert len(saved.early) == 10
    assert [ask for _, ask, _ in saved.asks] == [100]
    broker.step(Received(link, m.Detach(leave=True)), 0)
    assert broker.border.retained.save().asks == []
