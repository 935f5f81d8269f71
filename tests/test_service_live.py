"""The mobility service on a real system: proxies, clients, and an overlay of three servers."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from wayfare import Filter
from wayfare.errors import CannotConnect, Closed, Refused, UsageError
from wayfare.net.emulator import Emulator
from wayfare.service import Client, Gap, Publication, connect
from wayfare.service.experiment import Plan, proxy, roam
from wayfare.service.line import CLOSING_S
from wayfare.service.overlays import Overlay
from wayfare.service.proxy_addresses import where

pytestmark = pytest.mark.parametrize("system", ["mqtt"])
SECONDS = 40.0  # that one story may take

Nodes = Callable[[str], Overlay]


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run it, and see that no task is left."""

    async def whole() -> None:
        async with asyncio.timeout(SECONDS):
            await story
        await asyncio.sleep(0.05)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"

    asyncio.run(whole())


async def next_of(client: Client, count: int) -> list[Publication | Gap]:
    async with asyncio.timeout(20):
        return [await anext(client) for _ in range(count)]


async def payloads(client: Client, count: int) -> list[bytes]:
    return [one.payload for one in await next_of(client, count) if isinstance(one, Publication)]


async def quiet(client: Client) -> None:
    """Nothing more comes."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            raise AssertionError(await anext(client))


# ---- roaming ---------------------------------------------------------------------------


@pytest.mark.parametrize("graceful", [True, False], ids=["graceful", "abrupt"])
@pytest.mark.parametrize("sync", ["ping", "none", "delay 200"])
def test_who_roams_gets_everything_once_and_in_order(
    overlay_of: Nodes, system: str, sync: str, graceful: bool
) -> None:
    async def story() -> None:
        plan = Plan(sync=sync, graceful=graceful, subscriptions=20, rate=100)
        outcome = await roam(overlay_of(system).addresses, plan)
        assert outcome.published > 200
        assert (outcome.lost, outcome.duplicates, outcome.disordered, outcome.gaps) == (0, 0, 0, 0)
        assert outcome.moving_in_s < CLOSING_S, "it waits for an access point that it cannot reach"

    run(story())


def test_who_roams_without_the_service_misses_what_was_published_meanwhile(
    overlay_of: Nodes, system: str
) -> None:
    async def story() -> None:
        plan = Plan(service=False, rate=50)
        outcome = await roam(overlay_of(system).addresses, plan)
        assert outcome.lost > 0.3 * plan.away_s * plan.rate  # a busy overlay takes its time
        assert outcome.delivered == outcome.published - outcome.lost

    run(story())


def test_copies_are_kept_as_in_the_paper_if_they_are_wanted(overlay_of: Nodes, system: str) -> None:
    async def story() -> None:
        plan = Plan(sync="delay 300", rate=50, duplicates=True)
        outcome = await roam(overlay_of(system).addresses, plan)
        assert outcome.lost == 0
        assert outcome.duplicates > 0

    run(story())


# ---- a client --------------------------------------------------------------------------


def test_a_client_comes_back_to_the_same_proxy(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, b, _ = overlay_of(system).addresses
        async with (
            proxy(a) as first,
            proxy(b) as second,
            connect(f"ann{word}", first) as ann,
            connect(f"bob{word}", second) as bob,
        ):
            await ann.subscribe(f"{word}/#")
            for suspend in (False, True):
                await ann.move_out(suspend=suspend)
                assert ann.state == "away"
                for number in range(5):
                    await bob.publish(f"{word}/x", b"%d" % number)
                await ann.move_in()
                assert await payloads(ann, 5) == [b"0", b"1", b"2", b"3", b"4"]
                await quiet(ann)

    run(story())


def test_what_is_published_while_away_is_sent_later(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        async with (
            proxy(a) as first,
            proxy(c) as second,
            connect(f"ann{word}", first) as ann,
            connect(f"bob{word}", second) as bob,
        ):
            await bob.subscribe(f"{word}/x")
            await ann.move_out()
            await ann.publish(f"{word}/x", b"later", price=3, fresh=True)
            await quiet(bob)
            await ann.move_in(second)
            (message,) = await next_of(bob, 1)
            assert isinstance(message, Publication)
            assert message.payload == b"later"
            assert message.properties == {"price": 3, "fresh": True}

    run(story())


def test_subscriptions_move_and_local_ones_do_not(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        async with (
            proxy(a) as first,
            proxy(c) as second,
            connect(f"ann{word}", first) as ann,
            connect(f"bob{word}", second) as bob,
        ):
            await ann.subscribe(f"{word}/all")
            await ann.subscribe(f"{word}/here", local=True)
            await bob.publish(f"{word}/here", b"1")
            await bob.publish(f"{word}/all", b"2")
            assert await payloads(ann, 2) == [b"1", b"2"]
            await ann.move_in(second)
            await bob.publish(f"{word}/here", b"3")
            await bob.publish(f"{word}/all", b"4")
            assert await payloads(ann, 1) == [b"4"]
            await ann.unsubscribe(f"{word}/all")
            await bob.publish(f"{word}/all", b"5")
            await quiet(ann)

    run(story())


def test_who_has_subscribed_may_be_cut_off_at_once(
    overlay_of: Nodes, system: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The proxy is far away: nothing is said of it before it has the subscription, too."""

    async def story() -> None:
        a, b, _ = overlay_of(system).addresses
        async with (
            proxy(a) as first,
            proxy(b) as second,
            Emulator("lte", where(first)) as far,
            connect(f"ann{word}", f"127.0.0.1:{far.port}", patience=1) as ann,
            connect(f"bob{word}", first) as bob,
        ):
            far.cut()
            subscribing = asyncio.create_task(ann.subscribe(f"{word}/x"))
            await asyncio.sleep(0.5)
            assert not subscribing.done()
            far.restore()
            await subscribing
            moving = asyncio.create_task(ann.move_in(second))
            await asyncio.sleep(0)
            await bob.publish(f"{word}/x", b"1")
            await moving
            assert await payloads(ann, 1) == [b"1"]
            await ann.move_in(f"127.0.0.1:{far.port}")
            assert not caplog.messages
            far.cut()
            await ann.subscribe(f"{word}/y")
            assert "does not say that it has the subscription" in caplog.text
            await bob.publish(f"{word}/y", b"2")
            assert await payloads(ann, 1) == [b"2"]
            far.restore()

    run(story())


def test_no_more_is_replayed_than_is_wanted(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        async with (
            proxy(a) as first,
            proxy(c) as second,
            connect(f"ann{word}", first, last=3) as ann,
            connect(f"eve{word}", first, age=0.5) as eve,
            connect(f"bob{word}", second) as bob,
        ):
            for client in (ann, eve):
                await client.subscribe(f"{word}/#")
                await client.move_out()
            for number in range(5):
                await bob.publish(f"{word}/x", b"%d" % number)
            await asyncio.sleep(1)
            await bob.publish(f"{word}/x", b"5")
            await asyncio.sleep(0.1)
            for client in (ann, eve):
                await client.move_in(second)
            assert await payloads(ann, 3) == [b"3", b"4", b"5"]
            assert await payloads(eve, 1) == [b"5"]
            await quiet(ann)
            await quiet(eve)

    run(story())


def test_what_happens_is_written_down_as_that_of_other_live_clients(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path
) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        logs = [tmp_path / f"{name}.jsonl" for name in ("ann", "bob")]
        async with (
            proxy(a) as first,
            proxy(c) as second,
            connect(f"ann{word}", first, record=logs[0]) as ann,
            connect(f"bob{word}", second, record=logs[1]) as bob,
        ):
            await ann.subscribe(f"{word}/x", means=Filter.parse(f"topic = '{word}/x'"))
            await ann.move_out()
            with pytest.raises(UsageError, match="this one is away"):
                await ann.move_out()
            await bob.publish(f"{word}/x", b"1", price=3)
            await ann.move_in(second)
            await payloads(ann, 1)
        rows = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        kinds = "attached subscribed detached delivered attached left attached published left"
        assert [row["kind"] for row in rows] == kinds.split()
        moves = [
            row["broker"] for row in rows[:6] if row["kind"] != "delivered" and "broker" in row
        ]
        assert moves == [first, first, second, second]
        came, sent = (next(r for r in rows if r["kind"] == k) for k in ("delivered", "published"))
        assert (came["publisher"], came["number"]) == (sent["client"], sent["number"])
        assert came["attributes"] == sent["attributes"]
        assert json.loads(came["attributes"]) == {"topic": f"{word}/x", "price": 3}
        assert rows[1]["filter"] == f"topic = '{word}/x'"

    run(story())


# ---- what goes wrong -------------------------------------------------------------------


def test_bad_input_gets_a_sentence(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        with pytest.raises(CannotConnect, match="nobody listens there; start one there"):
            async with connect("ann", "127.0.0.1:9"):
                pass
        with pytest.raises(CannotConnect, match="no mobility proxy answers"):
            async with connect("ann", a.partition("://")[2]):
                pass  # a server of the system, which is no proxy
        for options in ({"sync": "pong"}, {"lease": 0.0}, {"last": -1}, {"age": float("nan")}):
            with pytest.raises(UsageError):
                connect("ann", "127.0.0.1:7500", **options)
        for name, at in (
            ("", "127.0.0.1:7500"),
            ("a\0", "127.0.0.1:7500"),
            ("ann", "somewhere:"),
            ("ann", "x:99999"),
        ):
            with pytest.raises(UsageError):
                connect(name, at)
        async with proxy(a) as here, connect(f"ann{word}", here, patience=1) as ann:
            with pytest.raises(UsageError, match="no MQTT subscription"):
                await ann.subscribe("a/#/b")
            with pytest.raises(UsageError, match="no MQTT topic"):
                await ann.publish("a/#")
            await ann.publish(f"{word}/x")  # and it goes on
            with pytest.raises(UsageError, match="not subscribed"):
                await ann.unsubscribe("never")
            with pytest.raises(CannotConnect, match="nobody listens there"):
                await ann.move_in("127.0.0.1:9")
            async with proxy("nats://127.0.0.1:9") as other, asyncio.timeout(0.9):
                with pytest.raises(Refused, match="is another kind of system"):
                    await ann.move_in(other)
            await ann.move_in(here)
        with pytest.raises(Closed):
            await ann.publish("x")

    run(story())
