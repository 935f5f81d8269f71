"""Limits in sum: who loses when all clients together keep too much, and that it is told."""

import pytest

from wayfare.core.broker import NO_ROOM, PRESSED_NS, Broker
from wayfare.core.effects import (
    EVICTED,
    Close,
    Exceeded,
    Granted,
    LinkDown,
    Pause,
    Pressed,
    Received,
    Resume,
    Send,
    SessionEnded,
    Tick,
)
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.groups import Missed, to_member
from wayfare.core.history import Limits, Loss
from wayfare.core.memory import RANK_MIN, AccountLimit, Memory, rank_of
from wayfare.core.messages import (
    Ack,
    Advertise,
    Attach,
    Deliver,
    Enlist,
    Gap,
    Notification,
    Publish,
    Welcome,
)
from wayfare.core.sessions import Old
from wayfare.net.journal import _replay as replay
from wayfare.net.journal import records_of
from wayfare.net.links import Link
from wayfare.sim import World
from wayfare.sim.accounting import check_accounting
from wayfare.sim.fuzz import Fuzz, Job

WEEK_NS = Limits().away_ns
KIB = 1024
PAYLOAD = bytes(KIB)
PUBLISHERS = {"gwen": "guests", "tom": "staff"}  # and their accounts


def broker(**limits):
    return Broker("porto", ["faro"], limits=Limits(**limits))


def attach(core, client, text, account=""):
    link = f"{client}#1"
    if account:
        core.step(Granted(link, Grants(client, account=account)), 0)
    core.step(Received(link, Attach(client, 1, 0, (Filter.parse(text),))), 0)
    return link


def away(core, client, text, account=""):
    core.step(LinkDown(attach(core, client, text, account)), 0)


def publish(core, first, last, **attributes):
    """Notifications of a KiB each, from a neighbour."""
    effects = []
    for number in range(first, last + 1):
        one = Notification("tom", number, {"x": number, **attributes}, PAYLOAD)
        effects += core.step(Received("faro", one), 1)
    return effects


def back(core, client, delivered=0):
    """What a client gets that comes back."""
    link = f"{client}#2"
    again = Attach(client, 2, delivered, (Filter.parse("x > 0"),), (), (("porto", 1),), True)
    effects = core.step(Received(link, again), 2)
    return [one.message for one in effects if isinstance(one, Send) and one.link == link]


# What is counted


def test_a_backlog_that_shrank_and_grows_again_is_noted():
    core = broker()
    link = attach(core, "anna", "x > 0")
    publish(core, 1, 100)
    core.step(Received(link, Ack(100)), 1)
    publish(core, 101, 130)
    assert list(check_accounting(core)) == []


def test_what_many_wait_for_is_counted_once_and_an_entry_for_each():
    core = broker()
    memory = core.border.memory
    for name in "abc":
        away(core, name, "x > 0")
    before = memory.bytes
    publish(core, 1, 10)
    assert memory.entries == 30
    assert 10 * KIB < memory.bodies < 20 * KIB
    assert memory.bytes - before < 30 * KIB
    assert list(check_accounting(core)) == []


def test_nothing_is_counted_any_more_when_all_is_delivered():
    core = broker()
    link = attach(core, "anna", "x > 0")
    before = core.memory_bytes()
    publish(core, 1, 100)
    assert core.border.memory.attached > 100 * KIB // 2
    core.step(Received(link, Ack(100)), 2)
    assert core.memory_bytes() == before
    assert list(check_accounting(core)) == []


def test_the_largest_consumer_is_found_after_others_shrank():
    core = broker(window=10_000)
    links = {name: attach(core, name, f"x > 0 and {name} = 1") for name in "abc"}
    sizes = {"a": 64, "b": 32, "c": 16}
    for name, count in sizes.items():
        publish(core, sum(sizes.values()) + 1, sum(sizes.values()) + count, **{name: 1})
        sizes[name] = count
    assert core.border.memory.largest().client == "a"
    core.step(Received(links["a"], Ack(64)), 2)
    assert core.border.memory.largest().client == "b"


def test_ranks_are_upper_bounds_and_cost_nothing_while_nobody_asks():
    class One:
        account, noted = "", 0

        def __init__(self, size):
            self.size, self.asked = size, 0

        def measure(self):
            self.asked += 1
            return self.size

    memory = Memory()
    small = [One(2**RANK_MIN + 1) for _ in range(1_000)]
    large = One(2**20)
    for one in (*small, large):
        memory.note(one)
    for one in small:
        one.asked = 0
    assert memory.largest() is large
    large.size = 1
    assert memory.largest() is not large
    assert rank_of(large.noted) == RANK_MIN
    assert sum(one.asked for one in small) <= 10


# Who loses


def test_the_largest_loses_its_oldest_and_others_nothing():
    core = broker()
    away(core, "anna", "x > 0")
    away(core, "ben", "x > 40")
    publish(core, 1, 50)
    before = core.memory_bytes()
    core.step(Exceeded("memory", 20 * KIB), 2)
    assert before - core.memory_bytes() >= 20 * KIB
    gap, *rest = [one for one in back(core, "anna") if not isinstance(one, Welcome)]
    assert isinstance(gap, Gap)
    assert (gap.reason, gap.exact) == ("memory", True)
    assert [one.notification.number for one in rest] == list(range(gap.number + 1, 51))
    assert gap.number < 40
    got = [one for one in back(core, "ben") if isinstance(one, Deliver)]
    assert [one.notification.number for one in got] == list(range(41, 51))
    assert list(check_accounting(core)) == []


def test_an_attached_client_that_does_not_acknowledge_is_told_at_once():
    core = broker(window=2)
    link = attach(core, "anna", "x > 0")
    publish(core, 1, 50)
    core.step(Exceeded("memory", 20 * KIB), 2)
    effects = core.step(Received(link, Ack(2)), 3)
    gap = effects[0].message
    assert isinstance(gap, Gap)
    assert gap.reason == "memory"
    assert gap.number > 3


@pytest.mark.parametrize("kind", ["subscriptions", "advertisements"])
def test_a_session_with_many_filters_stays_and_others_lose_instead(kind):
    core = broker()
    filters = tuple(Filter.parse(f"x = {x}") for x in range(1_000, 1_100))
    core.step(Received("eve#1", Attach("eve", 1, 0, **{kind: filters})), 0)
    away(core, "anna", "x > 0")
    publish(core, 1, 50)
    core.step(Exceeded("memory", 10 * KIB), 2)
    assert {one.client for one in core.border.all()} == {"eve", "anna"}
    assert core.border.memory.shed > 0


def test_small_consumers_are_left_alone():
    core = broker()
    away(core, "anna", "x > 0")
    publish(core, 1, 1)
    assert core.step(Exceeded("memory", 1 << 30), 2) == []
    assert core.border.memory.shed == 0


def test_a_session_that_only_has_losses_to_report_stays_and_others_lose_instead():
    """There is nothing to drop in it, however large it seems to be."""
    core = broker()
    elsewhere = Attach("eve", 2, 0, (Filter.parse("x > 0"),), (), (("faro", 1),), True)
    core.step(Received("eve#2", elsewhere), 0)
    (eve,) = core.border.of("eve")
    for epoch in range(1_000):
        old = eve.wait.old[epoch] = Old(eve.subscriptions)
        old.kept.append((Loss(1, "memory"), 0))
    core.border.memory.note(eve)
    away(core, "anna", "x > 0")
    publish(core, 1, 50)
    core.step(Exceeded("memory", 20 * KIB), 2)
    assert {one.client for one in core.border.all()} == {"eve", "anna"}
    (anna,) = core.border.of("anna")
    assert 0 < len(anna.backlog) < 50


# Accounts


def test_an_account_loses_at_its_own_limit_and_others_do_not():
    core = broker(account_memory_bytes=60 * KIB)
    away(core, "anna", "x > 0", account="guests")
    away(core, "ben", "x > 0", account="staff")
    away(core, "carl", "x > 35", account="guests")
    publish(core, 1, 20)
    assert core.excess() == []
    publish(core, 21, 40)
    first, *_ = core.excess()
    assert (first.limit, first.account) == ("account_memory", "guests")
    for exceeded in core.excess():
        if exceeded.account == "guests":
            core.step(exceeded, 2)
    assert "guests" not in [one.account for one in core.excess()]
    lost = {one.client: len(one.backlog) for one in core.border.all()}
    assert lost["anna"] < 40
    assert (lost["ben"], lost["carl"]) == (40, 5)


def test_an_account_may_have_a_limit_of_its_own_which_may_change():
    core = broker(account_memory_bytes=60 * KIB)
    memory = core.border.memory
    memory.limit_accounts({"staff": AccountLimit(10 * KIB), "admins": AccountLimit(0)})
    for client, account in (("anna", "guests"), ("ben", "staff"), ("carl", "admins")):
        away(core, client, "x > 0", account)
    publish(core, 1, 20)
    assert [one.account for one in core.excess()] == ["staff"]
    assert [one[0] for one in memory.limited_accounts()] == ["guests", "staff"]
    unlimited = {"staff": AccountLimit(0), "admins": AccountLimit(0)}
    memory.limit_accounts({"guests": AccountLimit(20 * KIB), **unlimited})
    assert [one.account for one in core.excess()] == ["guests"]
    memory.limit_accounts({"guests": AccountLimit(0), **unlimited})
    assert core.excess() == []


def test_near_the_limit_of_an_account_only_its_own_publishers_are_slowed():
    core = broker()
    memory = core.border.memory
    away(core, "anna", "x > 0", "guests")
    links = {name: attach(core, name, "x < 0", account) for name, account in PUBLISHERS.items()}
    for link in links.values():
        core.step(Received(link, Advertise(Filter.parse("true"))), 1)
        core.step(Received(link, Publish(1, {"x": 1}, bytes(20 * KIB))), 1)
    memory.limit_accounts({"guests": AccountLimit(int(memory.of_account("guests") * 1.05))})
    assert list(memory.suspects) == ["guests"]
    assert core.excess() == []
    assert core.step(Pressed("guests"), 2) == [Pause(links["gwen"])]
    others = [link for link in reversed(links.values()) if link != links["gwen"]]
    assert core.step(Pressed(), 2) == [Pause(link) for link in others]
    assert {*core.step(Tick(), 2 + PRESSED_NS)} == {Resume(link) for link in links.values()}
    memory.limit_accounts({"guests": AccountLimit(2 * memory.of_account("guests"))})
    assert not memory.suspects


def test_a_saved_session_still_counts_for_its_account():
    core = broker(account_memory_bytes=8 * KIB)
    away(core, "anna", "x > 0", account="guests")
    publish(core, 1, 20)
    new = broker(account_memory_bytes=8 * KIB)
    new.load(core.save())
    assert abs(new.memory_bytes() - core.memory_bytes()) < KIB  # marks are noted now and then
    assert [one.account for one in new.excess()] == ["guests"]
    assert list(check_accounting(new)) == []


# Random runs


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home"])
def test_random_runs_that_are_short_of_memory_report_each_loss(relocation):
    shed = 0
    for seed in range(60):
        fuzz = Fuzz(Job(seed, relocation=relocation, mobile=("subscribers", "both")[seed % 2]))
        if fuzz.short:
            assert fuzz.run().violations == (), f"seed {seed}"
            shed += sum(one.core.border.memory.shed for one in fuzz.world.brokers.values())
    assert shed


def test_what_is_kept_is_counted_right_all_the_time():
    """In the middle of random runs, with everything that a session can be in."""

    def look(fuzz):
        for host in fuzz.world.brokers.values():
            assert list(check_accounting(host.core)) == []

    for seed in range(12):
        fuzz = Fuzz(Job(seed, faults=seed % 2 == 1, mobile="both"))
        for part in range(20):
            fuzz.world.agenda.at(fuzz.until_ns * part // 20, look, fuzz)
        assert fuzz.run().violations == ()


def test_a_journal_that_is_played_again_sheds_the_same():
    core, new = broker(), broker()
    new_links = {"faro": Link("faro", 1)}
    records = []

    def step(event, now):
        records.extend(records_of(event, now, new_links))
        core.step(event, now)

    step(Received("anna#1", Attach("anna", 1, 0, (Filter.parse("x > 0"),))), 0)
    step(LinkDown("anna#1"), 0)
    for number in range(1, 51):
        step(Received("faro", Notification("tom", number, {"x": number}, PAYLOAD)), number)
        if number % 20 == 0:
            step(Exceeded("memory", 10 * KIB), number)
    for record in records:
        replay(record, new, new_links)
    assert core.border.memory.shed == new.border.memory.shed > 0
    assert new.save() == core.save()


def clients(core):
    return [one.client for one in core.border.all()]


def come(core, client, now, epoch=1, expires_ns=0, **more):
    link = f"{client}#{epoch}"
    effects = core.step(
        Received(link, Attach(client, epoch, 0, expires_ns=expires_ns, **more)), now
    )
    return link, effects


def go(core, client, now, **more):
    link, _ = come(core, client, now, **more)
    core.step(LinkDown(link), now)


def test_beyond_the_limit_of_sessions_the_longest_away_is_evicted():
    core = broker(sessions=3)
    for now, client in enumerate(("anna", "bert", "carl")):
        go(core, client, now)
    come(core, "anna", 10, epoch=2, previous=(("porto", 1),), welcomed=True)
    _, effects = come(core, "dora", 20)
    assert SessionEnded("bert", "", EVICTED, 19, 0) in effects
    assert clients(core) == ["anna", "carl", "dora"]
    core.step(LinkDown("anna#2"), 30)
    come(core, "emil", 40)
    come(core, "fred", 50)
    assert clients(core) == ["dora", "emil", "fred"]


def test_sessions_of_clients_that_asked_for_less_time_go_first():
    core = broker(sessions=3)
    for now, (client, expires_ns) in enumerate([("anna", 0), ("bert", 5_000), ("carl", WEEK_NS)]):
        go(core, client, now, expires_ns=expires_ns)
    left = []
    for now, client in enumerate(("dora", "emil", "fred"), 10):
        come(core, client, now)
        left.append(clients(core))
    assert left == [["anna", "carl", "dora"], ["carl", "dora", "emil"], ["dora", "emil", "fred"]]


def test_if_all_are_attached_one_more_is_refused_and_may_try_again():
    core = broker(sessions=2)
    for client in ("anna", "bert"):
        come(core, client, 0)
    link, effects = come(core, "carl", 1)
    assert effects == [Close(link, NO_ROOM.format("porto"), again=True)]
    assert clients(core) == ["anna", "bert"]
    assert come(core, "anna", 2, epoch=2, previous=(("porto", 1),), welcomed=True)[1]
    assert [one.epoch for one in core.border.of("anna")] == [2]


def test_who_is_evicted_next_is_saved():
    core = broker(sessions=4)
    for client in ("dora", "anna", "carl", "bert"):  # all at one time
        go(core, client, 5)
    again = broker(sessions=4)
    again.load(core.save())
    for now, client in enumerate(("e", "f", "g"), 10):
        come(core, client, now)
        come(again, client, now)
        assert clients(core) == clients(again)
    assert again.save() == core.save()


def test_what_a_client_says_behind_an_attachment_that_is_refused_is_no_fault():
    """Its filters had to be asked for, and meanwhile the broker has no room any more."""
    world = World(1, digest_from=1, limits=Limits(sessions=1))
    world.add_brokers([("porto", "lisbon")])
    anna = world.add_client("anna", "porto")
    anna.subscribe("x > 0")
    world.settle()
    world.add_client("bert", "lisbon")
    anna.attach("lisbon")
    anna.subscribe("y > 0")
    world.settle()
    assert world.broken == []
    assert anna.connection is None
    assert clients(world.broker("lisbon").core) == ["bert"]


def test_a_session_that_is_large_because_of_its_filters_is_evicted_if_its_client_is_away():
    core = broker()
    for client in ("anna", "bert"):
        link = f"{client}#1"
        wanted = tuple(Filter.parse(f"x = {number}") for number in range(200))
        core.step(Received(link, Attach(client, 1, 0, wanted)), 0)
        while core.is_behind():
            core.step(Tick(), 1)
    core.step(LinkDown("bert#1"), 10)
    effects = core.step(Exceeded("memory", 10 * KIB), 30)
    assert SessionEnded("bert", "", "memory", 20, 0) in effects
    assert clients(core) == ["anna"]
    assert core.step(Exceeded("memory", 10 * KIB), 30) == []
    assert clients(core) == ["anna"]


def test_random_runs_evict_sessions():
    evicted = 0
    for seed in (42, 71, 93):
        run = Fuzz(Job(seed))
        assert run.run().violations == ()
        evicted += sum(one.why == EVICTED for _, one in run.world.ended)
    assert evicted >= 3


def share(core, name, prefetch=2):
    """A member of a queue group, which has and holds something: what comes then waits in the queue."""
    link = attach(core, name, f"$member = '{name}'")
    core.step(
        Received(link, Enlist("workers", Filter.parse("x > 0"), name, 1, prefetch, WEEK_NS)), 0
    )
    while core.next_deadline() == 0:
        core.step(Tick(), 0)
    (group,) = core.groups.groups.values()
    return link, group


def missed(effects, link):
    """What a member is told of losses."""
    sent = [one.message for one in effects if isinstance(one, Send) and one.link == link]
    said = [to_member(one.notification.payload) for one in sent if isinstance(one, Deliver)]
    return [one for one in said if isinstance(one, Missed)]


def test_a_queue_group_loses_its_oldest_and_its_members_are_told():
    core = Broker("porto", limits=Limits(memory_bytes=400 * KIB))
    link, group = share(core, "anna")
    tom = attach(core, "tom", "x < 0")
    away(core, "bert", "x > 0 and small = 1")
    for number in range(1, 301):
        small = {"small": 1} if number < 4 else {}
        core.step(Received(tom, Publish(number, {"x": number, **small}, PAYLOAD)), 1)
    assert core.memory_bytes() > 400 * KIB
    assert core.largest_bytes() > 300 * KIB
    before = len(group.queue)
    (exceeded,) = core.excess()
    effects = core.step(exceeded, 2)
    assert not list(check_accounting(core))
    assert core.memory_bytes() < 400 * KIB
    lost = before - len(group.queue)
    assert missed(effects, link) == [Missed(lost, "memory", 1)]
    assert core.border.memory.shed == lost > 0
    assert [one.number for one in group.members["anna"].assigned.values()] == [1, 2]
    assert [one.number for one in back(core, "bert")[1:]] == [1, 2, 3]


def test_who_publishes_to_a_large_queue_group_is_slowed():
    core = Broker("porto")
    share(core, "anna")
    tom = attach(core, "tom", "x < 0")
    for number in range(1, 51):
        core.step(Received(tom, Publish(number, {"x": number}, PAYLOAD)), 1)
    assert Pause(tom) in core.step(Pressed(""), 2)


def test_what_is_assigned_is_not_lost():
    core = Broker("porto")
    _, group = share(core, "anna", prefetch=1_000)
    tom = attach(core, "tom", "x < 0")
    for number in range(1, 51):
        core.step(Received(tom, Publish(number, {"x": number}, PAYLOAD)), 1)
    assert not group.queue
    core.step(Exceeded("memory", 1_000 * KIB), 2)
    assert len(group.members["anna"].assigned) == 50
    assert not group.lost
    assert not list(check_accounting(core))


def test_a_queue_group_that_ends_is_no_consumer_any_more():
    core = Broker("porto")
    _, group = share(core, "anna")
    tom = attach(core, "tom", "x < 0")
    for number in range(1, 51):
        core.step(Received(tom, Publish(number, {"x": number}, PAYLOAD)), 1)
    assert core.border.memory.largest() is group
    core.groups._end(group, 1)
    assert core.border.memory.largest() is not group
    assert not list(check_accounting(core))
