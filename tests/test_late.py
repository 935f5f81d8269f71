"""What a dead broker kept: when it is back, it comes late, or is counted.

Most play in the tree of roads.py. Anna is at porto, which cannot be reached any more; tom publishes at braga.
"""

import asyncio

import pytest

import wayfare
from roads import assert_tidy, lost, network, publish, xs
from test_failover import GRACE_NS, MAYBE, dead
from test_kill import Processes
from wayfare.core import codec, late
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.client import Client
from wayfare.core.effects import LinkState, Lost, Notify, Received, Settled
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_ANSWER, Handoff
from wayfare.core.history import Limits
from wayfare.core.late import COUNTED, UNSURE, WANTED, Tally
from wayfare.errors import CodecError
from wayfare.sim import World, check
from wayfare.sim.faults import Crash
from wayfare.sim.fuzz import Fuzz, Job
from wayfare.sim.links import SECOND_NS


def leave_porto(wants=WANTED, **options):
    net = network(**options)
    net.clients["anna"].failover_ns, net.clients["anna"].late = GRACE_NS, wants
    net.move("anna", "porto")  # so that its broker knows
    net.settle()
    net.cut("anna")
    return net


def fail_over(net, to="faro"):
    net.move("anna", to)
    net.settle()
    net.pass_time(GRACE_NS)
    net.settle()


def back(net, name="porto"):
    net._event("lisbon", LinkState(name, up=True))
    net.go()


def came_late(net):
    return [
        one.notification.attributes
        for one in net.told["anna"]
        if isinstance(one, Notify) and one.late
    ]


def settled(net):
    return [one for one in net.told["anna"] if isinstance(one, Settled)]


def test_what_was_kept_comes_late_and_once():
    net = leave_porto()
    publish(net, 1)
    publish(net, 2)
    dead(net)
    fail_over(net)
    publish(net, 3)
    back(net)
    publish(net, 4)
    assert net.got("anna") == xs(3, 1, 2, 4)
    assert came_late(net) == xs(1, 2)
    assert lost(net) == [MAYBE]
    assert settled(net) == [Settled(0, {})]
    assert_tidy(net)


def test_who_does_not_want_it_is_told_how_many():
    net = leave_porto(COUNTED)
    publish(net, 1)
    publish(net, 2)
    dead(net)
    fail_over(net)
    publish(net, 3)
    back(net)
    publish(net, 4)
    assert net.got("anna") == xs(3, 4)
    assert settled(net) == [Settled(2, {"tom": 2})]
    assert lost(net) == [MAYBE]
    assert_tidy(net)


def test_what_is_still_in_order_is_no_loss():
    net = leave_porto(COUNTED)
    publish(net, 1)
    dead(net)
    fail_over(net)
    back(net)
    assert net.got("anna") == xs(1)
    assert settled(net) == [Settled(0, {})]


def test_a_client_of_an_earlier_release_is_told_as_before():
    net = leave_porto(late.UNTOLD)
    publish(net, 1)
    dead(net)
    fail_over(net)
    publish(net, 2)
    back(net)
    assert net.got("anna") == xs(2)
    assert lost(net) == [MAYBE, MAYBE]
    assert settled(net) == []


def test_what_it_does_not_subscribe_to_any_more_is_no_loss():
    for wants in (COUNTED, WANTED):
        net = leave_porto(wants)
        net.subscribe("anna", "x > 10")
        publish(net, 1)
        dead(net)
        fail_over(net)
        (first,) = (one for one in net.clients["anna"].subscriptions if str(one) != "x > 10")
        net.unsubscribe("anna", str(first))
        publish(net, 12)
        back(net)
        assert net.got("anna") == xs(12)
        assert lost(net) == [MAYBE]


@pytest.mark.parametrize("wants", [COUNTED, WANTED], ids=["counted", "wanted"])
def test_it_follows_a_client_that_has_moved_on(wants):
    net = leave_porto(wants)
    publish(net, 1)
    dead(net)
    fail_over(net)
    publish(net, 2)
    net.move("anna", "braga")
    net.settle()
    net.move("anna", "lisbon")
    net.settle()
    back(net)
    publish(net, 3)
    assert net.got("anna") == (xs(2, 1, 3) if wants == WANTED else xs(2, 3))
    assert [one.count for one in settled(net)] == [0 if wants == WANTED else 1]
    assert_tidy(net)


@pytest.mark.parametrize("first", ["porto", "faro"])
@pytest.mark.parametrize("wants", [COUNTED, WANTED], ids=["counted", "wanted"])
def test_two_dead_brokers(wants, first):
    """Whichever is back first: everything comes once, or is counted once."""
    net = leave_porto(wants)
    publish(net, 1)
    dead(net)
    fail_over(net)
    publish(net, 2)
    net.cut("anna")
    publish(net, 3)
    net.stop("lisbon", "faro")
    net.stop("faro", "lisbon")
    net._event("lisbon", LinkState("faro", up=False))
    fail_over(net, "braga")
    publish(net, 4)
    for name in (first, "faro" if first == "porto" else "porto"):
        net.stopped = [pair for pair in net.stopped if name not in pair]
        net._event("lisbon", LinkState(name, up=True))
        net.settle()
    publish(net, 5)
    got = net.got("anna")
    if wants == WANTED:
        assert sorted(one["x"] for one in got) == [1, 2, 3, 4, 5]
        assert sorted(one["x"] for one in came_late(net)) == [1, 3]
    else:
        assert got == xs(2, 4, 5)
        assert sum(one.count for one in settled(net)) == 2
    assert len(settled(net)) == 2
    assert lost(net) == [MAYBE, MAYBE]
    assert_tidy(net)


def test_a_connection_that_breaks_meanwhile_costs_nothing():
    net = leave_porto()
    for number in (1, 2, 3):
        publish(net, number)
    dead(net)
    fail_over(net)
    publish(net, 4)
    net.stop("faro", "anna")
    back_on = net.stopped[-1]
    net._event("lisbon", LinkState("porto", up=True))
    net.stopped = [back_on]
    net.settle()
    assert net.got("anna") == xs(4)
    net.step("faro", "anna")  # the first of them arrives, the others do not
    net.cut("anna")
    net.stopped = []
    net.move("anna", "faro")
    net.settle()
    assert net.got("anna") == xs(4, 1, 2, 3)
    assert came_late(net) == xs(1, 2, 3)
    assert settled(net) == [Settled(0, {})]


def test_a_broker_that_restarts_with_its_store_still_knows():
    net = leave_porto()
    publish(net, 1)
    dead(net)
    fail_over(net)
    publish(net, 2)
    net.cut("anna")
    net.brokers["faro"] = restarted(net.brokers["faro"])
    back(net)  # what porto kept waits at faro
    net.brokers["faro"] = restarted(net.brokers["faro"])
    net.move("anna", "faro")
    net.settle()
    assert net.got("anna") == xs(2, 1)
    assert settled(net) == [Settled(0, {})]


def restarted(broker):
    new = Broker(broker.name, broker.neighbours)
    new.load(broker.save())
    return new


def test_what_a_limit_drops_is_reported():
    net = leave_porto(limits=Limits(backlog_count=2, window=64))
    dead(net)
    for number in (1, 2, 3, 4):
        publish(net, number)
    fail_over(net)
    publish(net, 5)
    back(net)
    assert net.got("anna") == xs(5, 3, 4)
    assert MAYBE in lost(net)
    assert len(lost(net)) == 2  # porto dropped two, which may have come to faro
    assert settled(net) == []


def test_no_notification_gives_way_to_a_report():
    net = leave_porto(COUNTED, limits=Limits(backlog_count=2, window=64))
    publish(net, 1)
    dead(net)
    fail_over(net)
    net.cut("anna")
    publish(net, 2)
    publish(net, 3)
    back(net)
    net.move("anna", "faro")
    net.settle()
    assert net.got("anna") == xs(2, 3)
    assert lost(net) == [MAYBE, MAYBE]
    assert settled(net) == []


def test_a_session_that_has_expired_settles_nothing():
    net = leave_porto(limits=Limits(away_ns=60 * SECOND_NS))
    publish(net, 1)
    dead(net)
    fail_over(net)
    publish(net, 2)
    net.pass_time(120 * SECOND_NS)
    back(net)
    assert net.got("anna") == xs(2)
    assert settled(net) == []
    assert net.clients["anna"]._tally is None  # nothing is noted any more
    assert_tidy(net)


# The client


def client(wants=WANTED, **options):
    anna = Client("anna", late=wants, **options)
    anna.subscribe(Filter.parse("x > 0"))
    anna.attach("porto", "link")
    anna.step(Received("link", m.Welcome(1, 0)), 0)
    return anna


def tom(number):
    return m.Notification("tom", number, {"x": number})


def told(anna, message):
    effects = anna.step(Received("link", message), 0)
    return [one for one in effects if isinstance(one, Notify | Lost | Settled)]


def test_a_client_takes_only_what_it_has_not_had():
    anna = client()
    told(anna, m.Deliver(1, tom(1)))
    assert told(anna, m.Settled(0, 1, more=True)) == []
    told(anna, m.Deliver(2, tom(4)))
    assert told(anna, m.Late(3, tom(1))) == []  # before the gap
    (one,) = told(anna, m.Late(4, tom(2)))
    assert one.late and one.notification.number == 2
    assert told(anna, m.Late(5, tom(2))) == []
    assert told(anna, m.Late(6, tom(4))) == []
    assert told(anna, m.Deliver(7, tom(2))) == []
    assert told(anna, m.Settled(8, 1)) == [Settled(0, {})]


def test_a_client_counts_only_what_it_has_not_had():
    anna = client(COUNTED)
    told(anna, m.Deliver(1, tom(1)))
    told(anna, m.Settled(0, 1, more=True))
    told(anna, m.Deliver(2, tom(4)))
    assert told(anna, m.Settled(3, 1, {"tom": (1, 2, 4)}, more=True)) == []
    assert told(anna, m.Settled(4, 1, {"tom": (2, 3), "eve": (7,)})) == [
        Settled(3, {"tom": 2, "eve": 1})
    ]


def test_what_overtook_at_another_broker_is_not_forgotten():
    """A copy that was long under way to this broker, which does not know what came by another one."""
    for wants, expected in ((WANTED, 0), (COUNTED, 1)):
        anna = client(wants)
        told(anna, m.Settled(0, 1, more=True))
        told(anna, m.Deliver(1, tom(4)))
        assert len(told(anna, m.Deliver(2, tom(2)))) == 1 - expected
        (one,) = told(anna, m.Settled(3, 1))
        assert one.count == expected


def test_who_is_not_sure_says_so():
    anna = client()
    told(anna, m.Deliver(1, tom(4)))
    assert told(anna, m.Late(2, tom(2))) == [Lost(0, UNSURE)]  # nothing was noted
    anna = client(COUNTED)
    told(anna, m.Deliver(1, tom(4)))
    assert told(anna, m.Settled(2, 9, {"tom": (2,)})) == [Lost(0, UNSURE)]


def test_a_client_that_was_restarted_does_not_know_what_the_last_process_had():
    before = client()
    told(before, m.Settled(0, 1, more=True))
    told(before, m.Deliver(1, tom(4)))
    anna = Client("anna", late=WANTED)
    anna.remember(before.memory(), before.held(), (), {"tom": (4, [])})
    anna.attach("porto", "link")
    told(anna, m.Settled(0, 1, more=True))
    assert told(anna, m.Late(2, tom(2))) == []
    assert told(anna, m.Settled(3, 1)) == [Lost(0, UNSURE)]


def test_who_confirms_gets_it_again_until_it_is_done():
    anna = client(confirms=True)
    told(anna, m.Settled(0, 1, more=True))
    told(anna, m.Deliver(1, tom(4)))
    anna.confirm("tom", 4, 0)
    assert len(told(anna, m.Late(2, tom(2)))) == 1
    assert anna.done() == 1
    anna.attach("porto", "link")
    assert anna.delivered == 1
    assert told(anna, m.Late(2, tom(2))) == []  # it has it in hand
    anna.confirm("tom", 2, 0, late.LATE)
    assert anna.done() == 2


def test_a_tally_knows_ranges_and_its_limit(monkeypatch):
    monkeypatch.setattr(late, "TALLY_MAX", 3)
    tally = Tally({"tom": 5}, knows_floor=True)
    for number in (10, 11, 12, 20, 21, 11):
        tally.add("tom", number)
    assert [number for number in range(1, 25) if tally.had("tom", number)] == [
        *range(1, 6), 10, 11, 12, 20, 21,
    ]  # fmt: skip
    assert tally.had("tom", 30) is False
    tally.add("eve", 1)
    tally.add("tom", 30)  # one range too many
    assert tally.had("tom", 30) is None
    assert tally.had("tom", 22) is None
    assert tally.had("tom", 15) is False
    for number in (13, 15, 17, 19):  # what comes late has a place, up to a limit
        tally.add("tom", number)
    assert tally.had("tom", 13) is True
    assert tally.had("tom", 15) is True
    assert tally.had("tom", 7) is None  # there are twice as many as there may be


@pytest.mark.parametrize(
    ("knows_floor", "knows_all", "known"),
    [
        (True, True, [True, True, False, False]),
        (True, False, [True, True, False, False]),
        (False, True, [None, True, False, False]),
        (False, False, [None, True, None, None]),
    ],
)
def test_a_tally_knows_what_it_does_not_know(knows_floor, knows_all, known):
    tally = Tally({"tom": 5}, knows_floor=knows_floor, knows_all=knows_all)
    tally.add("tom", 7)
    asked = [("tom", 5), ("tom", 7), ("tom", 8), ("eve", 1)]
    assert [tally.had(*one) for one in asked] == known


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\x92\x63\x00"], ids=["no", "null", "short"])
def test_a_broker_that_sends_another_report_is_at_fault(payload):
    kept = m.Kept(m.Notification("anna", 1, {}, payload), 0, late.REPORT)
    reply = m.Reply("porto", "anna", 2, True, (kept,))
    with pytest.raises(CodecError):
        codec.decode(codec.encode(m.Update(errands=(reply,)))[4:])


# The oracle


def failed_over(wants, monkeypatch=None, **broken):
    """The rules that are broken when anna fails over from porto to faro and porto is back."""
    for name, value in broken.items():
        monkeypatch.setattr(Handoff, name, value)
    world = World(seed=1)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    tom = world.add_client("tom", "faro")
    tom.advertise("x > 0")
    anna = world.add_client("anna", "porto", failover_ns=GRACE_NS, late=wants)
    anna.subscribe("x > 0")
    anna.confirm()
    world.settle()
    anna.disconnect()
    tom.publish({"x": 1})
    tom.publish({"x": 2})
    world.settle()
    world.crash(Crash("porto", world.now, 20 * SECOND_NS))
    anna.attach("faro")
    tom.publish({"x": 3})
    world.run_until(world.now + 30 * SECOND_NS)
    world.settle()
    return [one.rule for one in check(world).violations]


def without_the_first(self, session, kept, reply, now, **told):
    return TAKE_LATE(self, session, kept[1:], reply, now, **told)


def twice(self, session, kept, reply, now, **told):
    effects = TAKE_LATE(self, session, [*kept, *kept], reply, now, **told)
    session.unsettled[reply.epoch] = None
    return effects + TAKE_LATE(self, session, kept, reply, now, **told)


TAKE_LATE = Handoff._take_late


@pytest.mark.parametrize("wants", [False, True], ids=["counted", "wanted"])
def test_the_oracle_finds_nothing_wrong(wants):
    assert failed_over(wants) == []


def test_the_oracle_finds_what_does_not_come(monkeypatch):
    assert failed_over(True, monkeypatch, _take_late=without_the_first) == ["late"]


def test_the_oracle_finds_a_wrong_count(monkeypatch):
    assert failed_over(False, monkeypatch, _take_late=without_the_first) == ["settled"]


def test_what_brokers_repeat_comes_once_all_the_same(monkeypatch):
    assert failed_over(True, monkeypatch, _take_late=twice) == []
    assert failed_over(False, monkeypatch, _take_late=twice) == []


def test_the_oracle_finds_what_comes_late_twice(monkeypatch):
    monkeypatch.setattr(Tally, "had", lambda *_: False)
    assert failed_over(True, monkeypatch, _take_late=twice) == ["once"] * 4


def test_the_oracle_finds_what_nobody_asked_for(monkeypatch):
    monkeypatch.setattr(World, "add_client", wants_late)
    assert set(failed_over(False)) == {"late"}


ADD_CLIENT = World.add_client


def wants_late(self, *arguments, late=False, **options):
    """Anna's broker believes that she does."""
    client = ADD_CLIENT(self, *arguments, late=True, **options)
    attachment = client.core._attachment
    client.core.late = COUNTED
    client.core._attachment = lambda: m.Attach(
        **{name: getattr(attachment(), name) for name in m.Attach.__struct_fields__}
        | {"late": WANTED}
    )
    return client


def test_random_runs_have_both():
    late_ones, counts = 0, 0
    for seed in range(40):
        fuzz = Fuzz(Job(seed, faults=True))
        assert fuzz.run().violations == ()
        events = fuzz.world.events
        late_ones += sum(one.reason == "late" for one in events)
        counts += sum(one.kind == "settled" for one in events)
    assert late_ones and counts


# Live


async def killed(path, **options):
    """What a client is told whose broker is killed, and starts again when the client is elsewhere."""
    net = Processes(path, "disk")
    for name in ("b", "a", "c"):
        await net.start(name)
    told, counted = [], asyncio.Queue()
    options["on_lost"] = lambda *it: told.append(it)
    options["on_settled"] = lambda *it: counted.put_nowait(it)
    try:
        async with (
            wayfare.connect(net.urls("c"), client_id="tom") as tom,
            wayfare.connect(net.urls("a"), client_id="anna", failover=0.1, **options) as anna,
        ):
            await tom.advertise("x > 0")
            seen = await anna.subscribe("x > 0")
            await tom.publish({"x": 1}, confirm=True)
            assert (await seen.get(5))["x"] == 1
            await anna.detach()
            async with wayfare.connect(net.urls("a")[0], client_id="eve") as eve:
                also = await eve.subscribe("x > 0")
                for x in (2, 3):
                    await tom.publish({"x": x}, confirm=True)
                while (await also.get(5))["x"] != 3:  # so it is at this broker, for anna, too
                    pass
            await net.kill("a")
            await anna.attach()
            number, got = 3, []
            while not got:
                number += 1
                await tom.publish({"x": number}, confirm=True)
                try:
                    got.append(await seen.get(0.1))
                except TimeoutError:
                    assert number < 100
            assert told == [(0, NO_ANSWER)]
            await net.start("a")
            count = await asyncio.wait_for(counted.get(), 15)
            await tom.publish({"x": 1_000}, confirm=True)
            while got[-1]["x"] != 1_000:
                got.append(await seen.get(5))
            assert len(told) == 1
            return count, got
    finally:
        for process in net.running.values():
            process.kill()
            await process.wait()


def test_a_live_client_gets_late_what_its_killed_broker_kept(tmp_path):
    count, got = asyncio.run(asyncio.wait_for(killed(tmp_path, late=True), 30))
    assert count == (0, {})
    assert [one["x"] for one in got if one.late] == [2, 3]
    in_order = [one["x"] for one in got if not one.late]
    assert in_order == sorted(set(in_order))
    assert len(got) == len({one["x"] for one in got})


def test_a_live_client_is_told_how_many_its_killed_broker_kept(tmp_path):
    count, got = asyncio.run(asyncio.wait_for(killed(tmp_path), 30))
    assert count == (2, {"tom": 2})
    assert not any(one.late for one in got)
