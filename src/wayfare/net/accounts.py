"""Accounts of clients: who may come, under which names, and what they may do. A file in TOML:

    ["car-17"]
    password = "$argon2id$..."                 # as `wayfare account add` writes it
    clients = ["car-17-*"]                     # names beside its own; * and ? stand for others
    subscribe = ["service = 'parking'"]        # left out: everything; []: nothing
    publish = ["service = 'speed'"]
    advertise = ["service = 'speed'"]
    deny_publish = ["kmh > 300"]               # deny_subscribe, deny_advertise: they win
    deny_clients = ["car-17-test*"]            # names that `clients` does not mean
    previous_password = "$argon2id$..."        # counts as well, while the password is rotated
    previous_expires = 2026-12-01T00:00:00Z    # until then
    publications_per_second = 100              # quotas: see `quotas`
    memory = "64MiB"

A client's name belongs to one account: the one of that name, or else the first one in the file with a
pattern for it. Nobody else attaches under it.
"""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from wayfare.core.codec import NAME_MAX, PASSWORD_MAX
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.errors import FilterError, UsageError
from wayfare.net.kinds import COUNT_OR_NONE, MEMORY, SIZE, SIZE_OR_NONE, Kind, shown
from wayfare.net.quotas import QUOTAS, Quota

LISTS = ("subscribe", "publish", "advertise")
DENY_LISTS = tuple(f"deny_{one}" for one in LISTS)
NAMES = ("clients", "deny_clients")
KEPT = {"memory": MEMORY, "disk": SIZE_OR_NONE}  # quotas of what is kept, and how they are written
PREVIOUS = ("previous_password", "previous_expires")
TOLD_MAX = 200  # characters of patterns in a refusal
KEYS = ("password", "clients", *LISTS, "deny_clients", *DENY_LISTS, *PREVIOUS, *QUOTAS)

hasher = PasswordHasher()


class Account(msgspec.Struct, frozen=True):
    name: str
    password: str  # its hash
    clients: tuple[str, ...] = ()
    subscribe: tuple[Filter, ...] | None = None
    publish: tuple[Filter, ...] | None = None
    advertise: tuple[Filter, ...] | None = None
    deny_subscribe: tuple[Filter, ...] = ()
    deny_publish: tuple[Filter, ...] = ()
    deny_advertise: tuple[Filter, ...] = ()
    deny_clients: tuple[str, ...] = ()
    previous_password: str = ""  # its hash; "": there is none
    previous_expires: float = 0.0  # time of day; 0: it does not expire by itself
    quota: Quota = Quota()

    def grants(self, client: str, cost_max: int = 0) -> Grants:
        """What a client of this account may do."""
        allow = self.subscribe, self.publish, self.advertise
        deny = self.deny_subscribe, self.deny_publish, self.deny_advertise
        return Grants(client, *allow, *deny, self.name, cost_max)

    def has_name(self, client: str) -> bool:
        """Whether its patterns mean this name of a client."""
        return any(fnmatchcase(client, one) for one in self.clients) and not self.denies(client)

    def denies(self, client: str) -> bool:
        return any(fnmatchcase(client, one) for one in self.deny_clients)

    def hashes(self, now: float) -> tuple[str, ...]:
        """Of the passwords that count now."""
        has_expired = self.previous_expires and self.previous_expires <= now
        previous = "" if has_expired else self.previous_password
        return (self.password, previous) if previous else (self.password,)

    def names(self) -> str:
        """Which names its clients may have, for the peer that logged in with it."""
        own = ", ".join(map(_quoted, self.clients))
        return f"that name is not for its account, which has clients = [{own[:TOLD_MAX]}]"


class Accounts:
    """The accounts in a file, as it is now."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stamp = _stamp(self.path)
        self._accounts = read(self.path)
        # What a password is compared with when there is no such account: it takes as long.
        self._nobody = hasher.hash(os.urandom(16))

    def refresh(self) -> str:
        """Read the file again if it has changed. Returns what is wrong with it; then all stays."""
        try:
            stamp = _stamp(self.path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._accounts = read(self.path)
        except UsageError as error:
            return str(error)
        return ""

    def get(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def all(self) -> Mapping[str, Account]:
        return self._accounts

    def stamp(self) -> tuple[int, int, int] | None:
        """The state of the file now, to see whether somebody writes it; None: it cannot be read."""
        try:
            return _stamp(self.path)
        except UsageError:
            return None

    def owner(self, client: str) -> Account | None:
        """The account that this name of a client belongs to."""
        own = self._accounts.get(client)
        if own is not None:
            return own
        for account in self._accounts.values():
            if account.clients and account.has_name(client):
                return account
        return None

    def refusal(self, account: Account, client: str) -> str:
        """The rule by which a client of this account may not have this name; "" if it may.

        For the log of the broker: it names other accounts, which is none of the peer's business.
        """
        owner = self.owner(client)
        if owner is not None and owner.name == account.name:
            return ""
        if owner is None and account.denies(client):
            return "its account has deny_clients, and one of them is like that"
        if owner is None:
            return "no account has that name, or a pattern for it"
        if owner.name == client:
            return "that is the name of another account"
        pattern = next(one for one in owner.clients if fnmatchcase(client, one))
        return f"that is for the account {owner.name}, which has clients = [{_quoted(pattern)}]"

    def verify(self, name: str, password: str) -> str:
        """The hash of the account's password that this is; "" if it is none.

        Slow on purpose: do not call it in a loop. Every failure takes as long as any other one: as many
        hashes are compared.
        """
        account = self._accounts.get(name)
        hashes = () if account is None else account.hashes(time.time())
        rotating = any(one.previous_password for one in self._accounts.values())
        nobody = (self._nobody,) * ((2 if rotating else 1) - len(hashes))
        for hashed in (*hashes, *nobody):
            with suppress(Argon2Error, InvalidHashError):
                if hasher.verify(hashed, password) and hashed in hashes:
                    return hashed
        return ""


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read the accounts in {path}: {error.strerror}")


def read(path: Path) -> dict[str, Account]:
    try:
        return parse(path.read_text("utf-8"), str(path))
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} has no accounts: it is not text in UTF-8") from None


def parse(text: str, where: str) -> dict[str, Account]:
    """The accounts in the text of a file."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    return {name: _account(name, table, where) for name, table in tables.items()}


def _account(name: str, table: object, where: str) -> Account:
    there = f"{where}, account {name!r}"
    if not isinstance(table, Mapping):
        raise UsageError(f'{there}: write it as a table, ["{name}"]')
    if unknown := [key for key in table if key not in KEYS]:
        raise UsageError(f"{there}: unknown key {unknown[0]!r}: choose one of {', '.join(KEYS)}")
    password = table.get("password")
    if not isinstance(password, str) or not password.startswith("$argon2"):
        raise UsageError(f"{there}: needs a password, as `wayfare account add` writes it")
    names = {key: _texts(table, key, there) or () for key in NAMES}
    granted = {key: _filters(table, key, there) for key in (*LISTS, *DENY_LISTS)}
    previous, expires = _previous(table, there)
    return Account(
        name,
        password,
        names["clients"],
        granted["subscribe"],
        granted["publish"],
        granted["advertise"],
        granted["deny_subscribe"] or (),
        granted["deny_publish"] or (),
        granted["deny_advertise"] or (),
        names["deny_clients"],
        previous,
        expires,
        _quota(table, there),
    )


def _filters(table: Mapping[str, object], key: str, there: str) -> tuple[Filter, ...] | None:
    texts = _texts(table, key, there)
    try:
        return None if texts is None else tuple(map(Filter.parse, texts))
    except FilterError as error:
        raise UsageError(f"{there}: {error}") from None


def _previous(table: Mapping[str, object], there: str) -> tuple[str, float]:
    """The password before this one, and until when it counts."""
    previous, expires = table.get("previous_password"), table.get("previous_expires")
    if previous is not None and not (isinstance(previous, str) and previous.startswith("$argon2")):
        raise UsageError(
            f"{there}: previous_password is no hash, as `wayfare account rotate` writes it"
        )
    if expires is None:
        return previous or "", 0.0
    if not isinstance(expires, datetime) or expires.tzinfo is None:
        raise UsageError(
            f"{there}: previous_expires is {shown(expires)}: give a time like 2026-12-01T00:00:00Z"
        )
    return previous or "", expires.timestamp()


def _quota(table: Mapping[str, object], there: str) -> Quota:
    values: dict[str, int] = {}
    for key in QUOTAS:
        if (given := table.get(key)) is None:
            continue
        try:
            values[key] = _kind(key, given).read(given)
        except ValueError as error:
            raise UsageError(f"{there}: {key} is {shown(given)}: {error}") from None
    return Quota(**values)


def _kind(key: str, given: object) -> Kind:
    """How the value of a quota is written."""
    if key in KEPT:
        return KEPT[key]
    return SIZE if key.startswith("bytes") and given != 0 else COUNT_OR_NONE


def _texts(table: Mapping[str, object], key: str, there: str) -> tuple[str, ...] | None:
    given = table.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise UsageError(f"{there}: {key} is a list of texts")
    return tuple(given)


# Changing the file: what others have written there stays as it is.


def add(
    path: Path,
    name: str,
    password: str,
    lists: Mapping[str, Sequence[str] | None] | None = None,
    quota: Mapping[str, int | str | None] | None = None,
) -> bool:
    """Write an account with these lists, or give one that is there a new password. True: it is new."""
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise UsageError(f"an account's name has 1 to {NAME_MAX} characters that can be printed")
    _check_password(password)
    text = path.read_text("utf-8") if path.exists() else ""
    old = parse(text, str(path))
    given = {key: value for key, value in (lists or {}).items() if value}
    limits = {key: value for key, value in (quota or {}).items() if value is not None}
    hashed = hasher.hash(password)
    if name not in old:
        lines = [f"[{_quoted(name)}]", f"password = {_quoted(hashed)}"]
        for key, values in given.items():
            lines.append(f"{key} = [{', '.join(map(_quoted, values))}]")
        lines += [
            f"{key} = {_quoted(value) if isinstance(value, str) else value}"
            for key, value in limits.items()
        ]
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        _write(path, text + gap + "\n".join(lines) + "\n")
        return True
    if given or limits:
        raise UsageError(f"{name} is in {path} already: change its lists and quotas there")
    _set_password(path, text, name, [f"password = {_quoted(hashed)}"])
    return False


def rotate(path: Path, name: str, password: str, for_s: float | None = None) -> datetime | None:
    """Give an account a new password; the one before counts for so long, or until `finish_rotation`."""
    _check_password(password)
    account = _known(path, name)
    lines = [
        f"password = {_quoted(hasher.hash(password))}",
        f"previous_password = {_quoted(account.password)}",
    ]
    expires = None
    if for_s is not None:
        expires = datetime.fromtimestamp(int(time.time() + for_s), UTC)
        lines.append(f"previous_expires = {expires:%Y-%m-%dT%H:%M:%SZ}")
    _set_password(path, path.read_text("utf-8"), name, lines)
    return expires


def finish_rotation(path: Path, name: str) -> None:
    """From now on only the new password counts."""
    account = _known(path, name)
    if not account.previous_password:
        raise UsageError(f"{name} has only one password in {path}: no rotation is under way")
    _set_password(path, path.read_text("utf-8"), name, [f"password = {_quoted(account.password)}"])


def _check_password(password: str) -> None:
    if not 0 < len(password) <= PASSWORD_MAX:
        raise UsageError(f"a password has 1 to {PASSWORD_MAX} characters")


def _known(path: Path, name: str) -> Account:
    account = read(path).get(name)
    if account is None:
        raise UsageError(f"there is no account {name} in {path}")
    return account


def _set_password(path: Path, text: str, name: str, lines: Sequence[str]) -> None:
    """Let these lines take the place of the account's passwords."""
    start, end = _section(text, name, path)
    section = re.sub(r"(?m)^previous_(password|expires)\s*=.*\n?", "", text[start:end])
    section, changed = re.subn(
        r"(?m)^password\s*=.*$", lambda _: "\n".join(lines), section, count=1
    )
    if not changed:
        raise UsageError(f"{path}: the password of {name} is not on a line of its own")
    _write(path, text[:start] + section + text[end:])


def remove(path: Path, name: str) -> None:
    _known(path, name)
    text = path.read_text("utf-8")
    start, end = _section(text, name, path)
    _write(path, text[:start] + text[end:])


def _section(text: str, name: str, path: Path) -> tuple[int, int]:
    """Where the lines of an account begin and end."""
    headers = [*re.finditer(r"(?m)^\s*\[([^\[\]\n]+)\]\s*(#.*)?$", text)]
    for i, header in enumerate(headers):
        if tomllib.loads(f"[{header[1]}]") == {name: {}}:
            end = headers[i + 1].start() if i + 1 < len(headers) else len(text)
            return header.start(), end
    raise UsageError(f'{path}: {name} is not written as a table, ["{name}"]')


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _write(path: Path, text: str) -> None:
    """In one go; a new file is for nobody else to read."""
    parse(text, str(path))
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "w", encoding="utf-8") as file:
            if path.exists():
                old = path.stat()
                os.fchmod(number, old.st_mode & 0o777)
                with suppress(PermissionError):
                    os.fchown(number, old.st_uid, old.st_gid)
            file.write(text)
            file.flush()
            os.fsync(number)
        os.replace(new, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
