"""Subscriptions to the past: what came by before, as far as the broker remembers and as it is in order."""

import asyncio
import json
import sys

import wayfare
from live import tree
from roads import Roads, lost, publish, xs
from test_net import live, numbers
from wayfare.core.effects import Lost
from wayfare.core.filters import Filter
from wayfare.core.history import FORGOTTEN_PAST, Limits
from wayfare.core.messages import Nullify, Terms

HOUR = 3600 * 10**9


def network(count=100, **limits):
    """Bert was always there; anna comes later, to the same broker."""
    net = Roads("porto-lisbon", "lisbon-faro", limits=Limits(past_count=count, **limits))
    net.subscribe("bert", "x > 0")
    net.advertise("tom", "exists x or exists y")
    net.move("bert", "porto")
    net.move("tom", "faro")
    net.move("anna", "porto")
    return net


def ask(net, text, since_ns=HOUR, terms=None):
    net._perform("anna", net.client("anna").subscribe(Filter.parse(text), terms, since_ns))
    net.settle()


def test_first_the_past_then_what_comes():
    net = network()
    publish(net, 1, 2)
    ask(net, "x > 0")
    publish(net, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []


def test_only_what_matches_and_is_young_enough():
    net = network()
    publish(net, 1, 5)
    net.pass_time(10**9)
    publish(net, 2, 6)
    ask(net, "x > 3", since_ns=10**9 // 2)
    assert net.got("anna") == xs(6)


def test_terms_say_how_much_of_the_past_is_wanted():
    net = network()
    publish(net, 1, 2, 3, 4)
    ask(net, "x > 0", terms=Terms(last=2))
    publish(net, 5, 6)
    assert net.got("anna") == xs(3, 4, 5, 6)
    assert lost(net) == []


def test_the_past_is_complete_if_it_has_as_many_as_are_wanted():
    """The broker has forgotten the first two, which are not wanted."""
    net = network(count=2)
    publish(net, 1, 2, 3, 4)
    ask(net, "x > 0", terms=Terms(last=2))
    assert net.got("anna") == xs(3, 4)
    assert lost(net) == []
    net = network(count=2)
    publish(net, 1, 2, 3, 4)
    ask(net, "x > 0", terms=Terms(last=3))
    assert [one.reason for one in lost(net)] == [FORGOTTEN_PAST]


def test_the_past_has_nothing_that_is_nullified():
    net = network()
    publish(net, 1, 2, 3, 4)
    ask(net, "x > 0", terms=Terms(nullify=Nullify(Filter.parse("x = 3"))))
    publish(net, 5, 3)
    assert net.got("anna") == xs(4, 5, 3)
    assert lost(net) == []


def test_nothing_comes_twice_and_nothing_out_of_order():
    net = network()
    net.subscribe("anna", "x = 2")
    net.settle()
    publish(net, 1, 2, 3)
    ask(net, "x > 0")
    publish(net, 4)
    assert net.got("anna") == xs(2, 3, 4)  # 1 is older than 2, which she has


def test_who_asks_while_away_gets_it_on_arrival():
    net = network()
    net.cut("anna")
    publish(net, 1)
    ask(net, "x > 0")
    net.move("anna", "porto")
    publish(net, 2)
    assert net.got("anna") == xs(1, 2)


def test_who_asks_while_its_session_is_on_its_way_gets_it_in_order():
    net = network()
    net.subscribe("cora", "x > 0")
    net.move("cora", "faro")
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 1)
    ask(net, "x > 0")
    publish(net, 2)
    net.go()
    assert net.got("anna") == xs(1, 2)


def test_who_asks_for_more_than_there_is_is_told():
    net = network(count=2)
    publish(net, 1, 2, 3)
    ask(net, "x > 0")
    assert net.got("anna") == xs(2, 3)
    assert lost(net) == [Lost(0, FORGOTTEN_PAST)]


def test_a_broker_that_remembers_nothing_says_so():
    net = network(count=0)
    publish(net, 1)
    ask(net, "x > 0")
    assert net.got("anna") == []
    assert lost(net) == [Lost(0, FORGOTTEN_PAST)]


def test_bytes_are_a_limit_as_well():
    net = network(past_bytes=100)
    publish(net, *range(1, 11))
    assert len(net.brokers["porto"].border.past.kept) < 5
    assert net.brokers["porto"].border.past.bytes <= 100


@live
async def test_live():
    limits = Limits(past_count=100)
    async with (
        tree("porto-lisbon", limits=limits) as net,
        wayfare.connect(net.url("porto"), client_id="bert") as bert,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
        bert.subscribe("x > 0") as all,
    ):
        await tom.advertise("x > 0")
        for x in (1, 2):
            await tom.publish({"x": x})
        assert await numbers(all, 2) == [1, 2]
        async with bert.subscribe("x > 0"), wayfare.connect(net.url("porto")) as anna:
            assert await numbers(anna.subscribe("x > 1", since=60), 1) == [2]


@live
async def test_live_from_the_publishers_broker():
    """Nobody wanted it before; the subscriber is a process of the shell."""
    async with (
        tree("porto-lisbon", limits=Limits(past_count=100)) as net,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        for x in (1, 2):
            await tom.publish({"x": x})
        wanted = (net.url("porto"), "x > 0", "--since", "60", "-C", "2", "--json")
        command = (sys.executable, "-m", "wayfare", "sub", *wanted)
        shell = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        shown, _ = await shell.communicate()
        assert shell.returncode == 0
        assert [json.loads(line)["attributes"] for line in shown.splitlines()] == xs(1, 2)
