"""What is asked of one access: in order, but nobody waits for an access point that nobody wants any more."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from test_service_live import run
from test_service_trouble import until
from wayfare.errors import Closed, Refused
from wayfare.service import Publication
from wayfare.service import effects as e
from wayfare.service.adapters import adapter
from wayfare.service.errands import TOGETHER_MAX, Errands
from wayfare.service.nodes import free_ports

NEWS = Publication("news", b"1")


class Slow:
    """A system whose access points take their time, and say what they are asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.answers = asyncio.Event()  # to what is published
        self.answers.set()

    async def open(self, address: str, *_: Any, resume: bool, lasting: bool) -> Any:
        self.asked.append(f"open {address} {resume}")
        await self.go.wait()
        return self

    async def subscribe(self, subscriptions: Any) -> None:
        self.asked.append(f"subscribe {' '.join(subscriptions)}")
        if "bad" in subscriptions:
            raise Refused("it is bad")

    async def publish(self, publication: Publication) -> None:
        self.asked.append("publish")
        await self.answers.wait()
        if publication.payload == b"bad":
            raise KeyError("a mistake of somebody else")

    async def close(self, *, suspend: bool) -> None:
        self.asked.append("close")


class Story:
    """Errands on a system, and what comes of them."""

    def __init__(self, system: Any) -> None:
        self.told: list[e.Event] = []
        self.unwanted: list[str | Publication] = []
        self.errands = Errands(
            "ann",
            "ann",
            system,
            self.told.append,
            nobody,
            lambda what, _: self.unwanted.append(what),
        )

    def ask(self, *errands: Any) -> None:
        for errand in errands:
            self.errands.ask(errand)


async def nobody(_: Publication) -> None:
    pass


def test_a_publication_that_fails_holds_up_no_other() -> None:
    async def story() -> None:
        one = Story(system := Slow())
        system.go.set()
        publications = [Publication("news", word) for word in (b"good", b"bad", b"good")]
        one.ask(e.Open("ann", "one"))
        one.ask(*(e.Publish("ann", publication) for publication in publications))
        await until(lambda: len(one.told) == 4)
        assert one.told[1:] == [e.Published("ann", publication) for publication in publications]
        assert one.unwanted == [publications[1]]
        await one.errands.stop()

    run(story())


def test_of_an_access_that_is_shut_nothing_is_told() -> None:
    async def story() -> None:
        one = Story(system := Slow())
        one.ask(e.Open("ann", "one"), e.Subscribe("ann", ("x",)))
        await asyncio.sleep(0)
        one.ask(e.Shut("ann"), e.Open("ann", "two"), e.Subscribe("ann", ("x", "bad", "y")))
        await asyncio.sleep(0)
        assert system.asked == ["open one False", "open two False"]
        system.go.set()
        await one.errands.done()
        # The other subscriptions are there, although one was refused.
        assert one.told == [e.Opened("ann"), e.Subscribed("ann", ("x", "bad", "y"))]
        assert one.unwanted == ["bad"]
        last = ["subscribe x bad y", "subscribe x", "subscribe bad", "subscribe y"]
        assert [one for one in system.asked if one.startswith("sub")] == last
        await one.errands.stop()
        assert system.asked.count("close") == 1

    run(story())


def test_subscriptions_that_are_asked_for_together_wait_for_one_answer() -> None:
    async def story() -> None:
        one = Story(system := Slow())
        system.go.set()
        one.ask(e.Open("ann", "one"), *(e.Subscribe("ann", (text,)) for text in "abc"))
        await one.errands.done()
        assert system.asked[1:] == ["subscribe a b c"]
        assert one.told[1:] == [e.Subscribed("ann", ("a", "b", "c"))]
        await one.errands.stop()

    run(story())


# ---- access points that do not answer ------------------------------------------------------


def test_who_is_cut_off_while_publishing_is_elsewhere_at_once() -> None:
    async def story() -> None:
        one = Story(system := Slow())
        system.go.set()
        one.ask(e.Open("ann", "one"), e.Publish("ann", NEWS))
        await one.errands.done()
        system.answers.clear()  # its network is gone
        one.ask(e.Publish("ann", NEWS), e.Publish("ann", NEWS), e.Shut("ann"))
        await until(lambda: system.asked.count("publish") == 3)
        one.ask(e.Open("ann", "two"))
        await one.errands.done()
        assert sorted(system.asked[-2:]) == ["close", "open two False"]
        assert one.told == [e.Opened("ann"), e.Published("ann", NEWS), e.Opened("ann")]
        system.answers.set()
        one.ask(e.Publish("ann", NEWS))
        await until(lambda: len(one.told) == 4)
        assert one.told[-1] == e.Published("ann", NEWS)
        await one.errands.stop()

    run(story())


@pytest.mark.parametrize("errand", [e.Subscribe("ann", ("x",)), e.Publish("ann", NEWS)])
def test_what_nobody_waits_for_ends_with_its_access_and_is_not_cancelled_before(
    errand: Any,
) -> None:
    """The library of NATS reads no more after the answer to a question that was cancelled."""

    class Touchy(Slow):
        def __init__(self) -> None:
            super().__init__()
            self.go.set()
            self.gone = asyncio.Event()

        async def subscribe(self, subscriptions: Any) -> None:
            self.asked.append("question")
            try:
                await self.gone.wait()
            except asyncio.CancelledError:
                self.asked.append("cancelled")
                raise
            raise Closed("it was closed")

        publish = subscribe

        async def close(self, *, suspend: bool) -> None:
            self.asked.append("close")
            self.gone.set()

    async def story() -> None:
        one = Story(system := Touchy())
        one.ask(e.Open("ann", "one"), errand)
        await until(lambda: "question" in system.asked)
        one.ask(e.Shut("ann"), e.Open("ann", "two"))
        await one.errands.done()
        assert sorted(system.asked[2:]) == ["close", "open two False"]
        await one.errands.stop()

    run(story())


def test_who_moves_out_while_publishing_leaves_when_that_is_answered() -> None:
    async def story() -> None:
        one = Story(system := Slow())
        system.go.set()
        system.answers.clear()
        one.ask(e.Open("ann", "one"), e.Publish("ann", NEWS), e.Shut("ann"))
        await until(lambda: "publish" in system.asked)
        assert "close" not in system.asked
        system.answers.set()
        await one.errands.done()
        assert system.asked[-1] == "close"
        assert one.told[-1] == e.Published("ann", NEWS)

    run(story())


def test_what_an_access_point_is_to_keep_is_asked_for_before_another_one_is() -> None:
    async def story() -> None:
        one = Story(system := Slow())
        system.go.set()
        system.answers.clear()
        one.ask(e.Open("ann", "one"), e.Publish("ann", NEWS), e.Subscribe("ann", ("x",)))
        one.ask(e.Shut("ann", suspend=True))
        await until(lambda: "publish" in system.asked)
        one.ask(e.Open("ann", "one", True))
        system.answers.set()
        await one.errands.done()
        assert system.asked[2:] == ["subscribe x", "close", "open one True"]
        await one.errands.stop()

    run(story())


@pytest.mark.parametrize("scheme", ["mqtt", "nats", "redis", "amqp", "stomp", "wayfare"])
def test_an_access_point_that_is_frozen_does_not_keep_a_client_from_another_one(
    scheme: str,
) -> None:
    async def story() -> None:
        met, left = asyncio.Event(), asyncio.Event()

        async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            met.set()
            while await reader.read(1_000):
                pass
            left.set()
            writer.close()

        (port,) = free_ports(1)
        server = await asyncio.start_server(frozen, "127.0.0.1", port)
        address = f"{scheme}://127.0.0.1:{port}"
        one = Story(Elsewhere(address, other := Slow()))
        one.ask(e.Open("ann", address))
        await met.wait()
        for _ in range(20):  # until it knows that it is connected
            await asyncio.sleep(0)
        one.ask(e.Shut("ann"), e.Open("ann", "elsewhere"))
        other.go.set()
        async with asyncio.timeout(1):
            await until(lambda: one.told)
        assert one.told == [e.Opened("ann")]
        await left.wait()  # nothing of it stays
        await one.errands.stop()
        server.close()

    run(story())


def test_an_access_that_comes_after_it_was_given_up_is_closed() -> None:
    class Deaf(Slow):
        async def open(self, address: str, *given: Any, **more: Any) -> Any:
            with suppress(asyncio.CancelledError):
                return await super().open(address, *given, **more)
            return self

    async def story() -> None:
        one = Story(system := Deaf())
        one.ask(e.Open("ann", "one"))
        await asyncio.sleep(0)
        one.ask(e.Shut("ann"))
        await one.errands.done()
        assert one.told == []
        assert system.asked == ["open one False", "close"]

    run(story())


class Elsewhere:
    """One access point of a real system; all others are of another one."""

    def __init__(self, address: str, other: Slow) -> None:
        self.address, self.other = address, other

    async def open(self, address: str, *given: Any, **more: Any) -> Any:
        system: Any = adapter(address) if address == self.address else self.other
        return await system.open(address, *given, **more)


def test_a_subscription_that_an_adapter_cannot_ask_for_does_not_end_the_connection() -> None:
    class Fails(Slow):
        async def subscribe(self, subscriptions: Any) -> None:
            if "bad" in subscriptions:
                raise KeyError("a mistake of somebody else")

        async def unsubscribe(self, subscriptions: Any) -> None:
            await self.subscribe(subscriptions)

    async def story() -> None:
        one = Story(system := Fails())
        system.go.set()
        one.ask(e.Open("ann", "one"), e.Subscribe("ann", ("x", "bad")))
        one.ask(e.Unsubscribe("ann", ("bad",)))
        await one.errands.done()
        assert one.told == [e.Opened("ann"), e.Subscribed("ann", ("x", "bad"))]
        assert one.unwanted == ["bad"]
        await one.errands.stop()

    run(story())


def test_a_refusal_is_told_with_the_answer_to_all() -> None:
    """Who asked again at once, before the others were answered, was taken for answered by that."""

    class Waits(Slow):
        async def subscribe(self, subscriptions: Any) -> None:
            await super().subscribe(subscriptions)
            await self.answers.wait()

    async def story() -> None:
        one = Story(system := Waits())
        system.go.set()
        system.answers.clear()
        one.ask(e.Open("ann", "one"), e.Subscribe("ann", ("bad", "x")))
        await until(lambda: "subscribe x" in system.asked)
        assert one.unwanted == []
        system.answers.set()
        await one.errands.done()
        assert one.unwanted == ["bad"]
        await one.errands.stop()

    run(story())


@pytest.mark.parametrize("count", [1, TOGETHER_MAX + 1])
def test_a_subscription_is_not_to_blame_for_a_connection_that_breaks_under_it(count: int) -> None:
    class Breaks(Slow):
        async def open(self, address: str, name: str, deliver: Any, lost: Any, **_: Any) -> Any:
            self.lost = lost
            return self

        async def subscribe(self, subscriptions: Any) -> None:
            self.lost("it broke")
            if len(subscriptions) < TOGETHER_MAX:
                raise KeyError("a library that is confused then")

    async def story() -> None:
        one = Story(Breaks())
        some = tuple(f"x{number}" for number in range(count))
        one.ask(e.Open("ann", "one"), e.Subscribe("ann", some))
        await one.errands.done()
        assert one.told == [e.Opened("ann"), e.AccessGone("ann", "it broke")]
        assert one.unwanted == []

    run(story())


# ---- libraries that cancel what they were asked --------------------------------------------


class Cancels(Slow):
    """What some libraries do with what waits for an answer when their connection breaks."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.go.set()
        self.what = what

    async def open(self, address: str, *given: Any, **more: Any) -> Any:
        self._cancel("open")
        return await super().open(address, *given, **more)

    async def subscribe(self, subscriptions: Any) -> None:
        self._cancel("subscribe")

    async def publish(self, publication: Publication) -> None:
        self._cancel("publish")

    def _cancel(self, what: str) -> None:
        if what == self.what:
            self.what = ""  # it is another connection then
            raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("what", "errand"),
    [
        ("open", e.Unsubscribe("ann", ())),
        ("subscribe", e.Subscribe("ann", ("x",))),
        ("publish", e.Publish("ann", NEWS)),
    ],
)
def test_an_answer_that_is_cancelled_below_is_asked_for_again(what: str, errand: Any) -> None:
    async def story() -> None:
        one = Story(Cancels(what))
        one.ask(e.Open("ann", "one"), errand)
        await until(lambda: any(isinstance(event, e.AccessGone) for event in one.told))
        one.told.clear()
        one.ask(e.Open("ann", "one"), e.Subscribe("ann", ("y",)), e.Publish("ann", NEWS))
        await until(lambda: len(one.told) == 3)
        assert one.told == [
            e.Opened("ann"),
            e.Subscribed("ann", ("y",)),
            e.Published("ann", NEWS),
        ]
        await one.errands.stop()

    run(story())
