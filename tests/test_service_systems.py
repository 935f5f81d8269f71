"""The mobility service on every system: one client moves once, with each kind of synchronisation."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import product, zip_longest
from pathlib import Path
from statistics import median

import msgspec
import pytest

from test_layers import SERVICE_CORE
from wayfare.cli import main
from wayfare.service import connect
from wayfare.service.adapters import ADAPTERS, adapter, alike
from wayfare.service.catalogue import catalogue, core_modules, lines_of_code
from wayfare.service.experiment import Outcome, Plan, proxy, roam
from wayfare.service.overlapping import overlapping
from wayfare.service.overlays import Overlay
from wayfare.service.servers import SERVERS
from wayfare.service.system import Publication
from wayfare.studies.service_published import AIM_MS, BEST_PUBLISHED_MS

DOCS = Path(__file__).resolve().parent.parent / "docs"
SYSTEMS = ["mqtt", "nats", "redis", "stomp", "wayfare", "amqp"]
SYNCS = ["ping", "none", "delay 200"]
AT_ONCE = 8  # clients that move at the same time
SECONDS = 240.0

Nodes = Callable[[str], Overlay]

with_every_system = pytest.mark.parametrize("system", SYSTEMS)


def addresses(nodes: Overlay) -> list[str]:
    """Publications of Redis carry ids only in an envelope."""
    return [one.replace("redis://", "redis+envelope://") for one in nodes.addresses]


def roam_all(nodes: Overlay, plans: Sequence[Plan]) -> list[Outcome]:
    """Clients that move at the same time, each for itself."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(plan: Plan) -> Outcome:
        async with limit:
            return await roam(addresses(nodes), plan)

    async def whole() -> list[Outcome]:
        async with asyncio.timeout(SECONDS):
            outcomes = await asyncio.gather(*map(one, plans))
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return outcomes

    return asyncio.run(whole())


def plans(**given: object) -> list[Plan]:
    usual = Plan(before_s=0.5, after_s=0.5)
    return [
        msgspec.structs.replace(usual, graceful=graceful, rate=p, subscriptions=s, **given)
        for graceful, p, s in product((True, False), (100, 10), (1, 20))
    ]


@pytest.mark.slow
@with_every_system
@pytest.mark.parametrize("sync", SYNCS)
def test_who_roams_on_any_system_gets_everything_once_and_in_order(
    overlay_of: Nodes, system: str, sync: str
) -> None:
    tried = plans(sync=sync)
    outcomes = roam_all(overlay_of(system), tried)
    for plan, outcome in zip(tried, outcomes, strict=True):
        assert outcome.missed > 0, plan  # on a busy machine, fewer than the rate says
        assert (outcome.duplicates, outcome.disordered, outcome.gaps) == (0, 0, 0), plan
        if sync == "ping":
            assert outcome.lost == 0, (plan, outcome.missing, outcome.figures())
    # Without ping, subscriptions may not be known everywhere yet when the old proxy is asked.
    lost = sum(outcome.lost_away for outcome in outcomes)
    assert lost < 0.5 * sum(outcome.missed for outcome in outcomes)


@pytest.mark.slow
@with_every_system
def test_who_roams_on_any_system_without_the_service_misses_the_time_away(
    overlay_of: Nodes, system: str
) -> None:
    for outcome in roam_all(overlay_of(system), plans(service=False)):
        assert outcome.lost_away >= 0.8 * outcome.missed > 0
        assert outcome.duplicates == 0
        assert outcome.delivered == outcome.published - outcome.lost


@with_every_system
def test_what_is_published_on_arrival_is_heard_where_the_client_was(
    overlay_of: Nodes, system: str
) -> None:
    a, _, c = addresses(overlay_of(system))
    word = f"pub{random.randrange(10**9)}"
    topic = adapter(a).topic(word, "x")
    payloads = [b"%d" % number for number in range(20)]

    async def story() -> None:
        async with (
            proxy(a) as first,
            proxy(c) as second,
            connect(f"ann{word}", first) as ann,
            connect(f"bob{word}", first) as bob,
        ):
            await bob.subscribe(bob.system.subscription(topic))
            await ann.move_out()
            for payload in payloads[:10]:
                await ann.publish(topic, payload)
            await asyncio.sleep(1)  # RabbitMQ takes its time to know of bob at the other end
            await ann.move_in(second)
            for payload in payloads[10:]:
                await ann.publish(topic, payload)
            async with asyncio.timeout(20):
                assert [(await anext(bob)).payload for _ in payloads] == payloads

    asyncio.run(story())


@pytest.mark.slow
@with_every_system
def test_subscriptions_that_overlap_move_and_everything_comes_once(
    overlay_of: Nodes, system: str
) -> None:
    tried = [
        Plan(overlap=True, subscriptions=s, rate=20, graceful=graceful)
        for s, graceful in product((1, 20), (True, False))
    ]
    for outcome in roam_all(overlay_of(system), tried):
        assert (outcome.lost, outcome.duplicates, outcome.disordered) == (0, 0, 0), outcome.missing


@with_every_system
def test_each_of_the_overlapping_subscriptions_matches(overlay_of: Nodes, system: str) -> None:
    at = addresses(overlay_of(system))[0]
    word = f"over{random.randrange(10**9)}"
    language = adapter(at)
    topic, texts = overlapping(language, word, 100)
    assert len(set(texts)) == 100
    few = [texts[0], texts[1], texts[64], texts[99]]
    heard: set[str] = set()

    async def listen(text: str) -> Callable[[], Awaitable[None]]:
        async def deliver(publication: Publication) -> None:
            heard.add(text)

        name = f"{word}x{few.index(text)}"
        access = await language.open(at, name, deliver, lambda _: None)
        await access.subscribe([text])
        if text == few[0]:
            await access.publish(Publication(topic, b"", {"n": -1}))
        return access.close

    async def story() -> None:
        closing = [await listen(text) for text in reversed(few)]
        async with asyncio.timeout(30):
            while heard != set(few):
                await asyncio.sleep(0.02)
        for close in closing:
            await close()

    asyncio.run(story())


@pytest.mark.parametrize("system", ["wayfare"])
def test_wayfares_own_network_needs_no_service(overlay_of: Nodes, system: str) -> None:
    for outcome in roam_all(overlay_of(system), plans(own=True)):
        assert outcome.missed > 0
        assert (outcome.lost, outcome.duplicates, outcome.disordered, outcome.gaps) == (0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["wayfare"])
def test_wayfares_own_network_is_back_by_gprs_in_three_seconds(
    overlay_of: Nodes, system: str
) -> None:
    """100 subscriptions, 2 publications a second, 10 s away: mostly, and never in more than half of the best published
    time. A radio with a single channel takes nearly 2 s for what was missed, and here others run, too."""
    usual = Plan(own=True, link="gprs", subscriptions=100, overlap=True, rate=2, payload=64)
    tried = [msgspec.structs.replace(usual, away_s=10, seed=seed) for seed in range(5)]
    outcomes = roam_all(overlay_of(system), tried)
    for outcome in outcomes:
        assert outcome.missed >= 18
        assert (outcome.lost, outcome.duplicates, outcome.disordered, outcome.gaps) == (0, 0, 0, 0)
    delays = [outcome.delay_s for outcome in outcomes if outcome.delay_s is not None]
    assert len(delays) == len(tried)
    assert min(delays) > 0.9  # it is by GPRS
    assert median(delays) < AIM_MS / 1000
    assert max(delays) < BEST_PUBLISHED_MS / 1000 / 2


# ---- what was found by these runs ------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ("redis+envelope://a:1", "redis+envelope://b:2", True),
        ("redis+envelope://a:1", "rediss+envelope://b:2", True),
        ("mqtt://a:1", "mqtts://b:2", True),
        ("redis://a:1", "redis+envelope://b:2", False),
        ("mqtt://a:1", "nats://b:2", False),
        ("gopher://a:1", "gopher://b:2", False),
    ],
)
def test_a_client_knows_its_own_kind_of_system(one: str, other: str, are_alike: bool) -> None:
    assert alike(one, other) is are_alike


# ---- the list of adapters --------------------------------------------------------------


def test_lines_of_code_are_those_that_are_no_comment_docstring_or_blank() -> None:
    source = '"""One.\n\nMore."""\n\nimport x  # why\n\n\ndef f():\n    """Says."""\n    # so\n    return (\n'
    source += "        1\n    )\n\n\nTEXT = '''a\n\nb'''\n"
    assert lines_of_code(source) == 1 + 1 + 3 + 3


def test_the_catalogue_has_every_adapter_and_server() -> None:
    found = catalogue()
    assert {one.name for one in found.adapters} == set(SERVERS)
    assert sorted(scheme for one in found.adapters for scheme in one.schemes) == sorted(ADAPTERS)
    assert all(one.lines > 100 for one in found.adapters)
    (redis,) = [one for one in found.adapters if one.name == "redis"]
    assert not redis.traits.carries_ids
    assert redis.with_ids == ["redis+envelope", "rediss+envelope"]


def test_the_core_that_is_counted_is_the_part_that_decides() -> None:
    assert {f"wayfare.service.{name}" for name in core_modules()} == SERVICE_CORE


NAMES = {"amqp": "AMQP", "mqtt": "MQTT", "nats": "NATS", "stomp": "STOMP"}


def test_the_page_has_the_lines_of_code_as_they_are_counted(rewrite: bool) -> None:
    """`pytest tests/test_service_systems.py -k lines_of_code --rewrite` writes the table anew."""
    found = catalogue()
    ours = [
        ("core: what proxy and library decide", found.core_lines),
        ("hosts: what performs it, and the agent", found.host_lines),
        ("shared by adapters", found.shared_lines),
        *sorted(
            ((NAMES.get(one.name, one.name.title()), one.lines) for one in found.adapters),
            key=lambda pair: pair[1],
        ),
    ]
    nothing = ("", 0)
    theirs = [("core: proxy and library", 639), nothing, nothing]
    theirs += [("Siena", 755), ("Elvin", 797), ("FioranoMQ", 936)]
    assert {lines for _, lines in theirs} - {0} == set(found.published.values())
    table = "| | lines | published | lines |\n| --- | --: | --- | --: |\n"
    for (name, lines), (other, more) in zip_longest(ours, theirs, fillvalue=nothing):
        table += f"| {name} | {lines:,} | {other} | {more or ''} |\n".replace("  ", " ")
    path = DOCS / "service.md"
    page = path.read_text("utf-8")
    begin = page.index("| | lines | published | lines |")
    end = page.index("\n\n", begin) + 1
    if rewrite:
        path.write_text(page[:begin] + table + page[end:], "utf-8")
    else:
        assert page[begin:end] == table, "look at it, then: pytest --rewrite"


def test_adapters_are_listed_for_people_and_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["service", "adapters", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["service", "adapters"]) == 0
    table = capsys.readouterr().out
    for one in told["adapters"]:
        assert f"| {one['name']} |" in table
        assert f"| {one['lines']} |" in table
    assert "Siena 755" in table
