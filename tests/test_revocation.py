"""Certificate revocation lists: who is refused, who is disconnected, and what a doctor says."""

import asyncio
import datetime
import time

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

import wayfare
from live import Tree, until
from wayfare.errors import CannotConnect, ConfigError, Refused, UsageError
from wayfare.net import checks, config, revocation, security
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.security import Tls

SAFE = Address("127.0.0.1", 0, tls=True)
DAY = datetime.timedelta(days=1)


class Authority:
    """A CA, certificates of it in files, and lists of those that it revoked."""

    def __init__(self, there):
        self.there, self.ca = there, trustme.CA()
        self.ca.cert_pem.write_to_path(there / "ca.pem")
        self.names = {}
        self.updates = 0

    def issue(self, name):
        cert = self.ca.issue_cert(name, "127.0.0.1", common_name=name)
        cert.private_key_pem.write_to_path(self.there / f"{name}.key")
        for pem in cert.cert_chain_pems:
            pem.write_to_path(self.there / f"{name}.pem", append=True)
        self.names[name] = x509.load_pem_x509_certificate(cert.cert_chain_pems[0].bytes())

    def revoke(self, *names, expires=DAY * 7):
        """A new list, which takes the place of the one before in one step."""
        self.updates += 1
        signer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        key = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        now = datetime.datetime.now(datetime.UTC) - DAY * 30
        now += datetime.timedelta(hours=self.updates)
        builder = x509.CertificateRevocationListBuilder(
            signer.subject, now, datetime.datetime.now(datetime.UTC) + expires
        )
        for name in names:
            one = x509.RevokedCertificateBuilder(self.names[name].serial_number, now)
            builder = builder.add_revoked_certificate(one.build())
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        new = self.there / "crl.new"
        new.write_bytes(pem)
        new.replace(self.there / "crl.pem")

    def tls(self, name, **options):
        files = [str(self.there / f"{name}.{kind}") for kind in ("pem", "key")]
        return Tls(*files, str(self.there / "ca.pem"), crl=str(self.there / "crl.pem"), **options)

    def connect(self, url, name, **options):
        cert = (str(self.there / f"{name}.pem"), str(self.there / f"{name}.key"))
        ca = str(self.there / "ca.pem")
        options = {"timeout": 10} | options
        return wayfare.connect(url, client_id=name, ca=ca, cert=cert, **options)


@pytest.fixture
def authority(tmp_path, monkeypatch):
    monkeypatch.setattr(revocation, "FILES_S", 0.05)
    one = Authority(tmp_path)
    for name in ("porto", "faro", "anna", "tom"):
        one.issue(name)
    one.revoke()
    return one


async def refusal_of(client):
    """Why the broker closed the connection of a client for good."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.subscribe("x > 0")
            except Refused as refused:
                return str(refused)
            await asyncio.sleep(0.05)


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 60))


def test_a_client_with_a_revoked_certificate_is_disconnected_and_cannot_come_back(authority):
    async def test():
        broker = BrokerHost("porto", {}, tls=authority.tls("porto", require=True))
        await broker.start(SAFE)
        url = str(broker.address)
        anna = await authority.connect(url, "anna")
        tom = await authority.connect(url, "tom")
        await tom.advertise("true")
        authority.revoke("anna")
        await until(lambda: [one.peer for one in broker.connections.values()] == ["tom"])
        assert broker.ended["client", "refused", "revoked"] == 1
        assert "the certificate that it showed was revoked" in await refusal_of(anna)
        with pytest.raises(CannotConnect):
            await authority.connect(url, "anna")
        await tom.publish({"x": 1})
        await tom.flush()
        await tom.close()
        await broker.stop()

    run(test())


def test_a_neighbour_with_a_revoked_certificate_loses_its_link_in_both_directions(authority):
    """porto calls faro. First faro's certificate is revoked, which porto checks; then that of porto."""

    async def test():
        for name in ("faro", "porto"):
            authority.revoke()
            net = Tree("porto-faro", at=SAFE, each=lambda one: {"tls": authority.tls(one)})
            for one in net.names:
                await net.start(one)
            await net.linked()
            authority.revoke(name)
            await until(lambda: not any(one._linked() for one in net.brokers.values()))  # noqa: B023
            await asyncio.sleep(0.5)
            assert not any(one._linked() for one in net.brokers.values())
            for one in net.brokers.values():
                await one.stop()

    run(test())


def test_a_client_with_a_list_does_not_speak_to_a_broker_whose_certificate_was_revoked(authority):
    async def test():
        tls = Tls(str(authority.there / "porto.pem"), str(authority.there / "porto.key"))
        broker = BrokerHost("porto", {}, tls=tls)
        await broker.start(SAFE)
        url, crl = str(broker.address), str(authority.there / "crl.pem")
        anna = await authority.connect(url, "anna", crl=crl, timeout=2)
        authority.revoke("porto")
        with pytest.raises(CannotConnect, match="its certificate was revoked"):
            await authority.connect(url, "tom", crl=crl, timeout=2)
        await anna.detach()  # the list in the file counts for its next connection, too
        with pytest.raises(CannotConnect, match="its certificate was revoked"):
            await anna.attach()
        unaware = await authority.connect(url, "tom")
        for one in (anna, unaware):
            await one.close()
        await broker.stop()

    run(test())


def test_a_list_is_read_as_it_was_written(authority):
    authority.revoke("anna", "tom")
    (crl,) = revocation.read(str(authority.there / "crl.pem"))
    assert len(crl.serials) == 2
    assert 6.9 * 86_400 < crl.expires - time.time() < 7.1 * 86_400
    der = {
        name: one.public_bytes(serialization.Encoding.DER) for name, one in authority.names.items()
    }
    assert [name for name in der if revocation.is_revoked(der[name], [crl])] == ["anna", "tom"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nonsense", "has no certificate revocation list"),
        (
            b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n",
            "has a certificate revocation list that cannot be read",
        ),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, data, reason):
    path = tmp_path / "crl.pem"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=reason):
        revocation.read(str(path))
    with pytest.raises(UsageError, match="cannot read"):
        revocation.read(str(tmp_path / "none.pem"))


def test_a_list_that_is_wrong_changes_nothing(authority, caplog):
    async def test():
        broker = BrokerHost("porto", {}, tls=authority.tls("porto", require=True))
        await broker.start(SAFE)
        anna = await authority.connect(str(broker.address), "anna")
        (authority.there / "crl.pem").write_text("nonsense", "utf-8")
        await until(lambda: "goes on with the files that it has" in caplog.text)
        await anna.subscribe("x > 0")
        await anna.flush()
        await anna.close()
        await broker.stop()

    run(test())


def test_a_doctor_warns_of_a_list_that_has_expired(authority):
    path = str(authority.there / "crl.pem")
    assert checks.check_crl(path, time.time()).level == "ok"
    assert "expires in 12 hours" in checks.check_crl(path, time.time() + 6.5 * 86_400).says
    authority.revoke(expires=-DAY)
    finding = checks.check_crl(path, time.time())
    assert (finding.level, "has expired" in finding.says) == ("warn", True)


def test_a_list_needs_a_ca(authority):
    with pytest.raises(UsageError, match="to revoke certificates, name the CA"):
        security.server_context(
            Tls(*(str(authority.there / f"porto.{one}") for one in ("pem", "key")), crl="crl.pem")
        )
    text = 'name = "a"\n[tls]\ncert = "a.pem"\nkey = "a.key"\ncrl = "crl.pem"\n'
    with pytest.raises(ConfigError, match=r"tls.crl needs tls.ca"):
        config.parse(text)
