"""Who may come in, and what they may do: TLS, secrets, accounts and permissions, on real sockets."""

import asyncio
import hmac
import logging
import ssl
import time
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest
import trustme

import wayfare
from live import HERE, tree, until
from test_net import live
from test_store import Site
from wayfare.core import messages as m
from wayfare.core.codec import FrameDecoder, decode, encode
from wayfare.core.filters import Filter
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead
from wayfare.errors import CannotConnect, Refused, UsageError
from wayfare.net import accounts as accounts_file
from wayfare.net import security
from wayfare.net.accounts import Accounts
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.limits import NetLimits
from wayfare.net.security import Tls

LINE = ("porto-lisbon", "faro-lisbon")
SAFE = Address("127.0.0.1", 0, tls=True)
SECRET = "correct horse battery staple"
# The same whether the name is another account's, fits a pattern of one, or is nobody's.
NOT_YOURS = (
    r"closed the connection: {} may not attach as {}: that name is not for its account, which has"
    r" clients = \[{}\]"
)
OWN = r'"car-17-\*"'


@pytest.fixture(autouse=True)
def told(caplog):
    """Warnings, also behind a test that did not want to see any."""
    caplog.set_level(logging.WARNING, "wayfare")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Files of a CA, of brokers signed by it, and of strangers signed by another one."""
    there = tmp_path_factory.mktemp("certificates")
    for name, subjects in {
        "ca": ("porto", "lisbon", "faro", "car-17"),
        "other": ("porto", "mallory"),
    }.items():
        ca = trustme.CA()
        ca.cert_pem.write_to_path(there / f"{name}.pem")
        for subject in subjects:
            cert = ca.issue_cert(subject, "127.0.0.1", common_name=subject)
            prefix = "" if name == "ca" else "false-"
            cert.private_key_pem.write_to_path(there / f"{prefix}{subject}.key")
            for pem in cert.cert_chain_pems:
                pem.write_to_path(there / f"{prefix}{subject}.pem", append=True)
    return there


def tls_of(there, name, **options):
    ca = options.pop("ca", str(there / "ca.pem"))
    return Tls(str(there / f"{name}.pem"), str(there / f"{name}.key"), ca, **options)


@pytest.fixture
def file(tmp_path):
    """An accounts file with two accounts."""
    path = tmp_path / "accounts.toml"
    lists = {"clients": ["car-17-*"], "subscribe": ["service = 'parking'"], "publish": ["kmh > 0"]}
    accounts_file.add(path, "car-17", "sesame", lists)
    accounts_file.add(path, "anna", "open")
    return path


class Raw:
    """A peer that says whatever a test wants."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.decoder, self.got = reader, writer, FrameDecoder(), []

    async def say(self, *messages):
        self.writer.write(b"".join(one if type(one) is bytes else encode(one) for one in messages))
        await self.writer.drain()

    async def hear(self, kind, seconds=5.0):
        """The next message of this kind."""
        async with asyncio.timeout(seconds):
            while True:
                for i, message in enumerate(self.got):
                    if type(message) is kind:
                        del self.got[: i + 1]
                        return message
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self.got += self.decoder.feed(data)


@asynccontextmanager
async def raw(broker, name="mallory", *, hello=True):
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.address.port)
    try:
        one = Raw(reader, writer)
        if hello:
            await one.say(m.Hello(m.PROTOCOL_VERSION, name))
        yield one
    finally:
        writer.close()


# TLS


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 60))


async def crosses(net, *, options=None):
    """A notification crosses the tree."""
    options = options or {}
    async with (
        wayfare.connect(net.url("porto"), client_id="anna", **options) as anna,
        wayfare.connect(net.url("faro"), client_id="tom", **options) as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            await tom.publish({"x": 1})
            assert (await all.get(5))["x"] == 1


def test_everything_works_over_tls_and_brokers_know_each_other_by_certificate(certificates):
    async def test():
        async with tree(
            *LINE, at=SAFE, each=lambda name: {"tls": tls_of(certificates, name)}
        ) as net:
            assert net.url("porto").startswith("wayfares://")
            await crosses(net, options={"ca": str(certificates / "ca.pem")})

    run(test())


@pytest.mark.parametrize("ca", ["", "other.pem"])
def test_a_client_does_not_speak_to_a_broker_whose_certificate_it_cannot_trust(certificates, ca):
    async def test():
        broker = BrokerHost("porto", {}, tls=tls_of(certificates, "porto"))
        await broker.start(SAFE)
        try:
            path = str(certificates / ca) if ca else ""
            with pytest.raises(CannotConnect, match="its certificate is not trusted"):
                await wayfare.connect(str(broker.address), ca=path, timeout=0.5)
        finally:
            await broker.stop()

    run(test())


def test_a_client_does_not_speak_to_another_host_than_it_called(certificates):
    async def test():
        broker = BrokerHost("porto", {}, tls=tls_of(certificates, "porto"))
        await broker.start(SAFE)
        url = f"wayfares://localhost:{broker.address.port}"  # of which the certificate says nothing
        try:
            with pytest.raises(CannotConnect, match="Hostname mismatch"):
                await wayfare.connect(url, ca=str(certificates / "ca.pem"), timeout=0.5)
        finally:
            await broker.stop()

    run(test())


def test_clients_show_certificates_where_they_are_required(certificates):
    async def test():
        broker = BrokerHost("porto", {}, tls=tls_of(certificates, "porto", require=True))
        await broker.start(SAFE)
        url, ca = str(broker.address), str(certificates / "ca.pem")

        def pair(name):
            return str(certificates / f"{name}.pem"), str(certificates / f"{name}.key")

        try:
            async with wayfare.connect(url, ca=ca, cert=pair("car-17")) as car:
                assert car.broker == "porto"
            for cert in (None, pair("false-mallory")):
                with pytest.raises(CannotConnect, match=r"it closed the connection|alert|reset"):
                    await wayfare.connect(url, ca=ca, cert=cert, timeout=0.5)
            assert not broker.connections
        finally:
            await broker.stop()

    run(test())


@pytest.mark.parametrize(
    ("shows", "reason"),
    [
        ("faro", "porto showed a certificate of faro: it needs one of its name"),
        (None, "porto showed a certificate of nobody: it needs one of its name"),
    ],
)
def test_a_neighbour_needs_a_certificate_of_its_own_name(certificates, shows, reason):
    async def test():
        lisbon = BrokerHost("lisbon", {"porto": None}, tls=tls_of(certificates, "lisbon"))
        await lisbon.start(SAFE)
        context = security.client_context(
            str(certificates / "ca.pem"),
            shows and (str(certificates / f"{shows}.pem"), str(certificates / f"{shows}.key")),
        )
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", lisbon.address.port, ssl=context
            )
            porto = Raw(reader, writer)
            await porto.say(m.Hello(m.PROTOCOL_VERSION, "porto"), m.Join(1, 0, 0))
            assert (await porto.hear(m.Refused)).reason == reason
            assert lisbon.links["porto"].connection is None
            writer.close()
        finally:
            await lisbon.stop()

    run(test())


def test_a_broker_does_not_join_a_neighbour_with_the_certificate_of_another(certificates, caplog):
    async def test():
        lisbon = BrokerHost("lisbon", {"porto": None}, tls=tls_of(certificates, "faro"))
        await lisbon.start(SAFE)
        porto = BrokerHost("porto", {"lisbon": lisbon.address}, tls=tls_of(certificates, "porto"))
        await porto.start(SAFE)
        try:
            await until(lambda: "lisbon showed a certificate of faro" in caplog.text)
            assert porto.links["lisbon"].connection is None
        finally:
            await porto.stop()
            await lisbon.stop()

    run(test())


def test_files_that_are_missing_or_wrong_are_named(certificates, tmp_path):
    good = tls_of(certificates, "porto")
    with pytest.raises(UsageError, match=r"cannot read nowhere.pem: No such file"):
        security.server_context(Tls("nowhere.pem", good.key))
    (tmp_path / "text.pem").write_text("text", "utf-8")
    with pytest.raises(UsageError, match=r"text.pem is not what TLS needs, in PEM: "):
        security.server_context(Tls(str(tmp_path / "text.pem"), good.key))
    with pytest.raises(UsageError, match=r"faro.pem is not what TLS needs, in PEM: KEY_VALUES_M"):
        security.server_context(Tls(str(certificates / "faro.pem"), good.key))
    with pytest.raises(UsageError, match="name the CA that signs them"):
        security.server_context(Tls(good.cert, good.key, require=True))
    with pytest.raises(UsageError, match=r"cannot read nowhere.pem"):
        wayfare.connect("wayfares://127.0.0.1", ca="nowhere.pem")
    with pytest.raises(UsageError, match="porto needs a certificate and a key"):
        run(BrokerHost("porto", {}).start(SAFE))


def test_old_versions_of_tls_are_not_spoken(certificates):
    for context in (
        security.server_context(tls_of(certificates, "porto")),
        security.client_context(),
        security.client_context(str(certificates / "ca.pem")),
    ):
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


# Secrets


@live
async def test_brokers_with_the_same_secret_are_linked():
    async with tree(*LINE, secret=SECRET) as net:
        await crosses(net)


@live
async def test_a_link_with_a_secret_goes_on_when_its_connection_breaks():
    async with tree(*LINE, secret=SECRET) as net:
        for link in net.brokers["lisbon"].links.values():
            link.connection.abort("a test")
        await asyncio.sleep(0.05)
        await net.linked()
        await crosses(net)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (SECRET, "another secret, as long", "have different secrets: give both the same"),
        (SECRET, None, "lisbon has not proved that it knows the secret of porto|has a secret, and"),
        (None, SECRET, "has not proved that it knows the secret of lisbon: give it to both"),
    ],
)
def test_brokers_with_different_secrets_are_not(caplog, a, b, reason):
    async def test():
        lisbon = BrokerHost("lisbon", {"porto": None}, secret=b)
        await lisbon.start(HERE)
        porto = BrokerHost("porto", {"lisbon": lisbon.address}, secret=a)
        await porto.start(HERE)
        try:
            await until(lambda: any(part in caplog.text for part in reason.split("|")))
            assert porto.links["lisbon"].connection is None
            assert lisbon.links["porto"].connection is None
        finally:
            await porto.stop()
            await lisbon.stop()

    run(test())


def test_brokers_that_listen_ahead_show_their_certificates(certificates):
    async def test():
        places = of_edges(pair.split("-") for pair in LINE)
        async with (
            tree(
                *LINE,
                at=SAFE,
                each=lambda name: {"tls": tls_of(certificates, name)},
                ahead=Ahead(places, places.next_brokers),
            ) as net,
            wayfare.connect(net.url("porto"), ca=str(certificates / "ca.pem")) as car,
            car.subscribe("location in myloc"),
        ):
            porto, lisbon = net.brokers["porto"].peers, net.brokers["lisbon"].peers
            await until(lambda: lisbon.heard)
            (way,) = porto.connections()
            assert (way.tls, way.names[0]) == (True, "lisbon")
            assert (porto.trouble, porto.dropped) == ({}, 0)

    run(test())


@live
async def test_nobody_joins_without_a_proof():
    broker = BrokerHost("lisbon", {"porto": None}, secret=SECRET)
    await broker.start(HERE)
    try:
        async with raw(broker, "porto") as peer:
            await peer.say(m.Join(1, 0, 0))
            refused = await peer.hear(m.Refused)
            assert "has not proved that it knows the secret" in refused.reason
        async with raw(broker, "porto") as peer:  # challenged, but without an answer
            await peer.say(m.Challenge(bytes(32)), m.Join(1, 0, 0))
            assert "has not proved" in (await peer.hear(m.Refused)).reason
        async with raw(broker, "porto") as peer:  # a proof that answers nothing
            await peer.say(m.Proof(bytes(32)))
            assert "different secrets" in (await peer.hear(m.Refused)).reason
        async with raw(broker, "mallory") as peer:
            await peer.say(m.Challenge(bytes(32)))
            assert "mallory is no neighbour of lisbon" in (await peer.hear(m.Refused)).reason
        assert broker.links["porto"].connection is None
    finally:
        await broker.stop()


@live
async def test_a_proof_cannot_be_reflected_or_used_again():
    """Who does not know the secret lets the broker prove it to itself, or repeats what it heard."""
    broker = BrokerHost("lisbon", {"porto": None}, secret=SECRET)
    await broker.start(HERE)
    try:
        async with raw(broker, "porto") as porto:
            knows = security.Proving(SECRET, "porto", "lisbon")
            await porto.say(knows.challenge())
            asked = await porto.hear(m.Challenge)
            knows.challenged(asked)
            proof = knows.proof()
            await porto.say(proof)
            answer = await porto.hear(m.Proof)
            assert knows.check(answer)
            await porto.say(m.Join(7, 0, 0))
            await porto.hear(m.Join)
        for heard in (proof, answer):
            async with raw(broker, "porto") as mallory:
                await mallory.say(knows.challenge())
                again = await mallory.hear(m.Challenge)
                assert again.nonce != asked.nonce
                await mallory.say(heard)
                assert "different secrets" in (await mallory.hear(m.Refused)).reason
        async with raw(broker, "porto") as mallory:  # its own challenge, sent back
            await mallory.say(m.Challenge(bytes(32)))
            theirs = await mallory.hear(m.Challenge)
            await mallory.say(theirs, m.Proof(theirs.nonce))
            assert "different secrets" in (await mallory.hear(m.Refused)).reason
    finally:
        await broker.stop()


def test_a_link_with_a_secret_that_others_can_read_is_allowed_with_a_warning(caplog, monkeypatch):
    async def test():
        lisbon = BrokerHost("lisbon", {"porto": None}, secret=SECRET)
        await lisbon.start(HERE)
        porto = BrokerHost("porto", {"lisbon": lisbon.address}, secret=SECRET)
        await porto.start(HERE)
        try:
            await until(
                lambda: porto.links["lisbon"].connection and lisbon.links["porto"].connection
            )
        finally:
            await porto.stop()
            await lisbon.stop()

    warning = "what porto and lisbon say to each other can be read, and changed, on the way"
    run(test())
    assert warning not in caplog.text
    # As if they were on two machines.
    monkeypatch.setattr("wayfare.net.connection.is_loopback", lambda _: False)
    run(test())
    assert warning in caplog.text


def test_a_short_secret_is_refused():
    with pytest.raises(UsageError, match="a shared secret has at least 16 characters"):
        BrokerHost("porto", {}, secret="x" * 15)


def test_the_proof_of_brokers_stays_the_same():
    """Brokers of other releases compute the same digest."""
    knows = security.Proving(SECRET, "porto", "lisbon")
    knows.challenged(m.Challenge(b"c" * 32))
    asked, own = b"c" * 32, knows.challenge().nonce
    text = msgspec.msgpack.encode(["wayfare link", "porto", "lisbon", asked, own])
    assert knows.proof().digest == hmac.digest(SECRET.encode(), text, "sha256")


def test_the_secret_is_in_no_message():
    knows = security.Proving(SECRET, "porto", "lisbon")
    knows.challenged(m.Challenge(b"c" * 32))
    sent = encode(knows.challenge()) + encode(knows.proof())
    assert SECRET.encode() not in sent
    assert encode(knows.proof()) == encode(knows.proof())
    others = [
        security.Proving(secret, me, peer)
        for secret, me, peer in (
            ("another secret, as long", "porto", "lisbon"),
            (SECRET, "faro", "lisbon"),
            (SECRET, "porto", "faro"),
        )
    ]
    for other in others:
        other._mine, other._theirs = knows._mine, knows._theirs
        assert other.proof() != knows.proof()


# What is said where others listen


def test_no_password_is_sent_in_clear(monkeypatch):
    async def test():
        heard = []
        monkeypatch.setattr(BrokerHost, "on_messages", lambda *given: heard.append(given[1:]))
        broker = BrokerHost("porto", {})
        await broker.start(HERE)
        # As if this machine were another one.
        monkeypatch.setattr("wayfare.net.connection.is_loopback", lambda _: False)
        clear = r"the password of anna would cross the network in clear, to 127.0.0.1: use"
        try:
            with pytest.raises(UsageError, match=clear):
                await wayfare.connect(str(broker.address), client_id="anna", password="open")
            assert not any("open" in str(one) for one in heard)
            assert not any(type(one) is m.Login for _, messages in heard for one in messages)
        finally:
            await broker.stop()

    run(test())


def test_a_broker_takes_no_password_in_clear(file, monkeypatch):
    async def test():
        broker = BrokerHost("porto", {}, accounts=Accounts(file))
        await broker.start(HERE)
        monkeypatch.setattr("wayfare.net.connection.is_loopback", lambda _: False)
        try:
            async with raw(broker, "anna") as anna:
                await anna.say(m.Login("anna", "open"))
                assert "a password came in clear" in (await anna.hear(m.Refused)).reason
        finally:
            await broker.stop()

    run(test())


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({}, ["has no accounts: whoever reaches", "has neither a secret nor a CA"]),
        ({"secret": SECRET}, ["has no accounts: whoever reaches"]),
    ],
)
def test_a_broker_says_who_may_come_if_others_can_reach_it(caplog, options, warnings):
    async def test():
        broker = BrokerHost("porto", {"lisbon": None}, **options)
        await broker.start(Address("0.0.0.0", 0))
        await broker.stop()

    run(test())
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(told) == len(warnings)
    assert all(part in one for part, one in zip(warnings, told, strict=True))


@live
async def test_on_loopback_it_says_nothing():
    broker = BrokerHost("porto", {"lisbon": None})
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("wayfare").addHandler(handler)
    await broker.start(HERE)
    await broker.stop()
    logging.getLogger("wayfare").removeHandler(handler)
    assert [one for one in records if one.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("host", "loopback", "network"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.8.8.8", True, "127.8.8.8"),
        ("::1", True, "::/64"),
        ("::ffff:127.0.0.1", True, "::ffff:127.0.0.1"),
        ("localhost", True, "localhost"),
        ("10.0.0.1", False, "10.0.0.1"),
        ("::ffff:10.0.0.1", False, "::ffff:10.0.0.1"),
        ("0.0.0.0", False, "0.0.0.0"),
        ("::", False, "::/64"),
        ("fe80::1%eth0", False, "fe80::/64"),
        ("2001:db8:1:2:3:4:5:6", False, "2001:db8:1:2::/64"),
        ("", False, ""),
        ("broker.example", False, "broker.example"),
    ],
)
def test_addresses(host, loopback, network):
    assert security.is_loopback(host) is loopback
    assert security.network_of(host) == network


# Accounts


def with_accounts(file, **options):
    @asynccontextmanager
    async def one():
        broker = BrokerHost("porto", {}, accounts=Accounts(file), **options)
        await broker.start(HERE)
        try:
            yield broker
        finally:
            await broker.stop()

    return one()


def test_a_client_logs_in_and_attaches_under_its_own_names_only(file):
    async def test():
        async with with_accounts(file) as broker:
            url = str(broker.address)
            async with wayfare.connect(url, client_id="anna", password="open") as anna:
                assert anna.broker == "porto"
            async with wayfare.connect(
                url, client_id="car-17-phone", account="car-17", password="sesame"
            ) as phone:
                assert phone.broker == "porto"
            for who, account, password, reason in (
                ("anna", "anna", "wrong", "anna cannot log in: no such account, or not its passw"),
                ("tom", "tom", "open", "tom cannot log in: no such account, or not its password"),
                ("anna", None, None, "anna has not logged in: porto wants an account"),
                ("anna", "car-17", "sesame", f"^porto {NOT_YOURS.format('car-17', 'anna', OWN)}$"),
                ("car-17", "anna", "open", f"^porto {NOT_YOURS.format('anna', 'car-17', '')}$"),
                ("car-17-x", "anna", "open", f"^porto {NOT_YOURS.format('anna', 'car-17-x', '')}$"),
                ("bike", "car-17", "sesame", f"^porto {NOT_YOURS.format('car-17', 'bike', OWN)}$"),
                ("bike", "anna", "open", f"^porto {NOT_YOURS.format('anna', 'bike', '')}$"),
            ):
                with pytest.raises(Refused, match=reason):
                    await wayfare.connect(url, client_id=who, account=account, password=password)

    run(test())


def test_nobody_takes_over_the_session_of_another_by_attaching_twice(file):
    """The first attachment waits for its profile; the second one names somebody else."""

    async def test():
        for accounts in (Accounts(file), None):
            broker = BrokerHost("porto", {"lisbon": None}, accounts=accounts)
            await broker.start(HERE)
            try:
                async with raw(broker, "anna") as mallory:
                    await mallory.say(
                        m.Login("anna", "open"),
                        m.Attach("anna", 1, 0, previous=(("lisbon", 1),), welcomed=True, digest=7),
                        m.Attach("car-17", 10**15, 0),
                    )
                    refused = await mallory.hear(m.Refused)
                    assert refused.reason == "anna attaches as car-17"
                    assert broker.core.border.of("car-17") == []
            finally:
                await broker.stop()

    run(test())


def test_who_has_not_logged_in_says_little_and_who_has_as_much_as_anybody(file):
    async def test():
        many = tuple(Filter.parse(f"x = '{i:0100}'") for i in range(200))
        async with with_accounts(file) as broker:
            async with raw(broker, "anna") as anna:
                await anna.say(m.Login("anna", "open"), m.Attach("anna", 1, 0, many))
                await anna.hear(m.Welcome)
            async with raw(broker, "anna") as mallory:
                await mallory.say(m.Attach("anna", 2, 0, many))
                refused = await mallory.hear(m.Refused)
                assert "bytes; at most 8192 are allowed" in refused.reason
        everybody = BrokerHost("porto", {})
        await everybody.start(HERE)
        async with raw(everybody, "anna") as anna:
            await anna.say(m.Attach("anna", 1, 0, many))
            await anna.hear(m.Welcome)
        await everybody.stop()

    run(test())


def test_who_has_a_password_may_also_come_where_nobody_asks_for_it():
    async def test():
        broker = BrokerHost("porto", {})
        await broker.start(HERE)
        try:
            async with wayfare.connect(str(broker.address), password="x") as someone:
                assert someone.broker == "porto"
        finally:
            await broker.stop()

    run(test())


def test_guessing_is_slow_for_whoever_fails_and_for_nobody_else(file):
    async def test():
        limits = NetLimits(failed_logins_per_minute=3)
        async with with_accounts(file, net_limits=limits) as broker:
            url = str(broker.address)
            for _ in range(5):  # what succeeds does not count
                async with wayfare.connect(url, client_id="anna", password="open"):
                    pass
            reasons = []
            for _ in range(5):
                async with raw(broker, "anna") as mallory:
                    await mallory.say(m.Login("anna", "guess"))
                    refused = await mallory.hear(m.Refused)
                    reasons.append((refused.reason.split(":")[0], refused.again))
            assert reasons == 3 * [("anna cannot log in", False)] + 2 * [
                ("too many failed logins before this one", True)
            ]

    run(test())


def test_guesses_at_the_same_time_count_too(file):
    async def test():
        limits = NetLimits(failed_logins_per_minute=3)
        async with with_accounts(file, net_limits=limits) as broker:

            async def guess():
                async with raw(broker, "anna") as mallory:
                    await mallory.say(m.Login("anna", "guess"))
                    return (await mallory.hear(m.Refused)).again

            assert sorted(await asyncio.gather(*(guess() for _ in range(10)))) == 3 * [
                False
            ] + 7 * [True]

    run(test())


def test_correct_logins_at_the_same_time_do_not_count(file):
    async def test():
        limits = NetLimits(failed_logins_per_minute=2)
        async with with_accounts(file, net_limits=limits) as broker:

            async def log_in(i):
                name, url = f"car-17-{i}", str(broker.address)
                async with wayfare.connect(
                    url, client_id=name, account="car-17", password="sesame", timeout=50
                ):
                    pass

            await asyncio.gather(*(log_in(i) for i in range(12)))
            assert broker.logins == {"ok": 12, "failed": 0, "throttled": 0}
            assert not any(how == "refused" for _, how, _ in broker.ended)

    run(test())


def test_a_refusal_names_no_other_account_and_the_log_has_the_rest(file, caplog):
    async def test():
        async with with_accounts(file) as broker, raw(broker, "car-17-x") as anna:
            await anna.say(m.Login("anna", "open"), m.Attach("car-17-x", 1, 0))
            return (await anna.hear(m.Refused)).reason.replace("as car-17-x", "")

    assert "car-17" not in asyncio.run(test())
    assert "that is for the account car-17, which has clients" in caplog.text


def test_a_proxy_that_knows_the_secret_says_where_a_login_comes_from(file):
    """Failures count for the device, and not for all devices of the proxy."""

    async def test():
        limits = NetLimits(failed_logins_per_minute=2)
        options = {"secret": SECRET, "net_limits": limits}
        async with with_accounts(file, **options) as broker:

            async def guess(account, address, secret=SECRET):
                proof = security.vouch(secret, account, "guess", address)
                async with raw(broker, "anna") as proxy:
                    await proxy.say(m.Login(account, "guess", address, proof))
                    refused = await proxy.hear(m.Refused)
                    assert refused.login is not refused.again
                    return refused.login

            assert [await guess("anna", "192.0.2.7") for _ in range(3)] == [True, True, False]
            assert await guess("anna", "192.0.2.8")
            # Whoever does not know the secret counts where it is, whatever it says.
            others = [await guess("car-17", f"192.0.2.{i}", "x" * 20) for i in range(3)]
            assert others == [True, True, False]

    run(test())


def test_an_old_login_and_an_old_refusal_are_understood():
    """Fields were added at the end: peers of both releases understand each other."""
    old_login = msgspec.msgpack.encode([7, "anna", "open"])
    assert decode(old_login) == m.Login("anna", "open")
    assert decode(msgspec.msgpack.encode([6, "why", True])) == m.Refused("why", True)


def test_others_are_served_while_passwords_are_checked(file, monkeypatch):
    """A check that takes a second holds up nobody but who asked for it."""

    async def test():
        verify = Accounts.verify

        def slow(self, name, password):
            if password == "slow":
                time.sleep(1)
            return verify(self, name, password)

        monkeypatch.setattr(Accounts, "verify", slow)
        async with with_accounts(file) as broker, raw(broker, "tom") as tom:
            url = str(broker.address)
            async with wayfare.connect(url, client_id="anna", password="open") as anna:
                await anna.advertise("x > 0")
                async with anna.subscribe("x > 0") as all:
                    began = time.monotonic()
                    await tom.say(m.Login("tom", "slow"), m.Attach("tom", 1, 0))
                    for x in range(1, 50):
                        await anna.publish({"x": x})
                        assert (await all.get(1))["x"] == x
                    assert time.monotonic() - began < 0.8
                    assert "cannot log in" in (await tom.hear(m.Refused)).reason

    run(test())


def test_an_unknown_name_takes_as_long_as_a_wrong_password(file):
    known = Accounts(file)

    def seconds(name):
        began = time.process_time()
        assert not known.verify(name, "guess")
        return time.process_time() - began

    wrong = min(seconds("anna") for _ in range(5))
    unknown = min(seconds("nobody") for _ in range(5))
    assert 0.5 < unknown / wrong < 2


def test_the_file_counts_as_it_is_now(file, caplog):
    async def test():
        async with with_accounts(file) as broker:
            url = str(broker.address)
            accounts_file.add(file, "tom", "new")
            async with wayfare.connect(url, client_id="tom", password="new"):
                pass
            accounts_file.remove(file, "tom")
            with pytest.raises(Refused, match="tom cannot log in"):
                await wayfare.connect(url, client_id="tom", password="new")
            file.write_text("[", "utf-8")
            async with wayfare.connect(url, client_id="anna", password="open"):
                assert "porto goes on with the accounts that it has" in caplog.text

    run(test())


def test_too_many_logins_at_once_come_again_later(file, monkeypatch):
    async def test():
        monkeypatch.setattr(Accounts, "verify", lambda *_: time.sleep(0.3) or True)
        limits = NetLimits(logins=2, failed_logins_per_minute=100)
        async with with_accounts(file, net_limits=limits) as broker:

            async def log_in(i):
                async with raw(broker, "anna") as anna:
                    await anna.say(m.Login("anna", "open"), m.Attach("anna", i + 1, 0))
                    try:
                        return (await anna.hear(m.Refused, 1)).again
                    except TimeoutError:
                        return False

            assert sorted(await asyncio.gather(*(log_in(i) for i in range(6)))) == 2 * [
                False
            ] + 4 * [True]

    run(test())


# Permissions


def test_a_client_may_do_what_its_account_says_and_is_told_why_not(file):
    async def test():
        async with with_accounts(file) as broker:
            url = str(broker.address)

            ids = count(1)

            def car():
                name = f"car-17-{next(ids)}"
                return wayfare.connect(url, client_id=name, account="car-17", password="sesame")

            async with wayfare.connect(url, client_id="anna", password="open") as anna:
                await anna.advertise("service = 'parking' or service = 'secret'")
                async with (
                    car() as mine,
                    mine.subscribe("service = 'parking' and free > 0") as some,
                ):
                    await mine.advertise("kmh > 0")
                    await mine.publish({"kmh": 92}, confirm=True)
                    await anna.publish({"service": "parking", "free": 3}, confirm=True)
                    assert (await some.get(5))["free"] == 3
                allows = "its account allows"
                with pytest.raises(
                    Refused,
                    match=f"car-17-2 may not subscribe to price > 0: {allows} subscribe to service = 'p",
                ):
                    async with car() as mine, mine.subscribe("price > 0") as none:
                        await none.get(5)
                async with car() as mine:
                    await mine.advertise("kmh >= 0")
                    with pytest.raises(
                        Refused, match=r"car-17-3 may not publish a notification with kmh: its"
                    ):
                        await mine.publish({"kmh": 0}, confirm=True)
                mine = car()
                mine._core.subscribe(Filter.parse("price > 0"))  # so it attaches with it
                with pytest.raises(Refused, match="car-17-4 may not subscribe to price > 0"):
                    await mine

    run(test())


def test_flush_says_whether_a_subscription_was_taken(file):
    async def test():
        async with with_accounts(file) as broker:
            options = {"client_id": "car-17", "password": "sesame", "confirm": 0}
            async with wayfare.connect(str(broker.address), **options) as car:
                async with car.subscribe("service = 'parking'"):
                    await car.flush(5)
                async with car.subscribe("price > 0"):
                    with pytest.raises(Refused, match="car-17 may not subscribe to price > 0"):
                        await car.flush(5)

    run(test())


def test_subscribe_says_that_a_subscription_is_refused(file):
    async def test():
        async with with_accounts(file) as broker:
            options = {"client_id": "car-17", "password": "sesame"}
            async with wayfare.connect(str(broker.address), **options) as car:
                with pytest.raises(Refused, match="car-17 may not subscribe to price > 0"):
                    await car.subscribe("price > 0")

    run(test())


def test_filters_behind_a_digest_are_checked_too(file):
    """She moves with many filters, from a broker that lets her to one that does not."""

    async def test():
        async with tree(
            "porto-lisbon",
            each=lambda name: {"accounts": Accounts(file)} if name == "porto" else {},
        ) as net:
            mine = wayfare.connect(net.url("lisbon"), client_id="car-17", password="sesame")
            mine._core._digest_from = 1
            async with (
                mine,
                mine.subscribe("service = 'parking'"),
                mine.subscribe("price > 0"),
            ):
                with pytest.raises(Refused, match="car-17 may not subscribe to price > 0"):
                    await mine.move(net.url("porto"))
            assert net.brokers["porto"].core.border.of("car-17") == []

    run(test())


def test_a_broker_that_starts_again_decides_as_it_did(file, tmp_path):
    """What was refused stays refused, and what was granted stays, though the account changed since."""

    async def test():
        async with Site(tmp_path, accounts=Accounts(file)) as net:
            await net.linked()
            async with raw(net.brokers["porto"], "car-17") as car:
                parking = Filter.parse("service = 'parking'")
                await car.say(m.Login("car-17", "sesame"), m.Attach("car-17", 1, 0))
                await car.say(m.Subscribe(parking), m.Subscribe(Filter.parse("price > 0")))
                assert "car-17 may not subscribe to price > 0" in (await car.hear(m.Refused)).reason
            text = file.read_text("utf-8")
            file.write_text(text.replace("service = 'parking'", "price > 0"), "utf-8")
            await net.crash("porto")
            await net.start("porto")
            (session,) = net.brokers["porto"].core.border.of("car-17")
            assert [*session.subscriptions] == [parking]
            assert net.brokers["porto"].core.grants == {}

    run(test())


# The file


def test_accounts_are_written_and_what_others_wrote_there_stays(tmp_path):
    path = tmp_path / "accounts.toml"
    assert accounts_file.add(path, "anna", "open")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("# ours\n" + path.read_text("utf-8") + "# of tom\n[tom]\npassword='$argon2x'\n")
    path.chmod(0o640)
    assert not accounts_file.add(path, "anna", "new")
    assert accounts_file.add(path, 'the "boss"', "x", {"clients": ["b-*", "c"], "subscribe": []})
    text = path.read_text("utf-8")
    assert text.startswith("# ours\n") and "# of tom\n[tom]\npassword='$argon2x'\n" in text
    assert path.stat().st_mode & 0o777 == 0o640
    known = Accounts(path)
    assert known.verify("anna", "new") and not known.verify("anna", "open")
    assert known.owner("b-7").name == known.owner("c").name == 'the "boss"'
    assert known.owner("tom").name == "tom" and known.owner("nobody") is None
    accounts_file.remove(path, "anna")
    assert [*accounts_file.read(path)] == ["tom", 'the "boss"']
    assert not known.refresh()
    assert not known.verify("anna", "new")


def test_a_name_belongs_to_one_account():
    text = """
        [a]
        password = "$argon2id$"
        clients = ["*"]
        [b]
        password = "$argon2id$"
        clients = ["b-*"]
    """
    known = object.__new__(Accounts)
    known._accounts = accounts_file.parse(text, "accounts.toml")
    assert [known.owner(name).name for name in ("a", "b", "b-1", "c")] == ["a", "b", "a", "a"]


HASH = 'password = "$argon2id$"\n'
BAD = {
    "[": "accounts.toml: .*at (line|end)",
    "x = 1": "account 'x': write it as a table",
    "[x]": "account 'x': needs a password, as `wayfare account add` writes it",
    "[x]\npassword = 'open'": "account 'x': needs a password",
    f"[x]\n{HASH}colour = 1": "account 'x': unknown key 'colour': choose one of password, clients",
    f"[x]\n{HASH}clients = 'a'": "account 'x': clients is a list of texts",
    f"[x]\n{HASH}publish = [1]": "account 'x': publish is a list of texts",
    f"[x]\n{HASH}publish = ['a >']": "account 'x': .* at column",
}


@pytest.mark.parametrize(("text", "reason"), BAD.items())
def test_what_is_wrong_with_a_file_is_said(text, reason):
    with pytest.raises(
        UsageError, match=f"accounts.toml.*{reason.removeprefix('accounts.toml: ')}"
    ):
        accounts_file.parse(text, "accounts.toml")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the accounts in .*none.toml: No such file"):
        Accounts(tmp_path / "none.toml")
    (tmp_path / "some.toml").write_text("", "utf-8")
    with pytest.raises(UsageError, match="there is no account anna in"):
        accounts_file.remove(tmp_path / "some.toml", "anna")
    with pytest.raises(UsageError, match="a password has 1 to 1000 characters"):
        accounts_file.add(tmp_path / "some.toml", "anna", "")
    with pytest.raises(UsageError, match="an account's name has 1 to 256 characters"):
        accounts_file.add(tmp_path / "some.toml", "", "x")
