"""Who is at the other end: certificates, and proofs that a broker knows a secret.

Two brokers that share a secret prove it to each other before either says anything else. The secret
never crosses the link, and no proof can be used twice, by somebody else, or in the other direction:

    caller                             called
      |-- Hello, Challenge(a) --------->|
      |<------- Hello, Challenge(b) ----|
      |-- Proof(caller, called, b, a) ->|
      |<- Proof(called, caller, a, b) --|
      |-- Join ------------------------>|
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import msgspec

from wayfare.core.codec import PROOF_BYTES
from wayfare.core.messages import Challenge, Login, Proof
from wayfare.errors import UsageError

OUT_OF_TIME = {9: "is not valid yet", 10: "has expired"}  # a certificate; codes of OpenSSL
CRL_TROUBLE = {  # codes of OpenSSL
    3: "crl has no certificate revocation list of the CA that signed its certificate: add it",
    12: "the certificate revocation list has expired: get a new one from the CA",
    23: "its certificate was revoked: whoever runs it has to get a new one",
}
NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the ssl module does not name
SECRET_MIN = 16  # characters: a proof tells whoever sees it whether a guess is right
# Where anybody may make a program connect to. What else is called private somewhere (link-local and reserved
# addresses, those of IPv4 within IPv6) may be a door to what only this machine should reach ...
PRIVATE = tuple(
    map(
        ip_network,
        ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"),
    )
)
# ... as is where clouds tell their machines secrets.
SECRETIVE = tuple(map(ip_address, ("fd00:ec2::254", "fd20:ce::254")))
LINK = "wayfare link"  # label of the proofs between brokers


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM. A broker shows its certificate to clients, and to neighbours."""

    cert: str
    key: str
    ca: str = ""  # who signs the certificates of peers; "": whom the system trusts
    require: bool = False  # also clients have to show one
    crl: str = ""  # certificate revocation lists of that CA


def server_context(tls: Tls) -> ssl.SSLContext:
    """For connections that come. With a CA, peers may show a certificate, and neighbours must."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, tls.cert, tls.key)
    if tls.ca:
        _load(tls.ca, lambda: context.load_verify_locations(tls.ca))
        context.verify_mode = ssl.CERT_REQUIRED if tls.require else ssl.CERT_OPTIONAL
        load_crl(context, tls.crl)
    elif tls.require or tls.crl:
        what = "require certificates of clients" if tls.require else "revoke certificates"
        raise UsageError(f"to {what}, name the CA that signs them (ca)")
    return context


def load_crl(context: ssl.SSLContext, crl: str) -> None:
    """Check the certificates of peers against these lists; of several of one CA, the newest counts."""
    if crl:
        _load(crl, lambda: context.load_verify_locations(crl))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def reload(tls: Tls, *contexts: ssl.SSLContext) -> None:
    """New connections of these contexts go by the files as they are now; UsageError, and all stays."""
    server_context(tls)
    for context in contexts:
        _load_pair(context, tls.cert, tls.key)
        if tls.ca:
            context.load_verify_locations(tls.ca)
            load_crl(context, tls.crl)


def client_context(
    ca: str = "", cert: tuple[str, str] | None = None, crl: str = ""
) -> ssl.SSLContext:
    """For connections to a broker, whose certificate has to name the host that was called."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load(ca, lambda: context.load_verify_locations(ca))
    if cert is not None:
        _load_pair(context, *cert)
    load_crl(context, crl)
    return context


def neighbour_context(tls: Tls | None) -> ssl.SSLContext:
    """For connections to a neighbour, whose certificate has to have its name: see `names_of`."""
    if tls is None:
        context = client_context()
    else:
        context = client_context(tls.ca, (tls.cert, tls.key), tls.crl)
    context.check_hostname = False  # a neighbour is called by its name, wherever it is
    return context


def _no_password() -> str:
    raise UsageError("the key is encrypted: give a key without a password, readable only for us")


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    _load(key, lambda: open(key, "rb").close())  # load_cert_chain does not say which it cannot read
    _load(cert, lambda: context.load_cert_chain(cert, key, _no_password))


def _load(path: str, load: Callable[[], object]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise UsageError(f"{path} is not what TLS needs, in PEM: {error.reason or error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def distrust(error: ssl.SSLCertVerificationError) -> str:
    """Why a certificate is not enough, and what to do."""
    if error.verify_code in OUT_OF_TIME:
        return f"its certificate {OUT_OF_TIME[error.verify_code]}: whoever runs it has to renew it"
    if error.verify_code in CRL_TROUBLE:
        return CRL_TROUBLE[error.verify_code]
    return f"its certificate is not trusted ({error.verify_message}): say whom to trust, by `ca`"


def shown_by(tls: Tls) -> dict[str, Any]:
    """The certificate as its peers see it, whether it is out of its time or not."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(tls.cert)
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server_context(Tls(tls.cert, tls.key)).wrap_bio(to_server, to_client, server_side=True),
        trusting.wrap_bio(to_client, to_server),
    ]
    try:
        for _ in range(3):  # flights of a handshake
            for end in reversed(ends):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLError as error:
        raise UsageError(f"no peer will take {tls.cert} ({error.reason}): renew it") from None
    certificate = ends[1].getpeercert()
    assert certificate is not None
    return certificate


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Whose certificate it is: its DNS names, or without any its common name."""
    if not certificate:
        return ()
    others = certificate.get("subjectAltName", ())
    names = tuple(name for kind, name in others if kind == "DNS")
    parts = [part for group in certificate.get("subject", ()) for part in group]
    return names or tuple(name for kind, name in parts if kind == "commonName")


def is_loopback(host: str) -> bool:
    """Whether what goes there stays on this machine; for the address of a connection."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    inner = getattr(address, "ipv4_mapped", None)
    return (inner or address).is_loopback


def is_private(ip: IPv4Address | IPv6Address) -> bool:
    """Whether it is an address of this machine or of a private network, which may be called on anybody's word."""
    return any(ip in network for network in PRIVATE) and ip not in SECRETIVE


def network_of(host: str) -> str:
    """Whom limits of an address are for: in IPv6, one subscriber has a whole /64 of them."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address) or address.ipv4_mapped:
        return host
    return str(ip_network((int(address) >> 64 << 64, 64)))


def check_secret(secret: str | None) -> None:
    if secret is not None and len(secret) < SECRET_MIN:
        raise UsageError(f"a shared secret has at least {SECRET_MIN} characters, of good chance")


class Proving:
    """One end of a connection between brokers, or mobility proxies, that share a secret.

    A proof counts only for its label, so the proofs of brokers are worth nothing to proxies with the same secret.
    """

    def __init__(self, secret: str, me: str, peer: str, label: str = LINK) -> None:
        self.done = False  # the peer has proved it
        self._label = label
        self._secret, self._me, self._peer = secret.encode(), me, peer
        self._mine = secrets.token_bytes(PROOF_BYTES)
        self._theirs = b""

    def challenge(self) -> Challenge:
        return Challenge(self._mine)

    def challenged(self, challenge: Challenge) -> None:
        self._theirs = challenge.nonce

    def proof(self) -> Proof:
        return Proof(self._digest(self._me, self._peer, self._theirs, self._mine))

    def check(self, proof: Proof) -> bool:
        """Whether the peer knows the secret. It has to have sent its challenge before."""
        if self._theirs:
            expected = self._digest(self._peer, self._me, self._mine, self._theirs)
            self.done = hmac.compare_digest(expected, proof.digest)
        return self.done

    def _digest(self, sender: str, receiver: str, asked: bytes, own: bytes) -> bytes:
        what = msgspec.msgpack.encode([self._label, sender, receiver, asked, own])
        return hmac.digest(self._secret, what, "sha256")


def vouch(secret: str, account: str, password: str, address: str) -> bytes:
    """A proxy's proof that this login comes from a device at that address.

    It fits this password only, so whoever might see it cannot use it for another guess.
    """
    what = msgspec.msgpack.encode(["wayfare device", account, password, address])
    return hmac.digest(secret.encode(), what, "sha256")


def is_vouched(secret: str | None, login: Login) -> bool:
    """Whether a proxy that knows the secret of the brokers says where this login comes from."""
    if secret is None or not login.address or not login.proof:
        return False
    try:
        ip_address(login.address.partition("%")[0])
    except ValueError:
        return False
    expected = vouch(secret, login.name, login.password, login.address)
    return hmac.compare_digest(expected, login.proof)
