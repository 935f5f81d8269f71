"""Hand-offs in which something is lost between two notifications that come: the oracle looks where the gaps are.

porto - lisbon - faro: tom publishes at porto, where anna was, and she moves to faro. Bert is there, and wants what is odd.
So faro may get the odd ones before it can get what only anna wants.
"""

from itertools import groupby

from wayfare.core.history import Limits
from wayfare.sim import Rollback, World, check
from wayfare.sim.faults import Cut
from wayfare.sim.links import MS_NS, SECOND_NS

CUT = Cut("porto", "lisbon", 0, None)


def world(**limits):
    net = World(seed=1, limits=Limits(**limits))
    net.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    net.add_client("tom", "porto").advertise("x > 0")
    net.add_client("anna", "porto").subscribe("x > 0")
    net.add_client("bert", "faro").subscribe("x > 0 and odd = 1")
    net.run_until(10 * SECOND_NS)
    return net


def publish(net, *numbers):
    for x in numbers:
        net.client("tom").publish({"x": x, "odd": x % 2})


def stream(net):
    """What anna was told: numbers of notifications, and gaps; those in a row are one."""
    kinds = ("delivered", "lost", "settled")
    told = [one for one in net.events if one.client == "anna" and one.kind in kinds]
    words = {"lost": "gap", "settled": "settled"}
    return [key for key, _ in groupby(words.get(one.kind) or one.number for one in told)]


def test_without_a_session_anything_may_be_missing_between_what_came_before_the_answer():
    net = world(away_ns=SECOND_NS)
    net.client("anna").detach()
    net.run_until(net.now + 2 * SECOND_NS)
    net.client("anna").attach("faro")
    net.run_until(net.now + 3 * MS_NS)
    publish(net, 1, 2, 3)  # before the request is there
    net.settle()
    assert stream(net) == ["gap", 1, "gap", 3, "gap"]
    assert check(net).violations == ()


def test_what_a_late_reply_brings_out_of_order_is_reported_behind_what_overtook_it():
    """2 is in porto's reply, behind 3. Nobody at faro can know of it before."""
    net = world(answer_ns=SECOND_NS)
    net.cut(CUT)
    net.client("anna").attach("faro")
    net.run_until(net.now + 2 * SECOND_NS)
    publish(net, 1, 2, 3)
    net.heal(CUT)
    net.settle()
    assert stream(net) == ["gap", 1, 3, "settled"]
    assert check(net).violations == ()


def test_the_oracle_demands_the_report_of_what_a_late_reply_brings_out_of_order():
    net = world(answer_ns=SECOND_NS)
    net.cut(CUT)
    net.client("anna").attach("faro")
    net.run_until(net.now + 2 * SECOND_NS)
    publish(net, 1, 2, 3)
    net.heal(CUT)
    net.broker("faro").core.relocation._take_late = lambda *_, **__: []
    net.settle()
    assert stream(net) == ["gap", 1, 3]
    found = [one.what for one in check(net).violations if one.rule == "complete"]
    assert found == ["anna did not get tom 2 (no gap is at its place)"]


def test_a_loss_is_reported_between_older_news_of_a_new_subscription():
    """Porto drops what is even; at faro anna subscribes to what is odd as well, which porto never had for her."""
    net = World(seed=1, limits=Limits(backlog_count=2))
    net.add_brokers([("porto", "faro")])
    for name in ("tom", "gas"):
        net.add_client(name, "porto").advertise("x > 0")
    net.add_client("anna", "porto").subscribe("odd = 0")
    net.add_client("bert", "faro").subscribe("x > 0")
    net.run_until(SECOND_NS)
    net.client("anna").detach()
    net.run_until(net.now + SECOND_NS)
    net.client("anna").subscribe("odd = 1")
    net.client("anna").attach("faro")
    publish(net, 1, 2, 3, 4)
    for _ in range(2):
        net.client("gas").publish({"x": 1, "odd": 0})
    net.settle()
    of_tom = [one for one in net.events if one.client == "anna" and one.publisher in (None, "tom")]
    told = [one.number or "gap" for one in of_tom if one.kind in ("delivered", "lost")]
    assert told == ["gap", 1, "gap", 3, "gap"]
    assert check(net).violations == ()


def test_without_a_session_anything_may_be_missing_between_what_is_remembered_of_the_past():
    """Porto lost its store: what is even is lost with anna's session, what is odd is of the past that she asks for."""
    net = World(seed=1, limits=Limits(past_count=50))
    net.add_brokers([], alone="porto")
    net.add_client("tom", "porto").advertise("x > 0")
    net.add_client("anna", "porto").subscribe("odd = 0")
    net.run_until(SECOND_NS)
    net.client("anna").detach()
    net.roll_back(Rollback("porto", None, net.now, 10 * MS_NS))
    net.run_until(net.now + SECOND_NS)
    publish(net, 1, 2, 3, 4)
    net.run_until(net.now + SECOND_NS)
    net.client("anna").attach("porto")
    net.client("anna").subscribe("odd = 1", None, SECOND_NS)
    net.settle()
    assert stream(net) == ["gap", 1, "gap", 3, "gap"]
    assert check(net).violations == ()
