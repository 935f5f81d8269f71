"""Publishers that move, as published: what each algorithm advertises where, and when."""

import pytest

from pair import Network
from roads import Roads
from wayfare.core.broker import Broker
from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Announce, Attach
from wayfare.core.publishers import Forecast

TREE = ("porto-lisbon", "lisbon-faro", "lisbon-braga")
SECOND = 1_000_000_000
X = Filter.parse("x > 0")


class City(Roads):
    """Brokers that know where publishers go (always to faro), and their proxies (porto, faro)."""

    def __init__(self, relocation, **more):
        super().__init__(*TREE, relocation=relocation, **more)
        forecast = Forecast(lambda _client, _broker: "faro", lambda _home: ("porto", "faro"))
        for core in self.brokers.values():
            core.relocation.forecast = forecast


def advertising(net: Network, name: str = "pia") -> list[str]:
    """Where somebody advertises for the publisher."""
    return [
        broker
        for broker, core in net.brokers.items()
        if any(session.advertisements for session in core.border.of(name))
    ]


def city(relocation, **more):
    net = City(relocation, **more)
    net.advertise("pia", "x > 0")
    net.attach("pia", "porto")
    net.settle()
    return net


def gone(net):
    net.cut("pia")
    net.settle()


def test_standard_unadvertises_at_once():
    net = city("standard")
    gone(net)
    assert advertising(net) == []
    net.move("pia", "faro")
    assert advertising(net) == ["faro"]


def test_prefetching_advertises_where_the_publisher_will_be():
    net = city("prefetching")
    gone(net)
    assert advertising(net) == ["faro"]
    before = net.brokers["lisbon"].routing.in_ads
    net.move("pia", "faro")
    assert advertising(net) == ["faro"]
    assert net.brokers["lisbon"].routing.in_ads == before


def test_a_wrong_prediction_does_not_last():
    net = city("prefetching", limits=Limits(prepared_ns=SECOND))
    gone(net)
    net.move("pia", "braga")
    net.pass_time(SECOND)
    net.settle()
    assert advertising(net) == ["braga"]


def test_delayed_advertises_a_while_longer():
    net = city("delayed")
    gone(net)
    assert advertising(net) == ["porto"]
    net.move("pia", "faro")
    assert sorted(advertising(net)) == ["faro", "porto"]
    net.pass_time(10 * SECOND - 1)
    assert sorted(advertising(net)) == ["faro", "porto"]
    net.pass_time(1)
    net.settle()
    assert advertising(net) == ["faro"]


def test_delayed_and_prefetching_together():
    net = city("prefetching+delayed")
    gone(net)
    assert sorted(advertising(net)) == ["faro", "porto"]
    net.move("pia", "faro")
    net.pass_time(10 * SECOND)
    net.settle()
    assert advertising(net) == ["faro"]


def test_there_and_back_a_prepared_tree_lasts_from_the_last_time_on():
    """Faro still advertises from her last stay when porto tells it to: from then on it counts."""
    net = city("prefetching+delayed")
    net.move("pia", "faro")
    net.pass_time(4 * SECOND)
    net.move("pia", "porto")
    net.notice("faro", "pia/2")
    net.pass_time(8 * SECOND)
    gone(net)
    net.pass_time(3 * SECOND)
    assert "faro" in advertising(net)


def test_proxies_advertise_all_the_time():
    net = city("proxy")
    assert sorted(advertising(net)) == ["faro", "porto"]
    gone(net)
    net.pass_time(3600 * SECOND)
    net.settle()
    assert sorted(advertising(net)) == ["faro", "porto"]
    net.move("pia", "braga")
    assert sorted(advertising(net)) == ["braga", "faro", "porto"]
    gone(net)
    assert sorted(advertising(net)) == ["faro", "porto"]


def test_proxies_learn_what_is_advertised_later():
    net = city("proxy")
    net.advertise("pia", "y > 0")
    net.settle()
    (session,) = net.brokers["faro"].border.of("pia")
    assert len(session.advertisements) == 2


@pytest.mark.parametrize("relocation", ["prefetching", "proxy", "delayed", "prefetching+delayed"])
def test_who_leaves_for_good_is_advertised_nowhere(relocation):
    net = city(relocation)
    net.detach("pia", leave=True)
    net.settle()
    assert advertising(net) == []


def test_advertisements_that_come_with_an_attachment_count():
    faro = Broker(
        "faro", ["lisbon"], relocation="proxy", forecast=Forecast(proxies=lambda _: ("lisbon",))
    )
    faro.step(Received("lisbon", Announce(("lisbon",))), 0)
    effects = faro.step(Received("pia/1", Attach("pia", 1, 0, (), (X,), home="faro")), 0)
    errands = [e for one in effects for e in getattr(one.message, "errands", ())]
    assert [(one.broker, one.advertisements) for one in errands] == [("lisbon", (X,))]
