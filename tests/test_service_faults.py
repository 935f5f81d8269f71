"""The core of the mobility service: what went wrong once, by the name of what the user saw."""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from service_bench import MS, Plain, World, away_from_proxy0, here, is_downloading
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.arrival import Arrival
from wayfare.service.buffer import Buffer, Limits
from wayfare.service.library import Library
from wayfare.service.merging import Seen
from wayfare.service.messages import NO_SYNC, SECOND_NS, Sync, Terms
from wayfare.service.proxy import Proxy
from wayfare.service.relays import LISTENER_MAX, SILENT_NS
from wayfare.service.system import Id, Publication, Traits


class Suspending(Plain):
    traits = Traits(suspends=True)


def registered(terms: Terms, *subscriptions: str, **options: Any) -> Proxy:
    """A proxy that stands by for ann."""
    proxy = Proxy("proxy0", "node0", Plain(), **options)
    proxy.step(e.Received("#ann", m.Register("ann", "key", 1, subscriptions, terms)), 0)
    proxy.step(e.Opened("ann"), 0)
    proxy.step(e.Subscribed("ann", proxy.clients["ann"].wanted), 0)
    return proxy


def sent(effects: Iterable[e.Effect], kind: type[Any]) -> list[Any]:
    said = [effect.message for effect in effects if isinstance(effect, e.Send)]
    return [message for message in said if isinstance(message, kind)]


# ---- random walks with trouble ---------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["", "access", "connection", "access connection", "proxies"])
@pytest.mark.parametrize("seed", range(60))
def test_whatever_breaks_what_was_confirmed_comes_once_and_in_order(
    seed: int, trouble: str
) -> None:
    """Subscriptions change on the way. Owed is what is published when they were confirmed."""
    random = Random(seed)
    nodes = random.randint(2, 5)
    world = World(seed, [0, *(random.randrange(node) for node in range(1, nodes))], False)
    ann = world.join("ann", terms=Terms(lease_ns=random.choice([1, 10]) * SECOND_NS))
    since: dict[str, int] = {}

    def subscribe() -> None:
        topic = f"topic{len(since)}"
        world.do("ann", ann.subscribe(topic, False, world.now))
        since[topic] = ann.changes

    def break_something() -> None:
        if "access" in trouble and ann._open:
            world.break_access("ann", "ann")
        if "connection" in trouble and ann.state in ("attached", "moving-in"):
            world.break_connection("ann")
        name = f"proxy{random.randrange(nodes)}"
        known = world.proxies[name].clients.get("ann")
        if "proxies" in trouble and known and known.access not in ("none", "broken"):
            world.break_access(name, "ann")

    subscribe()
    world.do("ann", ann.move_in("proxy0", 0))
    world.wait(1000)
    owed: list[Publication] = []
    for _ in range(random.randint(3, 15)):
        for _ in range(random.randint(0, 3)):
            topic = f"topic{random.randrange(6)}"
            publication = world.publish(nodes - 1, topic=topic)
            if topic in since and ann.confirmed >= since[topic]:
                owed.append(publication)
            world.run(random.randint(0, 10))
        what = random.random()
        if what < 0.25 and ann.state == "attached" and len(since) < 6:
            subscribe()
        elif what < 0.4 and ann.state == "attached":
            world.do("ann", ann.move_out(world.now))
        elif what < 0.7:
            world.do("ann", ann.move_in(f"proxy{random.randrange(nodes)}", world.now))
        else:
            break_something()
        world.run(random.randint(0, 60))
        if random.random() < 0.3:
            world.wait(random.randint(1, 8000))
    world.wait(1000)
    if ann.state == "away":
        world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(60_000)
    delivered = [one for one in world.delivered["ann"] if isinstance(one, Publication)]
    gaps = [one for one in world.delivered["ann"] if isinstance(one, e.Gap)]
    numbers = [one.id.number for one in delivered if one.id is not None]
    assert ann.state == "attached"
    assert numbers == sorted(set(numbers))
    assert not gaps or trouble == "proxies"  # where the system keeps nothing for them
    assert gaps or [one for one in owed if one not in delivered] == []
    (known,) = [proxy.clients["ann"] for proxy in world.proxies.values() if proxy.clients]
    assert known.subscriptions.keys() == ann.subscriptions.keys()
    assert ann.confirmed == ann.changes


@pytest.mark.parametrize("seed", range(60))
def test_what_has_no_id_may_come_twice_and_is_never_lost(seed: int) -> None:
    random = Random(seed)
    nodes = random.randint(2, 4)
    parents = [0, *(random.randrange(node) for node in range(1, nodes))]
    world = World(seed, parents, random.random() < 0.5)
    ann = world.join("ann", terms=Terms(lease_ns=random.choice([1, 10]) * SECOND_NS))
    world.do("ann", ann.subscribe("news", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.wait(1000)
    published: list[Publication] = []
    for _ in range(random.randint(3, 12)):
        for _ in range(random.randint(0, 3)):
            published.append(Publication("news", b"%d" % len(published)))
            world._put(("pub", "x"), nodes - 1, "publish", None, published[-1])
            world.run(random.randint(0, 10))
        if ann.state == "attached" and random.random() < 0.3:
            world.do("ann", ann.move_out(world.now))
        elif random.random() < 0.5:
            world.do("ann", ann.move_in(f"proxy{random.randrange(nodes)}", world.now))
        world.run(random.randint(0, 60))
        if random.random() < 0.3:
            world.wait(random.randint(1, 5000))
    world.wait(1000)
    if ann.state == "away":
        world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(60_000)
    delivered = world.delivered["ann"]
    assert [one for one in published if one not in delivered] == []
    assert not any(isinstance(one, e.Gap) for one in delivered)


# ---- lost without a word ---------------------------------------------------------------------------


def test_a_welcome_that_comes_after_the_access_broke_does_not_skip_the_download() -> None:
    world, ann = here()
    world.wait(20_000)
    world.do("ann", ann.step(e.PeerGone("proxy0", "a moment"), world.now))
    world.now += SECOND_NS
    world.do("ann", ann.step(e.Tick(), world.now))  # says Hello again
    hello = world.queues.pop(("peer", "ann", "proxy0"))
    world.break_access("ann", "ann")
    published = [world.publish(2) for _ in range(3)]
    world.run()
    world.queues["peer", "ann", "proxy0"] = hello
    world.wait(20_000)
    assert world.delivered["ann"] == published


def test_an_old_proxy_that_thaws_does_not_change_the_subscriptions_of_who_went_on() -> None:
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy1", world.now))
    while not is_downloading(ann):
        world.run(1)
    world.run(1)  # the download is on its way to the old proxy
    asked = world.queues.pop(("peer", "proxy1", "proxy0"))
    world.wait(130_000)
    assert ann.state == "attached"
    world.do("ann", ann.subscribe("weather", False, world.now))
    world.wait(1000)
    world.queues["peer", "proxy1", "proxy0"] = asked
    world.wait(1000)
    assert list(world.proxies["proxy1"].clients["ann"].subscriptions) == ["*1", "weather"]


@pytest.mark.parametrize("moves_again", [False, True])
def test_a_gap_is_told_though_the_attempt_that_found_it_failed(moves_again: bool) -> None:
    world, ann = away_from_proxy0()
    ann.behind["proxy1"] = (0, False)  # another one, whose answer takes its time
    world.do("ann", ann.move_in("proxy2", world.now))
    world.down.add("proxy0")
    world.deaf.add("proxy1")
    world.wait(9000)
    assert (ann.state, list(ann.behind)) == ("moving-in", ["proxy1"])
    world.deaf.clear()
    if moves_again:
        world.do("ann", ann.move_in("proxy1", world.now))
    else:
        world.break_access("ann", "ann")
        assert isinstance(world.told["ann"][-1], e.Failed)
        world.do("ann", ann.move_in("proxy2", world.now))
    world.wait(100_000)
    assert ann.state == "attached"
    (gap,) = world.delivered["ann"]
    assert isinstance(gap, e.Gap) and "proxy0 cannot be reached" in gap.reason


def test_a_gap_is_told_though_its_proxy_is_given_up_twice() -> None:
    world, ann = away_from_proxy0()
    ann.behind["proxy1"] = (0, False)
    world.do("ann", ann.move_in("proxy2", world.now))
    world.down.add("proxy0")
    world.deaf.add("proxy1")
    world.wait(9000)
    world.down.clear()
    world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(31_000)
    assert is_downloading(ann)
    world.down.add("proxy0")
    world.deaf.clear()
    world.do("ann", ann.move_in("proxy2", world.now))
    world.wait(100_000)
    assert ann.state == "attached"
    (gap,) = world.delivered["ann"]
    assert isinstance(gap, e.Gap) and "proxy0 cannot be reached" in gap.reason


def test_a_late_release_drops_nothing_of_what_is_kept_since_the_client_is_back() -> None:
    proxy = registered(Terms(), "*1")
    release = e.Received("proxy1", m.Release("ann", "key", "", 2, 10))
    proxy.step(e.Received("proxy1", m.Download("ann", "key", 2, 1, "", {})), 0)
    proxy.step(release, 0)
    assert proxy.clients == {}
    proxy.step(e.Received("#ann", m.Register("ann", "key", 3, ("*1",), Terms())), 0)
    proxy.step(e.Arrived("ann", Publication("news", id=Id("pub", 1))), 0)
    proxy.step(release, 0)
    assert len(proxy.clients["ann"].buffer.kept) == 1


def test_a_late_release_of_an_earlier_stay_drops_nothing_of_what_is_kept_since() -> None:
    proxy = registered(Terms(), "*1")
    proxy.step(e.Received("#1", m.Download("ann", "key", 2, 1, "proxy0", {}, Terms())), 0)
    proxy.step(e.Received("proxy1", m.Download("ann", "key", 3, 2, "", {})), 0)
    proxy.step(e.Received("proxy1", m.Release("ann", "key", "", 3, 10)), 0)
    assert proxy.clients == {}
    proxy.step(e.Received("#2", m.Register("ann", "key", 4, ("*1",), Terms(), True)), 0)
    proxy.step(e.Arrived("ann", Publication("news", id=Id("pub", 1))), 0)
    proxy.step(e.Received("#1", m.Release("ann", "key", "proxy0", 1, 10)), 0)
    assert len(proxy.clients["ann"].buffer.kept) == 1


def test_a_late_release_forgives_no_hole_that_was_told_since() -> None:
    proxy = registered(Terms(), "*1")

    def download(peer: str, stay: int) -> m.Downloaded:
        asked = m.Download("ann", "key", stay, stay, "proxy0", {}, Terms())
        (end,) = sent(proxy.step(e.Received(peer, asked), 0), m.Downloaded)
        return end

    first = download("#1", 2)
    proxy.step(e.AccessGone("ann", "it broke"), 0)
    assert "it broke" in download("#2", 3).reason  # which does not come to the client
    release = m.Release("ann", "key", "proxy0", first.stay, first.upto)
    proxy.step(e.Received("#1", release), 0)
    assert "it broke" in download("#3", 4).reason


def test_who_leaves_while_it_downloads_is_not_adopted() -> None:
    """Nobody else could have its name, for a day."""
    proxy = Proxy("proxy1", "node1", Plain())
    said: list[m.Message] = [
        m.Download("ann", "key", 2, 1, "proxy0", {}, Terms(), True),
        m.Release("ann", "key", "proxy0", 2, m.ALL),
        m.Leave("ann", "key", 2),
    ]
    for message in said:
        proxy.step(e.Received("#1", message), 0)
    end = m.Downloaded("ann", 1, "proxy0", 2, 1, 0, subscriptions=("*1",))
    proxy.step(e.Received("proxy0", end), 0)
    assert proxy.clients == {}


@pytest.mark.parametrize("seed", range(30))
def test_of_two_subscriptions_in_a_row_the_second_is_not_confirmed_with_the_first(
    seed: int,
) -> None:
    world, ann = here(seed)
    world.do("ann", ann.subscribe("rain", False, world.now))
    world.run(world.random.randint(0, 6))
    world.do("ann", ann.subscribe("weather", False, world.now))
    while ann.confirmed < ann.changes:
        world.run(1)
    published = world.publish(0, topic="weather")
    world._take(("pub", "pub"), *world.queues["pub", "pub"].popleft())
    world.cut_off("ann")
    world.run()
    world.do("ann", ann.move_in("proxy1", world.now))
    world.run()
    assert world.delivered["ann"] == [published]


def test_a_proxy_confirms_what_it_has_subscribed_to_and_nothing_else() -> None:
    proxy = registered(Terms(sync=NO_SYNC), "a")
    stands = "ann", "key", 1
    (first,) = proxy.step(e.Received("#ann", m.Change(*stands, ("b",), (), 1)), 0)
    (second,) = proxy.step(e.Received("#ann", m.Change(*stands, ("c",), (), 2)), 0)
    assert isinstance(first, e.Subscribe) and isinstance(second, e.Subscribe)
    assert proxy.step(e.Subscribed("ann", first.subscriptions), 0) == []
    assert proxy.step(e.Subscribed("ann", second.subscriptions), 0) == [
        e.Send("#ann", m.Changed("ann", 2))
    ]


@pytest.mark.parametrize("seed", range(30))
def test_old_proxies_are_let_go_when_the_new_one_has_all_subscriptions(seed: int) -> None:
    """There are two old proxies, and the older one knows fewer subscriptions."""
    world = World(seed, [0, 0, 1, 2], propagates=True)
    ann = world.join("ann")
    world.do("ann", ann.subscribe("*1", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    world.down.add("proxy0")
    world.wait(2000)
    world.do("ann", ann.subscribe("weather", False, world.now))
    world.wait(500)
    world.down.clear()
    assert list(ann.behind) == ["proxy0", "proxy1"] and ann.confirmed == ann.changes
    world.do("ann", ann.move_in("proxy2", world.now))
    while "ann" in world.proxies["proxy1"].clients:
        world.run(1) if any(world.queues.values()) else world.wait(100)
    assert world.proxies["proxy2"].clients["ann"].access == "ready"
    assert "weather" in world.proxies["proxy2"].clients["ann"].subscriptions


def test_a_ping_of_before_does_not_answer_for_a_move_out() -> None:
    """Else what has no id, and is on its way to the client, would be dropped."""
    proxy = Proxy("proxy0", "node0", Plain())
    proxy.step(e.Received("#ann", m.Register("ann", "key", 1, ("news",), Terms())), 0)
    proxy.step(e.Opened("ann"), 0)
    one = proxy.clients["ann"]
    (first,) = proxy.step(e.Subscribed("ann", one.wanted), 0)
    assert isinstance(first, e.Publish)
    answer = one.asking.answer(first.publication, "ann")
    assert answer is not None
    proxy.step(e.Arrived("ann", answer), 300 * MS)
    proxy.step(e.Arrived("ann", Publication("news", b"on its way")), 320 * MS)
    proxy.step(e.Received("#ann", m.MoveOut("ann", "key", 1, ("news",), Terms())), 350 * MS)
    assert proxy.step(e.Arrived("ann", answer), 400 * MS) == []
    assert (one.state, len(one.buffer.kept)) == ("out", 1)


def test_what_has_no_id_stays_until_it_was_downloaded() -> None:
    proxy = registered(Terms(), "news")  # cut off before it answers
    one = proxy.clients["ann"]
    for _ in range(8):
        proxy.step(e.Arrived("ann", Publication("news", bytes(60_000))), SECOND_NS)
    download = m.Download("ann", "key", 2, 1, "proxy0", {}, Terms())
    effects = proxy.step(e.Received("#again", download), 5 * SECOND_NS)
    (ping,) = [effect.publication for effect in effects if isinstance(effect, e.Publish)]
    answer = one.asking.answer(ping, "ann")
    assert answer is not None
    proxy.step(e.Arrived("ann", answer), 5 * SECOND_NS + MS)
    assert len(sent(effects, m.Batch)) == 4
    assert len(one.buffer.kept) == 8


def test_who_is_here_again_before_the_ping_was_answered_is_not_told_at_once() -> None:
    proxy = registered(Terms(), "news")
    for second in range(1, 40):
        proxy.step(e.Tick(), second * SECOND_NS)
    assert proxy.clients["ann"].state == "away"
    register = m.Register("ann", "key", 1, ("news",), Terms())
    (ping,) = proxy.step(e.Received("#again", register), 40 * SECOND_NS)
    assert isinstance(ping, e.Publish)


def test_a_client_that_downloads_for_longer_than_its_lease_is_still_known_after() -> None:
    proxy = registered(Terms(sync=NO_SYNC, lease_ns=SECOND_NS), "news")
    for number in range(8):
        publication = Publication("news", bytes(60_000), id=Id("pub", number))
        proxy.step(e.Arrived("ann", publication), 0)
    terms = proxy.clients["ann"].terms
    proxy.step(e.Received("#ann", m.Download("ann", "key", 2, 1, "proxy0", {}, terms)), 0)
    proxy.step(e.Received("#ann", m.Got("ann", 1, 1)), 900 * MS)
    proxy.step(e.Tick(), 1800 * MS)
    assert proxy.clients["ann"].state == "here"
    proxy.step(e.Tick(), 3000 * MS)
    assert proxy.clients["ann"].state == "away"
    release = m.Release("ann", "key", "proxy0", 2, proxy.clients["ann"].buffer.last)
    proxy.step(e.Received("#ann", release), 3000 * MS)
    assert "ann" in proxy.clients
    proxy.step(e.Received("#proxy1", m.Release("ann", "key", "", 2, 0)), 3000 * MS)
    assert "ann" not in proxy.clients


def test_a_proxy_that_was_restored_without_standby_knows_what_the_system_forgot() -> None:
    old = Proxy("proxy0", "node0", Suspending(), durable=True)
    terms = Terms(sync=NO_SYNC, standby=False)
    old.step(e.Received("#ann", m.MoveOut("ann", "key", 1, ("news",), terms)), 0)
    old.step(e.Opened("ann"), 0)
    assert e.Save("ann") in old.step(e.Subscribed("ann", old.clients["ann"].wanted), 0)
    new = Proxy("proxy0", "node0", Suspending(), durable=True)
    new.restore(old.record("ann"), [], 1)
    new.step(e.Opened("ann", False), 1)
    assert "forgotten" in new.clients["ann"].hole


def test_who_subscribes_is_not_told_later_what_came_before() -> None:
    """The proxy must not have a subscription before the client's own access point."""
    world, ann = here()
    world.do("ann", ann.subscribe("weather", False, world.now))
    asked = world.queues.pop(("ask", "ann", "ann"))
    world.run()
    world.publish(0, topic="weather")
    world.run()
    world.queues["ask", "ann", "ann"] = asked
    world.run()
    second = world.publish(0, topic="weather")
    world.wait(100)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert world.delivered["ann"] == [second]


@pytest.mark.parametrize("breaks", ["broken", "opening", "open"])
def test_what_was_unsubscribed_while_the_access_came_back_is_not_heard_again(breaks: str) -> None:
    world, _ = here()
    proxy = world.proxies["proxy0"]
    change = m.Change("ann", "key", 1, ("new",), ("*1",))
    if breaks == "open":  # the order is on its way, and gone with the access
        proxy.step(e.Received("ann", change), world.now)
    proxy.step(e.AccessGone("ann", "it broke"), world.now)
    if breaks == "broken":
        proxy.step(e.Received("ann", change), world.now)
    proxy.step(e.Tick(), world.now + SECOND_NS)
    if breaks == "opening":
        proxy.step(e.Received("ann", change), world.now + SECOND_NS)
    effects = proxy.step(e.Opened("ann", True), world.now + SECOND_NS)
    assert e.Unsubscribe("ann", ("*1",)) in effects


def test_what_is_lost_is_told_each_time() -> None:
    """Without standby, at the same proxy again: what was told once must not count against what comes."""
    world, ann = here(terms=Terms(standby=False))
    world.proxies["proxy0"].limits = Limits(count=3)
    for _ in range(2):
        world.do("ann", ann.move_out(world.now))
        world.wait(10)
        world.proxies["proxy0"].clients["ann"].buffer.limits = Limits(count=3)
        for _ in range(8):
            world.publish(2)
        world.wait(10)
        world.do("ann", ann.move_in("proxy0", world.now))
        world.wait(1000)
    told = [one.lost for one in world.delivered["ann"] if isinstance(one, e.Gap)]
    assert told == [5, 5]


@pytest.mark.parametrize("at", ["", "proxy0"])
def test_who_left_drops_nothing_that_is_kept_for_the_next_process(at: str) -> None:
    proxy = registered(Terms(sync=NO_SYNC), "news")
    proxy.clients["ann"].stay = 1000  # of a later process
    proxy.step(e.Arrived("ann", Publication("news", id=Id("pub", 1))), 0)
    proxy.step(e.Received("#late", m.Release("ann", "key", at, 1, m.ALL)), 0)
    assert len(proxy.clients["ann"].buffer.kept) == 1


def test_what_comes_while_away_is_left_to_the_proxy() -> None:
    """After a move that failed, something may still come from an access that is being shut."""
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    assert ann.step(e.Arrived("ann", Publication("news", id=Id("pub", 2))), world.now) == []


def test_a_ping_of_an_earlier_stay_is_not_answered_from_elsewhere() -> None:
    """The old proxy would take it that the client has everything, and drop what has no id."""
    world, ann = here()
    ping = ann._asked.request("0.1")
    assert ann.step(e.Arrived("ann", ping), world.now) == []
    assert len(ann.step(e.Arrived("ann", ann._asked.request(f"{ann.stay}.7")), world.now)) == 1


@pytest.mark.parametrize("back", [False, True])
def test_what_changes_while_moving_out_counts_when_the_client_is_resumed(back: bool) -> None:
    world, ann = here()
    ann.language = Suspending()
    world.do("ann", ann.move_out(world.now, suspend=True))
    if back:
        world.do("ann", ann.unsubscribe("*1", world.now))
    else:
        world.do("ann", ann.subscribe("more", False, world.now))
    world.wait(10)
    if back:
        ann.subscribe("*1", False, world.now)
    else:
        ann.unsubscribe("more", world.now)
    ann.move_in("proxy0", world.now)
    ann.step(e.Received("proxy0", m.Welcome("proxy0", "node0")), world.now)
    effects = ann.step(e.Opened("ann", resumed=True), world.now)
    (asked,) = [effect for effect in effects if isinstance(effect, e.Subscribe)]
    assert ("*1" in asked.subscriptions) == back
    assert (e.Unsubscribe("ann", ("more",)) in effects) == (not back)


def test_a_connection_that_breaks_late_in_a_move_is_waited_for_as_long_as_any() -> None:
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.arrival is None or ann.arrival.step != "subscribing":
        world.run(1)
    world.now += 6 * SECOND_NS  # a slow link
    world.break_connection("ann")
    world.wait(5000)
    assert ann.state == "attached"


# ---- for ever --------------------------------------------------------------------------------------


def test_who_was_where_another_client_has_its_name_can_go_elsewhere() -> None:
    world, ann = here()
    other = world.libraries["#other"] = Library("ann", "another key", world.language)
    world.told["#other"], world.delivered["#other"] = [], []
    world.do("#other", other.subscribe("*2", False, 0))
    world.do("#other", other.move_in("proxy1", 0))
    world.wait(100)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(40_000)
    assert isinstance(world.told["ann"][-1], e.Failed)
    for at in ("proxy2", "proxy0"):
        published = world.publish(2)
        world.do("ann", ann.move_in(at, world.now))
        world.wait(10_000)
        assert (ann.state, list(ann.behind)) == ("attached", [at])
        assert world.delivered["ann"][-1] == published


def test_a_stranger_does_not_say_how_often_a_client_has_moved() -> None:
    world, ann = here()
    stranger = m.Register("ann", "another key", m.ALL, (), Terms())
    world.proxies["proxy1"].step(e.Received("#stranger", stranger), 0)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(5000)
    assert ann.stay == 2


@pytest.mark.parametrize("reconnects", [False, True])
def test_who_was_refused_once_still_says_that_it_is_there(reconnects: bool) -> None:
    world, ann = here()
    if reconnects:
        world.do("ann", ann.step(e.Received("proxy0", m.Welcome("proxy0", "node0")), world.now))
    world.do("ann", ann.step(e.Received("proxy0", m.Refused("ann", "not now")), world.now))
    assert isinstance(world.told["ann"][-1], e.Failed)
    assert (ann._renew_at is None) == reconnects
    for _ in range(30):
        world.publish(2)
        world.wait(1000)
    one = world.proxies["proxy0"].clients["ann"]
    assert one.state == "here" and len(one.buffer.kept) < 10


def test_who_is_on_its_way_back_does_not_mind_that_it_was_not_known() -> None:
    world, ann = here()
    world.break_access("ann", "ann")
    world.do("ann", ann.step(e.Received("proxy0", m.Refused("ann", "who?", True)), world.now))
    world.wait(5000)
    assert ann.state == "attached"


def test_an_old_proxy_is_told_again_to_let_go() -> None:
    world, ann = here()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached" or not ann._releases.due_at:
        world.run(1)
    world.break_connection("ann")
    world.wait(60_000)
    assert not world.proxies["proxy0"].clients
    assert (ann.behind.keys(), ann._releases.due_at) == ({"proxy1"}, None)


@pytest.mark.parametrize("what", ["moving out", "registering again"])
def test_nobody_is_woken_for_what_cannot_be_said_yet(what: str) -> None:
    world, ann = here()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    world.down.add("proxy0")
    world.wait(1000)
    assert ann._releases.due_at is not None
    if what == "moving out":
        ann.move_out(world.now)
    else:
        ann.step(e.Received("proxy1", m.Welcome("proxy1", "node1")), world.now)
    later = ann._releases.due_at + 1
    ann.step(e.Tick(), later)
    deadline = ann.next_deadline()
    assert deadline is not None and deadline > later


def test_an_old_proxy_that_stays_away_is_asked_less_and_less_often() -> None:
    world, ann = here()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    world.down.add("proxy0")
    dialled: list[int] = []
    perform = world._perform

    def spy(owner: str, effects: list[e.Effect]) -> None:
        dialled.extend(world.now for effect in effects if effect == e.Dial("proxy0"))
        perform(owner, effects)

    world._perform = spy  # type: ignore[method-assign]
    world.wait(3600_000)
    assert 5 < len(dialled) < 15


def test_a_client_that_leaves_lets_all_old_proxies_go() -> None:
    world, ann = here()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    world.down.add("proxy0")
    world.wait(20_000)
    world.down.clear()
    assert "proxy0" in ann.behind
    ann._releases.begin({})  # it had nothing to give
    world.do("ann", ann.leave(world.now))
    world.wait(100)
    assert not any(proxy.clients for proxy in world.proxies.values())


@pytest.mark.parametrize("where", ["away", "cut off", "moving in"])
def test_a_client_that_leaves_is_let_go_wherever_it_is(where: str) -> None:
    """Else its proxy would keep for it what nobody can ever claim, and its name would be taken."""
    world, ann = here()
    if where == "away":
        world.do("ann", ann.move_out(world.now))
        world.wait(10)
    elif where == "cut off":
        world.break_access("ann", "ann")
    else:
        world.do("ann", ann.move_in("proxy1", world.now))
        while not is_downloading(ann):
            world.run(1)
    world.do("ann", ann.leave(world.now))
    assert ann.next_deadline() is None
    world.wait(1000)
    assert not any(proxy.clients for proxy in world.proxies.values())


@pytest.mark.parametrize(
    "finds_out", ["by its access", "by its connection", "by a renewal", "moving out"]
)
@pytest.mark.parametrize("clock", [1000, 0])
def test_of_two_processes_of_a_client_the_older_one_is_told(finds_out: str, clock: int) -> None:
    world, ann = here()
    later = with_the_same_key(world, clock)
    world.do("later", later.move_in("proxy0", world.now))
    world.wait(100)
    assert later.state == "attached"
    match finds_out:
        case "by its access":  # the system knows one of a name
            world.break_access("ann", "ann")
        case "by its connection":
            world.break_connection("ann")
        case "moving out":
            world.do("ann", ann.move_out(world.now))
    world.wait(4_000)
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and failed.refused and "another process" in failed.reason
    assert (ann.state, later.state) == ("away", "attached")
    world.do("ann", ann.move_in("proxy1", world.now))
    assert world.told["ann"][-1] == failed and ann.state == "away"


def with_the_same_key(world: World, clock: int) -> Library:
    """Another process of ann's, which begins its stays by a clock."""
    later = Library("ann", "key", world.language)
    later.stay = clock
    world.libraries["later"], world.told["later"], world.delivered["later"] = later, [], []
    return later


@pytest.mark.parametrize("went", ["elsewhere", "for good"])
def test_a_late_word_makes_no_client_proxy_anew(went: str) -> None:
    """By a connection that hangs; it would be stood in for, for a day."""
    world, ann = here()
    said = ann.stay
    if went == "elsewhere":
        world.do("ann", ann.move_in("proxy1", world.now))
    else:
        world.do("ann", ann.leave(world.now))
    world.wait(1000)
    late: list[m.Message] = [
        m.MoveOut("ann", "key", said, ("*0",), Terms()),
        m.Register("ann", "key", said, ("*0",), Terms()),
        m.Change("ann", "key", said, ("*1",), (), 2),
    ]
    for message in late:
        assert world.proxies["proxy0"].step(e.Received("hangs", message), world.now) == []
    assert world.proxies["proxy0"].clients == {}


def test_who_left_and_comes_with_the_same_key_begins_a_later_stay() -> None:
    """Its clock was put back meanwhile."""
    world, ann = here()
    world.do("ann", ann.leave(world.now))
    world.wait(1000)
    again = world.join("ann")
    world.do("ann", again.subscribe("*0", False, world.now))
    world.do("ann", again.move_in("proxy0", world.now))
    world.wait(1000)
    assert again.state == "attached" and again.stay > ann.stay
    assert world.proxies["proxy0"].clients["ann"].state == "here"


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_an_older_process_is_told_where_the_later_one_has_been(is_cut_off: bool) -> None:
    world, ann = here()
    later = with_the_same_key(world, 1000)
    for proxy in ("proxy0", "proxy1"):
        world.do("later", later.move_in(proxy, world.now))
        world.wait(100)
    assert world.proxies["proxy0"].clients == {}
    if is_cut_off:
        world.break_access("ann", "ann")
    world.wait(4_000)
    world.do("later", later.move_in("proxy0", world.now))
    world.wait(1_000)
    assert (ann.state, later.state) == ("away", "attached")


def test_an_older_process_that_downloads_does_not_wait_for_what_the_later_one_gets() -> None:
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy0", world.now))
    while ann.arrival is None or ann.arrival.step != "waiting":
        world.run(1)
    world.proxies["proxy0"].clients["ann"].stay = 1000  # the later one has just registered
    world.wait(1000)
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and failed.refused and ann.state == "away"


def test_of_two_processes_whose_clocks_are_behind_one_is_the_later() -> None:
    world, ann = here()
    ann.stay = 1_000_000_000
    world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(100)
    world.do("ann", ann.leave(world.now))
    world.wait(100)
    one, other = world.join("ann"), with_the_same_key(world, 20)
    one.stay = 10
    world.do("ann", one.move_in("proxy0", world.now))
    world.do("later", other.move_in("proxy0", world.now))
    world.wait(5_000)
    assert (one.state, other.state) == ("away", "attached")


def test_a_process_is_not_refused_because_of_one_whose_clock_was_behind() -> None:
    world, _ = here()
    began = 1_700_000_000_000_000
    for stay, proxies in (
        (began, ["proxy0"]),
        (1, ["proxy0"]),
        (began + 10_000_000, ["proxy1", "proxy0"]),
    ):
        ann = world.join("ann")
        ann.stay = stay
        for proxy in proxies:
            world.do("ann", ann.move_in(proxy, world.now))
            world.wait(1000)
            assert ann.state == "attached", world.told["ann"]
        world.cut_off("ann")


def test_who_moves_to_where_an_earlier_process_was_is_not_taken_for_that() -> None:
    """It began elsewhere, by a clock that was behind."""
    world, ann = here()
    ann.stay = 1000
    for proxy in ("proxy0", "proxy1"):
        world.do("ann", ann.move_in(proxy, world.now))
        world.wait(1000)
    world.do("ann", ann.leave(world.now))
    world.wait(1000)
    again = world.join("ann")
    for proxy in ("proxy2", "proxy0", "proxy1"):
        world.do("ann", again.move_in(proxy, world.now))
        world.wait(1000)
        assert (again.state, again.proxy) == ("attached", proxy)
        assert world.proxies[proxy].clients["ann"].state == "here"


def test_a_proxy_that_does_not_know_a_client_heeds_nothing_that_it_said_before() -> None:
    proxy = Proxy("proxy0", "node0", Plain())
    proxy.step(e.Received("proxy1", m.Release("ann", "key", "", 2, m.ALL)), 0)
    assert proxy.step(e.Received("#ann", m.MoveOut("ann", "key", 1, ("*1",), Terms())), 0) == []


def test_who_has_a_name_that_is_taken_is_refused_before_it_opens_an_access() -> None:
    """Where a system knows one of a name, it would put the other one out."""
    world, _ = here()
    (refused,) = world.proxies["proxy0"].step(e.Received("#x", m.Hello("ann", "another")), 0)
    assert isinstance(refused, e.Send) and isinstance(refused.message, m.Refused)
    (welcome,) = world.proxies["proxy0"].step(e.Received("#x", m.Hello("ann")), 0)
    assert welcome == e.Send("#x", m.Welcome("proxy0", "node0", 0))


# ---- told though nothing was missing, or twice -------------------------------------------------------


def test_who_keeps_copies_is_not_told_everything_again() -> None:
    world, _ = here(terms=Terms(copies=True))
    for _ in range(50):
        world.publish(2)
        world.wait(1000)
    assert len(world.proxies["proxy0"].clients["ann"].buffer.kept) < 10


def test_patience_with_an_old_proxy_begins_when_it_is_asked() -> None:
    """Subscribing takes longer than patience, by a slow link; then the old proxy is away for a moment."""
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.arrival is None or ann.arrival.step != "subscribing":
        world.run(1)
    world.now += 6 * SECOND_NS
    world.down.add("proxy0")
    world.wait(500)
    world.down.clear()
    world.wait(20_000)
    (delivered,) = world.delivered["ann"]
    assert isinstance(delivered, Publication)


def test_who_was_there_while_its_proxy_was_down_is_told_of_no_gap_later() -> None:
    world, ann = here()
    old = world.proxies["proxy0"]
    kept = list(old.clients["ann"].buffer.kept.values())
    new = world.proxies["proxy0"] = Proxy("proxy0", "node0", world.language, durable=True)
    world.do("proxy0", new.restore(old.record("ann"), kept, world.now))
    world.do("ann", ann.step(e.PeerGone("proxy0", "restarted"), world.now))
    world.wait(5_000)
    assert new.clients["ann"].hole, "if it were cut off now, it would not know"
    world.wait(30_000)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(2000)
    assert world.delivered["ann"] == []


def test_without_standby_a_word_that_came_late_ends_what_the_lease_began() -> None:
    world, ann = here(terms=Terms(standby=False, copies=True, lease_ns=SECOND_NS))
    proxy = world.proxies["proxy0"]
    world.now += 1500 * MS
    world.do("proxy0", proxy.step(e.Tick(), world.now))
    world.wait(10)
    published = [world.publish(2) for _ in range(10)]
    world.wait(2000)
    assert (proxy.clients["ann"].access, proxy.clients["ann"].hole) == ("none", "")
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(2000)
    assert world.delivered["ann"] == published


def test_a_word_that_was_said_while_moving_out_does_not_end_standing_in() -> None:
    proxy = Proxy("proxy0", "node0", Plain())
    terms = Terms(sync=NO_SYNC, standby=False)
    proxy.step(e.Received("#ann", m.MoveOut("ann", "key", 1, ("news",), terms)), 0)
    proxy.step(e.Opened("ann"), 0)
    proxy.step(e.Subscribed("ann", proxy.clients["ann"].wanted), 0)
    assert proxy.step(e.Received("#ann", m.Renew("ann", "key", 1, {})), MS) == []
    assert proxy.clients["ann"].access == "ready"


def test_who_subscribes_to_everything_hears_nobody_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service_bench.matches", lambda text, one: text in ("#", one.topic))
    world = World(1, [0, 0], False)
    eve = world.join("eve")
    world.do("eve", eve.subscribe("#", False, 0))
    world.do("eve", eve.move_in("proxy0", 0))
    world.wait(100)
    ann = world.join("ann")
    world.do("ann", ann.move_in("proxy0", 0))
    world.wait(100)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert ann.state == "attached"
    assert world.delivered["eve"] == []
    assert not world.proxies["proxy0"].clients["eve"].buffer.kept


def test_after_a_move_out_that_failed_nothing_is_resumed() -> None:
    world, ann = here()
    ann.language = Suspending()
    world.down.add("proxy0")
    world.do("ann", ann.move_out(world.now, suspend=True))
    world.wait(8000)
    assert isinstance(world.told["ann"][-1], e.Failed) and ann.state == "attached"
    world.down.clear()
    world.wait(3000)
    ann.step(e.AccessGone("ann", "it broke"), world.now)
    ann.step(e.Tick(), world.now + SECOND_NS)
    opened = ann.step(e.Received("proxy0", m.Welcome("proxy0", "node0")), world.now + SECOND_NS)
    assert opened == [e.Open("ann", "node0", resume=False)]


@pytest.mark.parametrize("local", [False, True])
def test_a_subscription_that_changes_nothing_is_confirmed(local: bool) -> None:
    world, ann = here()
    world.do("ann", ann.subscribe("*1" if not local else "here", local, world.now))
    assert ann.confirmed == ann.changes == 2


# ---- strangers, and limits -------------------------------------------------------------------------


def test_a_ping_without_patience_is_not_asked_for_ever() -> None:
    proxy = registered(Terms(sync=Sync("ping", patience_ns=0)), "news")
    assert proxy.clients["ann"].waiting is not None
    proxy.step(e.Tick(), SECOND_NS)


def test_a_peer_that_talks_nonsense_is_forgotten() -> None:
    proxy = registered(Terms(sync=NO_SYNC), "news")
    for number in range(50):
        publication = Publication("news", bytes(60_000), id=Id("pub", number))
        proxy.step(e.Arrived("ann", publication), 0)
    proxy.step(e.Received("#x", m.Download("ann", "key", 1, 1, "proxy0", {})), 0)
    proxy.step(e.Received("#x", m.Reach("bob", "proxy9")), 0)
    assert len(proxy._downloads) == len(proxy._relays) == 1
    assert e.Hang("#x") in proxy.step(e.Received("#x", m.Welcome("x", "y")), 0)
    assert len(proxy._downloads) == len(proxy._relays) == 0


def test_questions_that_nobody_answers_do_not_stay_open() -> None:
    proxy = Proxy("proxy0", "node0", Plain())
    for number in range(2 * LISTENER_MAX):
        release = m.Release(f"client{number}", "key", "proxy9", 1, 1)
        proxy.step(e.Received("#eve", release), 0)
    assert len(proxy._relays) == LISTENER_MAX
    proxy.step(e.PeerGone("#eve", "it left"), 0)
    assert proxy.next_deadline() == SILENT_NS
    assert proxy.step(e.Tick(), SILENT_NS) == [e.Hang("proxy9")]
    assert (len(proxy._relays), proxy.next_deadline()) == (0, None)


def test_a_download_that_goes_on_is_not_given_up() -> None:
    proxy = Proxy("proxy0", "node0", Plain())
    proxy.step(e.Received("#ann", m.Download("ann", "key", 1, 1, "proxy9", {})), 0)
    proxy.step(e.Received("proxy9", m.Batch("ann", 1, 1, ())), SILENT_NS - 1)
    assert proxy.step(e.Tick(), SILENT_NS) == []
    assert proxy.step(e.Received("proxy9", m.Batch("ann", 1, 2, ())), 2 * SILENT_NS - 2) != []


def test_an_old_proxy_that_refuses_has_nothing_for_the_client() -> None:
    """It does not keep the client from going on."""
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy1", world.now))
    while not is_downloading(ann):
        world.run(1)
    world.do(
        "proxy1",
        world.proxies["proxy1"].step(
            e.Received("ann", m.Download("ann", "key", 2, 1, "proxy0", {})), world.now
        ),
    )
    (answer,) = world.proxies["proxy1"].step(
        e.Received("proxy0", m.Refused("ann", "not for you")), world.now
    )[:1]
    assert isinstance(answer, e.Send) and isinstance(answer.message, m.Downloaded)
    assert (answer.message.found, answer.message.reason) == (False, "not for you")


def test_what_a_proxy_says_of_a_proxy_that_was_not_asked_changes_nothing() -> None:
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy1", world.now))
    while not is_downloading(ann):
        world.run(1)
    nonsense = m.Downloaded("ann", ann._downloads, "nobody", 1, 0)
    assert ann.step(e.Received("proxy1", nonsense), world.now) == []
    world.wait(1000)
    assert len(world.delivered["ann"]) == 1


def test_the_merge_queue_has_a_limit_and_one_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.service.arrival.MERGE_MAX", 10)
    arrival = Arrival(["proxy0"])
    for number in range(8):
        arrival.receive(Publication("news", id=Id("pub", number)))
    arrival.take(m.Batch("ann", 1, 1, tuple(Publication("old") for _ in range(8))))
    arrival.end_download()
    gaps, publications = arrival.end(ids=True)
    assert gaps == [e.Gap(6, "too much came while the client moved in")]
    assert [one.topic for one in publications] == ["old"] * 2 + ["news"] * 8


def test_what_a_client_says_of_senders_fits_one_message() -> None:
    seen = Seen()
    for number in range(m.SENDERS_MAX):
        seen.is_news(Id(f"{number:05}" + "😀" * 250, 1))
    seen.settle()
    said = seen.settle()
    assert 900 < len(said) < m.SENDERS_MAX
    assert f"{m.SENDERS_MAX - 1:05}" + "😀" * 250 in said, "those that were heard last"
    word = m.Renew("ann", "key", 1, said)
    assert m.decode(m.encode(word)) == word
    assert seen.marks == said


def test_a_sender_that_is_silent_is_not_mentioned_again() -> None:
    seen = Seen()
    seen.is_news(Id("pub", 7))
    assert [seen.settle() for _ in range(4)] == [{}, {"pub": 7}, {"pub": 7}, {}]
    assert seen.marks == {"pub": 7}


def test_all_buffers_together_have_a_limit_and_the_fullest_gives_way() -> None:
    proxy = registered(Terms(sync=NO_SYNC), "news", limits=Limits(all_size=100_000), durable=True)
    proxy.step(e.Received("#bob", m.Register("bob", "key", 1, ("x",), Terms(sync=NO_SYNC))), 0)
    proxy.step(e.Arrived("bob", Publication("x", bytes(1000), id=Id("pub", 1))), 0)
    trimmed: list[int] = []
    for number in range(200):
        publication = Publication("news", bytes(1000), id=Id("pub", number))
        effects = proxy.step(e.Arrived("ann", publication), 0)
        trimmed += [n for effect in effects if isinstance(effect, e.Trim) for n in effect.numbers]
    ann, bob = (proxy.clients[name].buffer for name in ("ann", "bob"))
    assert ann.size + bob.size <= 100_000
    assert (len(bob.kept), ann.lost + len(ann.kept)) == (1, 200)
    assert trimmed == list(range(1, ann.lost + 1))
    download = m.Download("ann", "key", 2, 1, "", {})
    (end,) = sent(proxy.step(e.Received("#proxy1", download), 0), m.Downloaded) or [None]
    assert end is None or end.lost == ann.lost


def test_a_full_buffer_drops_the_oldest_of_what_is_left() -> None:
    buffer = Buffer(Limits(count=3), copies=False)
    for number in range(1, 4):
        buffer.add(Publication("news", id=Id("pub", number)), 0)
    buffer.drop_heard({"pub": 1}, 0)
    for number in range(4, 7):
        buffer.add(Publication("news", id=Id("pub", number)), 0)
    assert (list(buffer.kept), buffer.lost) == ([4, 5, 6], 2)


def test_nobody_is_kept_for_longer_than_a_proxy_likes() -> None:
    proxy = registered(Terms(sync=NO_SYNC, away_ns=m.ALL, lease_ns=m.ALL), "news")
    day = 24 * 3600 * SECOND_NS
    assert proxy.next_deadline() == day
    proxy.step(e.Tick(), day)
    assert proxy.next_deadline() == 31 * day
