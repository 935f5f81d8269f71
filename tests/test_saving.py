"""A broker as bytes, and back."""

import pytest

from roads import network, publish
from wayfare.core.broker import Broker
from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Attach, Entry, Update
from wayfare.errors import UsageError
from wayfare.sim.fuzz import Fuzz, Job

ROUTINGS = ["flooding", "simple", "identity", "covering", "merging"]


def again(core):
    """The same broker, after its process ended."""
    new = Broker(
        core.name, core.neighbours, core.routing.strategy, core.border.limits, core.relocation.name
    )
    new.load(core.save())
    return new


@pytest.mark.parametrize("routing", ROUTINGS)
def test_saved_again_it_is_the_same(routing):
    """In the middle of random runs: sessions that wait, backlogs, tombstones, requests."""
    seen = dict.fromkeys(
        ("sessions", "wait", "old", "pending", "held", "publications", "backlog"), 0
    )

    def look(fuzz):
        for host in fuzz.world.brokers.values():
            host.perform(host.core.pay())
            if host.core.is_quiet():
                compare(host.core, again(host.core))
                count(host.core)

    def count(core):
        for session in core.border.all():
            seen["sessions"] += 1
            seen["backlog"] += bool(session.backlog)
            if session.wait is not None:
                seen["wait"] += 1
                for name in ("old", "pending", "held", "publications"):
                    seen[name] += bool(getattr(session.wait, name))

    for seed in range(8):
        fuzz = Fuzz(Job(seed, routing, mobile="both"))
        for part in range(30):
            fuzz.world.agenda.at(fuzz.until_ns * part // 30, look, fuzz)
        assert fuzz.run().violations == ()
    assert all(seen.values()), seen


def test_a_client_that_may_have_more_on_its_way_still_may():
    core = Broker("porto", (), limits=Limits(window=4, backlog_count=100))
    core.step(Received("anna/1", Attach("anna", 1, 0, (Filter.parse("x > 0"),), window=50)), 0)
    [session] = again(core).border.all()
    assert session.window == 50


def compare(core, new):
    assert new.save() == core.save()
    assert new.routing.updates() == []
    for neighbour in new.neighbours:
        for kind in ("out_ads", "out_subs"):
            sent = getattr(new.routing, kind)[neighbour].sent()
            assert set(sent) == set(getattr(core.routing, kind)[neighbour].sent())


@pytest.mark.parametrize("routing", ["identity", "covering", "merging"])
def test_entries_that_become_wider_on_their_way_are_saved_whole(routing):
    core = Broker("lisbon", ("faro", "porto"), routing)
    chain = [Filter.parse(text) for text in ("x = 1", "x < 3", "x < 5")]
    entries = Entry.along(chain), Entry(chain[0])
    core.routing.apply("faro", Update(add_ads=(Entry(Filter.parse("x > 0")),)))
    core.routing.apply("porto", Update(add_subs=entries))
    core.routing.updates()
    new = again(core)
    compare(core, new)
    assert list(new.routing.in_subs["porto"]) == list(entries)
    new.routing.apply("porto", Update(remove_subs=entries))
    [(_, update)] = new.routing.updates()
    assert set(update.remove_subs) == set(core.routing.out_subs["faro"].sent())
    assert Entry.along(chain[1:]) in update.remove_subs


def test_what_waits_is_saved_once_however_many_wait_for_it():
    net = network()
    for i in range(20):
        net.subscribe(f"s{i}", "x > 0")
        net.move(f"s{i}", "porto")
        net.cut(f"s{i}")
    before = len(net.brokers["porto"].save())
    net.publish("tom", x=1)
    net.clients["tom"].publish({"x": 1}, bytes(10_000))
    publish(net, 2)
    assert len(net.brokers["porto"].save()) - before < 5_000
    assert len(again(net.brokers["porto"]).border._store) == 2


def test_another_broker_is_refused():
    net = network()
    saved = net.brokers["porto"].save()
    for other, why in (
        (Broker("faro", ["lisbon"]), "it is the memory of porto, and this is faro"),
        (Broker("porto", ["faro"]), "its neighbours were lisbon, and are faro now"),
        (
            Broker("porto", ["lisbon"], "simple"),
            "it ran covering and handoff, and is to run simple",
        ),
        (Broker("porto", ["lisbon"], limits=Limits(), relocation="naive"), "handoff and naive now"),
    ):
        with pytest.raises(
            UsageError, match=why if "handoff and naive" not in why else "naive now"
        ):
            other.load(saved)


def test_a_client_comes_back_to_a_broker_that_started_again():
    net = network()
    net.cut("anna")
    publish(net, 1, 2)
    net.brokers["porto"] = again(net.brokers["porto"])
    net.move("anna", "porto")
    publish(net, 3)
    assert [one["x"] for one in net.got("anna")] == [1, 2, 3]
