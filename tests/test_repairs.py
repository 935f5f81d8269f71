"""Repairs of tables: the gaps that answer them go to those who may have missed something, and to nobody else."""

import pytest

from wayfare.core.broker import Broker
from wayfare.core.effects import LinkUp, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.messages import Announce, Attach, Entry, Gap, Update
from wayfare.core.repairs import EVERYBODY, ORIGINS_MAX, REPAIRS_MAX, Origins, Repairs
from wayfare.sim import World
from wayfare.sim.faults import Rollback
from wayfare.sim.links import MS_NS, SECOND_NS

X = Filter.parse("x > 0")
ROUTINGS = ["simple", "identity", "covering", "merging"]


def reports(net, client):
    return [one.reason for one in net.events if one.kind == "lost" and one.client == client]


def forge(net, name, broker):
    """A client that claims to have been welcomed at a broker that never heard of it."""
    eve = net.add_client(name, broker)
    eve.disconnect()
    eve.core.epoch, eve.core.previous, eve.core.welcomed = 7, ((broker, 7),), True
    return eve


@pytest.mark.parametrize("routing", ROUTINGS)
def test_forged_attachments_report_no_gap_to_bystanders(routing):
    """a - b - c: eve attaches at b twenty times; anna at a, bert at b and carl at c missed nothing."""
    net = World(seed=1, routing=routing)
    net.add_brokers([("a", "b"), ("b", "c")])
    for name, broker in (("anna", "a"), ("bert", "b"), ("carl", "c")):
        net.add_client(name, broker).subscribe("x > 1000")
    for name, broker in (("tom", "c"), ("tim", "a")):
        net.add_client(name, broker).advertise("x > 0")
    net.run_until(SECOND_NS)
    for number in range(20):
        eve = forge(net, f"eve{number}", "b")
        eve.subscribe(f"x > {900 - number}")
        eve.attach("b")
        net.run_until(net.now + 100 * MS_NS)
        assert len(reports(net, f"eve{number}")) > 1, (
            "no repair was answered, so this shows nothing"
        )
    net.settle()
    assert [reports(net, name) for name in ("anna", "bert", "carl")] == [[], [], []]


def returning(routing="covering"):
    """k - m - a - b and a - c: b lost its store while bert was away, and bert is back at b.

    For others, what has a y crosses the tree all the time.
    """
    net = World(seed=1, routing=routing)
    net.add_brokers([("k", "m"), ("m", "a"), ("a", "b"), ("a", "c")])
    net.add_client("tom", "k").advertise("x > 0")
    for name, broker in (("yan", "c"), ("yin", "b")):
        net.add_client(name, broker).subscribe("x > 0 and y > 0")
    bert = net.add_client("bert", "b")
    bert.subscribe("x > 0")
    net.run_until(SECOND_NS)
    bert.disconnect()
    net.roll_back(Rollback("b", None, net.now, 10 * MS_NS))
    net.run_until(net.now + SECOND_NS)
    bert.attach("b")
    return net


def publish(net, numbers):
    for x in numbers:
        net.client("tom").publish({"x": x, "y": 1} if x % 3 == 0 else {"x": x})
        net.run_until(net.now + 2 * MS_NS)


def silent(net, client, published):
    """What the client misses without any gap behind the notifications before it."""
    stream = [
        (one.kind, one.number or 0)
        for one in net.events
        if one.client == client and one.kind in ("delivered", "lost")
    ]
    last_gap = max(at for at, (kind, _) in enumerate(stream) if kind == "lost")
    behind = [number for kind, number in stream[last_gap:] if kind == "delivered"]
    return sorted({*range(behind[0], published + 1)} - {*behind})


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("to", ["b", "c", "m", "k"])
def test_the_answer_to_a_repair_follows_its_session(routing, to):
    """Bert subscribes to something else at once, so his session is handed over, and moves on.

    The gap may come behind notifications that others get at the new broker, but it has to come.
    """
    net = returning(routing)
    publish(net, [1, 2, 3])
    net.client("bert").subscribe("q > 0")
    publish(net, range(4, 10))
    net.client("bert").attach(to)
    publish(net, range(10, 80))
    net.settle()
    assert silent(net, "bert", published=79) == []


def link_up(name, neighbours):
    broker = Broker(name, neighbours)
    for one in neighbours:
        broker.step(LinkUp(one), 1)
        broker.step(Received(one, Announce((one,))), 2)
        broker.step(Received(one, Update(add_ads=(Entry(X),))), 3)
    return broker


def repairing(*sessions):
    """A broker between a and c, at which these forgotten clients attach; and what each repair is called."""
    broker, numbers = link_up("b", ["a", "c"]), []
    for number, client in enumerate(sessions):
        filters = (Filter.parse(f"x > {100 - number}"),)
        attach = Attach(client, 3, 0, filters, (), (("b", 2),), True)
        effects = broker.step(Received(f"{client}#3", attach), 4)
        updates = [one for one in effects if is_update(one)]
        assert [one.link for one in updates] == ["a", "c"]
        assert all(one.message.repairs for one in updates)
        numbers.append(updates[0].message.repair)
    return broker, numbers


def is_update(effect):
    return type(effect) is Send and type(effect.message) is Update


def told(broker, number, link="a"):
    """To which connections a gap goes on that comes from a with this number, and with which ones."""
    effects = broker.step(Received(link, Gap(number, "lost", exact=False)), 9)
    return [(one.link, one.message.number) for one in effects]


def loaded(broker):
    again = Broker("b", ["a", "c"])
    again.load(broker.save())
    return again


@pytest.mark.parametrize("change", [lambda broker: broker, loaded])
def test_the_answer_goes_to_the_session_that_was_repaired(change):
    broker, (annas, berts) = repairing("anna", "bert")
    broker = change(broker)
    assert annas != berts
    assert told(broker, annas) == [("anna#3", 2)]
    assert told(broker, berts, "c") == [("bert#3", 2)]


def test_the_answer_goes_to_the_neighbour_whose_repair_it_follows_from():
    broker, _ = repairing("anna")
    repair = Update(add_subs=(Entry(Filter.parse("x > 5")),), repairs=True, repair=77)
    effects = broker.step(Received("c", repair), 5)
    gap, update = [one for one in effects if type(one) is Send]
    assert (gap.link, gap.message.number) == ("c", 77)
    assert (update.link, update.message.repairs) == ("a", True)
    assert told(broker, update.message.repair) == [("c", 77)]


@pytest.mark.parametrize("number", [EVERYBODY, 99], ids=["everybody", "forgotten"])
def test_another_answer_goes_to_everybody(number):
    broker, _ = repairing("anna", "bert")
    assert told(broker, number) == [("c", EVERYBODY), ("anna#3", 2), ("bert#3", 2)]


def test_the_repair_of_an_older_release_is_answered_for_everybody():
    broker, _ = repairing("anna")
    repair = Update(add_subs=(Entry(Filter.parse("x > 5")),), repairs=True)
    gap, update = [one for one in broker.step(Received("c", repair), 5) if type(one) is Send]
    assert gap.message.number == EVERYBODY
    assert told(broker, update.message.repair) == [("c", EVERYBODY)]


def test_a_neighbour_that_knows_nothing_any_more_gets_no_number():
    broker, _ = repairing("anna")
    repair = Update(add_subs=(Entry(Filter.parse("x > 5")),), repairs=True, repair=77)
    update = broker.step(Received("c", repair), 5)[-1].message
    broker.step(LinkUp("c"), 6)
    assert told(broker, update.repair) == [("c", EVERYBODY)]


def test_repairs_that_leave_together_have_the_origins_of_both():
    repairs = Repairs()
    for number, client in enumerate("ab", 2):
        repairs.mark(["n"], repairs.begin(Origins(sessions=((client, number),))))
    assert repairs.origins(repairs.pending["n"]) == Origins((("a", 2), ("b", 3)))
    repairs.mark(["n"], EVERYBODY)
    assert repairs.pending == {"n": EVERYBODY}


def test_origins_are_few():
    repairs = Repairs()
    crowd = tuple((f"c{i}", 1) for i in range(ORIGINS_MAX + 1))
    assert repairs.origins(repairs.begin(Origins(sessions=crowd))) is None
    numbers = [repairs.begin(Origins(sessions=(("a", 1),))) for _ in range(REPAIRS_MAX + 1)]
    assert [repairs.origins(one) is None for one in numbers[:2]] == [True, False]


@pytest.mark.parametrize("routing", ["simple", "identity", "covering"])
def test_a_forged_publisher_reports_no_gap_to_those_who_want_nothing_of_it(routing):
    """m - a - b: eve pretends to be back at b, and advertises x; anna at a and mia at m want y, ida and mo x."""
    net = World(seed=1, routing=routing)
    net.add_brokers([("m", "a"), ("a", "b")])
    net.add_client("tim", "b").advertise("topic = 'y'")
    wanted = {"anna": ("a", "y"), "mia": ("m", "y"), "ida": ("a", "x"), "mo": ("m", "x")}
    for name, (broker, topic) in wanted.items():
        net.add_client(name, broker).subscribe(f"topic = '{topic}'")
    net.run_until(SECOND_NS)
    for number in range(20):
        eve = forge(net, f"eve{number}", "b")
        eve.advertise("topic = 'x'")
        eve.attach("b")
        net.run_until(net.now + 100 * MS_NS)
        eve.disconnect()
        net.run_until(net.now + 100 * MS_NS)
    net.settle()
    assert {name for name in wanted if reports(net, name)} == {"ida", "mo"}
