"""The core of the mobility service: proxies and libraries in random orders of events."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis.strategies import binary, text

from service_bench import MS, Plain, World, away_from_proxy0, here, is_downloading
from wayfare.errors import CodecError, UsageError
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.buffer import Buffer, Limits
from wayfare.service.client_proxy import WENT
from wayfare.service.library import Library
from wayfare.service.merging import RECENT, Seen, merged
from wayfare.service.messages import NO_SYNC, PING, SECOND_NS, Sync, Terms
from wayfare.service.pinging import Ping, Waiting
from wayfare.service.proxy import Proxy
from wayfare.service.relays import TAKEN
from wayfare.service.system import Id, Publication, Traits

FULL = "the proxy keeps no more for one client"
PAPER = Terms(sync=NO_SYNC, standby=False, copies=True)


def test_a_client_that_moves_gets_everything_once() -> None:
    world = World(0, [0, 0, 1], propagates=True)
    ann = world.join("ann")
    world.do("ann", ann.subscribe("*1", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.run()
    published = [world.publish(2) for _ in range(3)]
    world.run()
    world.do("ann", ann.move_out(0))
    world.run()
    assert world.told["ann"] == [e.Moved(True), e.Moved(False)]
    published += [world.publish(2) for _ in range(3)]
    world.run()
    world.do("ann", ann.move_in("proxy1", 0))
    published += [world.publish(2) for _ in range(3)]
    world.run()
    assert world.delivered["ann"] == published
    assert not world.proxies["proxy0"].clients
    assert list(world.proxies["proxy1"].clients) == ["ann"]


@pytest.mark.parametrize("propagates", [False, True])
@pytest.mark.parametrize("seed", range(300))
def test_with_ping_and_ids_nothing_is_lost_or_comes_twice(seed: int, propagates: bool) -> None:
    world, published = walk(seed, propagates, Terms(), PING)
    assert world.delivered["ann"] == published
    holders = [name for name, proxy in world.proxies.items() if proxy.clients]
    assert holders == [world.libraries["ann"].proxy]


def walk(seed: int, propagates: bool, terms: Terms, sync: Sync) -> tuple[World, list[object]]:
    """One client that moves at random, now and then without moving out; all that was published."""
    random = Random(seed)
    parents = [0, *(random.randrange(node) for node in range(1, random.randint(2, 5)))]
    world = World(seed, parents, propagates)
    ann = world.join("ann", terms=terms, sync=sync)
    for number in range(random.randint(1, 3)):
        world.do("ann", ann.subscribe(f"*{number}", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.run()
    published: list[object] = []
    home = random.randrange(len(parents))
    for _ in range(random.randint(3, 12)):
        for _ in range(random.randint(0, 3)):
            published.append(world.publish(home))
            world.run(random.randint(0, 10))
        if ann.state == "attached" and random.random() < 0.3:
            world.do("ann", ann.move_out(world.now))
        elif random.random() < 0.4:
            world.do("ann", ann.move_in(f"proxy{random.randrange(len(parents))}", world.now))
        world.run(random.randint(0, 40))
        if random.random() < 0.2:
            world.wait(random.randint(1, 5000))
    world.wait(1000)
    if ann.state == "away":
        world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(2000)
    return world, published


# ---- found by the walk above: names of what went wrong --------------------------------------


@pytest.mark.parametrize(
    ("seed", "propagates"),
    [
        pytest.param(53, False, id="the-new-proxy-is-among-the-old-ones"),
        pytest.param(139, True, id="an-answer-to-an-earlier-download"),
        pytest.param(1935, False, id="a-ping-answered-by-one-of-two-old-proxies"),
        pytest.param(736, True, id="a-release-that-ends-while-another-question-is-open"),
        pytest.param(2239, True, id="an-old-proxy-that-lets-go-while-it-is-pinged"),
        pytest.param(2661, False, id="cut-off-before-the-new-proxy-had-everything"),
    ],
)
def test_walks_that_went_wrong(seed: int, propagates: bool) -> None:
    test_with_ping_and_ids_nothing_is_lost_or_comes_twice(seed, propagates)


# ---- the paper's service, without what we added ------------------------------------------------


def test_without_synchronisation_some_is_lost_and_some_comes_twice() -> None:
    lost = copies = 0
    for seed in range(60):
        world, published = migrate(seed, True, PAPER, NO_SYNC)
        delivered = ids(world.delivered["ann"])
        lost += len(set(ids(published)).difference(delivered))
        copies += len(delivered) - len(set(delivered))
    assert lost > 0
    assert copies > 0


def test_with_ping_the_paper_loses_nothing_either() -> None:
    paper = Terms(sync=PING, standby=False, copies=True)
    for seed in range(60):
        for propagates in (False, True):
            world, published = migrate(seed, propagates, paper, PING)
            assert set(ids(published)) == set(ids(world.delivered["ann"]))


def migrate(seed: int, propagates: bool, terms: Terms, sync: Sync) -> tuple[World, list[object]]:
    """One migration along a line of three, while the other end publishes."""
    world = World(seed, [0, 0, 1], propagates)
    ann = world.join("ann", terms=terms, sync=sync)
    world.do("ann", ann.subscribe("*1", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.run()
    published: list[object] = []

    def publish(count: int) -> None:
        for _ in range(count):
            published.append(world.publish(2))
            world.run(world.random.randint(0, 4))

    publish(3)
    world.do("ann", ann.move_out(world.now))
    publish(5)
    world.run()
    publish(5)
    world.do("ann", ann.move_in("proxy1", world.now))
    publish(8)
    world.wait(2000)
    publish(2)
    world.wait(2000)
    assert ann.state == "attached"
    return world, published


def ids(delivered: Sequence[object]) -> list[Id]:
    return [one.id for one in delivered if isinstance(one, Publication) and one.id is not None]


# ---- found by reading ----------------------------------------------------------------------------


def test_a_client_whose_access_breaks_comes_back_without_an_old_proxy_that_is_gone() -> None:
    world, ann = here()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    world.down.add("proxy0")  # before it has let go
    world.wait(1000)
    assert "proxy0" in ann.behind
    world.do("ann", ann.step(e.AccessGone("ann", "it broke"), world.now))
    world.wait(60_000)
    assert ann.state == "attached"
    assert list(ann.behind) == ["proxy1"]


def test_who_is_cut_off_while_moving_out_is_told_that_it_did_not_work() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.do("ann", ann.step(e.AccessGone("ann", "it broke"), world.now))
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and "it broke" in failed.reason
    world.wait(5000)
    assert ann.state == "attached"


def test_a_move_out_is_not_answered_by_what_was_said_of_an_earlier_one() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    ann.step(e.Received("proxy0", m.MovedOut("ann", ann.stay - 1)), world.now)
    assert ann.state == "moving-out"
    world.wait(10)
    assert ann.state == "away"


def test_the_connection_to_an_old_proxy_ends_with_the_last_question() -> None:
    world, ann = away_from_proxy0()
    hung: list[str] = []
    perform = world._perform

    def spy(owner: str, effects: list[e.Effect]) -> None:
        if owner == "proxy1":
            hung.extend(effect.peer for effect in effects if isinstance(effect, e.Hang))
        perform(owner, effects)

    world._perform = spy  # type: ignore[method-assign]
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert ann.state == "attached"
    assert hung[-1:] == ["proxy0"]


def test_nobody_hears_what_another_client_of_the_same_name_downloads() -> None:
    world, _ = here()
    proxy = world.proxies["proxy1"]
    proxy.step(e.Received("ann", m.Download("ann", "key", 2, 1, "proxy0", {})), 0)
    thief = m.Download("ann", "another key", 9, 1, "proxy0", {})
    (refused,) = proxy.step(e.Received("thief", thief), 0)
    assert isinstance(refused, e.Send) and isinstance(refused.message, m.Downloaded)
    assert (refused.message.found, refused.message.reached) == (False, False)
    batch = m.Batch("ann", 1, 1, (Publication("news"),))
    assert proxy.step(e.Received("proxy0", batch), 0) == [e.Send("ann", batch)]


def test_who_asks_for_more_than_a_proxy_can_carry_on_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wayfare.service.relays.RELAYS_MAX", 3)
    proxy = World(0, [0], propagates=False).proxies["proxy0"]
    answers = [
        proxy.step(e.Received("stranger", m.Reach(f"client{number}", "proxy9")), 0)
        for number in range(5)
    ]
    assert [len(effects) for effects in answers] == [2, 2, 2, 1, 1]
    assert "questions" in answers[-1][0].message.reason  # type: ignore[union-attr]


def test_an_old_proxy_lets_go_though_a_word_of_the_client_came_late() -> None:
    world, ann = away_from_proxy0()
    old = world.proxies["proxy0"]
    late = m.Renew("ann", "key", ann.stay, {})
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    old.step(e.Received("old connection", late), world.now)
    world.wait(1000)
    assert not old.clients


def test_an_old_proxy_lets_go_of_a_client_that_leaves_as_soon_as_it_is_elsewhere() -> None:
    world, ann = away_from_proxy0()
    world.do("ann", ann.move_in("proxy1", world.now))
    while ann.state != "attached":
        world.run(1)
    assert "ann" in world.proxies["proxy0"].clients
    world.do("ann", ann.leave(world.now))
    world.wait(1000)
    assert not any(proxy.clients for proxy in world.proxies.values())


def test_an_old_proxy_is_told_to_let_go_though_the_client_has_hung_up() -> None:
    world, _ = here()
    proxy = world.proxies["proxy1"]
    release = m.Release("ann", "key", "proxy0", 1, 1)
    asked = proxy.step(e.Received("ann", release), 0)
    assert [type(effect) for effect in asked] == [e.Dial, e.Send]
    assert proxy.step(e.PeerGone("ann", "it left"), 0) == []
    released = m.Released("ann", "proxy0", 1)
    assert e.Hang("proxy0") in proxy.step(e.Received("proxy0", released), 0)


def test_without_standby_a_proxy_stands_down_when_its_client_is_back() -> None:
    world, ann = away_from_proxy0(terms=PAPER, sync=NO_SYNC)
    world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(10)
    one = world.proxies["proxy0"].clients["ann"]
    assert (one.access, one.state) == ("none", "here")
    world.publish(2)
    world.wait(10)
    assert not one.buffer.kept
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(10)
    assert len(world.delivered["ann"]) == 2


class Suspending(Plain):
    traits = Traits(suspends=True)


def test_what_was_unsubscribed_while_the_access_was_broken_is_unsubscribed_when_it_is_back() -> (
    None
):
    world, _ = here()
    proxy = world.proxies["proxy0"]
    proxy.step(e.AccessGone("ann", "it broke"), world.now)
    stay = proxy.clients["ann"].stay
    proxy.step(e.Received("ann", m.Change("ann", "key", stay, ("new",), ("*1",))), world.now)
    proxy.step(e.Tick(), world.now + SECOND_NS)
    effects = proxy.step(e.Opened("ann"), world.now + SECOND_NS)
    assert e.Unsubscribe("ann", ("*1",)) in effects


def test_what_was_unsubscribed_while_suspended_is_unsubscribed_whatever_the_system_says() -> None:
    world, ann = here()
    ann.language = Suspending()
    world.do("ann", ann.move_out(world.now, suspend=True))
    world.wait(10)
    ann.unsubscribe("*1", world.now)
    ann.move_in("proxy0", world.now)
    ann.step(e.Received("proxy0", m.Welcome("proxy0", "node0")), world.now)
    assert e.Unsubscribe("ann", ("*1",)) in ann.step(e.Opened("ann", resumed=False), world.now)


def test_a_client_whose_clock_was_put_back_goes_on_after_its_last_stay() -> None:
    world, ann = here()
    again = Library("ann", "key", world.language)
    world.libraries["ann"] = again
    again.stay = ann.stay - 1  # by a clock, when its process began
    world.proxies["proxy0"].clients["ann"].stay = 1000
    world.do("ann", again.subscribe("*2", False, world.now))
    world.do("ann", again.move_in("proxy0", world.now))
    world.wait(100)
    assert world.proxies["proxy0"].clients["ann"].stay == again.stay > 1000
    assert list(world.proxies["proxy0"].clients["ann"].subscriptions) == ["*2"]


def test_who_registers_again_is_not_told_before_the_ping_is_answered() -> None:
    proxy = World(0, [0], propagates=False).proxies["proxy0"]
    register = m.Register("ann", "key", 1, ("x",), Terms())
    proxy.step(e.Received("ann", register), 0)
    proxy.step(e.Opened("ann"), 0)
    one = proxy.clients["ann"]
    assert one.access == "open"
    (request,) = proxy.step(e.Subscribed("ann", one.wanted), 0)
    assert isinstance(request, e.Publish)
    (again,) = proxy.step(e.Received("ann anew", register), MS)
    assert isinstance(again, e.Publish) and again != request
    ping = Ping(proxy.language, "ann", "out")
    late, answer = (ping.answer(one.publication, "ann") for one in (request, again))
    assert late is not None and answer is not None
    assert proxy.step(e.Arrived("ann", late), MS) == []
    (told,) = proxy.step(e.Arrived("ann", answer), MS)
    assert told == e.Send("ann anew", m.Registered("ann", 1))


def test_all_subscriptions_of_a_client_fit_one_message() -> None:
    world, ann = here()
    texts = [f"{number:04}{'😀' * 8000}" for number in range(249)]
    for one in texts[:-1]:
        ann.subscribe(one, False, 0)
        ann.step(e.Subscribed("ann", (one,)), 0)
    (register,) = ann.step(e.Received("proxy0", m.Welcome("proxy0", "node0")), 0)
    assert isinstance(register, e.Send) and isinstance(register.message, m.Register)
    assert len(register.message.subscriptions) == 249
    assert len(m.encode(register.message)) <= m.FRAME_MAX
    with pytest.raises(UsageError, match="at most"):
        ann.subscribe("x" * 8000, False, 0, *texts)
    proxy = world.proxies["proxy0"]
    for number in range(3):
        added = tuple(f"{number} {i}" for i in range(4000))
        effects = proxy.step(e.Received("ann", m.Change("ann", "key", 1, added, ())), 0)
    (refused,) = effects
    assert isinstance(refused, e.Send) and isinstance(refused.message, m.Refused)
    assert len(proxy.clients["ann"].subscriptions) == 8001


def test_words_of_a_client_do_not_pile_up() -> None:
    world, _ = here()
    proxy = world.proxies["proxy0"]
    stay = proxy.clients["ann"].stay
    for _ in range(1000):
        world.now += MS
        proxy.step(e.Received("ann", m.Renew("ann", "key", stay, {})), world.now)
        proxy.step(e.Received("ann", m.Register("ann", "key", stay, ("x",), Terms())), world.now)
    assert len(proxy._deadlines) < 10
    assert len(proxy.clients["ann"].told) < 2


@given(text(max_size=20), text(max_size=20), text(max_size=20), binary(max_size=20))
def test_a_publication_takes_no_more_bytes_than_it_is_taken_for(
    topic: str, name: str, sender: str, payload: bytes
) -> None:
    publication = Publication(topic, payload, {name: 1.5, f"{name}!": name}, Id(sender, 2**62))
    assert len(msgspec.msgpack.encode(publication)) <= m.size_of(publication)


def test_a_batch_is_short_enough_whatever_came_before_a_large_publication() -> None:
    small = [Publication("t", id=Id("s" * 250, number)) for number in range(1900)]
    large = Publication("t", bytes(m.PUBLICATION_BYTES_MAX - 200))
    pieces = m.batches([*small, large])
    assert [one for piece in pieces for one in piece] == [*small, large]
    assert all(len(m.encode(m.Batch("ann", 1, 1, one))) <= m.FRAME_MAX for one in pieces)


# ---- trouble -------------------------------------------------------------------------------------


def test_an_old_proxy_that_is_gone_is_a_gap_and_the_client_goes_on() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.publish(2)
    world.run()
    world.down.add("proxy0")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(10_000)
    after = world.publish(2)
    world.run()
    gap, delivered = world.delivered["ann"]
    assert isinstance(gap, e.Gap) and gap.lost is None and "cannot be reached" in gap.reason
    assert delivered == after
    subscribed = world.tables[1]["access", "ann", "ann"]
    assert not [one for one in subscribed if "in-response" in one]


@pytest.mark.parametrize("leaves", [True, False])
def test_an_old_proxy_that_was_given_up_lets_go_when_it_is_back(leaves: bool) -> None:
    world, ann = here()
    world.down.add("proxy0")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(60_000)
    assert ann.state == "attached" and "ann" in world.proxies["proxy0"].clients
    world.do("ann", ann.move_in("proxy2", world.now))
    world.wait(1000)
    world.down.clear()
    if leaves:
        world.do("ann", ann.leave(world.now))
        world.wait(1000)
        assert not any(proxy.clients for proxy in world.proxies.values())
        return
    world.wait(100_000)
    assert "ann" not in world.proxies["proxy0"].clients and list(ann.behind) == ["proxy2"]
    assert ann._releases.due_at is None


def test_an_old_proxy_that_is_there_and_says_nothing_is_given_up() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    while not is_downloading(ann):
        world.run(1)
    world.deaf.add("proxy0")
    world.wait(100_000)
    assert ann.state == "moving-in"
    world.wait(30_000)
    assert ann.state == "attached"
    (gap,) = world.delivered["ann"]
    assert isinstance(gap, e.Gap) and "proxy0 does not answer" in gap.reason


def test_an_old_proxy_that_comes_back_in_time_is_no_gap() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    kept = world.publish(2)
    world.run()
    world.down.add("proxy0")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(3000)
    assert ann.state == "moving-in"
    world.down.clear()
    world.wait(3000)
    assert world.delivered["ann"] == [kept]


def test_a_new_proxy_that_does_not_answer_is_a_failure_and_nothing_is_lost() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    kept = world.publish(2)
    world.down.add("proxy1")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(10_000)
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and "proxy1 cannot be reached" in failed.reason
    world.do("ann", ann.move_in("proxy2", world.now))
    world.wait(1000)
    assert world.delivered["ann"] == [kept]


def test_without_standby_the_proxy_takes_over_when_the_lease_ends() -> None:
    world, ann = here(terms=Terms(standby=False, lease_ns=SECOND_NS))
    assert world.proxies["proxy0"].clients["ann"].access == "none"
    world.cut_off("ann")
    world.publish(2)
    world.wait(1500)
    kept = world.publish(2)
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    gap, delivered = world.delivered["ann"]
    assert isinstance(gap, e.Gap) and gap.lost is None and "cut off" in gap.reason
    assert delivered == kept


def test_while_the_client_says_a_word_its_lease_goes_on_and_the_buffer_is_short() -> None:
    world, _ = here(terms=Terms(lease_ns=3 * SECOND_NS))
    one = world.proxies["proxy0"].clients["ann"]
    for _ in range(40):
        world.publish(2)
        world.wait(1000)
        assert one.state == "here"
        assert len(one.buffer.kept) <= 4  # three periods of a lease's third, and one under way
    assert len(world.delivered["ann"]) == 40


def test_a_client_that_never_comes_back_is_forgotten() -> None:
    world, ann = here(terms=Terms(away_ns=5 * SECOND_NS))
    world.do("ann", ann.move_out(world.now))
    world.wait(4000)
    assert "ann" in world.proxies["proxy0"].clients
    world.wait(2000)
    assert not world.proxies["proxy0"].clients
    world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(1000)
    (gap,) = world.delivered["ann"]
    assert isinstance(gap, e.Gap) and "does not know the client" in gap.reason


def test_only_who_began_with_a_name_goes_on_with_it() -> None:
    world, _ = here()
    download = m.Download("ann", "another key", 9, 1, "proxy0", {})
    proxy = world.proxies["proxy0"]
    (refused,) = proxy.step(e.Received("thief", download), world.now)
    assert refused == e.Send("thief", m.Refused("ann", TAKEN))


def test_what_was_asked_before_the_last_move_comes_too_late() -> None:
    world, _ = here()
    one = world.proxies["proxy0"].clients["ann"]
    one.stay = 3  # it was elsewhere, and is back
    old = [
        m.Download("ann", "key", 2, 1, "", {}),
        m.Register("ann", "key", 2, ("old",), Terms()),
        m.MoveOut("ann", "key", 2, (), Terms()),
        m.Release("ann", "key", "", 1, 99),
    ]
    for message in old:
        effects = world.proxies["proxy0"].step(e.Received("proxy1", message), world.now)
        assert all(isinstance(effect, e.Send) for effect in effects)
        assert (one.state, one.stay, list(one.subscriptions)) == ("here", 3, ["*1"])


def test_batches_of_an_earlier_download_are_not_kept() -> None:
    world, ann = here(terms=Terms(copies=True))
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    kept = world.publish(2)
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    while not is_downloading(ann):
        world.run(1)
    ann.step(e.Received("proxy1", m.Batch("ann", 0, 1, (kept,))), world.now)
    world.wait(1000)
    assert world.delivered["ann"] == [kept]


def test_a_client_whose_name_is_taken_is_told_once() -> None:
    world, _ = here()
    other = Library("ann", "another key", world.language)
    world.libraries["other"], world.told["other"] = other, []
    world.do("other", other.move_in("proxy0", world.now))
    other.step(e.Received("proxy0", m.Welcome("proxy0", "node0")), 0)
    other.step(e.Opened("ann"), 0)
    other.step(e.Subscribed("ann", ()), 0)
    assert other.state == "attached"
    refused = m.Refused("ann", TAKEN)
    assert other.step(e.Received("proxy0", refused), 0) == [e.Failed(refused.reason, refused=True)]
    assert other.next_deadline() is None


def test_a_proxy_that_forgot_the_client_hears_of_it_again() -> None:
    world, _ = here()
    del world.proxies["proxy0"].clients["ann"]
    world.wait(10_000)
    assert world.proxies["proxy0"].clients["ann"].access == "ready"


def test_what_nobody_could_download_is_not_kept() -> None:
    world, _ = here()
    buffer = world.proxies["proxy0"].clients["ann"].buffer
    assert buffer.add(Publication("news", bytes(m.FRAME_MAX)), 0) == (None, [])
    assert buffer.lost == 1


def test_the_last_so_many_are_replayed_and_none_that_is_too_old() -> None:
    world, ann = here(terms=Terms(last=3, age_ns=10 * SECOND_NS))
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.publish(2)
    world.wait(11_000)
    published = [world.publish(2) for _ in range(5)]
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert world.delivered["ann"] == published[-3:]


def test_a_buffer_that_is_full_drops_the_oldest_and_says_how_many() -> None:
    world, ann = here()
    world.proxies["proxy0"].clients["ann"].buffer.limits = Limits(count=4)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    published = [world.publish(2) for _ in range(6)]
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    gap, *delivered = world.delivered["ann"]
    assert gap == e.Gap(2, FULL)
    assert delivered == published[2:]


def test_what_was_dropped_is_found_when_the_client_says_that_it_has_heard_it() -> None:
    world, ann = here()
    buffer = world.proxies["proxy0"].clients["ann"].buffer
    buffer.limits = Limits(count=4)
    for _ in range(6):
        world.publish(2)
    world.wait(10)
    assert buffer.lost == 2
    world.wait(10_000)
    assert buffer.lost == 0
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    missed = [world.publish(2) for _ in range(5)]
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert world.delivered["ann"][6:] == [e.Gap(1, FULL), *missed[1:]]


@pytest.mark.parametrize("id", [Id("bob", 3), None])
def test_what_was_told_as_lost_is_not_found_later(id: Id | None) -> None:
    buffer = Buffer(Limits(count=0), copies=False)
    buffer.add(Publication("news", id=id), 5)
    assert not buffer.find({"bob": 2}, before=5)
    assert buffer.tell_lost({"bob": 2}) == 1
    assert not buffer.find({"bob": 3}, before=6)
    buffer.add(Publication("news", id=id), 5)
    assert buffer.find({"bob": 3}, before=6)
    assert buffer.lost == 1


def test_who_moves_out_of_a_proxy_that_is_gone_is_told_when_patience_ends() -> None:
    world, ann = here()
    world.down.add("proxy0")
    world.do("ann", ann.move_out(world.now))
    world.wait(7_000)
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and "cannot be reached" in failed.reason
    assert ann.state == "attached"
    world.down.clear()
    world.wait(2_000)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    assert ann.state == "away"


def frozen(world: World, proxy: str) -> Callable[[], None]:
    """It can be reached, and hears and says nothing, until the function is called."""
    one = world.proxies[proxy]
    step = one.step

    def deaf(event: e.Event, now: int) -> list[e.Effect]:
        return [] if isinstance(event, e.Received) else step(event, now)

    def thaw() -> None:
        one.step = step  # type: ignore[method-assign]

    one.step = deaf  # type: ignore[method-assign]
    return thaw


def test_a_proxy_that_is_frozen_ends_a_move_out() -> None:
    world, ann = here()
    thaw = frozen(world, "proxy0")
    world.do("ann", ann.move_out(world.now))
    world.wait(34_000)
    assert ann.state == "moving-out"
    world.wait(2_000)
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and "does not answer" in failed.reason
    thaw()
    world.wait(2_000)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    assert ann.state == "away"


def test_a_proxy_that_is_frozen_ends_a_move_in() -> None:
    world, ann = away_from_proxy0()
    frozen(world, "proxy1")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(36_000)
    failed = world.told["ann"][-1]
    assert isinstance(failed, e.Failed) and "does not answer" in failed.reason
    assert ann.state == "away"
    world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(1_000)
    assert ann.state == "attached"
    assert len(world.delivered["ann"]) == 1


def test_who_was_cut_off_at_a_proxy_that_is_frozen_dials_it_again() -> None:
    world, ann = here()
    thaw = frozen(world, "proxy0")
    world.do("ann", ann.step(e.AccessGone("ann", "it broke"), world.now))
    world.wait(30_000)
    thaw()
    assert ann.state == "moving-in"
    world.wait(10_000)
    assert ann.state == "attached"


def test_without_ids_what_came_before_a_move_out_does_not_come_again() -> None:
    world, ann = here()
    plain = [Publication("news", b"%d" % number) for number in range(6)]

    def publish(some: list[Publication]) -> None:
        for one in some:
            world._route(2, None, one)
        world.wait(10)

    publish(plain[:3])
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    publish(plain[3:])
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert world.delivered["ann"] == plain


def test_a_gap_is_told_until_the_client_knows_of_it() -> None:
    world, ann = here()
    world.proxies["proxy0"].clients["ann"].hole = "the proxy was down"
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    while not is_downloading(ann):
        world.run(1)
    while not any(isinstance(a[3], m.Downloaded) for a in world.queues["peer", "proxy1", "ann"]):
        world.run(1)
    world.queues["peer", "proxy1", "ann"].clear()  # it is cut off before it hears the end
    world.do("ann", ann.move_in("proxy2", world.now))
    world.wait(1000)
    assert world.delivered["ann"] == [e.Gap(None, "the proxy was down")]
    world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(1000)
    assert len(world.delivered["ann"]) == 1, "it is told once"


def test_what_was_given_up_does_not_come_later() -> None:
    """The client was told that it is missing, and has had what came after it."""
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.publish(2)
    world.wait(10)
    world.down.add("proxy0")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(10_000)
    after = world.publish(2)
    world.wait(10)
    world.down.clear()
    for proxy in ("proxy0", "proxy1", "proxy2"):
        world.do("ann", ann.move_in(proxy, world.now))
        world.wait(1000)
    gap, *delivered = world.delivered["ann"]
    assert isinstance(gap, e.Gap)
    assert delivered == [after]


def test_a_lease_that_ends_during_a_ping_does_not_keep_the_old_proxy() -> None:
    proxy = Proxy("proxy0", "node0", Plain())
    terms = Terms(lease_ns=SECOND_NS)
    proxy.step(e.Received("ann", m.Register("ann", "key", 1, ("*1",), terms)), 0)
    proxy.step(e.Opened("ann"), 0)
    (ping,) = proxy.step(e.Subscribed("ann", proxy.clients["ann"].wanted), 0)
    assert isinstance(ping, e.Publish)
    proxy.step(e.Tick(), 2 * SECOND_NS)
    assert proxy.clients["ann"].state == "away"
    answer = proxy.clients["ann"].asking.answer(ping.publication, "ann")
    assert answer is not None
    effects = proxy.step(e.Arrived("ann", answer), 3 * SECOND_NS)
    assert e.Send("ann", m.Registered("ann", 1)) in effects


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("restarts", [False, True])
def test_who_is_cut_off_after_the_proxy_has_a_subscription_misses_nothing(
    seed: int, restarts: bool
) -> None:
    """Its own access point may have it before the proxy, and the other way round."""
    world, ann = here(seed)
    if restarts:  # so the subscription is told with the registration
        world.proxies["proxy0"] = Proxy("proxy0", "node0", world.language)
    world.do("ann", ann.subscribe("weather", False, world.now))
    while ann.confirmed < ann.changes:
        assert any(world.queues.values()), "nobody will ever say so"
        world.run(1)
    published = world.publish(0, topic="weather")
    world.run(world.random.randint(0, 3))
    world.cut_off("ann")
    world.run()
    world.do("ann", ann.move_in("proxy1", world.now))
    world.run()
    assert world.delivered["ann"] == [published]


def test_a_change_is_confirmed_though_nobody_stands_by() -> None:
    world, ann = here(terms=Terms(standby=False))
    world.do("ann", ann.subscribe("weather", False, world.now))
    world.run()
    assert (ann.confirmed, ann.changes) == (2, 2)


def test_of_changes_that_wait_for_the_system_only_the_last_is_kept() -> None:
    world, ann = here()
    proxy = world.proxies["proxy0"]
    proxy.step(e.AccessGone("ann"), world.now)
    for number in range(3):
        world.do("ann", ann.subscribe(f"more{number}", False, world.now))
    world.run()
    assert ann.confirmed == 1
    assert proxy.clients["ann"].changed == ("ann", m.Changed("ann", 4))
    world.wait(2000)
    assert ann.confirmed == 4


def test_a_local_subscription_stays_behind() -> None:
    world, ann = here()
    world.do("ann", ann.subscribe("local news", True, world.now))
    world.run()
    near = world.publish(2, topic="local news")
    world.run()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.publish(2, topic="local news")
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    world.publish(2, topic="local news")
    world.wait(10)
    assert world.delivered["ann"] == [near]
    assert e.Ended("local news") in world.told["ann"]
    assert list(ann.subscriptions) == ["*1"]


def test_what_is_published_while_away_goes_out_in_order_on_arrival() -> None:
    world, ann = here()
    bob = world.join("bob")
    world.do("bob", bob.subscribe("*1", False, 0))
    world.do("bob", bob.move_in("proxy2", 0))
    world.wait(10)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    for number in range(3):
        world.do("ann", ann.publish(Publication("news", b"%d" % number), world.now))
    world.wait(10)
    assert world.delivered["bob"] == []
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert [one.payload for one in world.delivered["bob"]] == [b"0", b"1", b"2"]


def test_subscriptions_that_change_while_away_are_known_at_the_new_proxy() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.unsubscribe("*1", world.now))
    world.do("ann", ann.subscribe("sports", False, world.now))
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert list(world.proxies["proxy1"].clients["ann"].subscriptions) == ["sports"]


def test_a_proxy_that_was_restarted_has_what_it_kept() -> None:
    world, ann = here()
    old = world.proxies["proxy0"]
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    published = [world.publish(2) for _ in range(4)]
    world.wait(10)
    kept = list(old.clients["ann"].buffer.kept.values())
    new = world.proxies["proxy0"] = Proxy("proxy0", "node0", world.language, durable=True)
    world.language.traits = Traits(suspends=True)
    world.do("proxy0", new.restore(old.record("ann"), kept, world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    assert world.delivered["ann"] == published
    assert not new.clients


@pytest.mark.parametrize(("resumed", "reasons"), [(True, []), (None, []), (False, ["forgotten"])])
def test_a_system_that_forgot_what_it_was_to_keep_is_a_gap(
    resumed: bool | None, reasons: list[str]
) -> None:
    world, ann = here()
    world.language.traits = Traits(suspends=True)
    proxy = world.proxies["proxy0"]
    proxy.step(e.AccessGone("ann", "the server was restarted"), world.now)
    proxy.step(e.Opened("ann", resumed), world.now)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(1000)
    told = [one.reason for one in world.delivered["ann"] if isinstance(one, e.Gap)]
    assert [word for word in ("forgotten",) for reason in told if word in reason] == reasons


def test_an_access_that_never_was_has_nothing_to_forget() -> None:
    proxy = Proxy("proxy0", "node0", Plain())
    proxy.step(e.Received("ann's", m.Register("ann", "key", 1, ("x",), Terms(), True)), 0)
    proxy.step(e.AccessGone("ann", "nobody answers"), 0)
    proxy.step(e.Opened("ann", False), 0)
    assert not proxy.clients["ann"].hole


def test_what_a_durable_proxy_is_to_write_down() -> None:
    language = Plain()
    proxy = Proxy("proxy0", "node0", language, durable=True)
    terms = Terms(sync=NO_SYNC)
    effects = proxy.step(e.Received("ann", m.MoveOut("ann", "key", 1, ("*1",), terms)), 0)
    assert e.Save("ann") in effects
    proxy.step(e.Opened("ann"), 0)
    news = Publication("news", b"x", id=Id("pub", 1))
    assert proxy.step(e.Arrived("ann", news), 5) == [e.Keep("ann", 1, 5, news)]
    assert proxy.step(e.Arrived("ann", news), 5) == []
    proxy.step(e.Received("ann", m.Download("ann", "key", 2, 1, "proxy0", {})), 6)
    effects = proxy.step(e.Received("ann", m.Release("ann", "key", "proxy0", 1, 1)), 6)
    assert e.Trim("ann", (1,)) in effects


def test_requests_do_not_pile_up_on_a_slow_link() -> None:
    ping = Ping(Plain(), "ann", "in")
    waiting = Waiting(PING, ping, "1", ["proxy0"], 0)
    request = waiting.due(0)
    assert request is not None
    assert waiting.due(700 * MS) is None, "the first one is not out"
    waiting.published(request, 750 * MS)
    assert waiting.deadline == 800 * MS
    times = []
    for _ in range(8):
        assert waiting.deadline is not None
        times.append(waiting.deadline)
        assert waiting.due(times[-1]) == request
        waiting.published(request, times[-1])
    gaps = [(after - before) // MS for before, after in pairwise(times)]
    assert gaps == [200, 400, 800, 1600, 3200, 3200, 3200]
    assert not waiting.hear(Publication(request.topic, b"1 proxy0"), 0), "a request is no response"
    answer = ping.answer(request, "proxy0")
    assert answer is not None and waiting.hear(answer, 0)


def test_behind_the_last_response_there_may_be_a_delay() -> None:
    ping = Ping(Plain(), "ann", "in")
    waiting = Waiting(Sync("ping", delay_ns=100 * MS), ping, "1", ["proxy0"], 0)
    request = waiting.due(0)
    assert request is not None
    answer = ping.answer(request, "proxy0")
    assert answer is not None
    assert not waiting.hear(answer, 50 * MS)
    waiting.published(request, 60 * MS)
    assert not waiting.hear(answer, 70 * MS), "another one changes nothing"
    assert (waiting.answered, waiting.deadline) == (True, 150 * MS)
    assert waiting.due(150 * MS) is None
    assert waiting.over


def test_on_a_mesh_there_is_one() -> None:
    """A publication reaches the new access point early, and the old one late, behind the ping."""
    world, ann = here()
    world.language.traits = Traits(mesh=True)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(90)
    late = Publication("news", id=Id("pub", 1))
    world._step("proxy0", e.Arrived("ann", late))
    world.wait(1000)
    assert world.delivered["ann"] == [late]


@pytest.mark.parametrize("limits", [{}, {"last": 10}], ids=["all", "the-last-ten"])
def test_on_a_mesh_who_has_heard_more_than_the_old_proxy_waits_for_it(
    limits: dict[str, int],
) -> None:
    """A publication goes to the old access point only, and is slow; a later one comes to the new one."""
    world, ann = here(terms=Terms(**limits))
    world.language.traits = Traits(mesh=True)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(50)
    late, direct = numbered(1, 2)
    world._step("ann", e.Arrived("ann", direct))
    world.wait(150)
    world._step("proxy0", e.Arrived("ann", late))
    world._step("proxy0", e.Arrived("ann", direct))
    world.wait(1000)
    assert world.delivered["ann"] == ([direct] if limits else [late, direct])


def test_on_a_mesh_nobody_waits_long_for_what_does_not_come() -> None:
    world, ann = here()
    world.language.traits = Traits(mesh=True)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(50)
    (direct,) = numbered(2)
    world._step("ann", e.Arrived("ann", direct))
    world.wait(4000)
    assert world.delivered["ann"] == []
    world.wait(2000)
    assert world.delivered["ann"] == [direct]
    assert not world.proxies["proxy0"].clients


def test_who_never_hears_a_response_goes_on_after_a_while() -> None:
    waiting = Waiting(PING, Ping(Plain(), "ann", "in"), "1", ["proxy0"], 0)
    while waiting.deadline is not None:
        now = waiting.deadline
        waiting.due(now)
    assert now == PING.patience_ns


def test_an_old_proxy_that_is_not_heard_by_way_of_the_system_is_a_gap() -> None:
    world, ann = here()
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    requests = world.proxies["proxy0"].clients["ann"].asked.requests
    del world.tables[0]["access", "proxy0", "ann"][requests]
    kept = world.publish(0)
    world.do("ann", ann.move_in("proxy1", world.now))
    world.wait(PING.patience_ns // MS + 1000)
    assert world.delivered["ann"] == [
        e.Gap(None, "proxy0 did not answer by way of the system"),
        kept,
    ]


def registering() -> tuple[Proxy, e.Publish]:
    """Ann registers, and has not answered the ping."""
    proxy = Proxy("proxy0", "node0", Plain())
    proxy.step(e.Received("ann", m.Register("ann", "key", 1, ("*1",), Terms())), 0)
    proxy.step(e.Opened("ann"), 0)
    (ping,) = proxy.step(e.Subscribed("ann", proxy.clients["ann"].wanted), 0)
    assert isinstance(ping, e.Publish)
    return proxy, ping


@pytest.mark.parametrize("renews", [True, False])
def test_nobody_stands_in_before_the_client_has_answered(renews: bool) -> None:
    proxy, ping = registering()
    for second in range(1, 100):
        now = second * SECOND_NS
        if renews or second > 50:
            effects = proxy.step(e.Received("ann", m.Renew("ann", "key", 1, {})), now)
        else:
            effects = proxy.step(e.Tick(), now)
        assert not [one for one in effects if isinstance(one, e.Send)]
    answer = proxy.clients["ann"].asking.answer(ping.publication, "ann")
    assert answer is not None
    effects = proxy.step(e.Arrived("ann", answer), now)
    assert e.Send("ann", m.Registered("ann", 1)) in effects
    assert proxy.clients["ann"].hole == ""


@pytest.mark.parametrize("answered", [True, False])
def test_who_goes_without_having_answered_may_have_missed_something(answered: bool) -> None:
    proxy, ping = registering()
    one = proxy.clients["ann"]
    if answered:
        answer = one.asking.answer(ping.publication, "ann")
        assert answer is not None
        proxy.step(e.Arrived("ann", answer), 0)
    proxy.step(e.Received("ann", m.MoveOut("ann", "key", 1, ("*1",), Terms())), MS)
    now = PING.patience_ns + SECOND_NS
    assert e.Send("ann", m.MovedOut("ann", 1)) in proxy.step(e.Tick(), now)
    assert one.hole == ("" if answered else WENT)


# ---- the merge queue -------------------------------------------------------------------------------


def numbered(*numbers: int, sender: str = "pub") -> list[Publication]:
    return [Publication("news", id=Id(sender, number)) for number in numbers]


def test_the_queue_has_each_once_and_each_sender_in_order() -> None:
    one, two = numbered(1, 2, 4), numbered(3, 4, 5)
    assert merged(one, two) == numbered(1, 2, 3, 4, 5)
    other = numbered(7, sender="other")
    assert merged([*other, *numbered(2)], numbered(1)) == [*other, *numbered(1, 2)]


def test_what_has_no_id_is_kept() -> None:
    plain = Publication("news", b"x")
    assert merged([plain], [plain, *numbered(1)]) == [plain, plain, *numbered(1)]


def test_a_late_publication_is_news_and_a_copy_is_not() -> None:
    seen = Seen()
    assert seen.is_news(Id("pub", 2))
    assert seen.is_news(Id("pub", 1))
    assert not seen.is_news(Id("pub", 2))
    assert seen.is_news(None) and seen.is_news(None)
    for number in range(3, 3 * RECENT):
        assert seen.is_news(Id("pub", number))
    assert not seen.is_news(Id("pub", 5)), "longer ago than is remembered"


def test_how_far_a_sender_was_heard_is_said_a_little_late() -> None:
    seen = Seen()
    seen.is_news(Id("pub", 1))
    assert seen.settle() == {}
    seen.is_news(Id("pub", 2))
    assert seen.settle() == {"pub": 1}
    assert seen.settle() == {"pub": 2}


# ---- what crosses the wire -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "pong", "delay x", "delay -1", "ping 3", "delay 1e99"])
def test_no_way_to_synchronise(text: str) -> None:
    with pytest.raises(UsageError, match="no way to synchronise"):
        Sync.parse(text)


def test_ways_to_synchronise() -> None:
    assert Sync.parse("none") == NO_SYNC
    assert Sync.parse("ping") == PING
    assert Sync.parse("delay").delay_ns == Sync.parse("delay 200").delay_ns == 200_000_000


@given(binary())
def test_any_bytes_are_a_message_or_a_codec_error(frame: bytes) -> None:
    try:
        message = m.decode(frame)
    except CodecError:
        return
    assert m.decode(m.encode(message)) == message


@pytest.mark.parametrize(
    "text", [None, "", "x", "/1", "pub/", "pub/-1", "pub/1e3", "pub/" + "9" * 19, "p" * 300 + "/1"]
)
def test_no_id(text: str | None) -> None:
    assert Id.parse(text) is None


def test_an_id_may_have_any_sender() -> None:
    for id in (Id("pub", 0), Id("a/b/c", 10**17), Id("ü", 7)):
        assert Id.parse(str(id)) == Id.parse(str(id).encode()) == id
