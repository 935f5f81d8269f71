"""The mark beside a database: it tells that commits are missing, and raises no false alarm."""

import os
import re
import shutil
import sqlite3
import stat

import pytest

from wayfare.net.accounts import add as add_account
from wayfare.net.client_store import ClientStore
from wayfare.net.mark import SLOT_BYTES, SUFFIX
from wayfare.net.private import bind_private
from wayfare.net.store import FILE, Snapshot, Started, Store, Ticked
from wayfare.service.store import Store as ProxyStore

MARK = f"{FILE}{SUFFIX}"


def turns(path, count, durability="os", *, snapshot=False):
    """Open the store of a broker, commit some turns, and end as a crash would. Returns its rollback."""
    store = Store(path, durability, "porto")
    rollback = store.rollback
    records = [*store.records()]
    for _ in range(count):
        store.append(Started(1, "") if rollback else Ticked(1, ""))
        store.commit()
    if snapshot:
        store.replace(Snapshot(5, 7, b"core", {}))
    copy = path.with_name("crashed")
    shutil.copytree(path, copy)  # closing would write the WAL back
    store.close()
    shutil.rmtree(path)
    copy.rename(path)
    return rollback, len(records)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "porto"


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_store_that_is_whole_raises_no_alarm(path, durability, snapshot):
    assert turns(path, 3, durability, snapshot=snapshot) == ("", 0)
    assert turns(path, 0, durability) == ("", 0 if snapshot else 3)
    assert turns(path, 2, durability) == ("", 0 if snapshot else 3)
    assert turns(path, 0, durability) == ("", 2 if snapshot else 5)


def test_a_store_that_is_behind_its_mark_is_reported_once_it_went_on(path):
    turns(path, 3)
    shutil.copytree(path, path.with_name("copy"))
    turns(path, 5)
    (path / FILE).write_bytes((path.with_name("copy") / FILE).read_bytes())
    (path / f"{FILE}-wal").write_bytes((path.with_name("copy") / f"{FILE}-wal").read_bytes())
    assert turns(path, 0) == ("its last 5 commits are missing", 3)
    assert turns(path, 1) == ("its last 5 commits are missing", 3)  # nothing was committed since
    assert turns(path, 0) == ("", 4)


def test_a_truncated_wal_is_reported_wherever_it_ends(path):
    turns(path, 5)
    wal = path / f"{FILE}-wal"
    whole, found = wal.read_bytes(), set()
    for size in range(0, len(whole) - 1, 1000):
        copy = path.with_name(f"cut{size}")
        shutil.copytree(path, copy)
        (copy / wal.name).write_bytes(whole[:size])
        rollback, records = turns(copy, 0)
        assert rollback, f"{size} of {len(whole)} bytes"
        found.add(records)
    assert {0, 1, 4} <= found


def test_a_crash_between_commit_and_mark_raises_no_alarm(path):
    turns(path, 3)
    before = (path / MARK).read_bytes()
    turns(path, 1)
    (path / MARK).write_bytes(before)
    assert turns(path, 0) == ("", 4)


def test_a_crash_while_the_mark_is_written_raises_no_alarm(path):
    turns(path, 4)
    for slot in (0, SLOT_BYTES):
        torn = bytearray((path / MARK).read_bytes())
        torn[slot + 20] ^= 1
        copy = path.with_name(f"torn{slot}")
        shutil.copytree(path, copy)
        (copy / MARK).write_bytes(torn)
        assert turns(copy, 0) == ("", 4)


def test_a_crash_while_the_store_is_made_raises_no_alarm(path, monkeypatch):
    """Behind the mark, in front of the note that there is one."""
    turns(path, 0)
    db = sqlite3.connect(path / FILE)
    db.execute("DELETE FROM meta WHERE key = 'mark'")
    db.commit()
    db.close()
    assert turns(path, 0) == ("", 0)


@pytest.mark.parametrize("damage", ["missing", "damaged", "another's"])
def test_a_mark_that_tells_nothing_is_reported_and_refuses_nothing(path, damage):
    turns(path, 3)
    if damage == "missing":
        (path / MARK).unlink()
    elif damage == "damaged":
        (path / MARK).write_bytes(b"\xff" * 2 * SLOT_BYTES)
    else:
        turns(path.with_name("other"), 9)
        shutil.copy(path.with_name("other") / MARK, path / MARK)
    text = "broker.db-mark is missing or damaged, so commits may be missing"
    assert turns(path, 0) == (text, 3)
    assert turns(path, 1) == (text, 3)
    assert turns(path, 0) == ("", 4)


def test_a_store_of_a_release_without_marks_gets_one(path):
    turns(path, 3)
    db = sqlite3.connect(path / FILE)
    db.execute("DELETE FROM meta WHERE key = 'mark'")
    db.commit()
    db.close()
    (path / MARK).unlink()
    assert turns(path, 1) == ("", 3)
    assert turns(path, 0) == ("", 4)
    (path / MARK).unlink()
    assert turns(path, 0)[0]


def test_a_store_that_was_deleted_beside_its_mark_is_reported(path):
    turns(path, 3)
    (path / FILE).unlink()
    (path / f"{FILE}-wal").unlink()
    assert turns(path, 1) == ("its last 3 commits are missing", 0)
    assert turns(path, 0) == ("", 1)


def test_another_history_of_the_same_store_is_reported(path):
    turns(path, 3)
    shutil.copytree(path, path.with_name("fork"))
    turns(path, 2)
    store = Store(path.with_name("fork"), "os", "porto")
    for now in (5, 6, 7):
        store.append(Ticked(now, ""))
        store.commit()
    store.close()
    shutil.copy(path / MARK, path.with_name("fork") / MARK)
    assert turns(path.with_name("fork"), 0)[0] == "commit 5 is another one than its mark knows"


def test_turns_behind_one_that_is_missing_do_not_count(path):
    turns(path, 5)
    db = sqlite3.connect(path / FILE)
    db.execute("DELETE FROM journal WHERE id = 3")
    db.commit()
    db.close()
    store = Store(path, "os", "porto")
    assert len([*store.records()]) == 2
    assert store.rollback == "turns 3 to 3 are missing"
    store.append(Started(1, ""))
    store.commit()
    store.close()
    assert turns(path, 0) == ("", 3)


@pytest.mark.parametrize("kind", [ClientStore, ProxyStore])
def test_stores_of_clients_and_proxies_have_marks_too(tmp_path, kind):
    file = tmp_path / "some.db"
    store = kind(file, "os", "anna")
    store.write([])
    store.close()
    shutil.copy(file, tmp_path / "copy.db")
    store = kind(file, "os", "anna")
    assert store.rollback == ""
    store.write([])
    store.write([])
    store.close()
    shutil.copy(tmp_path / "copy.db", file)
    store = kind(file, "os", "anna")
    assert re.fullmatch(r"its last \d commits are missing", store.rollback)
    store.close()


# ---- who may read them ---------------------------------------------------------------------------


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path):
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in (path, *path.rglob("*"))}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("kind", ["broker", "client", "proxy"])
def test_a_store_is_for_its_owner_alone(tmp_path, kind):
    folder = tmp_path / "new" / "deep"
    if kind == "broker":
        store = Store(folder, "os", "porto")
    else:
        store = (ClientStore if kind == "client" else ProxyStore)(folder / FILE, "os", "anna")
    store.write([])
    found = modes(tmp_path / "new")
    store.close()
    assert found == {
        "new": 0o700,
        "deep": 0o700,
        FILE: 0o600,
        f"{FILE}-wal": 0o600,
        MARK: 0o600,
    }


@pytest.mark.usefixtures("open_umask")
def test_a_control_socket_is_for_its_owner_alone(tmp_path):
    with bind_private(str(tmp_path / "agent.sock")):
        assert modes(tmp_path)["agent.sock"] == 0o600
    assert os.umask(0) == 0  # as it was


@pytest.mark.usefixtures("open_umask")
def test_accounts_are_for_their_owner_alone(tmp_path):
    add_account(tmp_path / "accounts.toml", "anna", "sesame")
    assert modes(tmp_path)["accounts.toml"] == 0o600


@pytest.mark.usefixtures("open_umask")
def test_a_directory_that_exists_keeps_its_mode(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    Store(folder, "os", "porto").close()
    assert modes(folder)["mine"] == 0o755
