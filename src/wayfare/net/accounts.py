"""Accounts of clients: who may come, under which names, and what they may do. A file in TOML:

    ["car-17"]
    password = "$argon2id$..."                 # as `wayfare account add` writes it
    clients = ["car-17-*"]                     # names beside its own; * and ? stand for others
    subscribe = ["service = 'parking'"]        # left out: everything; []: nothing
    publish = ["service = 'speed'"]
    advertise = ["service = 'speed'"]

A client's name belongs to one account: the one of that name, or else the first one in the file with a
pattern for it. Nobody else attaches under it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from wayfare.core.codec import NAME_MAX, PASSWORD_MAX
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.errors import FilterError, UsageError

LISTS = ("subscribe", "publish", "advertise")
TOLD_MAX = 200  # characters of patterns in a refusal
KEYS = ("password", "clients", *LISTS)

hasher = PasswordHasher()


class Account(msgspec.Struct, frozen=True):
    name: str
    password: str  # its hash
    clients: tuple[str, ...] = ()
    subscribe: tuple[Filter, ...] | None = None
    publish: tuple[Filter, ...] | None = None
    advertise: tuple[Filter, ...] | None = None

    def grants(self, client: str) -> Grants | None:
        """What a client of this account may do; None if that is everything."""
        lists = self.subscribe, self.publish, self.advertise
        return None if lists == (None, None, None) else Grants(client, *lists)


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

    def owner(self, client: str) -> Account | None:
        """The account that this name of a client belongs to."""
        own = self._accounts.get(client)
        if own is not None:
            return own
        for account in self._accounts.values():
            if any(fnmatchcase(client, pattern) for pattern in account.clients):
                return account
        return None

    def refusal(self, account: Account, client: str) -> str:
        """The rule by which a client of this account may not have this name; "" if it may."""
        owner = self.owner(client)
        if owner is not None and owner.name == account.name:
            return ""
        if owner is None:
            own = ", ".join(map(_quoted, account.clients))
            return f"its account has clients = [{own[:TOLD_MAX]}], and none of them is like that"
        if owner.name == client:
            return "that is the name of another account"
        pattern = next(one for one in owner.clients if fnmatchcase(client, one))
        return f"that is for the account {owner.name}, which has clients = [{_quoted(pattern)}]"

    def verify(self, name: str, password: str) -> bool:
        """Whether that is the password of the account. Slow on purpose: do not call it in a loop."""
        account = self._accounts.get(name)
        hashed = self._nobody if account is None else account.password
        try:
            return hasher.verify(hashed, password) and account is not None
        except (Argon2Error, InvalidHashError):
            return False


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
    lists = {key: _texts(table, key, there) for key in ("clients", *LISTS)}
    try:
        granted = {
            key: None if (given := lists[key]) is None else tuple(map(Filter.parse, given))
            for key in LISTS
        }
    except FilterError as error:
        raise UsageError(f"{there}: {error}") from None
    return Account(name, password, lists["clients"] or (), **granted)


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
) -> bool:
    """Write an account with these lists, or give one that is there a new password. True: it is new."""
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise UsageError(f"an account's name has 1 to {NAME_MAX} characters that can be printed")
    if not 0 < len(password) <= PASSWORD_MAX:
        raise UsageError(f"a password has 1 to {PASSWORD_MAX} characters")
    text = path.read_text("utf-8") if path.exists() else ""
    old = parse(text, str(path))
    given = {key: value for key, value in (lists or {}).items() if value}
    hashed = hasher.hash(password)
    if name not in old:
        lines = [f"[{_quoted(name)}]", f"password = {_quoted(hashed)}"]
        for key, values in given.items():
            lines.append(f"{key} = [{', '.join(map(_quoted, values))}]")
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        _write(path, text + gap + "\n".join(lines) + "\n")
        return True
    if given:
        raise UsageError(f"{name} is in {path} already: change its lists there")
    start, end = _section(text, name, path)
    section, changed = re.subn(
        r"(?m)^password\s*=.*$", lambda _: f"password = {_quoted(hashed)}", text[start:end], count=1
    )
    if not changed:
        raise UsageError(f"{path}: the password of {name} is not on a line of its own")
    _write(path, text[:start] + section + text[end:])
    return False


def remove(path: Path, name: str) -> None:
    accounts = read(path)
    if name not in accounts:
        raise UsageError(f"there is no account {name} in {path}")
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
