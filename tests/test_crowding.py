"""Profiles of attached clients: who has most gets no more of them, and others still have room."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

import wayfare
from test_resources import MIB, Peer, X, leave_behind, serving
from test_shedding import attach, away, broker
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    PROTOCOL_VERSION,
    Attach,
    Hello,
    Ping,
    Refused,
    Resend,
    Subscribe,
    Welcome,
    Will,
)
from wayfare.net.memory import Holders

ELSEWHERE = "127.0.0.2"
LIMIT = 2 * MIB
WILL = Will({"q": 1}, bytes(60_000))


class Elsewhere(Peer):
    """A peer at another address."""

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection(
            self.address.host, self.address.port, local_addr=(ELSEWHERE, 0)
        )
        self.say(Hello(PROTOCOL_VERSION, self.name))
        return self


async def answer(peer):
    """Whether it is welcome, or why not."""
    while data := await asyncio.wait_for(peer._reader.read(65536), 10):
        for one in peer._decoder.feed(data):
            if isinstance(one, Refused):
                return one.reason
            if isinstance(one, Welcome | Resend):
                return type(one).__name__
    return "closed"


async def crowd(stack, host, some=45, **profile):
    """Clients of one address with a large profile each; what the broker said to them."""
    said = []
    for number in range(some):
        one = await stack.enter_async_context(Peer(f"eve{number}", host.address))
        one.say(Attach(one.name, 1, 0, **profile))
        said.append(await answer(one))
    return said


FILTERS = tuple(Filter.parse(f"q = {number}") for number in range(25))


@pytest.mark.parametrize(
    "profile", [{"will": WILL}, {"subscriptions": FILTERS}], ids=["wills", "filters"]
)
def test_one_address_leaves_room_for_others_and_for_who_is_here_already(profile):
    async def play():
        async with serving(memory_bytes=LIMIT) as host, contextlib.AsyncExitStack() as stack:
            await leave_behind(host.address, "anna", "x > 0")
            async with wayfare.connect(str(host.address), client_id="tom") as tom:
                await tom.advertise("x > 0")
                for x in range(1, 31):
                    await tom.publish({"x": x}, payload=bytes(3_000))
                await tom.flush(20)
                said = await crowd(stack, host, **profile)
                assert said[0] == "Welcome"
                assert said[-1] == "your address has no memory left, and so no room"
                assert LIMIT // 3 < host.core.border.memory.profiles < LIMIT * 0.6
                ben = await stack.enter_async_context(Elsewhere("ben", host.address))
                ben.say(Attach("ben", 1, 0, FILTERS[:3]))
                assert await answer(ben) == "Welcome"
                anna = await stack.enter_async_context(Peer("anna", host.address))
                anna.say(Attach("anna", 2, 0, (X,), (), (("porto", 1),), True))
                assert await answer(anna) == "Welcome"
                assert host.core.border.memory.shed == 0
                assert not host.memory.full

    asyncio.run(asyncio.wait_for(play(), 30))


def test_who_crowds_gets_no_more_filters_either_way():
    async def play():
        async with serving(memory_bytes=LIMIT) as host, contextlib.AsyncExitStack() as stack:
            early = [Peer(f"early{number}", host.address) for number in range(3)]
            for one in early:
                await stack.enter_async_context(one)
                one.say(Attach(one.name, 1, 0))
                assert await answer(one) == "Welcome"
            ben = await stack.enter_async_context(Elsewhere("ben", host.address))
            ben.say(Attach("ben", 1, 0))
            assert await answer(ben) == "Welcome"
            await crowd(stack, host, will=WILL)
            early[0].say(Subscribe(X))
            assert await answer(early[0]) == "your address has no memory left for filters"
            ben.say(Subscribe(X), Ping())
            assert not [
                one for one in host.connections.values() if one.peer == "ben" and one.closing
            ]
            # Who is here may come again, but not with more, also if it says so later.
            again = await stack.enter_async_context(Peer("early1", host.address))
            again.say(Attach("early1", 2, 0, (), (), (("porto", 1),), True, digest=7))
            assert await answer(again) == "Resend"
            again.say(Attach("early1", 2, 0, FILTERS, (), (("porto", 1),), True))
            assert await answer(again) == "your address has no memory left, and so no room"

    asyncio.run(asyncio.wait_for(play(), 30))


def test_profiles_are_counted_by_account_or_by_address():
    core = broker(memory_bytes=40 * 4_096)
    connections = {}
    for number in range(16):
        attach(core, f"a{number}", "x > 0", account="guests")
        connections[f"a{number}#1"] = SimpleNamespace(account="guests", origin=f"10.0.0.{number}")
    holders = Holders(core, connections)
    guest = connections["a0#1"]
    other = SimpleNamespace(account="staff", origin="10.0.0.0")
    stranger = SimpleNamespace(account="", origin="10.0.0.0")
    assert [holders.is_crowding(one) for one in (guest, other, stranger)] == [True, False, False]
    holders.add(stranger, 40 * 4_096)
    assert holders.is_crowding(stranger)


def test_sessions_of_an_account_count_while_their_clients_are_away():
    core = broker(memory_bytes=40 * 4_096)
    for number in range(16):
        away(core, f"a{number}", "x > 0", account="guests")
    guest = SimpleNamespace(account="guests", origin="10.0.0.1")
    assert Holders(core, {}).is_crowding(guest)
    assert not Holders(broker(), {}).is_crowding(guest)
