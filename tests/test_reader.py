"""Readers with checkpoints: what they have not committed comes again, under the same numbers."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

import wayfare
from live import tree, until
from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.history import Limits
from wayfare.core.late import UNSURE
from wayfare.errors import NotConfirmed, Refused, UsageError
from wayfare.net import reader as reader_module
from wayfare.net import writer as writer_module
from wayfare.net.local_broker import clock
from wayfare.net.reader import Missing, Position, Reader
from wayfare.net.writer import Writer

EVERYTHING = Filter.parse("x > 0")
BEGINNING = Position()


@asynccontextmanager
async def network(**options):
    """Two brokers; what is published at b is read at a."""
    async with (
        tree("b-a", **options) as net,
        wayfare.connect(net.url("b"), client_id="tom") as tom,
    ):
        await tom.advertise("exists x")
        yield net, tom


async def publish(tom, first, last):
    for x in range(first, last + 1):
        await tom.publish({"x": x})


async def read(net, start=BEGINNING, **options):
    """A reader that has all there is, and gets all that comes."""
    reader = await Reader(net.url("a"), "spark", EVERYTHING, start, **options)
    await reader.settle()
    await reader.ready()
    return reader


async def kill(reader):
    """Its process ends, and says nothing to anybody."""
    reader._conversation._keeper.cancel()
    reader._conversation.wire.abort("killed")


def xs(reader):
    return {number: one.notification["x"] for number, one in reader.held.items()}


def backlog(net):
    [session] = net.brokers["a"].core.border.of("spark")
    return session.backlog


def test_what_is_not_committed_comes_again_under_the_same_numbers():
    async def run():
        async with network() as (net, tom):
            first = await read(net)
            await publish(tom, 1, 5)
            await first.reach(5)
            first.commit(2)
            await until(lambda: backlog(net).acked == 2)
            await kill(first)
            second = await read(net, Position("a", first.session, 2))
            assert xs(second) == {3: 3, 4: 4, 5: 5}
            await publish(tom, 6, 6)
            await second.reach(6)
            assert xs(second) == {3: 3, 4: 4, 5: 5, 6: 6}
            assert second.gaps == {}
            # The second one's process ends before anybody wrote down that it was there.
            await kill(second)
            third = await read(net, Position("a", first.session, 2))
            assert xs(third) == xs(second)
            third.commit(6)
            await until(lambda: backlog(net).acked == 6)
            assert len(backlog(net)) == 0
            await third.close()
            await publish(tom, 7, 7)
            fourth = await read(net, Position("a", first.session, 6))
            await fourth.reach(7)
            assert xs(fourth) == {7: 7}
            await fourth.close()

    asyncio.run(run())


def test_more_than_a_window_comes_before_anything_is_committed():
    async def run():
        limits = Limits(window=16, backlog_count=100)
        async with network(limits=limits) as (net, tom):
            reader = await read(net)
            await publish(tom, 1, 110)
            await reader.reach(100)
            await asyncio.sleep(0.2)
            assert len(reader.held) == 100  # what is kept for it, and no more
            reader.commit(50)
            await reader.reach(110)
            await reader.close()

    asyncio.run(run())


def test_a_reader_goes_on_whatever_its_clock_says(monkeypatch):
    async def run():
        async with network() as (net, tom):
            begun = await read(net)
            await publish(tom, 1, 3)
            await begun.reach(3)
            await kill(begun)
            for late, start in ((-600, BEGINNING), (-1200, Position("a", begun.session, 1))):
                set_clock(monkeypatch, late)
                again = await read(net, start)
                last = len(xs(again)) + start.delivery
                assert xs(again) == {x: x for x in range(start.delivery + 1, last + 1)}
                await publish(tom, last + 1, last + 1)
                await again.reach(last + 1)
                assert again.gaps == {}
                await kill(again)
            assert last + 1 == 5

    asyncio.run(run())


def test_an_earlier_reader_that_connects_again_is_refused(monkeypatch):
    async def run():
        async with network() as (net, _):
            first = await read(net)
            await first.detach()
            set_clock(monkeypatch, -600)
            second = await read(net, first.position())
            with pytest.raises(Refused, match="a later attachment of spark"):
                await first.attach()
            await second.settle()
            await second.close()

    asyncio.run(run())


def test_a_reader_that_begins_twice_gets_what_the_first_one_got():
    """It was killed before its first checkpoint was written."""

    async def run():
        async with network() as (net, tom):
            first = await read(net)
            await publish(tom, 1, 3)
            await first.reach(3)
            await kill(first)
            second = await read(net)
            assert xs(second) == {1: 1, 2: 2, 3: 3}
            assert second.gaps == {}
            await second.close()

    asyncio.run(run())


def test_a_reader_that_begins_is_not_told_what_an_earlier_one_of_its_name_did():
    async def run():
        async with network() as (net, tom):
            first = await read(net)
            await publish(tom, 1, 3)
            await first.reach(3)
            first.commit(3)
            await until(lambda: backlog(net).acked == 3)
            await first.close()
            second = await read(net)
            assert (xs(second), second.gaps) == ({}, {})
            await publish(tom, 4, 4)
            await second.reach(second.latest + 1)
            assert list(xs(second).values()) == [4]
            await second.close()

    asyncio.run(run())


def test_a_broken_connection_commits_nothing():
    async def run():
        async with network() as (net, tom):
            reader = await read(net)
            await publish(tom, 1, 3)
            await reader.reach(3)
            reader._conversation.wire.abort("cut")
            await reader._life.until(lambda: reader.broker == "")
            reader.commit(1)
            await publish(tom, 4, 4)
            await reader.reach(4)
            assert xs(reader) == {2: 2, 3: 3, 4: 4}
            await kill(reader)
            again = await read(net, Position("a", reader.session, 1))
            assert xs(again) == {2: 2, 3: 3, 4: 4}
            again.commit(4)
            await until(lambda: backlog(net).acked == 4)
            await again.close()

    asyncio.run(run())


def test_what_is_committed_while_it_comes_again_is_done():
    async def run():
        async with network() as (net, tom):
            reader = await read(net)
            await publish(tom, 1, 3)
            await reader.reach(3)
            reader._conversation.wire.abort("cut")
            await reader._life.until(lambda: reader.broker == "")
            taken = reader._hand_out

            def commit_first(*one):
                reader._hand_out = taken
                reader.commit(3)
                taken(*one)

            reader._hand_out = commit_first
            await until(lambda: backlog(net).acked == 3)
            assert xs(reader) == {}
            await reader.close()

    asyncio.run(run())


def test_a_broker_that_forgot_is_no_silence():
    async def run():
        async with network() as (net, _):
            reader = await read(net)
            position = reader.position()
            await reader.close()
            await net.restart("a")
            await net.linked()
            again = await read(net, position)
            await until(lambda: again.gaps)
            (missing,) = again.gaps.values()
            assert "no session" in missing.reason
            assert missing.count == 0  # nobody knows
            again.commit(again.latest)  # it goes on all the same
            await until(lambda: backlog(net).acked == again.latest)
            await kill(again)
            third = await read(net, again.position())
            assert third.gaps == {}
            await third.close()

    asyncio.run(run())


def test_what_a_limit_drops_is_a_gap():
    async def run():
        async with network(limits=Limits(backlog_count=5)) as (net, tom):
            reader = await read(net)
            await reader.close()
            await publish(tom, 1, 8)
            await until(lambda: backlog(net).last == 8)
            again = await read(net, Position("a", reader.session, 0))
            assert xs(again) == {4: 4, 5: 5, 6: 6, 7: 7, 8: 8}
            assert again.gaps == {3: Missing(3, "backlog_count")}
            assert again.lost == 3
            await again.close()

    asyncio.run(run())


def come(reader, *messages):
    """This arrives."""
    there = reader._conversation
    for one in messages:
        there.on_messages(there.wire, [one])


@pytest.mark.parametrize(
    ("missed", "gaps"), [({}, {}), ({"tom": (4, 5)}, {1: Missing(2, NO_ANSWER)})]
)
def test_a_gap_becomes_exact(missed, gaps):
    """The session was elsewhere, at a broker that could not be reached; now that is back."""

    async def run():
        async with network() as (net, _):
            reader = await read(net)
            come(reader, m.Settled(0, 7), m.Gap(1, NO_ANSWER, exact=False))
            assert reader.gaps == {1: Missing(0, NO_ANSWER)}
            come(reader, m.Settled(2, 7, missed))
            assert (reader.gaps, reader.lost, reader.latest) == (
                gaps,
                len(missed.get("tom", ())),
                2,
            )
            reader.commit(2)
            assert reader.gaps == {}
            await kill(reader)

    asyncio.run(run())


def test_a_gap_that_an_earlier_process_was_told_of_does_not_become_exact():
    """What that has committed may be among what is counted now."""

    async def run():
        async with network() as (net, tom):
            first = await read(net)
            await publish(tom, 1, 1)
            await first.reach(1)
            first.commit(1)
            await until(lambda: backlog(net).acked == 1)
            await kill(first)
            second = await read(net, Position("a", first.session, 1))
            come(second, m.Settled(0, second.session), m.Settled(2, second.session, {"tom": (4,)}))
            assert second.gaps == {2: Missing(0, UNSURE)}
            await kill(second)

    asyncio.run(run())


def test_a_reader_is_ready_when_its_subscription_is_in_effect():
    async def run():
        async with network() as (net, tom):
            reader = await Reader(net.url("a"), "spark", EVERYTHING, BEGINNING)
            await reader.ready()
            await publish(tom, 1, 3)
            await reader.reach(3)
            b = net.brokers.pop("b")
            await b.stop()
            await reader.close()
            other = await Reader(net.url("a"), "other", Filter.parse("exists x"), BEGINNING)
            with pytest.raises(NotConfirmed, match="no answer from the brokers behind b"):
                await other.ready(0.3)
            await other.close()

    asyncio.run(run())


def test_a_reader_may_begin_in_the_past():
    async def run():
        async with network(limits=Limits(past_count=100)) as (net, tom):
            async with (
                wayfare.connect(net.url("a"), client_id="anna") as anna,
                anna.subscribe("x > 0") as all,
            ):
                await publish(tom, 1, 3)
                for _ in range(3):
                    await all.get(10)
            reader = await read(net, since=60.0)
            assert xs(reader) == {1: 1, 2: 2, 3: 3}
            await reader.close()

    asyncio.run(run())


def test_another_broker_has_not_what_this_one_kept():
    async def run():
        async with network() as (net, _):
            reader = await read(net)
            await reader.close()
            with pytest.raises(UsageError, match="is b, and spark has read at a up to now"):
                await Reader(net.url("b"), "spark", EVERYTHING, reader.position())

    asyncio.run(run())


def test_a_later_process_of_the_name_has_the_session():
    async def run():
        async with network() as (net, tom):
            first = await read(net)
            second = await read(net, first.position())
            await until(lambda: first._life.error is not None)
            await publish(tom, 1, 1)
            await second.reach(1)
            await second.close()
            await kill(first) if first._conversation.wire else first._conversation._keeper.cancel()

    asyncio.run(run())


def set_clock(monkeypatch, seconds):
    """From now on, who begins takes it to be so much later."""
    for module in (writer_module, reader_module):
        monkeypatch.setattr(module, "clock", lambda: clock() + seconds * 1_000_000)


async def write(net, last, *, base=0, before_close=None, at="b"):
    """A task that publishes base + 1, base + 2 ..., and is killed if it has something to do before."""
    writer = await Writer(net.url(at), "task-3", Filter.parse("exists x"), base, leaves=False)
    for x in range(writer.accepted + 1, base + last + 1):
        assert await writer.publish({"x": x}, confirm=True) == x
    if before_close is None:
        await writer.close()
    else:
        await kill(writer)
    return writer.accepted


def test_what_a_writer_repeats_is_not_heard_twice():
    async def run():
        async with network() as (net, _):
            reader = await read(net)
            assert await write(net, 3, before_close="killed") == 0
            assert await write(net, 5) == 3
            assert len(net.brokers["b"].core.border.of("task-3")) == 1
            assert await write(net, 5) == 5  # it was all there, and nobody knew
            assert await write(net, 2, base=10) == 10
            await reader.reach(7)
            await reader.settle()
            assert list(xs(reader).values()) == [1, 2, 3, 4, 5, 11, 12]
            await reader.close()

    asyncio.run(run())


@pytest.mark.parametrize("at", ["b", "a"])
def test_a_writer_goes_on_whatever_its_clock_says_and_wherever_it_was(monkeypatch, at):
    async def run():
        async with network() as (net, _):
            reader = await read(net)
            assert await write(net, 3, before_close="killed") == 0
            for late, before, last in ((-600, 3, 5), (-1200, 5, 7)):
                set_clock(monkeypatch, late)
                assert await write(net, last, at=at) == before
            sessions = {name: one.core.border.of("task-3") for name, one in net.brokers.items()}
            assert [name for name, some in sessions.items() if some] == [at]
            await reader.reach(7)
            await reader.settle()
            assert list(xs(reader).values()) == [1, 2, 3, 4, 5, 6, 7]
            assert reader.gaps == {}
            await reader.close()

    asyncio.run(run())


def test_a_writer_does_not_wait_for_ever_for_brokers_that_cannot_be_reached(caplog):
    async def run():
        async with network() as (net, _):
            await write(net, 3, before_close="killed", at="a")
            a = net.brokers.pop("a")
            await a.stop()
            with caplog.at_level(logging.WARNING, "wayfare.client"):
                offered = Filter.parse("exists x")
                writer = await Writer(net.url("b"), "task-3", offered, failover=0.3)
            assert writer.accepted == 0
            assert "no answer from the brokers behind a" in caplog.messages[-1]
            await writer.close()

    asyncio.run(run())


def test_a_writer_that_cannot_learn_how_far_it_was_is_closed(monkeypatch):
    async def fail(*_):
        raise Refused("banned meanwhile")

    async def run():
        async with network() as (net, _):
            writer = Writer(net.url("b"), "task-3", Filter.parse("exists x"))
            monkeypatch.setattr(writer._confirmations, "advertised", fail)
            with pytest.raises(Refused, match="banned meanwhile"):
                await writer
            await until(lambda: not net.brokers["b"].core.border.of("task-3"))

    asyncio.run(run())


def test_a_writer_that_its_broker_forgot_is_not_heard_twice_either():
    """Subscribers know how far they heard it."""

    async def run():
        async with network() as (net, _):
            reader = await read(net)
            await write(net, 3)
            await reader.reach(3)
            await net.restart("b")
            await net.linked()
            await reader.ready()
            await reader.settle()
            lost = reader.latest - 3  # a link began from nothing, which readers are told
            assert await write(net, 5) == 0
            await reader.reach(5 + lost)
            await reader.settle()
            assert list(xs(reader).values()) == [1, 2, 3, 4, 5]
            await reader.close()

    asyncio.run(run())
