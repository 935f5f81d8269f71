"""Clients find brokers by themselves, and go to the nearest: zeroconf, lists, and links that are slow."""

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import pytest
import trustme

import wayfare
import wayfare.sync
from live import tree as live_tree
from live import until
from test_client_api import live
from test_emulate_cli import emulator
from test_live_cli import broker, program
from test_live_cli import wayfare as command
from wayfare.channel import Direction, Profile
from wayfare.core import messages as m
from wayfare.core.codec import encode
from wayfare.core.nearness import STAY
from wayfare.errors import CannotConnect, UsageError
from wayfare.net import accounts
from wayfare.net.accounts import Accounts
from wayfare.net.addresses import Address
from wayfare.net.announced_brokers import KIND, address_of, announce
from wayfare.net.announcements import FOUND_MAX, Announcement, Announcements
from wayfare.net.broker import BrokerHost
from wayfare.net.connectivity import Change
from wayfare.net.discovery import Reach, reach_of
from wayfare.net.emulator import Emulator
from wayfare.net.probe import round_trip_ns
from wayfare.net.rounds import Rounds
from wayfare.net.security import Tls
from wayfare.testing import Tree

LINE = ("porto-lisbon", "faro-lisbon")
OFTEN = 0.1  # seconds between two rounds
FAR = Profile(*[Direction(bps=10**8, latency_ns=20_000_000)] * 2)
HERE = "127.0.0.1"


@pytest.fixture
def network():
    """The name of a network that no other test on this machine looks for."""
    return f"test-{secrets.token_hex(6)}"


@asynccontextmanager
async def tree(*pairs, **options):
    async with live_tree(*pairs, **options) as net:
        net.at_port = lambda name: f"{HERE}:{net.brokers[name].address.port}"
        yield net


def behind_a_slow_link(net, name):
    at = net.brokers[name].address
    return Emulator(FAR, (at.host, at.port))


# Addresses


@pytest.mark.parametrize(
    ("text", "reach"),
    [
        ("discover://", Reach()),
        ("discover:///", Reach()),
        ("discovers://", Reach(tls=True)),
        ("discover://city", Reach(network="city")),
        ("discover://a:1", Reach((Address("a", 1),))),
        ("discover://a,b:2/", Reach((Address("a"), Address("b", 2)))),
        (
            "discovers://a, [::1]:2",
            Reach((Address("a", tls=True), Address("::1", 2, True)), tls=True),
        ),
        ("discover://wayfares://a,b", Reach((Address("a", tls=True), Address("b")))),
        (["discover://city"], Reach(network="city")),
        ("wayfare://a", None),
        (["a", "b"], None),
        (5, None),
    ],
)
def test_what_addresses_say(text, reach):
    assert reach_of(text) == reach


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            ["discover://", "a"],
            r"discover:// stands for all addresses: give the addresses of brokers, like",
        ),
        ("discover://a b", r"'discover://a b' names no network: names are made of letters"),
        ("discover://a,", r"'' is no address"),
        ("discover://a:x,b", r"is no address"),
    ],
)
def test_addresses_that_make_no_sense(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        wayfare.connect(wrong)


def announcement(host="192.168.1.5", port=7410, **said):
    return Announcement(host, port, {"broker": "porto", "network": "city", "tls": "no", **said})


def test_an_announcement_is_an_address():
    assert address_of(announcement(), "", tls=False) == Address("192.168.1.5")
    safe = announcement("fd00::7", 1, tls="yes")
    assert address_of(safe, "city", tls=True) == Address("fd00::7", 1, True, "porto")


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (announcement("8.8.8.8"), "its address is not one of a private network"),
        (announcement("169.254.169.254"), "its address is not one of a private network"),
        (announcement("fe80::1%eth0"), "its address is not one of a private network"),
        (announcement("::ffff:8.8.8.8"), "its address is not one of a private network"),
        (announcement(broker=None), "it has no name"),
        (announcement(broker="a\x1b[31m"), "it has no name"),
        (announcement(broker="x" * 300), "it has no name"),
        (Announcement("10.0.0.1", 1, {}), "it belongs to another network"),
        (announcement(network=None), "it belongs to another network"),
        (announcement(network="City"), "it belongs to another network"),
    ],
)
def test_announcements_that_do_not_count(hostile, reason):
    with pytest.raises(ValueError, match=reason):
        address_of(hostile, "city", tls=False)
    with pytest.raises(ValueError, match="it does not speak TLS"):
        address_of(announcement(tls="maybe"), "city", tls=True)


# Passwords


def test_a_password_is_not_for_everybody_who_announces_a_broker(tmp_path):
    with pytest.raises(
        UsageError, match="only sent to those that a CA of yours has signed for: name its file"
    ):
        wayfare.connect("discovers://city", password="sesame")
    with pytest.raises(
        UsageError, match=r"would cross the network in clear, to 10\.0\.0\.1: use discovers://"
    ):
        wayfare.connect("discover://127.0.0.1:1,10.0.0.1:1", password="sesame")
    wayfare.connect("discover://127.0.0.1:1,localhost:2", password="sesame")
    wayfare.connect("discovers://10.0.0.1:1,10.0.0.2", password="sesame")


@pytest.mark.slow
@live
async def test_a_password_goes_to_announced_brokers_of_the_ca_only(tmp_path, network):
    """Not to one without TLS, one of another CA, and one whose certificate has another name."""
    our_ca, their_ca = trustme.CA(), trustme.CA()
    our_ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    for file, ca, name in (
        ("ours.key", our_ca, "lisbon"),
        ("theirs.key", their_ca, "lisbon"),
        ("a device's.key", our_ca, "car-17"),
    ):
        ca.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / file)
    accounts.add(tmp_path / "accounts.toml", "anna", "sesame")

    @asynccontextmanager
    async def lisbon(whose):
        key = str(tmp_path / f"{whose}.key")
        known = Accounts(tmp_path / "accounts.toml")
        one = BrokerHost("lisbon", {}, tls=Tls(key, key), accounts=known)
        await one.start(Address(HERE, 0, tls=True))
        try:
            yield one
        finally:
            await one.stop()

    ours = {"ca": str(tmp_path / "ca.pem"), "password": "sesame", "timeout": 4}
    async with AsyncExitStack() as stack:
        said = []
        plain = await stack.enter_async_context(impostor(said))
        false = [await stack.enter_async_context(lisbon(one)) for one in ("theirs", "a device's")]
        await stack.enter_async_context(announce("lisbon", network, plain))
        for one in false:
            await stack.enter_async_context(announce("lisbon", network, one.address))
        with pytest.raises(CannotConnect, match="its certificate is not trusted"):
            await wayfare.connect(f"discover://{network}", "anna", **ours)
        true = await stack.enter_async_context(lisbon("ours"))
        await stack.enter_async_context(announce("lisbon", network, true.address))
        async with wayfare.connect(f"discover://{network}", "anna", probe=OFTEN, **ours) as anna:
            assert anna.broker == "lisbon"
            assert anna.addresses[0] == Address(HERE, true.address.port, True, "lisbon")
            await asyncio.sleep(5 * OFTEN)
        assert not said  # it does not even get a probe
        assert [one.attachments for one in false] == [0, 0]


# Finding and choosing


@asynccontextmanager
async def impostor(said, *answers):
    """Greets as a broker does; `said` gets all that comes, and it sends these answers to what is no Ping."""
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        writer.write(encode(m.Hello(m.PROTOCOL_VERSION, "mallory")))
        while data := await reader.read(65_536):
            said.append(data)
            if len(data) > 40:  # an Attach
                for one in answers:
                    writer.write(encode(one))
            elif encode(m.Ping()) in data:
                writer.write(encode(m.Ping(answer=True)))
        writer.close()

    server = await asyncio.start_server(serve, HERE, 0)
    try:
        yield Address(HERE, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for one in writers:
            one.close()
        await server.wait_closed()


@live
async def test_the_nearest_of_a_list_is_tried_first():
    async with tree(*LINE) as net, behind_a_slow_link(net, "porto") as slow:
        listed = f"discover://{HERE}:{slow.port},127.0.0.1:1,{net.at_port('faro')}"
        async with wayfare.connect(listed, client_id="anna") as anna:
            assert anna.broker == "faro"
            assert [one.port for one in anna.addresses][1:] == [slow.port, 1]


@live
async def test_an_announced_broker_that_is_nearer_becomes_the_client_s_own(network):
    """While somebody publishes, exactly once and in order; the log says why, and so do the changes."""
    events, published, seen, missed = [], [], [], []
    async with (
        tree(*LINE) as net,
        behind_a_slow_link(net, "porto") as slow,
        announce("porto", network, Address(HERE, slow.port)),
        wayfare.connect(net.url("lisbon"), client_id="garage") as garage,
        wayfare.connect(
            f"discover://{network}",
            client_id="anna",
            probe=OFTEN,
            events=events.append,
            on_lost=lambda *what: missed.append(what),
        ) as anna,
    ):
        changes = anna.changes()
        assert await changes.get() == Change(True, "porto")
        await garage.advertise("x > 0")
        stop = asyncio.Event()

        async def publish():
            for x in count(1):
                await garage.publish({"x": x})
                published.append(x)
                await asyncio.sleep(0.003)
                if stop.is_set():
                    return

        async with anna.subscribe("x > 0") as some:
            publishing = asyncio.create_task(publish())
            await asyncio.sleep(0.3)
            async with announce("faro", network, net.brokers["faro"].address):
                await until(lambda: anna.broker == "faro", 30)
                await asyncio.sleep(0.5)
            stop.set()
            await publishing
            while len(seen) < len(published):
                seen.append((await some.get(10))["x"])
        assert seen == published
        assert missed == []
        left, came = await changes.get(5), await changes.get(5)
        assert left.reason.startswith("moves to a nearer broker: faro answers in ")
        assert (left.broker, came) == ("porto", Change(True, "faro"))
        (why,) = [one for one in events if one.kind == "chosen"]
        assert why.broker == "faro"
        assert f"moves to a nearer broker: {why.reason}" == left.reason
        kinds = [one.kind for one in events if one.kind in ("chosen", "attached", "detached")]
        assert kinds == ["attached", "chosen", "detached", "attached"]


@live
async def test_between_equal_brokers_a_client_stays():
    moves = []
    async with tree(*LINE) as net:
        listed = f"discover://{net.at_port('porto')},{net.at_port('faro')}"
        async with wayfare.connect(listed, probe=OFTEN, on_connect=moves.append) as anna:
            nearness = anna._discovery._nearness
            await until(lambda: nearness._round > 4 * STAY, 60)
    assert len(moves) == 1


@live
async def test_a_client_goes_back_if_the_nearer_broker_does_not_welcome_it():
    """It greets, and is silent then: it gets another chance, but later."""
    said, connected = [], []
    async with (
        tree(*LINE) as net,
        behind_a_slow_link(net, "porto") as slow,
        impostor(said) as silent,
    ):
        listed = f"discover://{HERE}:{slow.port},{HERE}:{silent.port}"
        async with wayfare.connect(
            f"discover://{HERE}:{slow.port},{HERE}:1",
            client_id="anna",
            probe=OFTEN,
            timeout=2,
            on_connect=connected.append,
        ) as anna:
            anna._discovery._reach = reach_of(listed)
            await until(lambda: len(connected) == 2, 60)
            nearness = anna._discovery._nearness
            assert anna.broker == "porto"
            await until(lambda: nearness._brokers[silent].failures == 1)
            assert anna.addresses == [Address(HERE, slow.port), silent]
    assert connected == ["porto", "porto"]


@live
async def test_a_broker_that_refuses_everybody_does_not_keep_a_client_from_others(network):
    said = []
    async with (
        tree(*LINE) as net,
        impostor(said, m.Refused("go away")) as hostile,
        behind_a_slow_link(net, "porto") as slow,
        announce("mallory", network, hostile),
        announce("porto", network, Address(HERE, slow.port)),
    ):
        async with wayfare.connect(f"discover://{network}", client_id="anna") as anna:
            assert anna.broker == "porto"
        assert any(b"anna" in one for one in said)
        slow.cut(reset=True)
    async with impostor([], m.Refused("go away")) as hostile, announce("mallory", network, hostile):
        with pytest.raises(wayfare.Refused, match="go away"):
            await wayfare.connect(f"discover://{network}", client_id="anna")


@live
async def test_a_second_process_of_a_name_ends_the_first_wherever_brokers_are(network):
    async with (
        tree(*LINE) as net,
        announce("porto", network, net.brokers["porto"].address),
        announce("faro", network, net.brokers["faro"].address),
        wayfare.connect(f"discover://{network}", client_id="anna") as first,
        wayfare.connect(net.url("lisbon"), client_id="anna"),
    ):
        with pytest.raises(wayfare.Refused):
            await first.subscribe("x > 0").get(10)


@live
async def test_a_client_that_lost_its_broker_goes_to_another_that_was_found(network):
    async with (
        tree(*LINE) as net,
        announce("faro", network, net.brokers["faro"].address),
        wayfare.connect(f"discover://{network}", client_id="anna", probe=OFTEN) as anna,
    ):
        async with announce("porto", network, net.brokers["porto"].address):
            await until(lambda: len(anna.addresses) == 2)
            await anna.detach()
            await asyncio.sleep(3 * OFTEN)  # nothing is measured
            await anna.attach()
            await net.brokers["faro"].stop()
            await until(lambda: anna.broker == "porto")
        await net.start("faro")


@live
async def test_an_application_may_still_move_its_client():
    async with tree(*LINE) as net:
        listed = f"discover://{net.at_port('porto')},{net.at_port('faro')}"
        async with wayfare.connect(listed, client_id="anna", probe=OFTEN) as anna:
            await anna.move(net.url("lisbon"))
            nearness = anna._discovery._nearness
            await until(lambda: nearness.rtt_ns(net.brokers["lisbon"].address) < 1e9)
            assert anna.broker == "lisbon"
            assert len(anna.addresses) == 3


# Probes


@live
async def test_a_probe_measures_the_link_and_is_bounded():
    async with (
        tree(*LINE) as net,
        behind_a_slow_link(net, "porto") as slow,
        impostor([], m.Ping(answer=True)) as fake,
    ):
        rounds = Rounds(None, [], 1.0, None, "")
        near = await round_trip_ns(rounds, net.brokers["porto"].address, 1.0)
        far = await round_trip_ns(rounds, Address(HERE, slow.port), 1.0)
        assert near < 20_000_000 < 40_000_000 <= far < 1_000_000_000
        assert await round_trip_ns(rounds, fake, 1.0) < 1_000_000_000
        slow.cut()
        assert await round_trip_ns(rounds, Address(HERE, slow.port), 1.0) == 1_000_000_000
        assert await round_trip_ns(rounds, Address(HERE, 1), 1.0) is None
        assert await round_trip_ns(rounds, Address("x" * 70), 1.0) is None
        slow.restore()
        porto = net.brokers["porto"]
        await until(lambda: not porto._strangers)
        assert porto.attachments == 0


@pytest.mark.parametrize("answer", [b"\xff" * 9, encode(m.Refused("no")), b"", encode(m.Took(1))])
@live
async def test_a_probe_of_what_is_no_broker_fails(answer):
    async def serve(_, writer):
        writer.write(encode(m.Hello(m.PROTOCOL_VERSION, "x")) + answer)
        writer.close()

    async with await asyncio.start_server(serve, HERE, 0) as server:
        at = Address(HERE, server.sockets[0].getsockname()[1])
        assert await round_trip_ns(Rounds(None, [], 1.0, None, ""), at, 1.0) is None


# What can go wrong


def alone(error):
    """The error without brokers that tests beside this one announce in their own networks."""
    return error.replace(" (another was ignored: it belongs to another network)", "")


@live
async def test_no_broker_announces_itself(network):
    with pytest.raises(CannotConnect) as caught:
        await wayfare.connect(f"discover://{network}", timeout=0.3)
    assert alone(str(caught.value)) == (
        f"no broker of {network} announces itself on this LAN within 0.3 s: say announce.network in its"
        " configuration, or give the addresses of brokers, like discover://host1:7410,host2:7410"
    )
    async with announce("porto", network, Address(HERE, 1)):
        with pytest.raises(CannotConnect, match=r"\(another was ignored: it does not speak TLS\)"):
            await wayfare.connect(f"discovers://{network}", timeout=3)


@live
async def test_brokers_of_other_networks_do_not_hide_why_one_was_ignored(network):
    async with (
        announce("porto", network, Address(HERE, 1)),
        announce("faro", f"{network}-2", Address(HERE, 1)),
    ):
        with pytest.raises(
            CannotConnect, match=r"\(another was ignored: it belongs to another network\)"
        ):
            await wayfare.connect(f"discover://{network}-3", timeout=3)
        with pytest.raises(CannotConnect, match=r"\(another was ignored: it does not speak TLS\)"):
            await wayfare.connect(f"discovers://{network}", timeout=3)


@live
async def test_zeroconf_is_not_possible(monkeypatch, network):
    def fail(*_, **__):
        raise OSError(19, "No such device")

    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", fail)
    with pytest.raises(
        UsageError, match=r"does not work here \(No such device\): give the addresses of brokers"
    ):
        await wayfare.connect(f"discover://{network}")
    with pytest.raises(UsageError, match=r"does not work here .*: leave out announce\.network"):
        async with announce("porto", network, Address(HERE, 1)):
            pass
    monkeypatch.setitem(sys.modules, "zeroconf.asyncio", None)
    with pytest.raises(
        UsageError, match=r"zeroconf needs the package .*: pip install 'wayfare\[discovery\]'"
    ):
        await wayfare.connect(f"discover://{network}")


@live
async def test_a_host_that_cannot_be_announced(network):
    with pytest.raises(
        UsageError, match=r"cannot announce nosuch\.invalid:1 .*: say in announce\.host where"
    ):
        async with announce("porto", network, Address("nosuch.invalid", 1)):
            pass


@live
async def test_only_so_many_announcements_are_looked_at(network):
    class Added:
        name = "Added"

    looked = Announcements(KIND, lambda one: one, [HERE], instead="")
    async with looked:
        for number in range(2 * FOUND_MAX):
            looked._on_change(looked._zeroconf.zeroconf, KIND, f"{number}.{KIND}", Added)
        assert len(looked._resolving) == FOUND_MAX


def test_the_synchronous_twin_finds_brokers_too():
    with Tree(*LINE) as net:
        places = ",".join(net[name].removeprefix("wayfare://") for name in ("porto", "faro"))
        with wayfare.sync.connect(f"discover://{places}", probe=OFTEN) as anna:
            assert anna.broker in ("porto", "faro")


# Processes


def test_a_network_on_one_machine_is_announced(tmp_path, network):
    file = tmp_path / "city.toml"
    file.write_text(f'links = [["porto", "lisbon"]]\nannounce.network = "{network}"\n')
    with program("network", "up", str(file), "--json") as brokers:
        ports = {int(json.loads(brokers.line())["address"].rpartition(":")[2]) for _ in range(2)}
        with wayfare.sync.connect(f"discover://{network}") as anna:
            deadline = time.monotonic() + 10
            while {one.port for one in anna.addresses} != ports:
                assert time.monotonic() < deadline, anna.addresses
                time.sleep(0.05)
        assert brokers.stop()[0] == 0


def test_shells_find_announced_brokers(network):
    with (
        broker("porto", "--announce", network) as (one, _),
        program("sub", f"discover://{network}", "x > 0", "-C", "1", "--json") as sub,
    ):
        assert sub.told().endswith(" at porto")
        assert command("pub", f"discover://{network}", "x=7")[0] == 0
        assert json.loads(sub.line())["attributes"]["x"] == 7
        assert one.stop() == (0, "", "")
    code, _, err = command("pub", f"discover://{network}", "x=7", "--timeout", "1")
    assert code == 2
    assert alone(err).startswith(
        f"wayfare: no broker of {network} announces itself on this LAN within 1 s: say"
    )
    assert command("sub", "discover://a,b", "x > 0", "--probe", "0")[2] == (
        "wayfare: probe is a number of seconds, at least 0.1, not 0.0\n"
    )


@pytest.mark.slow
def test_a_process_moves_when_a_nearer_broker_comes_into_reach(tmp_path):
    """Brokers, links, publisher and subscriber are processes; the link to faro comes late, and is faster."""
    log, count = tmp_path / "log.jsonl", 300
    with socket.create_server((HERE, 0)) as one:
        port = one.getsockname()[1]
    with (
        broker("lisbon", "--neighbour", "faro") as (_, lisbon),
        broker("faro", "--neighbour", f"lisbon={lisbon}") as (_, faro),
        emulator(*"--profile lan --set latency=30ms --to".split(), at(lisbon)) as (_, slow),
        program(
            *("sub", f"discover://{HERE}:{slow['port']},{HERE}:{port}", "x > 0", "--json"),
            *("-C", str(count), "-W", "90", "--probe", "0.2", "--events", str(log), "--id", "anna"),
        ) as sub,
        program("pub", lisbon, "--json", stdin=subprocess.PIPE) as pub,
    ):
        assert sub.told().endswith(" at lisbon")
        fast = emulator("--profile", "lan", "--listen", str(port), "--to", at(faro))
        with fast:
            for x in range(1, count + 1):
                pub.process.stdin.write(f'{{"x": {x}}}\n')
                pub.process.stdin.flush()
                time.sleep(0.02)
            seen = [json.loads(sub.line())["attributes"]["x"] for _ in range(count)]
            assert sub.process.wait(30) == 0
    assert seen == [*range(1, count + 1)]
    events = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [one["broker"] for one in events if one["kind"] == "attached"] == ["lisbon", "faro"]
    (chosen,) = [one for one in events if one["kind"] == "chosen"]
    assert chosen["reason"].startswith("faro answers in ")


def at(address):
    return address.removeprefix("wayfare://")
