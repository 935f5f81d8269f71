"""Attaching by digest: who knows the filters, who has to send them, and what is said meanwhile.

They play in the tree of roads.py. Here anna sends a digest whenever she may.
"""

import pytest

from roads import TREE, Roads, assert_tidy, errands, homes, lost, publish, session_of, xs
from wayfare.core import codec
from wayfare.core.broker import Broker
from wayfare.core.client import DIGEST_FROM, Client
from wayfare.core.effects import Close, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import (
    Announce,
    Ask,
    Attach,
    Deliver,
    Notification,
    Profile,
    Request,
    Resend,
    Subscribe,
    Terms,
    Update,
    Welcome,
)
from wayfare.core.profiles import digest
from wayfare.sim import World, check, topology
from wayfare.sim.links import MS_NS
from wayfare.sim.quiet import check_outlived

ANSWER_NS = Limits().answer_ns
AWAY_NS = Limits().away_ns
X, Y = Filter.parse("x > 0"), Filter.parse("y > 0")
LAST = Terms(last=1)


def roads(*, name="anna", **more):
    """As `network`, with anna or tom by digest."""
    net = Roads(*TREE, **more)
    net.by_digest(name)
    net.subscribe("anna", "x > 0")
    net.advertise("tom", "exists x or exists y")
    net.attach("anna", "porto")
    net.attach("tom", "braga")
    net.settle()
    return net


def uplink(net, name):
    """From now on, everything that the client sends."""
    sent = []
    perform = net._perform

    def watch(who, effects):
        sent.extend(one.message for one in effects if who == name and isinstance(one, Send))
        perform(who, effects)

    net._perform = watch
    return sent


# Who has them


def test_the_new_broker_asks_the_old_one():
    net = roads()
    known = digest([X])
    net.attach("anna", "faro")
    attach = Attach("anna", 2, 0, (), (), (("porto", 1),), True, "porto", (), known)
    assert net.on_the_way("anna", "faro") == [attach]
    net.step("anna", "faro")
    ask = Ask("faro", "anna", 2, (("porto", 1),), known)
    assert net.on_the_way("faro", "anna") == []
    assert net.on_the_way("faro", "lisbon") == [Update(errands=(ask,))]
    net.step("faro", "lisbon")
    net.step("lisbon", "porto")
    profile = Profile("faro", "anna", 2, True, (X,))
    assert net.on_the_way("porto", "lisbon") == [Update(errands=(profile,))]
    assert homes(net) == [("porto", 1)]
    net.step("porto", "lisbon")
    net.step("lisbon", "faro")
    assert net.on_the_way("faro", "anna") == [Welcome(2, 0)]
    assert errands(net, "faro", "lisbon") == [
        Request("faro", "anna", 2, 0, (("porto", 1),), digest([X]), welcomed=True)
    ]
    net.settle()
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


@pytest.mark.parametrize("relocation", ["handoff", "junction"])
@pytest.mark.parametrize("routing", ["simple", "covering", "merging"])
def test_nothing_is_lost_on_the_way(routing, relocation):
    for seed in range(5):
        net = roads(routing=routing, relocation=relocation)
        said = []

        def say(net=net, said=said):
            said.append(len(said) + 1)
            net.publish("tom", x=said[-1])

        for broker in ("faro", "braga", "porto", "porto", "lisbon"):
            net.attach("anna", broker)
            net.crawl(seed, say)
        assert net.got("anna") == xs(*said)
        assert lost(net) == []
        assert homes(net) == [("lisbon", 6)]
        assert_tidy(net)


def test_a_hundred_filters_are_not_sent_again():
    """What crosses the client's uplink, in bytes: the filters once, when she attaches first."""
    bytes_of = {}
    for name, client in (
        ("by digest", Client("anna")),
        ("all", Client("anna", digest_from=1_000_000)),
    ):
        net = Roads(*TREE)
        net.clients["anna"], net.told["anna"] = client, []
        for i in range(100):
            net.subscribe("anna", f"road = 'A{i}' and price > {i} and town prefix 'Port{i}'")
        net.advertise("tom", "exists price")
        net.move("tom", "braga")
        sent = uplink(net, "anna")
        net.move("anna", "porto")
        first = sum(len(codec.encode(one)) for one in sent)
        sent.clear()
        net.move("anna", "faro")
        net.publish("tom", road="A7", price=8, town="Port7 sul")
        net.settle()
        assert len(net.got("anna")) == 1
        bytes_of[name] = first, sum(len(codec.encode(one)) for one in sent)
        assert_tidy(net)
    assert bytes_of["all"][1] >= bytes_of["all"][0] == bytes_of["by digest"][0] > 4000
    assert bytes_of["by digest"][1] < 100


def test_terms_and_advertisements_come_with_it():
    net = Roads(*TREE)
    net.by_digest("anna")
    net.subscribe("anna", "y > 0")
    net.subscribe("anna", "x > 0", LAST)
    net.advertise("anna", "z > 0")
    net.move("anna", "porto")
    net.move("anna", "faro")
    session = session_of(net, "faro")
    assert session.subscriptions == {Y: None, X: LAST}
    assert [*session.advertisements] == [Filter.parse("z > 0")]
    assert_tidy(net)


def test_nobody_is_asked_at_the_same_broker():
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.attach("anna", "porto")
    net.step("anna", "porto")
    assert net.on_the_way("porto", "lisbon") == []
    assert net.on_the_way("porto", "anna") == [
        Welcome(2, 0),
        Deliver(1, Notification("tom", 1, {"x": 1})),
    ]
    net.settle()
    assert net.got("anna") == xs(1)
    assert homes(net) == [("porto", 2)]
    assert_tidy(net)


def test_at_the_same_broker_with_other_filters():
    """Nobody else can know them: she is asked at once."""
    net = roads()
    net.subscribe("anna", "y > 0")  # it does not arrive
    net.cut("anna")
    publish(net, 1)
    net.attach("anna", "porto")
    net.step("anna", "porto")
    assert net.on_the_way("porto", "anna") == [Resend(2)]
    assert net.on_the_way("porto", "lisbon") == []
    net.settle()
    net.publish("tom", y=2)
    net.settle()
    assert net.got("anna") == [{"x": 1}, {"y": 2}]
    assert lost(net) == []
    assert_tidy(net)


# Who has not


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.subscribe("anna", "y > 0"),
        lambda net: net.subscribe("anna", "x > 0", LAST),
        lambda net: net.unsubscribe("anna", "x > 0"),
        lambda net: net.advertise("anna", "y > 0"),
    ],
    ids=["subscribe", "terms", "unsubscribe", "advertise"],
)
def test_what_changed_while_she_was_away_is_sent_at_once(change):
    """A digest would be one that nobody knows."""
    net = roads()
    net.cut("anna")
    change(net)
    net.attach("anna", "faro")
    (attach,) = net.on_the_way("anna", "faro")
    anna = net.clients["anna"]
    assert attach.digest == 0
    assert (attach.subscriptions, attach.advertisements) == (
        tuple(anna.subscriptions),
        tuple(anna.advertisements),
    )
    net.settle()
    net.attach("anna", "porto")
    assert net.on_the_way("anna", "porto")[0].digest  # faro was told


def test_so_is_everything_when_something_stayed_behind():
    net = roads()
    net.subscribe("anna", "y > 0", Terms(local=True))
    net.settle()
    net.attach("anna", "faro")
    (attach,) = net.on_the_way("anna", "faro")
    assert (attach.digest, attach.subscriptions) == (0, (X,))


def test_filters_that_changed_before_her_broker_heard_of_it_are_sent():
    net = roads()
    net.subscribe("anna", "y > 0")
    net.cut("anna")
    publish(net, 1)
    sent = uplink(net, "anna")
    net.move("anna", "faro")
    assert [(one.epoch, bool(one.digest), one.subscriptions) for one in sent] == [
        (2, True, ()),
        (2, False, (X, Y)),
    ]
    assert sent[1].previous == sent[0].previous == (("porto", 1),)
    net.publish("tom", y=2)
    net.settle()
    assert net.got("anna") == [{"x": 1}, {"y": 2}]
    assert lost(net) == []
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_terms_that_changed_while_she_was_away_are_sent():
    net = roads()
    net.cut("anna")
    publish(net, 1, 2)
    net.subscribe("anna", "x > 0", LAST)
    net.move("anna", "faro")
    assert session_of(net, "faro").subscriptions == {X: LAST}


def test_a_broker_that_has_forgotten_her():
    net = roads()
    net.cut("anna")
    net.pass_time(AWAY_NS)
    net.stop("faro", "anna")
    net.move("anna", "faro")
    assert net.on_the_way("faro", "anna") == [Resend(2)]
    assert homes(net) == []
    net.go()
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert len(lost(net)) == 1
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_time_out():
    """Porto does not answer: the client is asked, and goes on from there. The answer comes too late."""
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS - 1)
    assert net.on_the_way("faro", "anna") == []
    net.pass_time(1)
    assert net.on_the_way("faro", "anna") == [Resend(2)]
    net.step("faro", "anna")
    net.pass_time(10)
    net.stopped.clear()
    net.step("porto", "lisbon")
    net.step("lisbon", "faro")
    assert net.on_the_way("faro", "anna") == []
    net.settle()
    publish(net, 2)
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_the_deadline_of_a_question():
    """Who waits is minded, and only for so long."""
    net = roads()
    faro = net.brokers["faro"]
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    assert faro.next_deadline() == net.now + ANSWER_NS
    net.move("bert", "faro")  # something else to mind
    net.cut("bert")
    net.pass_time(ANSWER_NS // 2)
    faro.border.bury("carl", 1, net.now - Limits().tombstone_ns)
    net.pass_time(1)
    assert faro.next_deadline() == ANSWER_NS
    net.pass_time(ANSWER_NS)
    assert faro.next_deadline() > net.now
    net.stop("anna", "faro")
    net.go()


# What is said meanwhile


def test_what_she_says_meanwhile_is_not_lost():
    net = roads(name="tom")
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.subscribe("tom", "z > 0")
    net.publish("tom", x=1)
    net.advertise("tom", "z > 0")
    net.publish("tom", z=2)
    net.settle()
    assert homes(net, "tom") == [("braga", 1)]
    net.go()
    assert net.got("anna") == xs(1)
    assert net.got("tom") == [{"z": 2}]
    assert not net.clients["tom"].outbox
    assert homes(net, "tom") == [("faro", 2)]
    assert_tidy(net)


def test_what_she_says_meanwhile_comes_in_order():
    """Behind the attachment, as it was said."""
    faro = Broker("faro", ["lisbon"])
    faro.step(Received("lisbon", Announce(("lisbon", "porto"))), 0)
    attach = Attach("anna", 2, 0, (), (), (("porto", 1),), True, digest=digest([X]))
    (send,) = faro.step(Received("anna/2", attach), 0)
    assert send.link == "lisbon"
    assert faro.step(Received("anna/2", Subscribe(Y)), 1) == []
    effects = faro.step(
        Received("lisbon", Update(errands=(Profile("faro", "anna", 2, True, (X,)),))), 2
    )
    assert effects[0] == Send("anna/2", Welcome(2, 0))
    (session,) = faro.border.of("anna")
    assert [*session.subscriptions] == [X, Y]
    assert session.wait.asked == {X: None}
    assert faro.profiles.asking == {}


def test_going_away_meanwhile():
    """She was never there. What she has said, she says again where she turns up next."""
    net = roads(name="tom")
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.detach("tom")
    net.settle()
    net.go()
    assert net.brokers["faro"].profiles.asking == {}
    net.move("tom", "porto")
    assert net.got("anna") == xs(1)
    assert not net.clients["tom"].outbox
    assert homes(net, "tom") == [("porto", 3)]
    assert_tidy(net)


def test_a_goodbye_right_behind_the_answer():
    """The profile is there before the end of the connection: the goodbye counts."""
    net = roads(name="tom")
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.settle()
    net.detach("tom", leave=True)
    net.step("tom", "faro")
    net.stopped.clear()
    net.step("braga", "lisbon")
    net.step("lisbon", "faro")
    net.settle()
    assert net.got("anna") == xs(1)
    assert homes(net, "tom") == []
    assert_tidy(net)


def test_what_was_said_before_it_was_asked_for_is_said_again():
    """Everything comes with the second attachment, and nothing twice."""
    net = roads(name="tom")
    net.advertise("tom", "exists z")
    net.cut("tom")
    net.subscribe("anna", "z > 0")
    net.stop("faro", "lisbon")
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.publish("tom", z=2)
    net.settle()
    net.stop("faro", "tom")
    net.stopped.remove(("faro", "lisbon"))
    net.settle()
    assert net.on_the_way("faro", "tom") == [Resend(2)]
    net.publish("tom", z=3)  # faro does not listen: it will be said again
    net.settle()
    net.go()
    assert net.got("anna") == [{"x": 1}, {"z": 2}, {"z": 3}]
    assert net.clients["anna"].delivered == 3
    assert not net.clients["tom"].outbox
    assert_tidy(net)


def test_a_connection_that_breaks_meanwhile():
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.cut("anna")
    assert net.brokers["faro"].profiles.asking == {}
    net.go()
    assert homes(net) == [("porto", 1)]
    net.move("anna", "braga")
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert_tidy(net)


def test_moved_on_meanwhile():
    """Braga has her when faro learns what she wanted there: that connection is closed."""
    net = roads()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.attach("anna", "braga")
    (attach,) = net.on_the_way("anna", "braga")
    assert not attach.digest
    net.settle()
    net.go()
    assert Close("anna/2", "anna is elsewhere now") in net.closed
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert homes(net) == [("braga", 3)]
    assert_tidy(net)


# Who sends what


def attached(client, broker="porto"):
    link = f"link{client.epoch + 1}"
    (send,) = client.attach(broker, link)
    return link, send.message


def welcomed(client):
    link, _ = attached(client)
    client.step(Received(link, Welcome(client.epoch, 0)), 0)
    return client


def holding(characters):
    """A client whose filters have so many characters."""
    client = Client("anna")
    offered = Filter.parse("exists a")
    rest = characters - len(str(offered)) - len(str(Filter.parse("a = '' or b = ''")))
    client.advertise(offered)
    client.subscribe(Filter.parse(f"a = '{'c' * (rest // 2)}' or b = '{'c' * (rest - rest // 2)}'"))
    held = [*client.subscriptions, *client.advertisements]
    assert sum(len(str(one)) for one in held) == characters
    return client


@pytest.mark.parametrize("characters", [100, DIGEST_FROM - 1, DIGEST_FROM, DIGEST_FROM + 1])
def test_a_digest_is_chosen_by_size(characters):
    client = welcomed(holding(characters))
    _, attach = attached(client, "faro")
    if characters < DIGEST_FROM:
        assert (len(attach.subscriptions), len(attach.advertisements), attach.digest) == (1, 1, 0)
    else:
        assert (attach.subscriptions, attach.advertisements, attach.terms) == ((), (), ())
        assert attach.digest == digest([*client.subscriptions], client.advertisements)


def test_filters_that_were_given_up_do_not_count():
    client = welcomed(holding(DIGEST_FROM))
    wanted = next(iter(client.subscriptions))
    client.unsubscribe(wanted)
    assert not attached(client)[1].digest
    client.subscribe(wanted)
    client.subscribe(wanted)  # counts once
    assert client._characters == DIGEST_FROM


def test_who_was_not_welcomed_sends_all():
    """First at porto, without an answer; then at lisbon, welcomed; at faro, without an answer."""
    client = holding(DIGEST_FROM)
    assert not attached(client, "porto")[1].digest
    link, attach = attached(client, "lisbon")
    assert not attach.digest
    client.step(Received(link, Welcome(2, 0)), 0)
    assert attached(client, "faro")[1].digest
    assert not attached(client, "braga")[1].digest


def test_resend():
    """Everything, at the same epoch, and the publications again."""
    client = welcomed(holding(DIGEST_FROM))
    client.publish({"a": 1})
    link = "link2"
    first, said = client.attach("faro", link)
    again, said_again = client.step(Received(link, Resend(2)), 0)
    assert first.message.digest and not again.message.digest
    assert again.message == Attach(
        "anna",
        2,
        0,
        tuple(client.subscriptions),
        tuple(client.advertisements),
        (("porto", 1),),
        True,
        "porto",
    )
    assert said == said_again
    (close,) = client.step(Received(link, Resend(1)), 0)
    assert close == Close(link, "Resend for epoch 1, but this is 2", fault=True)


# Who does not keep to the rules


@pytest.fixture
def faro():
    core = Broker("faro", ["lisbon"], limits=Limits(held_count=3))
    core.step(Received("lisbon", Announce(("lisbon", "porto"))), 0)
    return core


@pytest.mark.parametrize("previous", [(), (("nowhere", 1),), (("faro", 1),), (("faro", 9),)])
def test_a_digest_of_which_nobody_can_know(faro, previous):
    attach = Attach("anna", 2, 0, (), (), previous, True, digest=77)
    assert faro.step(Received("anna/2", attach), 0) == [Send("anna/2", Resend(2))]
    again = Attach("anna", 2, 0, (X,), (), previous, True)
    assert Send("anna/2", Welcome(2, 0)) in faro.step(Received("anna/2", again), 1)
    assert faro.profiles.asking == {}


def test_unknown_brokers_are_passed_over(faro):
    previous = (("nowhere", 3), ("faro", 2), ("porto", 1))
    attach = Attach("anna", 4, 0, (), (), previous, True, digest=77)
    assert faro.step(Received("anna/4", attach), 0) == [
        Send("lisbon", Update(errands=(Ask("faro", "anna", 4, (("porto", 1),), 77),)))
    ]


def test_a_flood_before_the_profile(faro):
    attach = Attach("anna", 2, 0, (), (), (("porto", 1),), True, digest=77)
    faro.step(Received("anna/2", attach), 0)
    for _ in range(3):
        assert faro.step(Received("anna/2", Subscribe(Y)), 0) == []
    (close,) = faro.step(Received("anna/2", Subscribe(Y)), 0)
    assert close == Close("anna/2", "too many messages before the profile is known", fault=True)
    assert faro.profiles.asking == {}
    profile = Profile("faro", "anna", 2, True, (X,))
    assert faro.step(Received("lisbon", Update(errands=(profile,))), 1) == []


def test_after_resend_nothing_is_kept(faro):
    """Nobody needs what will be said again: no flood fills a memory."""
    attach = Attach("anna", 2, 0, (), (), (), True, digest=77)
    faro.step(Received("anna/2", attach), 0)
    for _ in range(9):
        assert faro.step(Received("anna/2", Subscribe(Y)), 0) == []
    (asking,) = faro.profiles.asking.values()
    assert asking.later == []


@pytest.mark.parametrize(("client", "epoch"), [("bert", 2), ("anna", 1), ("anna", 3)])
def test_a_profile_that_nobody_asked_for(faro, client, epoch):
    attach = Attach("anna", 2, 0, (), (), (("porto", 1),), True, digest=77)
    faro.step(Received("anna/2", attach), 0)
    profile = Profile("faro", client, epoch, True, (X,))
    assert faro.step(Received("lisbon", Update(errands=(profile,))), 1) == []
    assert list(faro.border.all()) == []


def test_attaching_again_without_being_asked(faro):
    """The second attachment on the connection counts, whatever the answer to the first is."""
    attach = Attach("anna", 2, 0, (), (), (("porto", 1),), True, digest=77)
    faro.step(Received("anna/2", attach), 0)
    again = Attach("anna", 2, 0, (Y,), (), (("porto", 1),), True)
    assert Send("anna/2", Welcome(2, 0)) in faro.step(Received("anna/2", again), 1)
    profile = Profile("faro", "anna", 2, True, (X,))
    assert faro.step(Received("lisbon", Update(errands=(profile,))), 2) == []
    (session,) = faro.border.of("anna")
    assert [*session.subscriptions] == [Y]


# The digest


def test_the_digest_is_of_the_content():
    """In any order; of subscriptions, their terms, and advertisements, each for itself."""
    assert digest([X, Y]) == digest([Y, X]) == digest({X: None, Y: None})
    different = [
        digest([]),
        digest([X]),
        digest([Y]),
        digest([X, Y]),
        digest([], [X]),
        digest([X], [X]),
        digest({X: LAST}),
        digest({X: Terms(last=2)}),
        digest({X: Terms()}),
    ]
    assert len({*different}) == len(different)
    assert all(0 < one <= 2**56 for one in different)


def test_the_digest_is_the_same_in_every_process():
    assert digest([X, Y], [X]) == 42395140014501400


# In a world


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home"])
def test_many_move_at_the_same_time(relocation):
    world = World(seed=1, relocation=relocation, digest_from=0)
    world.add_brokers(topology.balanced(3, 2))
    brokers = list(world.brokers)
    for i, broker in enumerate(brokers):
        world.add_client(f"p{i}", broker).advertise(f"topic = {i % 4}")
    clients = [world.add_client(f"c{i}", brokers[i % len(brokers)]) for i in range(40)]
    for i, client in enumerate(clients):
        client.subscribe(f"topic = {i % 4}")
    world.settle()
    asked = []
    world.watchers.append(
        lambda _, __, message: asked.extend(
            one for one in getattr(message, "errands", ()) if isinstance(one, Ask)
        )
    )
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
    assert bool(asked) == (relocation != "home")
    for host in world.brokers.values():
        assert host.core.profiles.asking == {}
    world.outlive()
    assert list(check_outlived(world)) == []


def test_a_publisher_that_leaves_meanwhile_has_said_everything():
    """Faro does not know his filters yet when his connection ends."""
    net = roads(name="tom")
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.detach("tom", leave=True)
    net.settle()
    net.go()
    assert net.got("anna") == xs(1)


def test_a_goodbye_for_good_meanwhile():
    net = roads()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.detach("anna", leave=True)
    net.settle()
    net.go()
    assert homes(net) == []
    assert_tidy(net)
