"""Home: the session stays where the client attached first, and other brokers tunnel.

They play in the tree of roads.py: anna's home is porto, tom's is braga.
"""

import pytest

from roads import TREE, Roads, assert_tidy, homes, lost, network, publish, session_of, tables, xs
from wayfare.core.broker import LATER, Broker
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Close, Lost, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.home import tunnelled
from wayfare.core.messages import (
    Ack,
    Announce,
    Attach,
    Deliver,
    Notification,
    Publish,
    Published,
    Resend,
    Subscribe,
    Tunnel,
    Welcome,
)
from wayfare.core.relocation import NO_SESSION
from wayfare.sim import World, check, topology
from wayfare.sim.fuzz import Job, fuzz
from wayfare.sim.links import MS_NS
from wayfare.sim.quiet import check_outlived

ROUTINGS = ("flooding", "simple", "identity", "covering", "merging")
SEEDS = range(5)
X = Filter.parse("x > 0")


def roads(*pairs, **more):
    return network(*pairs, relocation="home", **more)


def visitors(net):
    """Who visits which broker, and where its home is."""
    return {
        (broker, link): home
        for broker, core in net.brokers.items()
        for link, home in core.relocation._visitors.items()
    }


def away(net):
    """Whose home is where, and where they are."""
    return {
        (broker, link): there
        for broker, core in net.brokers.items()
        for link, there in core.relocation._away.items()
    }


# The session, and the tunnel


def test_a_visit_is_a_connection_through_a_tunnel():
    net = roads()
    net.attach("anna", "faro")
    net.step("anna", "faro")
    attach = Attach("anna", 2, 0, (X,), (), (("porto", 1),), True, "porto")
    there = Tunnel("porto", "faro", "anna/2", attach)
    assert net.on_the_way("faro", "anna") == []
    assert net.on_the_way("faro", "lisbon") == [there]
    net.step("faro", "lisbon")
    assert net.on_the_way("lisbon", "porto") == [there]
    assert net.on_the_way("lisbon", "braga") == []
    net.step("lisbon", "porto")
    assert net.on_the_way("porto", "lisbon") == [Tunnel("faro", "faro", "anna/2", Welcome(2, 0))]
    net.settle()
    assert net.clients["anna"].previous == (("faro", 2),)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_session_stays_at_home(routing):
    """No table changes, wherever she goes; all goes by porto, and comes once."""
    net = roads(routing=routing)
    before = tables(net)
    net.cut("anna")
    publish(net, 1)
    for x, broker in ((2, "faro"), (3, "braga"), (4, "lisbon"), (5, "porto"), (6, "faro")):
        net.move("anna", broker)
        publish(net, x)
        assert tables(net) == before
        assert homes(net) == [("porto", x)]
    assert net.got("anna") == xs(1, 2, 3, 4, 5, 6)
    assert net.clients["anna"].delivered == 6
    assert lost(net) == []
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_whenever_it_is_published(seed):
    net = roads()
    said = []

    def say():
        said.append(len(said) + 1)
        net.publish("tom", x=said[-1])

    for broker in ("faro", "braga", "porto", "lisbon", "faro", "faro"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    assert net.got("anna") == xs(*said)
    assert lost(net) == []
    assert net.clients["anna"].delivered == len(said)
    assert_tidy(net)


def test_to_attach_elsewhere_closes_the_old_tunnel():
    """The connection at faro looks alive until braga's attachment comes home."""
    net = roads()
    net.move("anna", "faro")
    assert visitors(net) == {("faro", "anna/2"): "porto"}
    assert away(net) == {("porto", tunnelled("faro", "anna/2")): ("faro", "anna/2")}
    net.move("anna", "braga")
    assert Close("anna/2", "anna attached again") in net.closed
    assert visitors(net) == {("braga", "anna/3"): "porto"}
    assert away(net) == {("porto", tunnelled("braga", "anna/3")): ("braga", "anna/3")}
    publish(net, 1)
    assert net.got("anna") == xs(1)


def test_to_come_home_closes_the_tunnel():
    net = roads()
    net.move("anna", "faro")
    net.move("anna", "porto")
    assert Close("anna/2", "anna attached again") in net.closed
    assert visitors(net) == away(net) == {}
    assert session_of(net, "porto").link == "anna/3"
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_a_connection_that_breaks_while_visiting():
    """Faro tells home; from then on what comes is kept there."""
    net = roads()
    net.move("anna", "faro")
    net.cut("anna")
    assert net.on_the_way("faro", "lisbon") == [Tunnel("porto", "faro", "anna/2", None)]
    net.settle()
    assert session_of(net, "porto").link is None
    assert visitors(net) == away(net) == {}
    publish(net, 1)
    assert net.on_the_way("porto", "lisbon") == []
    net.move("anna", "faro")
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert_tidy(net)


def test_what_was_in_the_tunnel_when_the_connection_broke_is_sent_again():
    """Home has sent 1 to faro, where nobody is any more."""
    net = roads()
    net.move("anna", "faro")
    net.stop("lisbon", "faro")
    publish(net, 1)
    net.cut("anna")
    net.go()
    assert net.got("anna") == []
    net.move("anna", "lisbon")
    assert net.got("anna") == xs(1)
    assert net.clients["anna"].delivered == 1


def test_away_for_too_long():
    """Home has forgotten her. She is told, and has a session there again."""
    net = roads()
    net.move("anna", "faro")
    net.cut("anna")
    net.settle()
    net.pass_time(Limits().away_ns)
    net.settle()
    assert homes(net) == []
    net.move("anna", "braga")
    assert lost(net) == [Lost(0, NO_SESSION)]
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert homes(net) == [("porto", 3)]
    assert_tidy(net)


# Visiting from several brokers


def test_attachments_come_home_in_another_order():
    """She is at braga (3) when her words from faro (2) come home: that connection is closed."""
    net = roads()
    net.stop("faro", "lisbon")
    net.move("anna", "faro")
    net.move("anna", "braga")
    net.go()
    assert Close("anna/2", LATER.format("anna")) in net.closed
    assert visitors(net) == {("braga", "anna/3"): "porto"}
    assert away(net) == {("porto", tunnelled("braga", "anna/3")): ("braga", "anna/3")}
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert homes(net) == [("porto", 3)]
    assert_tidy(net)


def test_the_same_connection_name_at_two_brokers():
    """Brokers name connections each for themselves: anna at faro and bert at braga are both `c1`."""
    porto = Broker("porto", ["lisbon"], relocation="home")
    porto.step(Received("lisbon", Announce(("lisbon", "faro", "braga"))), 0)
    for name, broker in (("anna", "faro"), ("bert", "braga")):
        attach = Attach(name, 1, 0, (X,), home="porto")
        welcome = Tunnel(broker, broker, "c1", Welcome(1, 0))
        assert porto.step(Received("lisbon", Tunnel("porto", broker, "c1", attach)), 0)[:1] == [
            Send("lisbon", welcome)
        ]
    news = Notification("tom", 1, {"x": 1})
    assert porto.step(Received("lisbon", news), 1) == [
        Send("lisbon", Tunnel("faro", "faro", "c1", Deliver(1, news))),
        Send("lisbon", Tunnel("braga", "braga", "c1", Deliver(1, news))),
    ]


def test_several_clients_visit_each_others_homes():
    net = roads()
    net.subscribe("bert", "x > 5")
    net.move("bert", "faro")
    net.move("anna", "faro")
    net.move("bert", "porto")
    publish(net, 1, 6)
    assert net.got("anna") == xs(1, 6)
    assert net.got("bert") == xs(6)
    assert (homes(net), homes(net, "bert")) == ([("porto", 2)], [("faro", 2)])
    assert_tidy(net)


# What clients say through the tunnel


def test_publications_go_home_and_are_acknowledged_from_there():
    net = roads()
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.step("tom", "faro")
    assert net.on_the_way("faro", "lisbon") == [
        Tunnel("braga", "faro", "tom/2", Publish(1, {"x": 1}))
    ]
    net.step("faro", "lisbon")
    assert net.on_the_way("lisbon", "porto") == []
    net.step("lisbon", "braga")
    assert net.on_the_way("braga", "lisbon") == [
        Notification("tom", 1, {"x": 1}),
        Tunnel("faro", "faro", "tom/2", Published(1)),
    ]
    net.settle()
    assert net.got("anna") == xs(1)
    assert not net.clients["tom"].outbox


def test_publications_are_accepted_once():
    """Faro's tunnel took 1 home, but tom does not know, and says it again at lisbon."""
    net = roads()
    net.move("tom", "faro")
    net.stop("faro", "tom")
    publish(net, 1)
    net.cut("tom")
    assert [one.number for one in net.clients["tom"].outbox] == [1]
    net.stop("braga", "lisbon")
    net.move("tom", "lisbon")
    publish(net, 2)
    sent = [one for one in net.on_the_way("braga", "lisbon") if isinstance(one, Notification)]
    assert sent == [Notification("tom", 2, {"x": 2})]
    net.go()
    assert net.got("anna") == xs(1, 2)
    assert net.clients["anna"].delivered == 2
    assert not net.clients["tom"].outbox


def test_acknowledgements_go_home():
    net = roads()
    net.move("anna", "faro")
    publish(net, 1, 2)
    assert len(session_of(net, "porto").backlog) == 2
    net.pass_time(ACK_DELAY_NS)
    assert net.on_the_way("anna", "faro") == [Ack(2)]
    net.settle()
    assert session_of(net, "porto").backlog.acked == 2
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_subscriptions_and_advertisements_go_home(routing):
    net = roads(routing=routing)
    net.move("anna", "faro")
    net.move("tom", "porto")
    net.subscribe("anna", "z > 0")
    net.unsubscribe("anna", "x > 0")
    net.advertise("tom", "exists z")
    net.settle()
    net.publish("tom", x=1)
    net.publish("tom", z=2)
    net.settle()
    assert net.got("anna") == [{"z": 2}]
    assert [*session_of(net, "porto").subscriptions] == [Filter.parse("z > 0")]
    assert_tidy(net)


def test_a_digest_is_enough_for_home():
    """Home knows her filters; faro does not look at them."""
    net = Roads(*TREE, relocation="home")
    net.by_digest("anna")
    net.advertise("tom", "exists x")
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    net.move("tom", "braga")
    net.attach("anna", "faro")
    (attach,) = net.on_the_way("anna", "faro")
    assert attach.digest and attach.subscriptions == ()
    net.step("anna", "faro")
    assert net.on_the_way("faro", "lisbon") == [Tunnel("porto", "faro", "anna/2", attach)]
    net.settle()
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_home_asks_for_filters_that_changed():
    """The digest is of another profile: Resend comes through the tunnel, and so does the answer."""
    net = Roads(*TREE, relocation="home")
    net.by_digest("anna")
    net.advertise("tom", "exists x")
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    net.move("tom", "braga")
    net.subscribe("anna", "x < 0")  # it does not arrive
    net.cut("anna")
    net.stop("faro", "anna")
    net.move("anna", "faro")
    assert net.on_the_way("faro", "anna") == [Resend(2)]
    net.go()
    publish(net, 1, -1)
    assert net.got("anna") == xs(1, -1)
    assert_tidy(net)


def test_goodbye_while_visiting():
    net = roads()
    net.move("anna", "faro")
    net.detach("anna")
    net.settle()
    publish(net, 1)
    assert net.got("anna") == []
    assert homes(net) == [("porto", 2)]
    net.move("anna", "braga")
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_goodbye_for_good_while_visiting():
    net = roads()
    net.move("anna", "faro")
    net.detach("anna", leave=True)
    net.settle()
    assert homes(net) == []
    assert visitors(net) == away(net) == {}
    assert_tidy(net)


def test_a_goodbye_that_was_lost():
    """Home still has the session when she comes back as if for the first time: it ends."""
    net = roads()
    net.stop("anna", "faro")
    net.attach("anna", "faro")
    net.detach("anna", leave=True)
    net._wires["anna", "anna/2"].cut()
    publish(net, 1)
    net.go()
    net.told["anna"].clear()
    net.move("anna", "lisbon")
    assert homes(net) == [("porto", 3)]
    publish(net, 2)
    assert net.got("anna") == xs(2)
    assert lost(net) == []
    assert_tidy(net)


# Who does not keep to the rules


@pytest.fixture
def faro():
    """Faro, which knows of lisbon and porto."""
    core = Broker("faro", ["lisbon"], relocation="home")
    core.step(Received("lisbon", Announce(("lisbon", "porto"))), 0)
    return core


def test_a_tunnel_to_a_connection_that_is_not_there(faro):
    for message in (Welcome(1, 0), None):
        tunnel = Tunnel("faro", "faro", "anna/1", message)
        assert faro.step(Received("lisbon", tunnel), 0) == []


def test_a_tunnel_to_a_broker_that_nobody_knows(faro):
    assert faro.step(Received("lisbon", Tunnel("nowhere", "porto", "anna/1", None)), 0) == []
    attach = Attach("anna", 1, 0, home="nowhere")
    (close,) = faro.step(Received("anna/1", attach), 0)
    assert close == Close("anna/1", "nobody knows the broker nowhere, its home", again=True)
    assert visitors_of(faro) == {}


def test_a_tunnel_for_another_broker_is_only_passed_on(faro):
    tunnel = Tunnel("porto", "faro", "anna/1", None)
    assert faro.step(Received("lisbon", tunnel), 0) == [Send("lisbon", tunnel)]
    assert visitors_of(faro) == {}


def visitors_of(core):
    return core.relocation._visitors


def test_a_tunnel_without_an_attachment(faro):
    """Who speaks through a tunnel before Attach is closed, as everybody else."""
    tunnel = Tunnel("faro", "porto", "anna/1", Subscribe(X))
    closed = Tunnel("porto", "porto", "anna/1", None, "Subscribe before Attach")
    assert faro.step(Received("lisbon", tunnel), 0) == [Send("lisbon", closed)]
    assert faro.relocation._away == {}


def test_a_tunnel_with_what_only_brokers_say(faro):
    tunnel = Tunnel("faro", "porto", "anna/1", Welcome(1, 0))
    closed = Tunnel("porto", "porto", "anna/1", None, "Welcome from a client")
    assert faro.step(Received("lisbon", tunnel), 0) == [Send("lisbon", closed)]
    assert faro.relocation._away == {}


def test_the_end_of_a_tunnel_that_never_was(faro):
    assert faro.step(Received("lisbon", Tunnel("faro", "porto", "anna/1", None)), 0) == []


def test_a_visitor_that_breaks_the_protocol():
    """Home finds out, and faro closes the connection; the session stays."""
    net = roads()
    net.move("anna", "faro")
    net._event("faro", Received("anna/2", Ack(7)))
    net.settle()
    assert Close("anna/2", "acknowledged 7, but only 0 were sent") in net.closed
    assert visitors(net) == away(net) == {}
    assert session_of(net, "porto").link is None
    net.move("anna", "faro")
    publish(net, 1)
    assert net.got("anna") == xs(1)


def test_a_visitor_that_attaches_twice():
    net = roads()
    net.move("anna", "faro")
    again = Attach("anna", 3, 0, (X,), (), (("porto", 1),), True, "porto")
    net._event("faro", Received("anna/2", again))
    net.settle()
    assert Close("anna/2", "Attach twice on one connection") in net.closed
    assert visitors(net) == away(net) == {}


@pytest.mark.parametrize("relocation", ["handoff", "junction", "naive"])
def test_tunnels_are_for_home_only(relocation):
    faro = Broker("faro", ["lisbon"], relocation=relocation)
    (close,) = faro.step(Received("lisbon", Tunnel("faro", "porto", "anna/1", None)), 0)
    assert close == Close("lisbon", f"Tunnel, but relocation is {relocation} here", fault=True)


def test_clients_have_no_tunnels(faro):
    (close,) = faro.step(Received("anna/1", Tunnel("faro", "porto", "anna/1", None)), 0)
    assert close == Close("anna/1", "Tunnel from a client", fault=True)


# In a world


@pytest.mark.parametrize("routing", ["flooding", "simple", "covering"])
def test_many_move_at_the_same_time(routing):
    """Complete, once, in order; publishers move, too."""
    world = World(seed=1, routing=routing, relocation="home")
    world.add_brokers(topology.balanced(3, 3))
    brokers = list(world.brokers)
    publishers = [world.add_client(f"p{i}", broker) for i, broker in enumerate(brokers)]
    for i, publisher in enumerate(publishers):
        publisher.advertise(f"topic = {i % 4}")
    clients = [world.add_client(f"c{i}", brokers[i % len(brokers)]) for i in range(40)]
    for i, client in enumerate(clients):
        client.subscribe(f"topic = {i % 4}")
    world.settle()
    for turn, hurry_ns in enumerate([3, 25, 60, 1000], 1):
        for i, client in enumerate([*clients, *publishers]):
            client.attach(brokers[(i * turn + turn) % len(brokers)])
        for i, publisher in enumerate(publishers):
            publisher.publish({"topic": i % 4})
        world.run_until(world.now + hurry_ns * MS_NS)
    world.settle()
    verdict = check(world)
    assert verdict.violations == ()
    assert verdict.lost == 0
    assert verdict.delivered == verdict.published * 10 >= verdict.required
    for host in world.brokers.values():
        for link, (visited, there) in host.core.relocation._away.items():
            assert world.broker(visited).core.relocation._visitors[there] == host.core.name, link
    world.outlive()
    assert list(check_outlived(world)) == []


@pytest.mark.parametrize("seed", range(10))
def test_random_runs(seed):
    job = Job(seed, "covering", "home")
    assert fuzz(job).verdict.violations == (), job.command()


def test_a_visitor_that_attaches_again_with_another_home():
    """On one connection, first with porto as home, then with braga: porto has to be told."""
    net = network(relocation="home")
    net.move("anna", "faro")
    again = Attach("anna", 3, 0, (X,), (), (("porto", 1),), True, "braga")
    net._event("faro", Received("anna/2", again))
    net.settle()
    net.notice("faro", "anna/2")
    net.settle()
    assert session_of(net, "porto").link is None
    assert away(net) == visitors(net) == {}


def test_a_visitor_that_attaches_again_as_if_it_were_at_home():
    net = network(relocation="home")
    net.move("anna", "faro")
    again = Attach("anna", 3, 0, (X,), (), (("porto", 1),), True, "faro")
    net._event("faro", Received("anna/2", again))
    net.settle()
    net.notice("faro", "anna/2")
    net.settle()
    assert session_of(net, "porto").link is None
    assert away(net) == visitors(net) == {}
