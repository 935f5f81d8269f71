"""What can be said about a configuration without asking anybody: what makes no sense, is missing, or too open."""

from __future__ import annotations

import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from wayfare.core.codec import FRAME_MAX
from wayfare.core.memory import NEAR
from wayfare.core.messages import PUBLICATION_BYTES_MAX
from wayfare.errors import ModelError, StoreError, UsageError
from wayfare.net import accounts, bans, configured, network, revocation
from wayfare.net.database import InUse, check_file
from wayfare.net.heartbeat import SILENT_BEATS
from wayfare.net.kinds import available_bytes
from wayfare.net.mistakes import Mistake, located
from wayfare.net.security import (
    Tls,
    check_secret,
    client_context,
    is_loopback,
    server_context,
    shown_by,
)
from wayfare.net.status import BrokerStatus
from wayfare.net.store import FILE, SNAPSHOT_BYTES

OK, WARN, FAIL = LEVELS = ("ok", "warn", "fail")
ROOM_BYTES = 1024 * 1024 * 1024  # on the disk of a store; less is a warning
ROOM_MIN_BYTES = 4 * SNAPSHOT_BYTES  # less, and it fails soon
EXPIRES_S = 30 * 86_400  # a certificate that ends sooner is a warning
CRL_EXPIRES_S = 86_400  # a revocation list that ends sooner is a warning
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and how to call what listens there


class Finding(msgspec.Struct, frozen=True):
    level: str
    about: str  # a file, a broker or an address
    says: str  # what is so, and if that is wrong, what to do


class Wrong(msgspec.Struct, frozen=True):
    """A key that makes no sense as it is, and why: the rest of a sentence that begins with the key."""

    level: str
    key: str
    reason: str

    def about(self, file: str) -> Finding:
        return Finding(self.level, file, f"{self.key} {self.reason}")


def check_settings(settings: configured.Settings) -> Iterator[Wrong]:
    """Values that are good alone, and make no sense together."""
    limits, net_limits, second = settings.limits, settings.net_limits, 1_000_000_000
    silent_ns = SILENT_BEATS * settings.heartbeat_s * second
    for level, wrong, key, reason in (
        (
            FAIL,
            limits.window > limits.backlog_count,
            "limits.window",
            f"is {limits.window}, and limits.backlog_count only {limits.backlog_count}: what is on its"
            " way counts as backlog, so make the window smaller",
        ),
        (
            FAIL,
            net_limits.write_bytes < net_limits.frame_bytes,
            "limits.write_bytes",
            f"is {net_limits.write_bytes}, and one message may have {net_limits.frame_bytes}"
            " (limits.frame_bytes): whoever gets a long one is cut off, so make it larger",
        ),
        (
            FAIL,
            net_limits.frame_bytes <= net_limits.write_bytes < 2 * limits.backlog_bytes,
            "limits.write_bytes",
            f"is {net_limits.write_bytes}, and limits.backlog_bytes {limits.backlog_bytes}: a reader that comes"
            " back is given its whole backlog at once, and would be cut off again and again, so make it"
            f" at least {2 * limits.backlog_bytes}",
        ),
        (
            WARN,
            net_limits.frame_bytes < FRAME_MAX,
            "limits.frame_bytes",
            f"is {net_limits.frame_bytes}, and peers may send messages of {FRAME_MAX}: a link breaks at"
            " the first longer one, so make it larger",
        ),
        (
            WARN,
            bool(settings.announce.network and settings.security.accounts)
            and settings.security.tls is None,
            "announce.network",
            "is given without tls.cert, and there are accounts: no client sends a password to an announced"
            " broker without TLS, so say tls.cert and tls.key",
        ),
        (
            WARN,
            limits.backlog_bytes < PUBLICATION_BYTES_MAX,
            "limits.backlog_bytes",
            f"is {limits.backlog_bytes}, and one notification may have {PUBLICATION_BYTES_MAX}: a"
            " larger one than fits is lost, so make it larger",
        ),
        (
            WARN,
            limits.answer_ns > limits.away_ns,
            "limits.answer",
            "is longer than limits.away: a session may end before its old broker has answered, so make"
            " it shorter",
        ),
        (
            WARN,
            limits.tombstone_ns < limits.answer_ns,
            "limits.tombstone",
            "is shorter than limits.answer: a client that moved may come to life at its old broker, so"
            " make it longer",
        ),
        (
            WARN,
            silent_ns > limits.answer_ns,
            "heartbeat",
            f"is {settings.heartbeat_s:g} s, and a dead neighbour is noticed after {SILENT_BEATS} of"
            f" them, {silent_ns / second:g} s, which is longer than limits.answer: make it shorter",
        ),
        (
            WARN,
            bool(settings.status.port) and not is_loopback(settings.status.host),
            "status.host",
            f"is {settings.status.host}: whoever reaches it sees names and numbers of all brokers, so"
            " let a firewall decide who does",
        ),
    ):
        if wrong:
            yield Wrong(level, key, reason)


def check_sums(settings: configured.Settings) -> Iterator[Wrong]:
    """Limits in sum that protect nothing, or that one message exceeds."""
    limits, net_limits = settings.limits, settings.net_limits
    frame, memory = net_limits.frame_bytes, limits.memory_bytes
    kept = {
        "memory": memory,
        "account_memory": limits.account_memory_bytes,
        "disk": net_limits.disk_bytes,
        "account_disk": net_limits.account_disk_bytes,
    }
    if memory > (has := available_bytes()):
        says = (
            f"is {size(memory)}, and this machine, or container, has only {size(has)}: it is killed"
        )
        yield Wrong(
            WARN, "limits.memory", f"{says} before the limit is reached, so make it smaller"
        )
    for name in ("memory", "disk"):
        account, all = kept[f"account_{name}"], kept[name]
        if account > all > 0:
            says = f"is {size(account)}, and limits.{name} only {size(all)}: an account never reaches it,"
            yield Wrong(WARN, f"limits.account_{name}", f"{says} so make it smaller")
    if frame <= memory < (link := net_limits.link_bytes):
        says = f"is {size(memory)}, and {size(link)} may wait for a neighbour (limits.link_bytes): one that"
        yield Wrong(
            WARN,
            "limits.memory",
            f"{says} is slow is given up before publishers have to wait, so make limits.link_bytes smaller",
        )
    for key, limit in kept.items():
        if 0 < limit < frame:
            says = (
                f"is {size(limit)}, and one message may have {size(frame)} (limits.frame_bytes): a"
            )
            yield Wrong(
                WARN, f"limits.{key}", f"{says} single one makes clients lose, so make it larger"
            )


def check_account_limits(settings: configured.Settings) -> Iterator[Finding]:
    """Accounts whose limits of memory or disk make no sense beside those of the broker."""
    file = settings.security.accounts
    try:
        known = accounts.read(Path(file)) if file else {}
    except UsageError:
        return  # check_files reports it
    limits = settings.limits.memory_bytes, settings.net_limits.disk_bytes
    for name, account in known.items():
        quotas = account.quota.memory, account.quota.disk
        for key, own, all in zip(("memory", "disk"), quotas, limits, strict=True):
            yield from _check_account_limit(settings, name, key, own or 0, all)


def _check_account_limit(
    settings: configured.Settings, name: str, key: str, own: int, all: int
) -> Iterator[Finding]:
    file, frame = settings.security.accounts, settings.net_limits.frame_bytes
    says = f"account {name!r}: {key} is {size(own)}, and"
    if own > all > 0:
        says = f"{says} limits.{key} only {size(all)}: it never reaches that, so make it smaller"
        yield Finding(WARN, file, says)
    elif 0 < own < frame:
        says = f"{says} one message may have {size(frame)}"
        yield Finding(WARN, file, f"{says}: a single one makes its clients lose, so make it larger")


def check_use(one: BrokerStatus) -> Iterator[Finding]:
    """Limits of memory and disk that a running broker is near to, or beyond."""
    dropped = f"and {one.shed} notifications were dropped since it started"
    for key, used, limit in _uses(one):
        if limit and used > limit * NEAR:
            says = (
                f"takes {_of(used, limit)} (limits.{key}), {dropped}: see `wayfare sessions list`"
            )
            yield Finding(WARN, one.name, f"{says} for large backlogs, or raise the limit")
    for near in one.account_memory:
        if near.bytes > near.limit * NEAR:
            says = f"keeps {_of(near.bytes, near.limit)} for the account {near.account}"
            yield Finding(
                WARN, one.name, f"{says}: its largest consumers lose, unless its limit is raised"
            )


def use_of(one: BrokerStatus) -> str:
    """What a running broker takes of its limits."""
    uses = [(key, used, limit) for key, used, limit in _uses(one) if limit or used]
    return ", ".join(f"{key} {_of(used, limit)}" for key, used, limit in uses)


def _uses(one: BrokerStatus) -> tuple[tuple[str, int, int], ...]:
    memory = sum(one.memory.values())
    return ("memory", memory, one.memory_limit), ("disk", one.disk_bytes, one.disk_limit)


def _of(used: int, limit: int) -> str:
    return f"{size(used)} of {size(limit)}" if limit else f"{size(used)} without a limit"


def size(count: int) -> str:
    """Bytes, as people write them: 512 MiB."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"


def check_listening(about: str, site: configured.Broker) -> Iterator[Finding]:
    host = site.listen.host
    if is_loopback(host):
        return
    where = "every address of this machine" if host in EVERYWHERE else host
    if not site.settings.security.accounts:
        says = f"{site.name} listens at {where} and has no accounts: whoever reaches it may attach"
        yield Finding(
            WARN, about, f"{says} under any name; give it accounts, or listen at 127.0.0.1"
        )
    if not site.listen.tls:
        says = (
            f"{site.name} listens at {where} without TLS: what is said there can be read on the way"
        )
        yield Finding(WARN, about, f"{says}; listen at wayfares://")


def check_files(security: configured.Security) -> Iterator[Wrong]:
    """Whether the files that it names are there, and what they should be."""
    looks: list[tuple[str, Callable[[], object]]] = []
    if security.secret_file:
        looks.append(("secret_file", lambda: check_secret(network.secret_of(security.secret_file))))
    if security.accounts:
        looks.append(("accounts", lambda: accounts.read(Path(security.accounts))))
    if security.bans:
        looks.append(("bans", lambda: bans.read(Path(security.bans))))
    if (tls := security.tls) is not None:
        which = "tls.cert" if os.access(tls.key, os.R_OK) else "tls.key"
        looks.append((which, lambda: server_context(Tls(tls.cert, tls.key))))
        looks.append(("tls.ca", lambda: client_context(tls.ca)))
        if tls.crl:
            looks.append(("tls.crl", lambda: revocation.read(tls.crl)))
    yield from _look(looks)


def check_ahead(said: configured.Ahead) -> Iterator[Wrong]:
    """Whether the map, or the model, can be used."""
    key = "ahead.places" if said.places else "ahead.movement"
    return _look([(key, lambda: network.ahead_of(said, tuple))])


def _look(looks: list[tuple[str, Callable[[], object]]]) -> Iterator[Wrong]:
    for key, look in looks:
        try:
            look()
        except (UsageError, ModelError) as error:
            yield Wrong(FAIL, key, f"names no good file: {error}")


def check_security(about: str, security: configured.Security) -> Iterator[Finding]:
    """Whether the files are there, and good, and for nobody else."""
    wrong = [one.about(about) for one in check_files(security)]
    yield from wrong
    private = [security.secret_file, security.accounts, security.audit, security.bans]
    if security.tls is not None:
        private.append(security.tls.key)
        if not wrong:
            yield check_certificate(security.tls)
            if security.tls.crl:
                yield check_crl(security.tls.crl, time.time())
    for file in filter(None, private):
        path = Path(file)
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding(WARN, file, f"others on this machine may read it: chmod 600 {file}")


def warnings(file: str | Path, settings: configured.Settings) -> list[Mistake]:
    """What makes little sense in a configuration, although brokers run with it."""
    wrong = [one for one in (*check_settings(settings), *check_sums(settings)) if one.level == WARN]
    return [
        *located(
            str(file),
            Path(file).read_text("utf-8"),
            [(tuple(one.key.split(".")), one.reason) for one in wrong],
        ),
        *(Mistake(one.about, 0, "", one.says) for one in check_account_limits(settings)),
    ]


def mistakes(file: str | Path, settings: configured.Settings) -> list[Mistake]:
    """What fails in a configuration that can be read, with the lines of its file."""
    wrong = [
        *check_settings(settings),
        *check_files(settings.security),
        *check_ahead(settings.ahead),
    ]
    if settings.security.tls is not None and not any(one.key.startswith("tls.") for one in wrong):
        found = check_certificate(settings.security.tls)
        wrong.append(Wrong(found.level, "tls.cert", f"names {found.about}: {found.says}"))
    return located(
        str(file),
        Path(file).read_text("utf-8"),
        [(tuple(one.key.split(".")), one.reason) for one in wrong if one.level == FAIL],
    )


def check_certificate(tls: Tls) -> Finding:
    """How long it is good."""
    try:
        return check_times(tls.cert, shown_by(tls), time.time())
    except UsageError as error:
        return Finding(FAIL, tls.cert, str(error))


def check_crl(file: str, now: float) -> Finding:
    """Whether a certificate revocation list counts, and how long."""
    ends = [one.expires for one in revocation.read(file) if one.expires is not None]
    if not ends:
        return Finding(OK, file, "is a certificate revocation list that does not expire")
    left_s = min(ends) - now
    if left_s <= 0:
        says = "has expired, so no certificate of its CA is accepted: get a new one from the CA"
        return Finding(WARN, file, f"is a certificate revocation list that {says}")
    if left_s < CRL_EXPIRES_S:
        says = f"expires in {left_s / 3600:.0f} hours: get a new one from the CA"
        return Finding(WARN, file, f"is a certificate revocation list that {says}")
    return Finding(
        OK, file, f"is a certificate revocation list for {left_s / 86_400:.0f} more days"
    )


def check_store(about: str, durability: configured.Durability) -> Iterator[Finding]:
    """Whether there is a place to write to, without writing."""
    if durability.mode == "memory":
        return
    directory = there = Path(durability.directory).absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        yield Finding(
            FAIL, about, f"{there} is no directory: give durability.directory another one"
        )
        return
    if not os.access(
        there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        says = f"{there} cannot be written: let this user, or give durability.directory another one"
        yield Finding(FAIL, about, says)
        return
    try:
        if (directory / FILE).exists():
            check_file(directory / FILE, about)
    except InUse:
        pass  # by this very broker, one hopes
    except StoreError as error:
        yield Finding(FAIL, about, str(error))
        return
    free = shutil.disk_usage(there).free
    if free < ROOM_BYTES:
        level = FAIL if free < ROOM_MIN_BYTES else WARN
        yield Finding(level, about, f"only {free // 2**20} MiB are free at {there}: make room")
    else:
        yield Finding(OK, about, f"{directory} can be written, and {free // 2**30} GiB are free")


def check_times(about: str, certificate: Mapping[str, Any], now: float) -> Finding:
    began, ends = str(certificate["notBefore"]), str(certificate["notAfter"])
    left_s = ssl.cert_time_to_seconds(ends) - now
    days = f"{left_s / 86_400:.0f} days"
    if left_s <= 0:
        says = f"its certificate has expired ({ends}), so no peer will take it: renew it"
        return Finding(FAIL, about, says)
    if ssl.cert_time_to_seconds(began) > now:
        says = f"its certificate is not valid before {began}: see to the clock, or wait"
        return Finding(FAIL, about, says)
    if left_s < EXPIRES_S:
        return Finding(WARN, about, f"its certificate expires in {days} ({ends}): renew it")
    return Finding(OK, about, f"its certificate is good for {days}")
