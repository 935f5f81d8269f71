"""Junction, hole by hole: what the published algorithm leaves open, and what else it takes.

Every test here failed once, with its rule taken out of the code. They play in the tree of roads.py.
"""

import pytest

from roads import TREE, Roads, assert_tidy, homes, lost, network, publish, session_of, xs
from wayfare.core import junction
from wayfare.core.broker import LATER, Broker
from wayfare.core.effects import Close, Lost, Received
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_ANSWER, NO_SESSION
from wayfare.core.history import Limits
from wayfare.core.messages import Entry, Fetch, Kept, Notification, Reply, Searched, Update, Welcome
from wayfare.errors import UsageError
from wayfare.sim import World, check, topology
from wayfare.sim.links import MS_NS
from wayfare.sim.quiet import check_outlived

ROUTINGS = ("simple", "identity", "covering", "merging")
SEEDS = range(6)
ANSWER_NS = Limits().answer_ns
AWAY_NS = Limits().away_ns


def roads(*pairs, routing="simple", **more):
    return network(*pairs, routing=routing, relocation="junction", **more)


def watched(net):
    """From now on, everything that brokers send for relocation: (sender, receiver, errand)."""
    seen = []
    perform = net._perform

    def watch(name, effects):
        for effect in effects:
            for errand in getattr(getattr(effect, "message", None), "errands", ()):
                seen.append((name, effect.link, errand))
        perform(name, effects)

    net._perform = watch
    return seen


def fetches(seen):
    return [(a, b, errand.everywhere) for a, b, errand in seen if isinstance(errand, Fetch)]


# The algorithm


def test_the_fetch_meets_the_old_path_and_follows_it():
    """Figure 4(a): lisbon is the junction; nothing goes on from there to the producer."""
    net = roads()
    net.cut("anna")
    publish(net, 1, 2)
    seen = watched(net)
    net.attach("anna", "faro")
    net.step("anna", "faro")
    assert net.on_the_way("faro", "anna") == [Welcome(2, 0)]
    (update,) = net.on_the_way("faro", "lisbon")
    assert update.add_subs == (Entry(Filter.parse("x > 0"), "anna"),)
    (fetch,) = update.errands
    assert (fetch.broker, fetch.client, fetch.epoch, fetch.delivered) == ("faro", "anna", 2, 0)
    net.settle()
    kinds = [(a, b, type(errand)) for a, b, errand in seen]
    assert kinds == [
        ("faro", "lisbon", Fetch),
        ("lisbon", "porto", Fetch),
        ("porto", "lisbon", Reply),
        ("porto", "lisbon", Searched),
        ("lisbon", "faro", Reply),
        ("lisbon", "faro", Searched),
    ]
    assert net.got("anna") == xs(1, 2)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_nothing_is_lost_whenever_it_is_published(routing, seed):
    net = roads(routing=routing)
    said = []

    def say():
        said.append(len(said) + 1)
        net.publish("tom", x=said[-1])

    for broker in ("faro", "braga", "porto", "lisbon"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    assert net.got("anna") == xs(*said)
    assert lost(net) == []
    assert homes(net) == [("lisbon", 5)]
    assert net.clients["anna"].delivered == len(said)
    assert_tidy(net)


# The holes


@pytest.mark.parametrize("at", ["faro", "lisbon"])
def test_the_junction_is_the_new_broker_itself(at):
    """Tom is where anna comes: her entry is there, but points to another broker."""
    net = roads(at=at)
    net.cut("anna")
    publish(net, 1)
    seen = watched(net)
    net.move("anna", at)
    publish(net, 2)
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []
    way = [("faro", "lisbon"), ("lisbon", "porto")]
    assert fetches(seen) == [(*hop, False) for hop in (way if at == "faro" else way[1:])]
    assert_tidy(net)


def test_the_replay_reaches_the_new_broker():
    """There are brokers between the junction and the new one: what is found goes all the way."""
    net = roads("porto-b5", "b5-b4", "b4-braga", "b4-b3", "b3-b2", "b2-faro")
    net.cut("anna")
    publish(net, 1)
    net.attach("anna", "faro")
    net.settle()
    publish(net, 2)
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []
    assert session_of(net, "faro").wait is None
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_publishers_on_several_branches(routing, seed):
    """Tom at braga, ina at porto, joe at faro: nothing is torn down that one of them needs."""
    net = roads(routing=routing)
    for name, broker in (("ina", "porto"), ("joe", "faro")):
        net.advertise(name, "exists x")
        net.move(name, broker)
    said = []

    def say():
        who = ("tom", "ina", "joe")[len(said) % 3]
        said.append((who, len(said) + 1))
        net.publish(who, x=len(said))

    for broker in ("faro", "braga", "porto"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    told = [
        (one.notification.publisher, one.notification.attributes["x"]) for one in net.told["anna"]
    ]
    assert sorted(told, key=lambda one: one[1]) == said
    for who in ("tom", "ina", "joe"):
        assert [one for one in told if one[0] == who] == [one for one in said if one[0] == who]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_several_filters_are_one_stream(routing):
    """The filters have different junctions; what matches two comes once, and all in order."""
    net = roads(routing=routing)
    net.advertise("ina", "exists y")
    net.move("ina", "faro")
    net.subscribe("anna", "x > 5")
    net.subscribe("anna", "y > 0")
    net.settle()
    net.cut("anna")
    net.publish("tom", x=6, y=1)
    net.publish("tom", y=2)
    net.settle()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.publish("tom", x=1)
    net.publish("ina", y=9)
    net.publish("tom", x=7, y=3)
    net.settle()
    assert net.got("anna") == []
    net.go()
    got = net.got("anna")
    assert [one for one in got if one != {"y": 9}] == [
        {"x": 6, "y": 1},
        {"y": 2},
        {"x": 1},
        {"x": 7, "y": 3},
    ]
    assert len(got) == net.clients["anna"].delivered == 5
    assert_tidy(net)


def test_delivered_but_not_acknowledged():
    """1 reached her, 2 went into the dead connection: `delivered` cuts exactly there."""
    net = roads()
    publish(net, 1)
    net.stop("porto", "anna")
    publish(net, 2)
    assert session_of(net, "porto").backlog.acked == 0
    seen = watched(net)
    net.move("anna", "faro")
    (reply,) = [errand for a, _, errand in seen if isinstance(errand, Reply) and a == "porto"]
    assert [one.notification.number for one in reply.kept] == [2]
    assert net.got("anna") == xs(1, 2)
    assert net.clients["anna"].delivered == 2


@pytest.mark.parametrize("routing", ROUTINGS)
def test_moves_again_before_the_replay(routing):
    """The fetch from faro meets lisbon, which still waits for porto: it waits there, too."""
    net = roads(routing=routing)
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    publish(net, 2)
    net.move("anna", "faro")
    publish(net, 3)
    assert net.got("anna") == []
    assert session_of(net, "lisbon").wait.pending.epoch == 3
    assert homes(net) == [("lisbon", 2), ("faro", 3)]
    net.go()
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []
    assert net.clients["anna"].delivered == 3
    assert homes(net) == [("faro", 3)]
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_moves_again_and_again_before_the_replay(routing, seed):
    net = roads(routing=routing)
    said = []

    def say():
        said.append(len(said) + 1)
        net.publish("tom", x=said[-1])
        if len(said) in (3, 7, 12, 18):
            net.attach("anna", ("faro", "braga", "porto", "lisbon")[len(said) % 4])

    net.attach("anna", "faro")
    net.crawl(seed, say)
    assert net.got("anna") == xs(*said)
    assert lost(net) == []
    assert [epoch for _, epoch in homes(net)] == [6]
    assert_tidy(net)


def test_the_fetch_of_an_older_epoch_never_overrules():
    """Faro's fetch (2) comes late. Meanwhile anna is at braga (3), which has her old session."""
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("faro", "lisbon")
    net.move("anna", "faro")
    net.stop("lisbon", "faro")
    net.move("anna", "braga")
    assert ("braga", 3) in homes(net)
    net.stopped.remove(("faro", "lisbon"))
    net.settle()
    assert ("braga", 3) in homes(net)
    publish(net, 2)
    net.go()
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []
    assert homes(net) == [("braga", 3)]
    assert_tidy(net)


def test_the_replay_of_an_older_epoch_never_overrules():
    """Lisbon waits for what porto has when braga asks: the answer to lisbon (2) is not braga's (3)."""
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "braga")
    stray = Kept(Notification("tom", 9, {"x": 9}), 0)
    old = Reply("braga", "anna", 2, True, (stray,), old_epoch=1)
    net._event("braga", Received("lisbon", Update(errands=(old,))))
    net.settle()
    assert session_of(net, "braga").wait is not None
    net.go()
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_the_attachment_of_an_older_epoch_never_overrules():
    """Her words to lisbon (2) arrive when the fetch of braga (3) came by: nothing is opened there."""
    net = roads()
    net.stop("anna", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "braga")
    net.go()
    assert homes(net) == [("braga", 3)]
    assert Close("anna/2", LATER.format("anna")) in net.closed
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_of_two_fetches_the_later_one_stays():
    """Faro (3) and braga (4) fetch from lisbon, which waits, in either order: braga gets it."""
    for epochs in ((3, 4), (4, 3)):
        net = roads()
        net.cut("anna")
        publish(net, 1)
        net.stop("porto", "lisbon")
        net.move("anna", "lisbon")
        net.stop("faro", "lisbon")
        net.stop("braga", "lisbon")
        net.stop("faro", "anna")  # so she does not count on what faro may have
        net.move("anna", "faro")
        net.move("anna", "braga")
        for epoch in epochs:
            net.stopped.remove(({3: "faro", 4: "braga"}[epoch], "lisbon"))
            net.settle()
        assert session_of(net, "lisbon").wait.pending.epoch == 4
        net.go()
        net.notice("faro", "anna/3")
        assert net.got("anna") == xs(1)
        assert lost(net) == []
        assert homes(net) == [("braga", 4)]
        assert_tidy(net)


@pytest.mark.parametrize("held", [("porto", "lisbon"), ("lisbon", "porto"), ("faro", "lisbon")])
@pytest.mark.parametrize("welcome", [True, False])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_there_and_back_before_the_replay(routing, held, welcome):
    """Porto, faro, porto, before the first answer came, wherever that is on its way."""
    net = roads(routing=routing)
    net.cut("anna")
    publish(net, 1)
    net.stop(*held)
    if not welcome:
        net.stop("faro", "anna")
    net.move("anna", "faro")
    publish(net, 2)
    net.move("anna", "porto")
    publish(net, 3)
    net.go()
    publish(net, 4)
    assert net.got("anna") == xs(1, 2, 3, 4)
    assert lost(net) == []
    assert homes(net) == [("porto", 3)]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_there_and_back_after_the_replay(routing):
    net = roads(routing=routing)
    net.cut("anna")
    publish(net, 1)
    net.move("anna", "faro")
    publish(net, 2)
    net.cut("anna")
    publish(net, 3)
    net.move("anna", "porto")
    publish(net, 4)
    assert net.got("anna") == xs(1, 2, 3, 4)
    assert lost(net) == []
    assert homes(net) == [("porto", 3)]
    assert_tidy(net)


def test_back_at_the_same_broker_nobody_is_asked():
    net = roads()
    net.cut("anna")
    publish(net, 1)
    seen = watched(net)
    session = session_of(net, "porto")
    net.move("anna", "porto")
    assert seen == []
    assert session_of(net, "porto") is session  # not even that is new
    assert net.got("anna") == xs(1)
    assert homes(net) == [("porto", 2)]
    assert_tidy(net)


def test_zombie():
    """The old connection looks alive: what is sent there is sent again, and it is closed."""
    net = roads()
    net.attach("anna", "faro")
    publish(net, 1)
    assert Close("anna/1", "anna is elsewhere now") in net.closed
    assert net.got("anna") == xs(1)
    assert homes(net) == [("faro", 2)]
    assert net.brokers["porto"].border.by_link == {}
    assert_tidy(net)


def test_a_zombie_that_waits_is_closed_too():
    net = roads()
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    assert Close("anna/2", "anna is elsewhere now") in net.closed
    assert session_of(net, "lisbon").link is None
    net.go()
    assert homes(net) == [("faro", 3)]


# Filters that change on the way


@pytest.mark.parametrize("routing", ROUTINGS)
def test_subscribe_under_way(routing):
    """Both lisbon and faro hold back tom 2 {x}; only faro knows that she wants tom 1 {y}, too.

    So replay-then-held is not in order: what there is is merged by publication number.
    """
    net = roads(routing=routing)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    net.subscribe("anna", "y > 0")
    net.settle()
    net.publish("tom", y=1)
    publish(net, 2)
    assert len(session_of(net, "lisbon").wait.held) == 1
    assert len(session_of(net, "faro").wait.held) == 2
    net.go()
    assert net.got("anna") == [{"y": 1}, {"x": 2}]
    assert net.clients["anna"].delivered == 2
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_unsubscribe_under_way(routing):
    net = roads(routing=routing)
    net.subscribe("anna", "y > 0")
    net.settle()
    net.cut("anna")
    net.publish("tom", x=1)
    net.publish("tom", y=2)
    net.settle()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.unsubscribe("anna", "x > 0")
    net.settle()
    publish(net, 3)
    net.publish("tom", y=4)
    net.go()
    assert net.got("anna") == [{"y": 2}, {"y": 4}]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_another_filter_altogether_on_arrival(routing):
    """Nothing that she wants now leads to porto: all the tree is searched."""
    net = roads(routing=routing)
    net.cut("anna")
    publish(net, 1)
    net.unsubscribe("anna", "x > 0")
    net.subscribe("anna", "y > 0")
    net.move("anna", "faro")
    assert homes(net) == [("faro", 2)]
    net.publish("tom", y=2)
    net.settle()
    assert net.got("anna") == [{"y": 2}]
    assert lost(net) == []
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_unadvertise_under_way(routing):
    """Tom withdraws while the fetch is on its way: the entries that it follows may be gone."""
    for turn in range(4):
        net = roads(routing=routing)
        net.cut("anna")
        publish(net, 1)
        net.attach("anna", "faro")
        for hop in (("anna", "faro"), ("faro", "lisbon"), ("lisbon", "porto"))[:turn]:
            net.step(*hop)
        net.unadvertise("tom", "exists x or exists y")
        net.settle()
        assert net.got("anna") == xs(1)
        assert lost(net) == []
        assert homes(net) == [("faro", 2)]
        assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_advertise_under_way(routing):
    """Nobody offered x until the fetch was under way."""
    for turn in range(4):
        net = Roads(*TREE, routing=routing, relocation="junction")
        net.subscribe("anna", "x > 0")
        net.move("anna", "porto")
        net.move("tom", "braga")
        net.attach("anna", "faro")
        for hop in (("anna", "faro"), ("faro", "lisbon"), ("lisbon", "porto"))[:turn]:
            net.step(*hop)
        net.advertise("tom", "exists x")
        net.settle()
        publish(net, 1)
        assert net.got("anna") == xs(1)
        assert homes(net) == [("faro", 2)]
        assert lost(net) == []
        assert_tidy(net)


# Covering and merging


@pytest.mark.parametrize("routing", ["covering", "merging"])
def test_a_wider_filter_stands_for_it(routing):
    """Bert's filter covers anna's: on the path there is no entry of hers, and yet it is followed."""
    net = roads(routing=routing)
    net.subscribe("bert", "exists x")
    net.move("bert", "porto")
    assert not any("x > 0" in str(e) for e in net.brokers["lisbon"].routing.in_subs["porto"])
    net.cut("anna")
    publish(net, 1)
    seen = watched(net)
    net.move("anna", "faro")
    publish(net, 2)
    assert net.got("anna") == net.got("bert") == xs(1, 2)
    assert {everywhere for _, _, everywhere in fetches(seen)} == {False}
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ["covering", "merging"])
def test_the_old_location_is_towards_the_advertisement(routing):
    """Bert, at faro, covers anna already when she comes there; she was beyond lisbon, as tom is."""
    net = roads(routing=routing)
    net.subscribe("bert", "exists x")
    net.move("bert", "faro")
    net.cut("anna")
    publish(net, 1)
    seen = watched(net)
    net.move("anna", "faro")
    publish(net, 2)
    assert net.got("anna") == net.got("bert") == xs(1, 2)
    assert {everywhere for _, _, everywhere in fetches(seen)} == {False}
    assert_tidy(net)


def test_the_fetch_floods_matching_producers_and_consumers_only():
    """Evora has neither: it is not asked. Braga has tom, porto has who covers: both are."""
    net = roads(*TREE, "lisbon-evora", routing="covering")
    net.subscribe("bert", "exists x")
    net.move("bert", "porto")
    net.subscribe("eva", "exists z")
    net.move("eva", "evora")
    seen = watched(net)
    net.move("anna", "faro")
    assert sorted(fetches(seen)) == [
        ("faro", "lisbon", False),
        ("lisbon", "braga", False),
        ("lisbon", "porto", False),
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_uncovering(routing, seed):
    """Bert's narrow filter hides behind anna's wide one. She goes; he misses nothing."""
    net = roads(routing=routing)
    net.subscribe("bert", "x > 5")
    net.move("bert", "porto")
    said = []

    def say():
        said.append(6 + len(said))
        net.publish("tom", x=said[-1])

    for broker in ("faro", "porto", "lisbon"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    assert net.got("bert") == net.got("anna") == xs(*said)
    assert_tidy(net)


# Nothing to follow, and nobody who answers


@pytest.mark.parametrize("routing", ROUTINGS)
def test_no_matching_advertisement(routing):
    """No junction: she does not wait for a time-out, and porto gets its sign-off all the same."""
    net = Roads(*TREE, routing=routing, relocation="junction")
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    seen = watched(net)
    net.move("anna", "faro")
    assert homes(net) == [("faro", 2)]
    assert session_of(net, "faro").wait is None
    assert net.told["anna"] == []
    # The whole tree is searched, and every broker of it once.
    assert sorted(hop for *hop, everywhere in fetches(seen) if everywhere) == [
        ["faro", "lisbon"],
        ["lisbon", "braga"],
        ["lisbon", "porto"],
    ]
    net.advertise("tom", "exists x")
    net.move("tom", "braga")
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_what_waits_is_found_when_nothing_matches_any_more():
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.unadvertise("tom", "exists x or exists y")
    net.settle()
    net.move("anna", "faro")
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert_tidy(net)


def test_the_old_broker_is_down():
    """Nobody answers: after a while she is told, and gets what is there; the rest comes late."""
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("lisbon", "porto")
    net.move("anna", "faro")
    publish(net, 2)
    net.pass_time(ANSWER_NS - 1)
    assert net.told["anna"] == []
    net.pass_time(1)
    net.settle()
    assert net.told["anna"][0] == Lost(0, NO_ANSWER)
    assert net.got("anna") == xs(2)
    publish(net, 3)
    assert net.got("anna") == xs(2, 3)
    net.go()
    publish(net, 4)
    assert net.got("anna") == xs(2, 3, 4)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_a_late_replay_that_is_in_order_loses_nothing():
    net = roads()
    net.cut("anna")
    publish(net, 1, 2)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS)
    net.settle()
    assert lost(net) == [Lost(0, NO_ANSWER)]
    net.go()
    publish(net, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert len(lost(net)) == 1
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_old_broker_has_forgotten_her(routing):
    """All the tree is searched in vain: she is told, and goes on, without waiting for long."""
    net = roads(routing=routing)
    net.cut("anna")
    publish(net, 1)
    net.pass_time(AWAY_NS)
    assert homes(net) == []
    net.move("anna", "faro")
    assert lost(net) == [Lost(0, NO_SESSION)]
    publish(net, 2)
    assert net.got("anna") == xs(2)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_the_first_attachment_was_lost():
    """Nobody has a session because she never had one: nothing is missing."""
    net = Roads(*TREE, relocation="junction")
    net.subscribe("anna", "x > 0")
    net.attach("anna", "porto")
    net.cut("anna")
    net.move("anna", "faro")
    assert homes(net) == [("faro", 2)]
    assert net.told["anna"] == []
    assert not session_of(net, "faro").orphan


def test_a_ghost_of_which_nobody_waits_for_an_answer_is_found():
    """Her time was up before the search by subscriptions ended: all the tree is searched even so."""
    net = Roads(*TREE, routing="simple", relocation="junction")
    net.subscribe("anna", "x > 0")
    net.advertise("tom", "exists x")
    net.move("tom", "faro")
    net.move("anna", "porto")
    net.unadvertise("tom", "exists x")
    net.advertise("ina", "exists x")
    net.move("ina", "braga")
    net.unsubscribe("anna", "x > 0")
    net.subscribe("anna", "x > 5")
    net.settle()
    net.cut("anna")
    net.unsubscribe("anna", "x > 5")
    net.subscribe("anna", "x > 7")
    net.stop("lisbon", "faro")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS)
    net.settle()
    assert lost(net) == [Lost(0, NO_ANSWER)]
    net.go()
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


# Three more, from trying it out


@pytest.mark.parametrize("where", [["braga"], ["porto"], ["braga", "braga"], ["porto", "braga"]])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_what_is_torn_down_does_not_depend_on_how_many_advertise(routing, where):
    """Lisbon needs no entry to porto any more. Porto needs one to lisbon if somebody advertises there."""
    net = Roads(*TREE, routing=routing, relocation="junction")
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    for i, broker in enumerate(where):
        net.advertise(f"tom{i}", "exists x")
        net.move(f"tom{i}", broker)
    net.move("anna", "faro")
    routing_at = {name: core.routing for name, core in net.brokers.items()}
    assert not routing_at["lisbon"].in_subs["porto"]
    assert bool(routing_at["porto"].in_subs["lisbon"]) == ("porto" in where)
    assert bool(routing_at["braga"].in_subs["lisbon"]) == ("braga" in where)
    for i, _ in enumerate(where):
        publish(net, i + 1, who=f"tom{i}")
    assert net.got("anna") == xs(1, 2)[: len(where)]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_filter_without_advertisement_beside_one_with(routing):
    """The session is handed over with all of its subscriptions: none of them stays as a ghost."""
    net = roads(routing=routing)
    net.subscribe("anna", "exists z")
    net.settle()
    net.move("anna", "faro")
    assert homes(net) == [("faro", 2)]
    net.advertise("ina", "exists z")
    net.move("ina", "braga")
    assert not net.brokers["lisbon"].routing.in_subs["porto"]
    assert_tidy(net)


# The search


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_search_ends_at_the_last_session(routing):
    """Anna was at lisbon, where the fetch comes by: nobody beyond is asked."""
    net = roads(routing=routing)
    net.move("anna", "lisbon")
    seen = watched(net)
    net.move("anna", "faro")
    assert fetches(seen) == [("faro", "lisbon", False)]
    assert homes(net) == [("faro", 3)]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_search_goes_on_behind_an_older_session(routing):
    """The fetch from braga finds porto (1); faro (2), which has not said anything yet, has more."""
    net = roads(routing=routing)
    net.cut("anna")
    publish(net, 1)
    net.stop("faro", "lisbon")
    net.move("anna", "faro")
    net.cut("anna")
    net.attach("anna", "braga")
    net.stop("lisbon", "faro")
    net.settle()
    assert [*session_of(net, "braga").wait.old] == [1]
    net.stopped.remove(("faro", "lisbon"))
    net.settle()
    publish(net, 2)  # braga holds it back, and faro will: it comes from both
    assert net.got("anna") == []
    net.go()
    publish(net, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert net.clients["anna"].delivered == 3
    assert lost(net) == []
    assert homes(net) == [("braga", 3)]
    assert_tidy(net)


@pytest.mark.parametrize("welcome", [True, False])
def test_an_older_session_is_not_all(welcome):
    """Porto (1) has something, faro (2) has forgotten her. Had she been welcome there, that is a gap."""
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("faro", "lisbon")
    if not welcome:
        net.stop("faro", "anna")
    net.move("anna", "faro")
    net.cut("anna")
    faro = net.brokers["faro"]
    faro.relocation._end(session_of(net, "faro"), net.now)
    net.stopped.clear()
    net._wires["faro", "lisbon"].frames.clear()
    faro.routing.updates()  # nobody has heard of that session
    net.move("anna", "braga")
    assert net.got("anna") == xs(1)
    assert lost(net) == ([Lost(0, NO_SESSION)] if welcome else [])
    assert homes(net) == [("braga", 3)]


def test_searches_are_gone_when_all_is_quiet():
    net = roads(routing="covering")
    searching = [core.relocation.searches for core in net.brokers.values()]
    net.attach("anna", "faro")
    net.crawl(1, lambda: None)
    assert searching == [{}] * 4
    net.cut("anna")
    net.pass_time(AWAY_NS)
    net.move("anna", "braga")
    net.detach("anna", leave=True)
    net.settle()
    assert searching == [{}] * 4
    assert_tidy(net)


def test_the_oldest_searches_are_forgotten(monkeypatch):
    """Whoever waits for one does so until its time is up."""
    monkeypatch.setattr(junction, "SEARCHES_MAX", 2)
    lisbon = Broker("lisbon", ["porto", "faro"], "simple", relocation="junction")
    for epoch in (2, 3, 4):
        fetch = Fetch("faro", "anna", epoch, 0, (), everywhere=True)
        lisbon.step(Received("faro", Update(errands=(fetch,))), 0)
    assert [epoch for _, epoch, _ in lisbon.relocation.searches] == [3, 4]
    searched = Update(errands=(Searched("porto", "anna", 2, True),))
    assert lisbon.step(Received("porto", searched), 0) == []
    searched = Update(errands=(Searched("porto", "anna", 3, True),))
    (send,) = lisbon.step(Received("porto", searched), 0)
    assert (send.link, send.message.errands) == ("faro", (Searched("lisbon", "anna", 3, True),))


def test_it_is_refused_where_there_are_no_subscriptions_to_follow():
    with pytest.raises(UsageError) as refused:
        Broker("porto", [], "flooding", relocation="junction")
    assert str(refused.value) == (
        "junction follows subscriptions, and flooding has none: choose another relocation"
    )
    with pytest.raises(UsageError, match="junction follows subscriptions"):
        World(routing="flooding", relocation="junction")


def test_leaving_while_waiting():
    """The goodbye is remembered until the old session has come, and then it ends, too."""
    net = roads()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.detach("anna", leave=True)
    net.settle()
    assert homes(net) == [("faro", 2)]
    net.go()
    assert homes(net) == []
    assert_tidy(net)


# Many at once


@pytest.mark.parametrize("routing", ["simple", "covering"])
def test_many_move_at_the_same_time(routing):
    world = World(seed=1, routing=routing, relocation="junction")
    world.add_brokers(topology.balanced(3, 3))
    brokers = list(world.brokers)
    for i, broker in enumerate(brokers):
        world.add_client(f"p{i}", broker).advertise(f"topic = {i % 4}")
    clients = [world.add_client(f"c{i}", brokers[i % len(brokers)]) for i in range(40)]
    for i, client in enumerate(clients):
        client.subscribe(f"topic = {i % 4}")
    world.settle()
    for turn, hurry_ns in enumerate([3, 25, 60, 1000], 1):
        for i, client in enumerate(clients):
            client.attach(brokers[(i * turn + turn) % len(brokers)])
        for i, _ in enumerate(brokers):
            world.client(f"p{i}").publish({"topic": i % 4})
        world.run_until(world.now + hurry_ns * MS_NS)
    world.settle()
    verdict = check(world)
    assert verdict.violations == ()
    assert verdict.lost == 0
    assert verdict.delivered == verdict.published * 10 >= verdict.required
    world.outlive()
    assert list(check_outlived(world)) == []
