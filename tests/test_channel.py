"""The model of a wireless link: FIFO, never faster than it can be, and errors cost time only."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from wayfare.channel import MS_NS, PROFILES, S_NS, Channel, Direction, Profile, find, floor
from wayfare.errors import UsageError

GPRS = PROFILES["gprs"]
WAYS = ("up", "down")

directions = st.builds(
    lambda bps, least, more, vary, again, further, **given: Direction(
        bps,
        least,
        least + more,
        vary,
        again_least_ns=again,
        again_most_ns=again + further,
        **given,
    ),
    bps=st.integers(1000, 10**8),
    least=st.integers(1, 4),
    more=st.integers(0, 4),
    vary=st.integers(MS_NS, 5 * S_NS),
    again=st.integers(0, 100 * MS_NS),
    further=st.integers(0, 100 * MS_NS),
    packet=st.integers(100, 1500),
    overhead=st.integers(0, 60),
    error=st.sampled_from([0.0, 0.001, 0.1, 0.6]),
    latency_ns=st.integers(0, S_NS),
)
sends = st.lists(st.tuples(st.integers(0, 2 * S_NS), st.integers(0, 5000)), min_size=1, max_size=30)


@given(directions, sends, st.integers(0, 99))
def test_it_is_first_in_first_out_and_never_faster_than_the_floor(direction, gaps, seed):
    channel, now, last, least = Channel(direction, Random(seed)), 0, 0, 0
    for gap, size in gaps:
        now += gap
        arrival = channel.send(now, size)
        own = direction.floor_ns(size)
        # Alone on the line at its best, or behind all bits that were before it on the line.
        least = max(now + own, least + own - direction.latency_ns - len([*direction.packets(size)]))
        assert arrival >= max(last, least)
        last = arrival


@given(directions, sends, st.integers(0, 99))
def test_the_line_works_without_a_pause_as_fast_as_its_channels_allow(direction, gaps, seed):
    """No error, no latency: what takes longer than at the most channels is slow, or idle, by itself."""
    direction = replace(direction, error=0.0, latency_ns=0)
    channel, size = Channel(direction, Random(seed)), sum(size for _, size in gaps)
    took = channel.send(0, size)
    bits = 8 * sum(direction.packets(size))
    packets = channel.packets
    assert bits * S_NS / (direction.bps * direction.most) <= took + 1
    assert took <= bits * S_NS / (direction.bps * direction.least) + packets + 1


@given(sends, st.integers(0, 99))
def test_the_same_seed_gives_the_same_times_and_cutting_a_message_makes_no_difference(gaps, seed):
    whole, cut = (Channel(replace(GPRS.down, error=0.2), Random(seed)) for _ in range(2))
    now, payload = 0, GPRS.down.payload
    for gap, size in gaps:
        now += gap
        arrival = whole.send(now, size)
        pieces = [payload] * ((size - 1) // payload) if size else []
        for piece in [*pieces, size - sum(pieces)]:
            last = cut.send(now, piece)
        assert arrival == last
    assert (whole.packets, whole.again, whole.bytes) == (cut.packets, cut.again, cut.bytes)


def test_how_many_channels_there_are_does_not_depend_on_who_asked_before():
    asked, other = (Channel(GPRS.down, Random(3)) for _ in range(2))
    for now in range(0, 50 * S_NS, S_NS // 3):
        asked.send(now, 300)
    seen = [other.channels(now) for now in range(0, 90 * S_NS, S_NS // 2)]
    assert seen == [asked.channels(now) for now in range(0, 90 * S_NS, S_NS // 2)]
    assert set(seen) == {1, 2, 3}


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_throughput_of_gprs_is_that_of_its_mean_number_of_channels(way):
    direction = getattr(GPRS, way)
    channel = Channel(direction, Random(1))
    took = channel.send(0, 2_000_000) / S_NS
    bps = 8 * 2_000_000 / took
    mean = (direction.least + direction.most) / 2 * direction.bps
    assert bps == pytest.approx(mean * direction.payload / direction.packet, rel=0.05)


@pytest.mark.parametrize("error", [0.001, 0.1])
def test_as_many_packets_are_sent_again_as_the_error_says_and_again_until_they_are_right(error):
    channel = Channel(replace(GPRS.up, error=error), Random(2))
    packets = 100_000
    for number in range(packets):
        channel.send(number * S_NS, 100)
    expected = packets * error / (1 - error)
    assert abs(channel.again - expected) < 4 * expected**0.5


def test_a_broken_packet_comes_30_to_50_ms_later_and_those_behind_wait_for_it():
    direction = Direction(8000, overhead=0, error=0.5, latency_ns=100 * MS_NS)
    lates = []
    for seed in range(300):
        channel = Channel(direction, Random(seed))
        first, second = channel.send(0, 10), channel.send(0, 1)
        lates.append(late := first - 110 * MS_NS)
        assert second >= max(first, 111 * MS_NS)
        assert channel.free_at == 11 * MS_NS, "the line itself goes on"
        assert late == 0 or late >= 30 * MS_NS
    once = [late for late in lates if 0 < late < 60 * MS_NS]
    assert min(once) < 32 * MS_NS
    assert 48 * MS_NS < max(once) <= 50 * MS_NS
    assert max(lates) > 90 * MS_NS, "it may break again"


def test_a_packet_gets_slower_while_it_leaves_when_channels_go():
    direction = Direction(8000, 1, 2, S_NS, packet=4000, overhead=0)
    for seed in range(20):
        channel = Channel(direction, Random(seed))
        here, then = channel.channels(0), channel.channels(S_NS)
        took = channel.send(0, 1000 * here + 500 * then)
        assert took == S_NS + S_NS // 2


def test_who_gives_up_leaves_the_line_free():
    channel = Channel(GPRS.down, Random(0))
    far = channel.send(0, 100_000)
    channel.clear(S_NS)
    assert S_NS < channel.send(S_NS, 100) < far
    channel.clear(100 * S_NS)
    assert channel.send(100 * S_NS, 100) >= 100 * S_NS + GPRS.down.floor_ns(100)


def test_the_floor_is_a_round_trip_and_the_bytes_down_on_all_channels():
    assert (
        floor(Profile(Direction(8000, overhead=0), Direction(8000, overhead=0)), 10) == 10 * MS_NS
    )
    gprs = floor(GPRS, 1000)
    up, down = 48 * 8 * S_NS / 26_800, 1048 * 8 * S_NS / 40_200
    assert gprs == pytest.approx(600 * MS_NS + up + down, abs=2)


def test_gprs_is_as_the_paper_says():
    assert (GPRS.up.least, GPRS.up.most, GPRS.down.least, GPRS.down.most) == (1, 2, 1, 3)
    for way in (GPRS.up, GPRS.down):
        assert (way.bps, way.error) == (13_400, 0.001)
        assert (way.again_least_ns, way.again_most_ns) == (30 * MS_NS, 50 * MS_NS)


def test_settings_change_a_profile_both_ways_or_one():
    changed = find(
        "gprs", ["error=0.01", "down.latency=1.5s", "up.latency=20", "least=3", "most=3"]
    )
    assert changed.up.error == changed.down.error == 0.01
    assert (changed.up.latency_ns, changed.down.latency_ns) == (20 * MS_NS, 1500 * MS_NS)
    assert changed.up.least == changed.up.most == 3
    assert find("gprs") == GPRS


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("umts", [], "there is no profile 'umts': take one of gprs, edge"),
        ("gprs", ["speed=3"], "'speed=3' sets nothing: write NAME=VALUE"),
        ("gprs", ["left.error=0"], "sets nothing"),
        ("gprs", ["latency_ns=5"], "sets nothing"),
        ("gprs", ["error"], "'error' has no value that fits: give a number"),
        ("gprs", ["latency=5m"], "give a time as 300ms"),
        ("gprs", ["bps=1.5"], "give a number"),
        ("gprs", ["error=1"], "error is a share from 0 to below 1"),
        ("gprs", ["error=nan"], "error is a share from 0 to below 1"),
        ("gprs", ["bps=0"], "bps and least of a channel are at least 1"),
        ("gprs", ["vary=10us", "bps=100"], "vary of a channel is at least 1ms"),
        ("gprs", ["most=-1"], "most of a channel is a whole number, not negative"),
        ("gprs", ["up.least=3"], "most channels (or again_most) are not below the least"),
        ("gprs", ["packet=48"], "a packet is longer than its overhead"),
    ],
)
def test_what_makes_no_sense_is_refused(name, settings, why):
    with pytest.raises(UsageError) as caught:
        find(name, settings)
    assert why in str(caught.value)
