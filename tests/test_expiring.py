"""Publications that expire: nobody gets them later, and nobody is told of a loss."""

import asyncio

import pytest

import wayfare
from roads import TREE, Roads, lost, network, publish
from test_client_api import live
from wayfare import cli
from wayfare.core import groups as g
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.client import Client
from wayfare.core.effects import Lost, Notify, Received
from wayfare.core.filters import Filter
from wayfare.core.history import NO_LOSS, Backlog, Hole, Limits, Past, Stored
from wayfare.core.saving import NOT_YET
from wayfare.core.thinning import thinned
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim.current import check_fresh
from wayfare.sim.histories import History
from wayfare.sim.reach import Reach
from wayfare.testing import Tree

X = Filter.parse("x > 0")
LIMITS = Limits()


def note(number, expires_ns=0):
    return m.Notification("tom", number, {"x": number}, expires_ns=expires_ns)


def stored(number, expires_ns=0):
    return Stored(note(number, expires_ns), 10)


def said(backlog, now, window=100):
    """What is delivered, and what the gaps between say."""
    return [
        (one.number, one.reason, one.expired) if isinstance(one, m.Gap) else one.notification.number
        for one in backlog.take(window, now)
    ]


# A backlog


def test_what_expires_while_it_waits_is_not_sent_and_not_lost():
    backlog = Backlog()
    for number, lifetime in [(1, 0), (2, 5), (3, 5), (4, 0)]:
        backlog.put(stored(number, lifetime), 0, LIMITS)
    assert said(backlog, 5) == [1, (3, NO_LOSS, 2), 4]
    assert backlog.bytes == 20


def test_what_is_left_of_a_lifetime_goes_along():
    backlog = Backlog()
    backlog.put(stored(1, 100), 0, LIMITS)
    (deliver,) = backlog.take(10, 30)
    assert deliver.notification.expires_ns == 70


def test_a_limit_drops_first_what_has_expired():
    backlog, limits = Backlog(), Limits(backlog_count=2)
    backlog.put(stored(1), 0, limits)
    backlog.put(stored(2, 5), 0, limits)
    backlog.put(stored(3), 10, limits)
    assert said(backlog, 10) == [1, (2, NO_LOSS, 1), 3]


def test_a_gap_counts_what_was_of_use():
    """1 is dropped by a limit, 2 has expired: the client misses one."""
    backlog, limits = Backlog(), Limits(backlog_count=2)
    for number, lifetime, now in [(1, 0, 0), (2, 5, 0), (3, 0, 1), (4, 0, 10)]:
        backlog.put(stored(number, lifetime), now, limits)
    assert said(backlog, 10) == [(2, "backlog_count", 1), 3, 4]


def test_what_goes_elsewhere_has_not_expired():
    backlog = Backlog()
    for number, lifetime in [(1, 5), (2, 0), (3, 500)]:
        backlog.put(stored(number, lifetime), 0, LIMITS)
    backlog.drop_expired(5)
    left = thinned(backlog.left(0), {X: None}, 5, moved=True)
    assert [one.notification.number for one, _ in left] == [2, 3]


def test_a_whole_backlog_is_looked_at_now_and_then_only(monkeypatch):
    """However many lifetimes end one by one: each look takes all that have ended."""
    backlog, looks = Backlog(), []
    monkeypatch.setattr(Backlog, "_forget", lambda _, number, _stored: looks.append(number))
    for number in range(1, 1_001):
        backlog.put(stored(number, number), 0, LIMITS)
    for now in range(1, 1_001):
        backlog.drop_expired(now)
    assert looks == [1]


def test_the_past_has_no_expired_notifications():
    past = Past()
    for number, lifetime in [(1, 5), (2, 0)]:
        past.put(note(number, lifetime), 0, Limits(past_count=10))
    assert [one.number for one, _ in past.since(0, X, 5)] == [2]


# A client


@pytest.fixture
def anna():
    client = Client("anna")
    client.subscribe(X)
    client.attach("porto", "anna#1")
    client.step(Received("anna#1", m.Welcome(1, 0)), 0)
    return client


@pytest.mark.parametrize(("expired", "count"), [(3, None), (1, 2), (0, 3)])
def test_a_client_counts_what_is_lost_without_what_has_expired(anna, expired, count):
    effects = anna.step(Received("anna#1", m.Gap(3, "why", True, expired)), 0)
    counts = [one.count for one in effects if isinstance(one, Lost)]
    assert counts == ([] if count is None else [count])
    assert anna.delivered == 3


@pytest.mark.parametrize(("after_ns", "left"), [(30, 70), (100, m.OVER_NS), (500, m.OVER_NS)])
def test_time_passes_in_the_outbox(after_ns, left):
    tom = Client("tom")
    tom.advertise(X)
    tom.publish({"x": 1}, published_ns=1_000, expires_ns=100)
    sent = [one.message for one in tom.attach("porto", "tom#1", 1_000 + after_ns)]
    assert [one.expires_ns for one in sent if isinstance(one, m.Publish)] == [left]


# A network


def numbers(net):
    """What anna got."""
    return [one.notification.number for one in net.told["anna"] if isinstance(one, Notify)]


def waiting(lifetimes):
    """Anna is away; tom publishes, from 1 on, with these lifetimes."""
    net = network()
    net.cut("anna")
    for number, lifetime in enumerate(lifetimes, 1):
        net._perform("tom", net.clients["tom"].publish({"x": number}, expires_ns=lifetime))
    net.settle()
    return net


@pytest.mark.parametrize("there", ["porto", "faro"])
def test_a_client_that_comes_back_gets_what_is_of_use(there):
    net = waiting([0, 10**9, 3 * 10**9])
    net.pass_time(2 * 10**9)
    net.attach("anna", there)
    net.settle()
    assert numbers(net) == [1, 3]
    assert lost(net) == []


def test_what_was_over_when_it_was_sent_is_accepted_and_forgotten():
    net = network()
    net._perform("tom", net.clients["tom"].publish({"x": 1}, expires_ns=m.OVER_NS))
    net.settle()
    publish(net, 2)
    assert not net.clients["tom"].outbox
    assert numbers(net) == [2]


# Queue groups, current values


def test_a_queue_group_assigns_nothing_that_has_expired():
    group = g.Group("g", X, 0)
    group.confirm()
    for number, lifetime in [(1, 5), (2, 0), (3, 50)]:
        group.put(stored(number, lifetime), LIMITS, 0)
    group.enlist(m.Enlist("g", X, "a", 1, 16, 10**9), 10)
    said = [one for _, one in group.assign(10) if isinstance(one, g.Assign)]
    assert [(one.number, one.notification.expires_ns) for one in said] == [(2, 0), (3, 40)]
    assert [one.notification.number for one in group.expired] == [1] and group.lost == 0


def retained(net, **more):
    tom = net.clients["tom"]
    net._perform("tom", tom.publish({"x": 1, "y": 1}, retain=m.Retain(("y",)), **more))
    net.settle()


def test_a_key_has_no_value_any_more_when_that_has_expired():
    net = network()
    retained(net)
    retained(net, expires_ns=10**9)
    tables = [core.border.retained for core in net.brokers.values()]
    assert [len(one) for one in tables] == [1] * 4
    net.pass_time(10**9)
    assert [len(one) for one in tables] == [0] * 4
    assert all(one.matching({1: X}, net.now) == [] for one in tables)


def test_a_value_that_is_told_later_has_what_is_left_of_its_lifetime():
    net = network()
    retained(net, expires_ns=10**9)
    net.pass_time(4 * 10**8)
    table = net.brokers["porto"].border.retained
    (value,) = table.matching({1: X}, net.now)
    assert value.notification.expires_ns == 6 * 10**8
    (values,) = table.start_over("lisbon", net.now)
    assert values.values[0].notification.expires_ns == 6 * 10**8


# A publisher that moves


def moving(*, by_digest):
    """Tom publishes at faro, behind a link that is stopped, before he is attached there."""
    net = Roads(*TREE)
    if by_digest:
        net.by_digest("tom")
    net.subscribe("anna", "x > 0")
    net.advertise("tom", "x > 0")
    net.attach("anna", "braga")
    net.attach("tom", "porto")
    net.settle()
    net.stop("lisbon", "faro")
    net.attach("tom", "faro")
    for number, lifetime in enumerate((100, 1_000, 0), 1):
        net._perform("tom", net.clients["tom"].publish({"x": number}, expires_ns=lifetime))
    net.settle()
    return net


def restart(net, name):
    """A broker starts again with what it saved."""
    old = net.brokers[name]
    net.brokers[name] = new = Broker(name, old.neighbours)
    new.load(old.save())


@pytest.mark.parametrize("by_digest", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_publisher_sent_ahead_expires_while_it_is_held_back(by_digest, restarts):
    net = moving(by_digest=by_digest)
    net.pass_time(60)
    if restarts:
        restart(net, "faro")
    net.pass_time(40)
    net.go()
    got = [one.notification for one in net.told["anna"] if isinstance(one, Notify)]
    assert [(one.number, one.expires_ns) for one in got] == [(2, 900), (3, 0)]
    assert not net.clients["tom"].outbox


def test_what_an_earlier_version_held_back_has_its_whole_lifetime():
    net = moving(by_digest=False)
    core = net.brokers["faro"]
    core.border.of("tom")[0].wait.publications = [
        (publication, NOT_YET) for publication, _ in core.border.of("tom")[0].wait.publications
    ]
    net.pass_time(100)
    net.go()
    assert numbers(net) == [1, 2, 3]


# The judge


@pytest.mark.parametrize(("late_ns", "violations"), [(0, 0), (1, 1)])
def test_the_judge_sees_what_comes_too_late(late_ns, violations):
    """Also if its publisher moved: the broker that held it back counted that time."""
    reach = Reach(tree_ns=100, client_ns=10, outage_ns=1_000)
    published = Event(0, "published", "tom", number=1, attributes={"x": 1}, expires_ns=1_000)
    delivered = Event(1_330 + late_ns, "delivered", "anna", publisher="tom", number=1)
    histories = {"tom": History(), "anna": History()}
    histories["tom"].moves, histories["anna"].moves = 5, 1
    assert len(list(check_fresh(published, delivered, histories, reach))) == violations


# Live


@live
async def test_a_live_publication_expires(tmp_path):
    with Tree("porto-lisbon") as tree:
        async with wayfare.connect(tree["porto"], client_id="tom") as tom:
            await tom.advertise("exists x")
            with pytest.raises(UsageError, match="expires is a number of seconds, above 0, not 0"):
                await tom.publish({"x": 0}, expires=0)
            mine = {"client_id": "anna", "store": tmp_path / "anna"}
            async with wayfare.connect(tree["lisbon"], **mine) as anna:
                await anna.subscribe("exists x")
            await tom.publish({"x": 1}, expires=0.2, confirm=True)
            await tom.publish({"x": 2}, expires=60, confirm=True)
            await asyncio.sleep(0.3)  # so that the first one expires
            await comes_back(tree["porto"], mine)


async def comes_back(address, mine):
    lost = []
    async with wayfare.connect(address, on_lost=lost.append, **mine) as anna:
        n = await anext(aiter(await anna.subscribe("exists x")))
        assert n["x"] == 2 and not n.expired and n.expires_at is not None
    assert lost == []


def test_a_client_that_got_over_a_part_of_what_expired_misses_nothing():
    """Found at random (seed 48): the rest was counted as lost."""
    backlog = Backlog()
    for number in range(1, 5):
        backlog.put(stored(number, 5), 0, LIMITS)
    backlog.drop_expired(5)
    backlog.put(stored(5), 5, LIMITS)
    backlog.take(2, 5)
    assert [one for one, _ in backlog.left(backlog.sent)] != []
    assert all(isinstance(one, Stored) for one, _ in backlog.left(backlog.sent))


def test_a_loss_keeps_its_reason_beside_what_has_expired():
    hole = Hole(1, 2, "memory", exact=True).and_then(Hole(3, 4, NO_LOSS, exact=True, expired=2))
    assert hole == Hole(1, 4, "memory", exact=True, expired=2)


def test_a_publication_that_is_sent_again_has_what_is_left():
    tom = Client("tom")
    tom.advertise(X)
    tom.publish({"x": 1}, published_ns=1_000, expires_ns=100)
    tom.attach("porto", "tom#1", 1_030)
    effects = tom.step(Received("tom#1", m.Resend(1)), 0)
    sent = [one.message for one in effects if isinstance(one.message, m.Publish)]
    assert [one.expires_ns for one in sent] == [70]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lifetime", "0"], "--lifetime is a number of seconds above 0"),
        (
            ["--retain", "x", "--clear", "--lifetime", "5"],
            "--clear leaves nothing that could expire",
        ),
    ],
)
def test_a_lifetime_that_makes_no_sense_is_refused_before_anybody_is_called(options, said, capsys):
    assert cli.main(["pub", "127.0.0.1:1", "x=1", *options]) == 2
    assert said in capsys.readouterr().err
