"""Requests and replies: the state machine, in the simulator, and on sockets."""

import asyncio
import json

import pytest

import wayfare
import wayfare.sync
from live import tree
from test_bursts import chain
from test_client_api import live
from test_live_cli import program
from test_live_cli import wayfare as command
from wayfare.core import messages as m
from wayfare.core import requests as r
from wayfare.core.filters import Filter
from wayfare.core.requests import Answered, Ask, Listen, Requests
from wayfare.core.reserved import INBOX, REPLY_TO, REQUEST, is_address
from wayfare.errors import (
    InvalidNotification,
    NoReply,
    NoResponders,
    NotAdvertised,
    OutboxFull,
    UsageError,
)
from wayfare.sim import World, check
from wayfare.sim.asking import check_requests
from wayfare.sim.links import MS_NS
from wayfare.testing import Tree

LINE = ("porto-lisbon", "faro-lisbon")
PARKING = "service = 'parking'"
QUESTION = {"service": "parking", "place": "A1"}


# The state machine


def reply(request, attributes, publisher="garage", number=1, payload=b""):
    return m.Notification(
        publisher, number, {INBOX: "i", REQUEST: request}, r.packed(attributes, payload)
    )


def ask(request, attributes=QUESTION, payload=b""):
    return Ask(request, {**attributes, REPLY_TO: "i", REQUEST: request}, payload)


def listening():
    machine = Requests("i")
    machine.begin(QUESTION, b"", 1, 0)
    machine.on_listening(confirmed=True)
    machine.expire(1)
    return machine


def test_the_first_request_waits_until_its_reply_address_is_in_effect():
    machine = Requests("i")
    assert machine.begin(QUESTION, b"", 100, 0) == (1, [Listen(Filter.parse("$inbox = 'i'"))])
    assert machine.begin(QUESTION, b"!", 100, 0) == (2, [])
    assert machine.on_listening(confirmed=True) == [ask(1), ask(2, payload=b"!")]
    assert machine.begin(QUESTION, b"", 100, 0) == (3, [ask(3)])


def test_the_first_reply_is_the_answer_and_others_are_dropped_and_counted():
    machine = listening()
    number, _ = machine.begin(QUESTION, b"", 100, 0)
    (answer,) = machine.on_reply(reply(number, {"free": 3}, payload=b"!"), 50)
    assert answer == Answered(number, m.Notification("garage", 1, {"free": 3}, b"!"))
    assert machine.on_reply(reply(number, {"free": 4}), 60) == []
    assert machine.dropped == 1
    assert (machine.pending, machine.next_deadline()) == ({}, None)


def test_several_replies_until_the_time_is_over():
    machine = listening()
    number, _ = machine.begin(QUESTION, b"", 100, 0, many=True)
    for free in (1, 2):
        (answer,) = machine.on_reply(reply(number, {"free": free}), 50)
        assert answer.reply.attributes == {"free": free}
    assert machine.next_deadline() == 100
    assert machine.expire(99) == []
    assert machine.on_reply(reply(number, {"free": 3}), 100) == [], "it is too late"
    assert machine.expire(100) == [Answered(number, None, r.NO_ANSWER)]
    assert machine.on_reply(reply(number, {"free": 4}), 101) == []
    assert machine.dropped == 2


def test_what_could_not_be_sent_says_so():
    machine = Requests("i")
    machine.begin(QUESTION, b"", 100, 0)
    assert machine.expire(100) == [Answered(1, None, r.NOT_SENT)]
    assert machine.on_listening(confirmed=True) == [], "nobody waits for it any more"


def test_deadlines_of_answered_requests_are_cleared_away():
    machine = Requests("inbox")
    last, _ = machine.begin({"x": 1}, b"", 500, 0)
    for _ in range(1_000):
        number, _ = machine.begin({"x": 1}, b"", 1_000, 0)
        machine.forget(number)
        assert machine.next_deadline() == 500
    assert len(machine._deadlines) < 100
    assert machine.expire(500) == [Answered(last, None, r.NOT_SENT)]
    assert machine.next_deadline() is None


def test_nobody_subscribes_to_it():
    machine = listening()
    number, _ = machine.begin(QUESTION, b"", 100, 0)
    machine.on_published(number, 7)
    assert machine.on_no_responders(6) == []
    assert machine.on_no_responders(7) == [Answered(number, None, r.NO_RESPONDERS)]
    assert machine.on_no_responders(7) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"\x92\x80",
        b"\x92\x81\xa1x\xc0\xc4\x00",
        b"\x92\x81\xa3\xed\xa0\x80\x01\xc4\x00",
    ],
    ids=["nothing", "no array", "cut", "null", "half of a pair"],
)
def test_a_reply_that_is_none_is_dropped(payload):
    machine = listening()
    number, _ = machine.begin(QUESTION, b"", 100, 0)
    hostile = m.Notification("eve", 1, {INBOX: "i", REQUEST: number}, payload)
    assert machine.on_reply(hostile, 1) == []
    assert machine.dropped == 1 and number in machine.pending


def test_requests_have_a_limit(monkeypatch):
    monkeypatch.setattr(r, "PENDING_MAX", 2)
    machine = Requests("i")
    for _ in range(2):
        machine.begin(QUESTION, b"", 100, 0)
    with pytest.raises(OutboxFull, match="2 requests wait"):
        machine.begin(QUESTION, b"", 100, 0)


# In the simulator


@pytest.fixture
def world():
    one = World(seed=1)
    one.add_brokers([("porto", "lisbon"), ("lisbon", "faro"), ("lisbon", "evora")])
    return one


def responder(world, broker="faro", name="garage"):
    one = world.add_client(name, broker)
    one.subscribe(PARKING)
    one.confirm()
    return one


def requester(world, broker="porto"):
    one = world.add_client("anna", broker)
    one.advertise(PARKING)
    return one


def free_of(client):
    return [one.reply.attributes["free"] for _, one in client.answers if one.reply]


def test_a_reply_finds_a_requester_that_has_moved_meanwhile(world):
    garage, anna = responder(world), requester(world)
    world.settle()
    anna.request(QUESTION, timeout_ns=60_000 * MS_NS)
    world.run_until(world.now + 200 * MS_NS)
    (request,) = [one.notification for one in garage.received]
    anna.disconnect()
    garage.reply(request, {"free": 3})
    world.run_until(world.now + 200 * MS_NS)
    assert anna.answers == []
    anna.attach("evora")
    world.settle()
    assert free_of(anna) == [3]
    assert check(world).violations == ()


def test_several_responders_and_one_that_answers_too_late(world):
    some = [responder(world, "faro"), responder(world, "evora", "dock")]
    anna = requester(world)
    world.settle()
    anna.request(QUESTION, timeout_ns=300 * MS_NS, many=True)
    world.run_until(world.now + 200 * MS_NS)
    for free, one in enumerate(some):
        one.reply(one.received[0].notification, {"free": free})
    world.run_until(world.now + 200 * MS_NS)
    some[0].reply(some[0].received[0].notification, {"free": 9})
    world.settle()
    assert sorted(free_of(anna)) == [0, 1]
    assert anna.answers[-1][1].reason == r.NO_ANSWER
    assert anna.requests.dropped == 1
    assert check(world).violations == ()


@pytest.mark.parametrize("routing", ["covering", "simple", "identity", "merging"])
def test_no_responders_comes_at_once_when_the_tables_have_settled(routing):
    world = World(seed=1, routing=routing)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    anna, other = requester(world), world.add_client("other", "faro")
    other.subscribe("service = 'parking' and place = 'B2'")
    world.settle()
    anna.request(QUESTION, timeout_ns=60_000 * MS_NS)
    world.run_until(world.now + 500 * MS_NS)
    assert [one.reason for _, one in anna.answers] == [r.NO_RESPONDERS]
    world.settle()
    assert check(world).violations == ()


def test_somebody_who_is_away_is_a_responder(world):
    garage, anna = responder(world, "porto"), requester(world)
    world.settle()
    garage.detach()
    world.settle()
    anna.request(QUESTION, timeout_ns=100 * MS_NS)
    world.settle()
    assert [one.reason for _, one in anna.answers] == [r.NO_ANSWER]


def test_ordinary_subscriptions_do_not_get_replies(world):
    garage, anna = responder(world), requester(world)
    curious = world.add_client("curious", "evora")
    curious.subscribe("free > 0")
    world.settle()
    anna.request(QUESTION)
    world.run_until(world.now + 200 * MS_NS)
    garage.reply(garage.received[0].notification, {"free": 3})
    world.settle()
    assert free_of(anna) == [3] and curious.received == []


def test_the_oracle_sees_a_reply_that_is_not_given_and_one_that_is_given_twice(world):
    garage, anna = responder(world), requester(world)
    world.settle()
    anna.request(QUESTION)
    world.run_until(world.now + 200 * MS_NS)
    garage.reply(garage.received[0].notification, {"free": 3})
    world.settle()
    assert check(world).violations == ()

    def rules():
        return [one.rule for one in check_requests(world.clients, world.events, lambda *_: True)]

    (answer,) = anna.answers
    anna.answers.clear()
    assert rules() == ["request", "request"], "it got nothing, and was told nothing"
    anna.answers += [answer, answer]
    assert rules() == ["request"]
    anna.answers[:] = [(0, Answered(1, None, r.NO_RESPONDERS))]
    assert rules() == ["request"], "somebody did subscribe to it"
    anna.answers[:] = [answer]
    anna.requests.begin(QUESTION, b"", 100, 0)
    assert rules() == ["tidy"]


# On sockets


@live
async def test_a_reply_finds_a_live_requester_that_has_moved():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="garage") as garage,
    ):
        questions = await garage.subscribe(PARKING)
        await anna.advertise(PARKING)

        async def serve():
            async for n in questions:
                assert n.is_request and dict(n) == QUESTION and n.payload == b"?"
                await anna.move(net.url("lisbon"))
                await n.reply({"free": 3}, "level 1")
                await n.reply({"free": 4})

        serving = asyncio.create_task(serve())
        for _ in range(2):
            answer = await anna.request(QUESTION, b"?", timeout=10)
            assert (answer["free"], answer.payload, answer.publisher) == (3, b"level 1", "garage")
        async with anna.requests(QUESTION, b"?", timeout=10, most=2) as replies:
            assert [one["free"] async for one in replies] == [3, 4]
        assert 1 <= anna.replies_dropped <= 2
        serving.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["memory", "os"])
def test_a_reply_finds_a_requester_that_has_moved_between_processes(tmp_path, durability):
    """With a store, a broker is killed before each reply: the one that she left, the one between, the garage's."""

    async def main():
        patient = {"timeout": 60, "failover": None}
        async with (
            chain(tmp_path, 3, durability) as net,
            wayfare.connect(net.url(0), client_id="anna", **patient) as anna,
            wayfare.connect(net.url(2), client_id="garage", **patient) as garage,
        ):
            questions = await garage.subscribe(PARKING)
            await anna.advertise(PARKING)

            async def asked():
                """A request of anna that waits for its reply, and the question at the garage."""
                waiting = asyncio.create_task(anna.request(QUESTION, timeout=60))
                return waiting, await questions.get(60)

            for number, (goes, killed) in enumerate(((1, 0), (2, 1), (0, 2))):
                waiting, question = await asked()
                await anna.move(net.url(goes))
                if durability == "os":
                    await net.kill(killed)
                await question.reply({"number": number})
                if durability == "os":
                    await net.start(killed)
                assert (await waiting)["number"] == number
            # It comes while she is away, and follows her.
            waiting, question = await asked()
            await anna.detach()
            await question.reply({"number": 3})
            await garage.flush(20)
            await anna.move(net.url(1))
            assert (await waiting)["number"] == 3
            assert anna.replies_dropped == 0

    asyncio.run(main())


@live
async def test_nobody_answers_a_live_request():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="garage") as garage,
    ):
        with pytest.raises(NotAdvertised):
            await anna.request(QUESTION)
        await anna.advertise(PARKING)
        with pytest.raises(InvalidNotification, match="reserved"):
            await anna.request({**QUESTION, "$inbox": "x"})
        with pytest.raises(InvalidNotification, match="reserved"):
            await anna.publish({**QUESTION, "$reply_to": "x"})
        with pytest.raises(NoResponders, match="nobody subscribes to such requests"):
            await anna.request(QUESTION, timeout=50)
        with pytest.raises(NoResponders):
            async for _ in anna.requests(QUESTION, timeout=50):
                pass
        silent = await garage.subscribe(PARKING)
        with pytest.raises(NoReply, match=r"no reply within 0.2 s \(it was sent, but nobody"):
            await anna.request(QUESTION, timeout=0.2)
        assert [one async for one in anna.requests(QUESTION, timeout=0.2)] == []
        late = await silent.get(10)
        await late.reply({"free": 1})
        await anna.publish(QUESTION)
        plain = [await silent.get(10) for _ in range(2)][-1]
        assert not plain.is_request
        with pytest.raises(UsageError, match="does not wait for a reply"):
            await plain.reply({"free": 1})
        await anna.detach()
        with pytest.raises(NoReply):
            await anna.request(QUESTION, timeout=0.1)


@live
async def test_a_client_with_a_store_forgets_its_reply_address(tmp_path):
    async with tree(*LINE) as net, wayfare.connect(net.url("faro")) as garage:
        questions = await garage.subscribe(PARKING)

        async def serve():
            async for n in questions:
                await n.reply({"free": 3})

        serving = asyncio.create_task(serve())
        for _ in range(2):
            async with wayfare.connect(
                net.url("porto"), client_id="anna", store=tmp_path / "anna"
            ) as anna:
                await anna.advertise(PARKING)
                assert (await anna.request(QUESTION, timeout=10))["free"] == 3
                (address,) = anna._core.subscriptions
                assert is_address(address)
                assert anna._core.held().subscriptions == []
        serving.cancel()


def test_without_asyncio():
    with (
        Tree(*LINE) as net,
        wayfare.sync.connect(net["porto"]) as anna,
        wayfare.sync.connect(net["faro"]) as garage,
        garage.subscribe(PARKING) as questions,
    ):
        anna.advertise(PARKING)
        replies = anna.requests(QUESTION, timeout=10, most=1)
        with replies:
            question = questions.get(10)
            assert question.is_request
            question.reply({"free": 3})
            assert [one["free"] for one in replies] == [3]
        with pytest.raises(NoReply):
            anna.request({**QUESTION, "place": "B2"}, timeout=0.2)
        assert anna.replies_dropped == 0


def test_a_group_answers_once_in_a_shell():
    group = (PARKING, "free=3", "--group", "desks")
    with (
        Tree(*LINE) as net,
        program("reply", net["faro"], *group) as one,
        program("reply", net["porto"], *group) as other,
    ):
        for member in (one, other):
            assert member.told().startswith("wayfare: answering service = 'parking' at ")
        asked = ("request", net["porto"], "service=parking", "--all", "--timeout", "1")
        assert command(*asked) == (0, "free=3\n", "")


def test_in_a_shell():
    with Tree(*LINE) as net, program("reply", net["faro"], PARKING, "free=3") as serving:
        assert serving.told().startswith("wayfare: answering service = 'parking' at faro")
        code, out, _ = command("request", net["porto"], "service=parking", "place=A1", "--json")
        assert code == 0
        assert json.loads(out)["attributes"] == {"free": 3}
        code, out, _ = command(
            "request", net["porto"], "service=parking", "--all", "--timeout", "1"
        )
        assert (code, out) == (0, "free=3\n")
        code, _, err = command("request", net["porto"], "service=tram")
        assert code == 1 and "nobody subscribes to such requests" in err
