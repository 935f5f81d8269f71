"""Links are FIFO and lose nothing, whatever their shape and whatever happens to them."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from wayfare.channel import find
from wayfare.core.codec import encode
from wayfare.core.messages import Ack, LinkId
from wayfare.errors import UsageError
from wayfare.sim import World, check
from wayfare.sim.links import (
    MS_NS,
    WINDOW_FIRST,
    WINDOW_MOST,
    Agenda,
    LinkSpec,
    Pipe,
    Stream,
    wireless,
)

SIZE = len(encode(Ack(1)))  # the same for all numbers below 128


class Line:
    """A pipe and what comes out of it: (time, number)."""

    def __init__(self, spec=None, seed=0, channel=None):
        self.agenda = Agenda()
        self.out = []
        self.pipe = Pipe(
            self.agenda, Random(seed), spec or LinkSpec(), LinkId("porto"), self._receive, channel
        )

    def _receive(self, event):
        assert event.link == "porto"
        self.out.append((self.agenda.now, event.message.number))

    def send(self, *numbers):
        for number in numbers:
            self.pipe.send(Ack(number))

    def run(self, until=None):
        if until is not None:
            self.agenda.run_until(until)
        else:
            while (time := self.agenda.next()) is not None:
                self.agenda.run_until(time)
        return self.out

    def numbers(self):
        return [number for _, number in self.out]


def in_ms(out):
    return [(time / MS_NS, number) for time, number in out]


# Shape


def test_latency_is_exact():
    line = Line(LinkSpec(latency_ns=7))
    line.send(1)
    line.run(until=5)
    line.send(2)
    assert line.run() == [(7, 1), (12, 2)]


def test_messages_of_one_moment_arrive_at_one_moment_in_order():
    line = Line(LinkSpec(latency_ns=7))
    line.send(3, 1, 2)
    assert line.run() == [(7, 3), (7, 1), (7, 2)]


def test_no_latency_is_possible():
    line = Line(LinkSpec(latency_ns=0))
    line.send(1)
    assert line.run() == [(0, 1)]


def test_bandwidth_gives_every_byte_its_time():
    """8 kbit/s is a byte each millisecond: one after the other, then the latency."""
    line = Line(LinkSpec(latency_ns=10 * MS_NS, bandwidth_bps=8000))
    line.send(1, 2, 3)
    assert in_ms(line.run()) == [(10 + SIZE, 1), (10 + 2 * SIZE, 2), (10 + 3 * SIZE, 3)]
    assert line.pipe.bytes == 3 * SIZE


def test_a_free_line_does_not_make_up_for_lost_time():
    line = Line(LinkSpec(latency_ns=0, bandwidth_bps=8000))
    line.send(1)
    line.run(until=1000 * MS_NS)
    line.send(2, 3)
    assert in_ms(line.run()) == [(SIZE, 1), (1000 + SIZE, 2), (1000 + 2 * SIZE, 3)]


def test_a_busy_line_makes_the_next_one_wait():
    line = Line(LinkSpec(latency_ns=0, bandwidth_bps=8000))
    line.send(1)
    line.run(until=2 * MS_NS)
    line.send(2)
    assert in_ms(line.run()) == [(SIZE, 1), (2 * SIZE, 2)]


def test_a_long_message_takes_longer():
    line = Line(LinkSpec(latency_ns=0, bandwidth_bps=8000))
    line.send(10**12)
    assert line.run()[0][0] == len(encode(Ack(10**12))) * MS_NS
    assert len(encode(Ack(10**12))) > SIZE


def test_jitter_adds_no_more_than_it_may_and_not_always_the_same():
    times = set()
    for seed in range(50):
        line = Line(LinkSpec(latency_ns=100, jitter_ns=20), seed)
        line.send(1)
        times.add(line.run()[0][0])
    assert min(times) >= 100
    assert max(times) <= 120
    assert len(times) > 10


def test_loss_delays_by_whole_retransmissions():
    times = set()
    for seed in range(200):
        line = Line(LinkSpec(latency_ns=100, loss=0.5, retransmit_ns=1000), seed)
        line.send(1)
        times.add(line.run()[0][0])
    assert {100, 1100, 2100} <= times
    assert all(time % 1000 == 100 for time in times)


def test_loss_is_as_frequent_as_it_says():
    late = 0
    for seed in range(1000):
        line = Line(LinkSpec(latency_ns=100, loss=0.2, retransmit_ns=1000), seed)
        line.send(1)
        late += line.run()[0][0] > 100
    assert 150 < late < 250


@pytest.mark.parametrize("seed", range(20))
def test_jitter_and_loss_keep_the_order(seed):
    line = Line(LinkSpec(latency_ns=100, jitter_ns=5000, loss=0.3, retransmit_ns=700), seed)
    for number in range(30):
        line.send(number)
        line.run(until=line.agenda.now + 50)
    line.run()
    assert line.numbers() == list(range(30))
    assert line.out == sorted(line.out)


# Changing shape


def test_a_faster_shape_overtakes_nothing():
    line = Line(LinkSpec(latency_ns=1000))
    line.send(1)
    line.pipe.shape(LinkSpec(latency_ns=10))
    line.send(2)
    assert line.run() == [(1000, 1), (1000, 2)]


def test_a_faster_shape_is_faster_when_the_slow_ones_are_through():
    line = Line(LinkSpec(latency_ns=1000))
    line.send(1)
    line.pipe.shape(LinkSpec(latency_ns=10))
    line.run(until=5000)
    line.send(2)
    assert line.run() == [(1000, 1), (5010, 2)]


def test_a_slower_shape_holds_for_what_is_sent_from_then_on():
    line = Line(LinkSpec(latency_ns=10))
    line.send(1)
    line.pipe.shape(LinkSpec(latency_ns=1000))
    line.send(2)
    assert line.run() == [(10, 1), (1000, 2)]


def test_a_line_that_gets_thin_starts_free():
    line = Line(LinkSpec(latency_ns=0))
    line.send(1, 2, 3)
    line.pipe.shape(LinkSpec(latency_ns=0, bandwidth_bps=8000))
    line.send(4)
    assert in_ms(line.run()) == [(0, 1), (0, 2), (0, 3), (SIZE, 4)]


# Down and up


def test_what_is_on_its_way_when_the_link_is_cut_arrives_when_it_is_healed():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1)
    line.run(until=50)
    line.pipe.cut()
    line.send(2)
    assert line.run(until=10_000) == []
    line.pipe.heal()
    line.send(3)
    assert line.run() == [(10_100, 1), (10_100, 2), (10_100, 3)]


def test_what_has_arrived_before_the_cut_is_not_sent_again():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1)
    line.run(until=60)
    line.send(2)
    line.run(until=100)
    line.pipe.cut()
    line.run(until=500)
    line.pipe.heal()
    assert line.run() == [(100, 1), (600, 2)]


def test_cutting_twice_and_healing_twice_is_cutting_and_healing_once():
    line = Line(LinkSpec(latency_ns=100))
    line.pipe.heal()
    line.send(1, 2)
    line.pipe.cut()
    line.pipe.cut()
    line.send(3)
    line.pipe.heal()
    line.pipe.heal()
    assert [number for _, number in line.run()] == [1, 2, 3]


def test_a_link_that_is_cut_again_and_again_loses_nothing():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1)
    for round in range(5):
        line.run(until=line.agenda.now + 50)
        line.pipe.cut()
        line.send(round + 2)
        line.pipe.heal()
    line.run()
    assert line.numbers() == [1, 2, 3, 4, 5, 6]


def test_a_healed_thin_line_sends_again_byte_by_byte():
    line = Line(LinkSpec(latency_ns=0, bandwidth_bps=8000))
    line.send(1, 2)
    line.pipe.cut()
    line.run(until=100 * MS_NS)
    line.pipe.heal()
    assert in_ms(line.run()) == [(100 + SIZE, 1), (100 + 2 * SIZE, 2)]


def test_shaping_a_link_that_is_down_keeps_it_down():
    line = Line(LinkSpec(latency_ns=100))
    line.pipe.cut()
    line.send(1)
    line.pipe.shape(LinkSpec(latency_ns=5))
    line.send(2)
    assert line.run(until=1000) == []
    line.pipe.heal()
    line.run()
    assert line.numbers() == [1, 2]


def test_one_cut_does_not_touch_another_link_to_the_same_place():
    agenda, out = Agenda(), []
    pipes = [
        Pipe(agenda, Random(0), LinkSpec(latency_ns=10), LinkId(name), out.append)
        for name in ("porto", "faro")
    ]
    for pipe in pipes:
        pipe.send(Ack(1))
    pipes[0].cut()
    assert list(map(len, pipes)) == [1, 1]
    agenda.run_until(10)
    assert [event.link for event in out] == ["faro"]
    pipes[1].send(Ack(2))
    pipes[1].drop()
    assert list(map(len, pipes)) == [1, 0]


def test_dropped_is_gone():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1)
    line.pipe.drop()
    line.send(2)
    line.pipe.heal()
    assert line.run() == []
    assert len(line.pipe) == 0


def test_drop_also_loses_what_a_cut_had_kept():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1)
    line.pipe.cut()
    line.pipe.drop()
    line.pipe.heal()
    assert line.run() == []


def test_how_many_are_on_their_way():
    line = Line(LinkSpec(latency_ns=100))
    assert len(line.pipe) == 0
    line.send(1, 2)
    assert len(line.pipe) == 2
    line.pipe.cut()
    line.send(3)
    assert len(line.pipe) == 3
    line.pipe.heal()
    assert len(line.pipe) == 3
    line.run()
    assert len(line.pipe) == 0
    assert line.pipe.messages == 3


# The longest that a message took: the oracle builds on it


def test_the_worst_is_the_latency_where_nothing_else_happens():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1, 2)
    line.run()
    assert line.pipe.worst_ns == 100


def test_the_worst_counts_the_queue():
    line = Line(LinkSpec(latency_ns=MS_NS, bandwidth_bps=8000))
    line.send(1, 2, 3)
    line.run()
    assert line.pipe.worst_ns == (1 + 3 * SIZE) * MS_NS


def test_the_worst_counts_the_time_that_a_link_was_down():
    line = Line(LinkSpec(latency_ns=100))
    line.send(1)
    line.run(until=50)
    line.pipe.cut()
    line.run(until=1000)
    line.pipe.heal()
    line.run()
    assert line.pipe.worst_ns == 1100


def test_the_worst_counts_waiting_for_slower_ones():
    line = Line(LinkSpec(latency_ns=1000))
    line.send(1)
    line.pipe.shape(LinkSpec(latency_ns=10))
    line.run(until=100)
    line.send(2)
    line.run()
    assert line.pipe.worst_ns == 1000


# Anything, in any order

SPECS = st.builds(
    LinkSpec,
    latency_ns=st.integers(0, 100),
    jitter_ns=st.sampled_from([0, 0, 50]),
    bandwidth_bps=st.sampled_from([None, None, 10**9]),
    loss=st.sampled_from([0.0, 0.3]),
    retransmit_ns=st.integers(1, 200),
)
ACTS = st.one_of(
    st.just("send"),
    st.just("send"),
    st.just("cut"),
    st.just("heal"),
    st.integers(0, 150),
    SPECS,
)


@given(SPECS, st.lists(ACTS, max_size=40), st.integers(0, 5))
def test_whatever_happens_all_arrive_once_in_order_and_in_the_worst_time(spec, acts, seed):
    line = Line(spec, seed)
    sent = {}
    for act in acts:
        if act == "send":
            number = len(sent)
            sent[number] = line.agenda.now
            line.send(number)
        elif act == "cut":
            line.pipe.cut()
        elif act == "heal":
            line.pipe.heal()
        elif type(act) is int:
            line.run(until=line.agenda.now + act)
        else:
            line.pipe.shape(act)
        assert len(line.pipe) == len(sent) - len(line.out)
    for _ in range(acts.count("cut")):  # who goes down twice comes up twice
        line.pipe.heal()
    line.run()
    assert line.numbers() == list(sent)
    assert all(time - sent[number] <= line.pipe.worst_ns for time, number in line.out)
    assert all(time - sent[number] >= 0 for time, number in line.out)
    assert line.pipe.messages == len(sent)


# The agenda


def test_ties_happen_in_the_order_of_the_calls():
    agenda, seen = Agenda(), []
    for name in "cab":
        agenda.at(5, seen.append, name)
    agenda.at(4, seen.append, "first")
    agenda.run_until(5)
    assert seen == ["first", "c", "a", "b"]
    assert agenda.next() is None


def test_what_an_action_adds_for_the_same_moment_happens_behind_what_is_there():
    agenda, seen = Agenda(), []
    agenda.at(5, lambda _: agenda.at(5, seen.append, "added"))
    agenda.at(5, seen.append, "there")
    agenda.run_until(5)
    assert seen == ["there", "added"]


def test_nothing_happens_in_the_past():
    agenda, seen = Agenda(), []
    agenda.run_until(10)
    agenda.at(3, lambda _: seen.append(agenda.now))
    assert agenda.next() == 10
    agenda.run_until(3)
    assert seen == []
    agenda.run_until(10)
    assert seen == [10]


# Everything at one moment


@pytest.mark.parametrize("latency_ns", [0, 10])
@pytest.mark.parametrize("jitter_ns", [0, 1])
def test_a_link_that_is_cut_at_the_moment_of_an_arrival_does_not_send_it_again(
    latency_ns, jitter_ns
):
    line = Line(LinkSpec(latency_ns, jitter_ns))
    line.pipe.shape(LinkSpec(latency_ns))
    line.agenda.run_until(100)
    line.send(1)
    line.agenda.at(100 + latency_ns, lambda _: line.pipe.cut())
    line.agenda.at(100 + latency_ns, lambda _: line.send(2))
    line.run(until=200)
    assert line.numbers() == [1]
    assert len(line.pipe) == 1
    line.pipe.heal()
    line.run()
    assert line.numbers() == [1, 2]


def test_a_link_that_is_cut_and_healed_in_the_moment_of_an_arrival_loses_nothing():
    line = Line(LinkSpec(latency_ns=10))
    line.agenda.at(10, lambda _: line.pipe.cut())
    line.send(1)
    line.agenda.at(10, lambda _: line.pipe.heal())
    line.send(2)
    line.run()
    assert line.numbers() == [1, 2]


def test_what_has_just_arrived_is_not_on_its_way():
    line = Line(LinkSpec(latency_ns=10))
    seen = []
    line.send(1, 2)
    line.agenda.at(10, lambda _: seen.append(len(line.pipe)))
    line.run()
    assert seen == [0]


def test_what_is_sent_without_delay_is_on_its_way_until_time_goes_on():
    line = Line(LinkSpec(latency_ns=0))
    line.run(until=100)
    line.send(1)
    assert len(line.pipe) == 1
    line.pipe.cut()
    line.run(until=200)
    assert line.numbers() == []
    line.pipe.heal()
    line.run()
    assert line.numbers() == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_ns": -1},
        {"latency_ns": 1.5},
        {"jitter_ns": -3},
        {"retransmit_ns": -1},
        {"bandwidth_bps": 0},
        {"loss": 1.0},
        {"loss": -0.1},
        {"loss": float("nan")},
    ],
    ids=str,
)
def test_a_link_that_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        LinkSpec(**wrong)


# Wireless


def wireless_line(seed=0, *settings):
    spec = wireless(find("gprs", settings))
    return Line(spec, seed, spec.channels(Random(seed))[1])


def test_a_wireless_link_is_as_its_channel_says():
    line, channel = wireless_line(5), wireless(find("gprs")).channels(Random(5))[1]
    expected = []
    for number in range(50):
        line.send(number)
        expected.append((channel.send(line.agenda.now, SIZE), number))
        line.run(until=line.agenda.now + 7 * MS_NS)
    assert line.run() == expected
    assert channel.again == 0 < channel.packets


def test_what_a_plain_link_costs_comes_on_top():
    spec = replace(wireless(find("gprs")), latency_ns=20 * MS_NS)
    line, plain = Line(spec, 1, spec.channels(Random(1))[1]), wireless_line(1)
    line.send(1)
    plain.send(1)
    assert line.run()[0][0] == plain.run()[0][0] + 20 * MS_NS


@pytest.mark.parametrize("until", [1010 * MS_NS, 60_000 * MS_NS])
def test_a_wireless_link_that_was_cut_sends_again_what_did_not_arrive(until):
    """At once: what was to leave before, but did not, does not hold it up."""
    line = wireless_line()
    line.send(*range(100))
    line.run(until=1000 * MS_NS)
    assert 0 < len(line.out) < 100
    line.pipe.cut()
    line.run(until=until)
    arrived = len(line.out)
    line.pipe.heal()
    line.run()
    assert line.numbers() == [*range(100)]
    floor_ns = find("gprs").down.floor_ns(SIZE)
    assert until + floor_ns <= line.out[arrived][0] < until + floor_ns + 100 * MS_NS


def test_a_client_takes_its_wireless_link_along_and_leaves_the_queue_behind():
    world = World()
    world.add_brokers([("porto", "faro")])
    ticker = world.add_client("ticker", "faro")
    anna = world.add_client("anna", "porto", link=wireless(find("gprs")))
    ticker.advertise("price > 0")
    anna.subscribe("price > 0")
    world.settle()
    for price in range(1, 200):
        ticker.publish({"price": price})
    world.run_until(world.now + 3000 * MS_NS)
    down = anna.channels[1]
    waiting = down.free_at - world.now
    anna.attach("faro")
    assert anna.connection.down._channel is down
    assert ticker.channels == (None, None)
    assert waiting > 0 >= down.free_at - world.now
    world.settle()
    assert [one.notification.number for one in anna.received] == [*range(1, 200)]
    assert check(world).violations == ()


def test_all_clients_may_be_wireless_each_with_a_link_of_its_own_and_a_later_process_too():
    spec = wireless(find("gprs"))
    world = World(client_link=spec)
    world.add_brokers([("porto", "faro")])
    hosts = [world.add_client(name, "porto") for name in ("anna", "bert")]
    world.begin_anew("anna", "faro")
    channels = [one for host in (*hosts, world.client("anna")) for one in host.channels]
    assert len(set(channels)) == 6
    assert {one.direction for one in channels[::2]} == {spec.profile.up}
    assert {one.direction for one in channels[1::2]} == {spec.profile.down}


def test_between_brokers_up_is_from_the_one_named_later():
    world = World(broker_link=wireless(find("gprs", ["up.latency=1s", "error=0"])))
    world.add_brokers([("porto", "faro")])
    down, up = world.link("porto", "faro")
    down.send(Ack(1))
    up.send(Ack(1))
    assert down.worst_ns < 400 * MS_NS < 1000 * MS_NS < up.worst_ns


# TCP


def stream_over(*settings):
    """A stream over a channel without errors, and what arrived of it when."""
    agenda, came = Agenda(), []
    channel = wireless(find("gprs", ["error=0", *settings])).channels(Random(1))[1]
    stream = Stream(agenda, channel, 300 * MS_NS)

    def send(name, size):
        stream.send(size, lambda name: came.append((name, agenda.now)), name)

    return agenda, channel, stream, send, came


def test_messages_that_wait_together_share_packets():
    agenda, channel, _, send, came = stream_over()
    for number in range(20):
        send(number, 150)
    agenda.run_until(60_000 * MS_NS)
    assert [name for name, _ in came] == [*range(20)]
    assert (channel.bytes, channel.packets) == (3000, 3)  # 1452, 1452 and 96
    assert len({time for _, time in came}) == 3


def test_what_comes_later_takes_a_packet_of_its_own():
    agenda, channel, _, send, _ = stream_over()
    for number in range(3):
        send(number, 150)
        agenda.run_until(agenda.now + 5000 * MS_NS)
    assert channel.packets == 3


def test_a_window_is_of_packets_and_grows_with_every_acknowledgement():
    agenda, channel, stream, send, came = stream_over("bps=100000000")
    for number in range(200):
        send(number, 1452)
    agenda.run_until(0)
    sent = [channel.packets]
    for _ in range(8):  # round trips
        agenda.run_until(agenda.now + 610 * MS_NS)
        sent.append(channel.packets)
    steps = [b - a for a, b in zip([0, *sent], sent, strict=False)]
    assert steps[:5] == [WINDOW_FIRST * 2**trip for trip in range(4)] + [WINDOW_MOST]
    assert sent[-1] == 200
    agenda.run_until(60_000 * MS_NS)
    assert [name for name, _ in came] == [*range(200)]
    assert len(stream) == 0


def test_of_a_stream_that_was_cut_nothing_arrives():
    agenda, _, stream, send, came = stream_over()
    for number in range(10):
        send(number, 1000)
    agenda.run_until(1500 * MS_NS)
    arrived = len(came)
    assert 0 < arrived < 10
    stream.cut()
    agenda.run_until(60_000 * MS_NS)
    assert len(came) == arrived


def test_a_client_with_tcp_by_radio_gets_what_waits_in_few_packets_and_nothing_when_it_is_gone():
    world = World()
    world.add_brokers([("porto", "faro")])
    ticker = world.add_client("ticker", "faro")
    anna = world.add_client("anna", "porto", link=wireless(find("gprs"), tcp=True))
    ticker.advertise("price > 0")
    anna.subscribe("price > 0")
    world.run_until(10_000 * MS_NS)
    down = anna.channels[1]
    before = down.packets
    for price in range(1, 401):
        ticker.publish({"price": price})
    world.run_until(world.now + 3000 * MS_NS)
    got = len(anna.received)
    assert 0 < got < 400
    anna.disconnect()
    world.run_until(world.now + 20_000 * MS_NS)
    assert len(anna.received) == got
    anna.attach("faro")
    world.run_until(world.now + 60_000 * MS_NS)
    assert [one.notification.number for one in anna.received] == [*range(1, 401)]
    assert down.packets - before < 60
