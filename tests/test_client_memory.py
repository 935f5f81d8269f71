"""A client whose process ends, and the next one of its name, which goes on where that one was."""

from random import Random

import pytest

from roads import Roads
from wayfare.core.client import ACK_DELAY_NS, Client
from wayfare.core.effects import Notify
from wayfare.core.messages import Publish
from wayfare.errors import StoreError
from wayfare.net.client_store import ClientStore


class Restarted(Roads):
    """Anna's process may be killed: what she had in hand is not done."""

    def start(self, store=None):
        self.clients["anna"] = anna = Client("anna", confirms=True)
        self.told["anna"] = []
        if store is not None:
            anna.remember(*store)

    def store(self):
        """What a host writes down in every turn."""
        anna = self.clients["anna"]
        heard = {"tom", "una"}
        return (
            anna.memory(),
            anna.held(),
            list(anna.outbox),
            {who: anna.progress(who) for who in heard},
        )

    def kill(self):
        store = self.store()
        if self.clients["anna"].link is not None:
            self.cut("anna")
        self.start(store)

    def done(self, publisher, number):
        self._perform("anna", self.clients["anna"].confirm(publisher, number, self.now))


def network():
    net = Restarted("porto-lisbon", "lisbon-faro")
    net.start()
    net.subscribe("anna", "x > 0")
    net.subscribe("anna", "y > 0")
    for who in ("tom", "una"):
        net.advertise(who, "exists x or exists y")
        net.attach(who, "lisbon")
    net.attach("anna", "porto")
    net.settle()
    return net


def in_hand(net):
    return [(publisher, number) for publisher, number, _ in net.clients["anna"]._hand]


def test_what_is_in_hand_comes_again_and_what_is_done_does_not():
    net = network()
    for x in (1, 2, 3):
        net.publish("tom", x=x)
    net.settle()
    assert in_hand(net) == [("tom", 1), ("tom", 2), ("tom", 3)]
    net.done("tom", 1)
    net.kill()
    net.move("anna", "porto")
    assert net.got("anna") == [{"x": 2}, {"x": 3}]


@pytest.mark.parametrize("there", ["porto", "faro"])
def test_what_was_in_hand_when_a_connection_broke_is_not_lost_with_the_process(there):
    """The next attachment must not say that it was done; and the application gets it once."""
    net = network()
    for x in (1, 2, 3):
        net.publish("tom", x=x)
    net.settle()
    net.cut("anna")
    net.move("anna", there)
    assert net.got("anna") == [{"x": 1}, {"x": 2}, {"x": 3}]
    net.done("tom", 1)
    net.kill()
    net.move("anna", there)
    assert net.got("anna") == [{"x": 2}, {"x": 3}]


def test_what_is_done_before_it_comes_again_is_done():
    net = network()
    for x in (1, 2):
        net.publish("tom", x=x)
    net.settle()
    net.cut("anna")
    net.done("tom", 1)
    net.attach("anna", "porto")
    net.done("tom", 2)
    net.settle()
    assert net.got("anna") == [{"x": 1}, {"x": 2}]
    net.pass_time(2 * ACK_DELAY_NS)
    net.settle()
    assert net.brokers["porto"].border.of("anna")[0].backlog.acked == 2


def test_what_was_done_out_of_order_does_not_come_again():
    net = network()
    net.publish("tom", x=1)
    net.publish("tom", y=2)
    net.publish("una", y=3)
    net.publish("tom", x=4)
    net.settle()
    _, second, third, _ = in_hand(net)
    net.done(*second)
    net.done(*third)
    net.kill()
    net.move("anna", "faro")
    assert net.got("anna") == [{"x": 1}, {"x": 4}]


def test_only_what_is_done_is_acknowledged():
    net = network()
    for x in range(1, 6):
        net.publish("tom", x=x)
    net.settle()
    net.done("tom", 2)
    net.pass_time(2 * ACK_DELAY_NS)
    net.settle()
    assert net.brokers["porto"].border.of("anna")[0].backlog.acked == 0
    net.done("tom", 1)
    net.pass_time(2 * ACK_DELAY_NS)
    net.settle()
    assert net.brokers["porto"].border.of("anna")[0].backlog.acked == 2


@pytest.mark.parametrize("seed", range(40))
def test_killed_at_any_time_she_gets_everything_once_but_what_was_in_hand(seed):
    random = Random(seed)
    net = network()
    done, published = [], {"tom": 0, "una": 0}
    for _ in range(120):
        act = random.choice(("publish", "publish", "done", "done", "step", "step", "kill", "move"))
        if act == "publish":
            who = random.choice(("tom", "una"))
            published[who] += 1
            net.publish(who, **{random.choice("xy"): published[who]})
        elif act == "done" and in_hand(net):
            one = random.choice(in_hand(net)[:3])
            done.append(one)
            net.done(*one)
        elif act == "step" and net.moving():
            net._arrive(random.choice(net.moving()))
        elif act == "kill" and random.random() < 0.4:
            net.kill()
        elif act == "move":
            net.attach("anna", random.choice(("porto", "lisbon", "faro")))
    net.kill()
    net.move("anna", "faro")
    while hand := in_hand(net):
        for one in hand:
            done.append(one)
            net.done(*one)
        net.settle()
    everything = [(who, n) for who, count in published.items() for n in range(1, count + 1)]
    assert sorted(done) == sorted(everything)


def test_within_one_process_each_publisher_is_in_order():
    net = network()
    for x in range(1, 10):
        net.publish("tom", x=x)
    net.settle()
    numbers = [one.notification.number for one in net.told["anna"] if isinstance(one, Notify)]
    assert numbers == sorted(numbers)


def test_a_store_gives_back_what_it_was_given(tmp_path):
    store = ClientStore(tmp_path / "anna.db", "disk", "anna")
    assert store.load() is None
    net = network()
    memory, held = net.clients["anna"].memory(), net.clients["anna"].held()
    first, second = Publish(1, {"x": 1}, b"!"), Publish(2, {"x": 2})
    store.keep(memory, held, [first, second], 0, {"tom": (5, [7, 9])})
    store.keep(memory, None, [], 1, {"una": (1, [])})
    store.close()
    again = ClientStore(tmp_path / "anna.db", "disk", "anna")
    assert again.load() == (memory, held, [second], {"tom": (5, [7, 9]), "una": (1, [])})
    again.close()
    with pytest.raises(StoreError, match="is the memory of anna, and this is bert"):
        ClientStore(tmp_path / "anna.db", "disk", "bert")
