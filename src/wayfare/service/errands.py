"""What is asked of one access to a publish/subscribe system, done in the order asked.

Proxies and libraries decide without I/O what is to be done; this is where adapters are called. Errands
run one after the other, but publications do not wait for each other's answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b

from wayfare.errors import CannotConnect, Closed, Refused, UsageError
from wayfare.service import effects as e
from wayfare.service.system import Access, Deliver, Publication, System

PLAIN_MAX = 64  # characters of a client's name that are told to the system
AHEAD_MAX = 100  # publications that the access point has not answered yet
TOGETHER_MAX = 100  # subscriptions in one request: by a slow link, a larger one takes too long

log = logging.getLogger(__name__)

Errand = e.Open | e.Shut | e.Subscribe | e.Unsubscribe | e.Publish
# What the system will not have: a subscription or a publication, and why.
Unwanted = Callable[[str | Publication, Exception], None]


class Errands:
    """The access of one client, or of its client proxy."""

    def __init__(
        self,
        client: str,
        name: str,
        system: System,
        step: Callable[[e.Event], None],
        deliver: Deliver,
        unwanted: Unwanted,
        *,
        lasting: bool = False,
    ) -> None:
        self._client = client
        self._name = name  # for the system
        self._system = system
        self._step = step
        self._deliver = deliver
        self._unwanted = unwanted
        self._lasting = lasting
        self._asked: deque[Errand] = deque()
        self._shuts = 0  # asked for, not done: until then nothing that happens matters
        self._task: asyncio.Task[None] | None = None
        self._access: Access | None = None
        self._opening = object()  # another one each time: who says that it is lost
        self._sent: deque[tuple[Publication, asyncio.Task[None]]] = deque()
        self._confirming: asyncio.Task[None] | None = None
        self._address = ""  # of the access point
        self._closing: dict[asyncio.Task[None], str] = {}  # goodbyes that are not answered, to whom

    @property
    def idle(self) -> bool:
        return self._task is None and self._access is None and not self._closing

    def ask(self, errand: Errand) -> None:
        self._asked.append(errand)
        self._shuts += isinstance(errand, e.Shut)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self, *, suspend: bool = False) -> None:
        """Leave what is not done."""
        self._asked.clear()
        self._opening = object()
        self._shuts += 1
        for task in (self._task, self._confirming, *(task for _, task in self._sent)):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._sent.clear()
        self._task = self._confirming = None
        self._close(suspend)
        await self.done()

    async def done(self) -> None:
        """All is done that was asked, and what was shut is closed."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._closing:
            await asyncio.wait(self._closing)

    async def _run(self) -> None:
        while self._asked:
            errand = self._asked.popleft()
            try:
                if isinstance(errand, e.Publish):
                    await self._publish(errand.publication)
                else:
                    await self._do(errand)
            except Closed:
                pass  # it is told by who noticed first
            except Exception as error:
                log.exception("%s: the access point could not be asked", self._name)
                self._break(repr(error))
        self._task = None

    async def _do(self, errand: e.Open | e.Shut | e.Subscribe | e.Unsubscribe) -> None:
        await self._confirmed()
        match errand:
            case e.Open(_, address, resume):
                await self._open(address, resume)
            case e.Shut(_, suspend):
                self._close(suspend)
                self._shuts -= 1
            case e.Subscribe():
                subscriptions = self._all_of(errand)
                if self._access is not None:
                    for first in range(0, len(subscriptions), TOGETHER_MAX):
                        some = subscriptions[first : first + TOGETHER_MAX]
                        await self._subscribe(self._access, some)
                    self._tell(e.Subscribed(self._client, subscriptions))
            case e.Unsubscribe(_, subscriptions):
                if self._access is not None:
                    await self._access.unsubscribe(subscriptions)

    def _all_of(self, errand: e.Subscribe) -> tuple[str, ...]:
        """With those that were asked for next: one answer is waited for, which may take a while."""
        subscriptions = dict.fromkeys(errand.subscriptions)
        while self._asked and isinstance(following := self._asked[0], e.Subscribe):
            self._asked.popleft()
            subscriptions |= dict.fromkeys(following.subscriptions)
        return tuple(subscriptions)

    def _tell(self, event: e.Event) -> None:
        if not self._shuts:
            self._step(event)

    # ---- coming and going --------------------------------------------------------------

    async def _open(self, address: str, resume: bool) -> None:
        self._close(suspend=False)
        # Elsewhere nobody cares for the goodbye, which may take a while after the network is gone.
        if same := [task for task, to in self._closing.items() if to == address]:
            await asyncio.wait(same)
        self._address = address
        opening = self._opening = object()

        def lost(reason: str) -> None:
            if self._opening is opening:
                self._access, self._opening = None, object()
                self._tell(e.AccessGone(self._client, reason))

        try:
            access = await self._system.open(
                address,
                self._name,
                self._deliver,
                lost,
                resume=resume,
                lasting=self._lasting,
            )
        except (CannotConnect, Closed, Refused, UsageError) as error:
            self._tell(e.AccessGone(self._client, str(error)))
            return
        if self._opening is opening:
            self._access = access
            resumed = getattr(access, "resumed", None) if resume else None
            self._tell(e.Opened(self._client, resumed))

    def _close(self, suspend: bool) -> None:
        access, self._access, self._opening = self._access, None, object()
        if access is not None:
            task = asyncio.create_task(_goodbye(access, suspend))
            self._closing[task] = self._address
            task.add_done_callback(self._closing.pop)

    def _break(self, reason: str) -> None:
        self._close(suspend=True)
        self._tell(e.AccessGone(self._client, reason))

    # ---- what is said ------------------------------------------------------------------

    async def _subscribe(self, access: Access, subscriptions: tuple[str, ...]) -> None:
        try:
            await access.subscribe(subscriptions)
        except (Refused, UsageError) as error:
            if len(subscriptions) == 1:
                self._unwanted(subscriptions[0], error)
                return
            for one in subscriptions:  # the others are to be there all the same
                await self._subscribe(access, (one,))

    async def _publish(self, publication: Publication) -> None:
        if self._access is None:
            return  # it is asked again when there is one
        while len(self._sent) >= AHEAD_MAX:
            await asyncio.wait([self._sent[0][1]])
            await asyncio.sleep(0)
        if self._access is None:
            return
        task = asyncio.create_task(self._access.publish(publication))
        self._sent.append((publication, task))
        if self._confirming is None:
            self._confirming = asyncio.create_task(self._confirm())

    async def _confirm(self) -> None:
        """Say what the access point has, in order."""
        while self._sent:
            publication, task = self._sent[0]
            await asyncio.wait([task])
            self._sent.popleft()
            error = task.exception()
            if isinstance(error, Closed):
                continue  # it is asked again when there is another access
            if isinstance(error, Exception):
                self._unwanted(publication, error)
            self._step(e.Published(self._client, publication))
        self._confirming = None

    async def _confirmed(self) -> None:
        if self._confirming is not None:
            await asyncio.wait([self._confirming])


async def _goodbye(access: Access, suspend: bool) -> None:
    with suppress(Closed):
        await access.close(suspend=suspend)


def name_of(client: str, proxy: str = "") -> str:
    """What a client is called in the system, in letters that all systems take.

    With the address of its proxy, the client proxy: like nobody else, and the same after a crash.
    """
    plain = "".join(
        one if one.isascii() and (one.isalnum() or one in "-_") else "-" for one in client
    )
    if not proxy and plain == client and len(client) <= PLAIN_MAX:
        return client
    mark = blake2b(f"{client} {proxy}".encode(), digest_size=8).hexdigest()
    return f"wayfare-{plain[:PLAIN_MAX]}-{mark}"
