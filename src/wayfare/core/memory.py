"""What a broker keeps in memory, as an estimate, and which consumer keeps most of it.

    bodies          notifications that are kept or wait for clients, each once
    entries         what each of those clients has of them: a number, a reference and a time
    attached        small notifications on their way to clients that are attached, for each of them
    profiles        sessions, with their subscriptions, advertisements and marks
    publications    of clients that wait for their old broker, and that are not accepted yet

Bodies and entries are exact running counts. What is small and on its way to a client that is attached is looked at only
when it has grown or shrunk a lot: nothing is counted for it when it is passed on and acknowledged. Consumers are sorted into ranks, by the bits of their size, and move up
when they grow past a threshold of their own, so that nobody pays for a change that does not matter. They move down
only when somebody asks for the largest one, which happens beyond a limit. So a rank is an upper bound, and
finding the largest consumer takes amortised constant time, whatever their number.

The sizes below were measured (`wayfare bench backlog`, `wayfare bench memory`): resident memory per item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

BODY_BYTES = 600  # of a notification beside its payload and texts
ENTRY_BYTES = 120  # of a notification in the backlog of one client
FILTER_BYTES = 2_400  # of a subscription or advertisement, in all tables
MARK_BYTES = 120  # of a publisher that a session has heard
SESSION_BYTES = 4_096  # of a session with nothing in it
RANK_MIN = 13  # bits: smaller consumers are all alike
NEAR = 7 / 8  # of a limit: from here on publishers are slowed
ACCOUNT_MEMORY, ACCOUNT_DISK = "account_memory", "account_disk"  # limits, as a `Gap` names them
LOOKED_AT = 8  # consumers of the highest rank, among which the largest is found


class Body(Protocol):
    """Something that is kept once for however many consumers."""

    size: int
    refs: int


class Consumer(Protocol):
    """Whoever keeps something: a session, a virtual client, a buffer."""

    account: str  # of the client; empty: it has none
    noted: int  # its size when it was last looked at; 0: it is in no rank

    def measure(self) -> int:
        """Bytes that it keeps now, bodies included, whoever else keeps them."""


class AccountLimit(NamedTuple):
    """What all clients of one account may make a broker keep."""

    bytes: int = 0  # 0: there is no limit
    name: str = ACCOUNT_MEMORY

    @classmethod
    def of(cls, memory: int, disk: int) -> AccountLimit:
        """The tighter limit, because what is kept on disk is in memory, too."""
        if disk > 0 and not 0 < memory <= disk:
            return cls(disk, ACCOUNT_DISK)
        return cls(memory)


class Ranks:
    """Consumers by the bits of their noted sizes."""

    __slots__ = ("_ranks", "bytes")

    def __init__(self) -> None:
        self._ranks: dict[int, dict[Consumer, None]] = {}
        self.bytes = 0  # noted, of all of them

    def __iter__(self) -> Iterator[Consumer]:
        """The largest first, roughly."""
        for rank in sorted(self._ranks, reverse=True):
            yield from self._ranks[rank]

    def move(self, consumer: Consumer, old: int, new: int) -> None:
        """Its size was `old`, and is `new`; 0 is for a consumer that is not here."""
        self.bytes += new - old
        before, after = rank_of(old), rank_of(new)
        if before == after:
            return
        if before:
            consumers = self._ranks[before]
            del consumers[consumer]
            if not consumers:
                del self._ranks[before]
        if after:
            self._ranks.setdefault(after, {})[consumer] = None

    def highest(self) -> tuple[int, list[Consumer]]:
        """The highest rank, and some of those who have it."""
        if not self._ranks:
            return 0, []
        rank = max(self._ranks)
        return rank, list(islice(self._ranks[rank], LOOKED_AT))


def rank_of(size: int) -> int:
    return max(RANK_MIN, size.bit_length()) if size else 0


class Memory:
    """The memory of one broker."""

    __slots__ = (
        "_accounts",
        "_all",
        "_limit",
        "_own_limits",
        "attached",
        "bodies",
        "entries",
        "profiles",
        "publications",
        "shed",
        "suspects",
    )

    def __init__(self, account_bytes: int = 0) -> None:
        """`account_bytes` is the limit of an account without one of its own; 0 is none."""
        self._limit = AccountLimit(account_bytes)
        self._own_limits: dict[str, AccountLimit] = {}
        self.suspects: dict[
            str, None
        ] = {}  # accounts that were noted near their limit, or beyond it
        self.bodies = 0  # bytes
        self.entries = 0  # how many
        self.attached = 0  # bytes
        self.profiles = 0  # bytes
        self.publications = 0  # bytes, of those that are not accepted yet
        self.shed = 0  # notifications that were dropped because of a limit in sum
        self._all = Ranks()
        self._accounts: dict[str, Ranks] = {}

    @property
    def bytes(self) -> int:
        return self.notification_bytes() + self.attached + self.profiles + self.publications

    def notification_bytes(self) -> int:
        """Of those that are kept for clients that are away, or wait."""
        return self.bodies + self.entries * ENTRY_BYTES

    # What is kept

    def keep(self, body: Body) -> None:
        """One more consumer keeps it."""
        self.entries += 1
        body.refs += 1
        if body.refs == 1:
            self.bodies += body.size + BODY_BYTES

    def let_go(self, body: Body) -> None:
        self.entries -= 1
        body.refs -= 1
        if not body.refs:
            self.bodies -= body.size + BODY_BYTES

    # Who keeps it

    def note(self, consumer: Consumer) -> None:
        """See how large a consumer is now."""
        self._note(consumer, consumer.measure())

    def forget(self, consumer: Consumer) -> None:
        """It keeps nothing any more."""
        self._note(consumer, 0)

    def _note(self, consumer: Consumer, size: int) -> None:
        old, consumer.noted = consumer.noted, size
        self._all.move(consumer, old, size)
        if consumer.account:
            ranks = self._accounts.setdefault(consumer.account, Ranks())
            ranks.move(consumer, old, size)
            if self._is_near(consumer.account, ranks):
                self.suspects[consumer.account] = None
            if not ranks.bytes:
                del self._accounts[consumer.account]

    def assign(self, consumer: Consumer, account: str) -> None:
        """It counts for this account from now on."""
        if consumer.account != account:
            self.forget(consumer)
            consumer.account = account
            self.note(consumer)

    def room(self, consumer: Consumer) -> int:
        """By how much it may grow before it has to be noted again."""
        return int((1 << rank_of(consumer.noted)) - consumer.noted)

    def largest(self, account: str = "") -> Consumer | None:
        """Who keeps most, of this account if one is given; within a factor of two."""
        ranks = self._accounts.get(account) if account else self._all
        if ranks is None:
            return None
        while True:
            rank, some = ranks.highest()
            for one in some:
                self.note(one)
            here = [one for one in some if rank_of(one.noted) >= rank]
            if here or not some:
                return max(here, key=_noted, default=None)

    # Limits of accounts

    def limit_of(self, account: str) -> AccountLimit:
        return self._own_limits.get(account, self._limit)

    def limit_accounts(
        self, own: Mapping[str, AccountLimit], others: AccountLimit | None = None
    ) -> None:
        """From now on these accounts have a limit of their own, and all others the common one."""
        self._own_limits = dict(own)
        self._limit = others or self._limit
        self.suspects = dict.fromkeys(
            name for name, ranks in self._accounts.items() if self._is_near(name, ranks)
        )

    def _is_near(self, account: str, ranks: Ranks) -> bool:
        most = self.limit_of(account).bytes
        return most > 0 and ranks.bytes > most * NEAR

    def beyond(self, account: str) -> int:
        """By how many bytes a suspect exceeds its limit; 0: it does not."""
        most, kept = self.limit_of(account).bytes, self.noted(account)
        if kept > most > 0:
            kept = self.of_account(account)
        if not most or kept <= most * NEAR:
            self.suspects.pop(account, None)
        return max(0, kept - most) if most else 0

    def limited_accounts(self) -> Iterator[tuple[str, int, int]]:
        """Accounts that have a limit and keep something: with the bytes last noted, and the limit."""
        for name, ranks in self._accounts.items():
            if most := self.limit_of(name).bytes:
                yield name, ranks.bytes, most

    def noted(self, account: str) -> int:
        """What all consumers of an account keep, as last noted."""
        ranks = self._accounts.get(account)
        return ranks.bytes if ranks is not None else 0

    def of_account(self, account: str) -> int:
        """What all consumers of an account keep, looked at again."""
        for one in list(self._accounts.get(account, ())):
            self.note(one)
        return self.noted(account)


def _noted(consumer: Consumer) -> int:
    return consumer.noted
