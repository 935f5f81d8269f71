"""What is asked of one access to a publish/subscribe system, done in the order asked.

Proxies and libraries decide without I/O what is to be done; this is where adapters are called. Errands
run one after the other, but publications do not wait for each other's answers; and nobody waits for those
of an access that was shut, if another one is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from wayfare.errors import CannotConnect, Closed, Refused, UsageError
from wayfare.service import effects as e
from wayfare.service.system import Access, Deliver, Publication, System

PLAIN_MAX = 64  # characters of a client's name that are told to the system
AHEAD_MAX = 100  # publications that the access point has not answered yet
ANSWERED_S = 1.0  # until all that was answered has been told, when an access breaks
TOGETHER_MAX = 100  # subscriptions in one request: by a slow link, a larger one takes too long
LEFT_S = 1.0  # until what was asked of an access has noticed that it is closed

log = logging.getLogger(__name__)

Errand = e.Open | e.Shut | e.Subscribe | e.Unsubscribe | e.Publish
# What the system will not have: a subscription or a publication, and why.
Unwanted = Callable[[str | Publication, Exception], None]
Sent = deque[tuple[Publication, asyncio.Task[None]]]  # and not answered


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
        self._doing: Errand | None = None
        self._task: asyncio.Task[None] | None = None
        self._access: Access | None = None
        self._opening = object()  # another one each time: who says that it is lost
        self._call: asyncio.Task[None] | None = None  # what it is asked now
        self._sent: Sent = deque()
        self._confirming: asyncio.Task[None] | None = None
        self._address = ""  # of the access point
        # Goodbyes that are not answered, and what was given up before it was: to whom.
        self._closing: dict[asyncio.Task[None], str] = {}

    @property
    def idle(self) -> bool:
        return self._task is None and self._access is None and not self._closing

    def ask(self, errand: Errand) -> None:
        if isinstance(errand, e.Open) and self._shuts and not self._suspends:
            self._forsake()
        self._asked.append(errand)
        if isinstance(errand, e.Shut):
            self._shuts += 1
            if isinstance(self._doing, e.Open):
                self._give_up()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    @property
    def _suspends(self) -> bool:
        """What an access point keeps has to be all that was asked for."""
        shuts = (one for one in (self._doing, *self._asked) if isinstance(one, e.Shut))
        return any(shut.suspend for shut in shuts)

    def _forsake(self) -> None:
        """Another access is wanted. The last one may be of a network that is gone: nobody waits for it.

        What it was to publish is asked again.
        """
        self._asked.clear()
        self._shuts = 0
        self._give_up()
        self._close(suspend=False)

    def _give_up(self) -> None:
        """Nobody waits for what is under way."""
        task, self._task, self._doing = self._task, None, None
        if task is not None:
            task.cancel()
            self._await_end(task)

    def _await_end(self, task: asyncio.Task[None]) -> None:
        self._closing[task] = self._address
        task.add_done_callback(self._closing.pop)

    async def stop(self, *, suspend: bool = False) -> None:
        """Leave what is not done."""
        self._asked.clear()
        self._shuts += 1
        self._give_up()
        self._close(suspend)
        await self.done()

    async def done(self) -> None:
        """All is done that was asked, and what was shut is closed."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._closing:
            await asyncio.wait(self._closing)

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while self._asked and not task.cancelling():
            self._doing = errand = self._asked.popleft()
            event: e.Event | None = None
            try:
                event = await self._do(errand)
            except Closed:
                pass  # it is told by who noticed first
            except (Exception, asyncio.CancelledError) as error:  # libraries cancel things, too
                if not task.cancelling():
                    log.exception("%s: the access point could not be asked", self._name)
                    event = self._broken(error)
            if not task.cancelling():
                self._doing = None
                if event is not None:
                    self._tell(event)
        if self._task is task:
            self._task = None

    async def _do(self, errand: Errand) -> e.Event | None:
        """What is to be told of it then."""
        if isinstance(errand, e.Publish):
            await self._publish(errand.publication)
            return None
        if isinstance(errand, e.Open):
            return await self._open(errand.access, errand.resume)
        await self._confirmed()
        match errand:
            case e.Shut(_, suspend):
                self._close(suspend)
                self._shuts -= 1
            case e.Subscribe():
                subscriptions, access = self._all_of(errand), self._access
                if access is not None:
                    refusals: dict[str, Exception] = {}
                    for first in range(0, len(subscriptions), TOGETHER_MAX):
                        some = subscriptions[first : first + TOGETHER_MAX]
                        refusals |= await self._subscribe(access, some)
                    # With the answer to all: who hears of a refusal and asks again is not meant by it.
                    for subscription, error in refusals.items():
                        self._unwanted(subscription, error)
                    return e.Subscribed(self._client, subscriptions)
            case e.Unsubscribe(_, subscriptions):
                if self._access is not None:
                    await self._unsubscribe(self._access, subscriptions)
        return None

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

    async def _open(self, address: str, resume: bool) -> e.Event | None:
        self._close(suspend=False)
        # Elsewhere nobody cares for the goodbye, which may take a while after the network is gone.
        if same := [task for task, to in self._closing.items() if to == address]:
            await asyncio.wait(same)
        self._address = address
        opening = self._opening = object()

        def lost(reason: str) -> None:
            if self._opening is not opening:
                return
            self._access = None
            gone = self._opening = object()

            def tell(_: object = None) -> None:
                if self._opening is gone:
                    self._opening = object()
                    self._tell(e.AccessGone(self._client, reason))

            if self._confirming is None:
                tell()
            else:  # what was answered before it broke is told first
                self._confirming.add_done_callback(tell)
                asyncio.get_running_loop().call_later(ANSWERED_S, tell)

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
            return e.AccessGone(self._client, str(error))
        if self._opening is not opening:  # it was given up, and did not notice
            await _goodbye(access, suspend=False)
            return None
        self._access = access
        resumed = getattr(access, "resumed", None) if resume else None
        return e.Opened(self._client, resumed)

    def _close(self, suspend: bool) -> None:
        access, self._access, self._opening = self._access, None, object()
        left = [task for _, task in self._sent]
        left += [] if self._call is None else [self._call]
        if access is not None or left:
            self._await_end(asyncio.create_task(_goodbye(access, suspend, left)))
        if self._confirming is not None:
            self._await_end(self._confirming)
        self._sent, self._confirming, self._call = deque(), None, None

    def _broken(self, error: BaseException) -> e.AccessGone:
        self._close(suspend=True)
        return e.AccessGone(self._client, repr(error))

    # ---- what is said ------------------------------------------------------------------

    async def _subscribe(
        self, access: Access, subscriptions: tuple[str, ...]
    ) -> dict[str, Exception]:
        """Which of them the system will not have, and why."""
        try:
            await self._answer(access.subscribe(subscriptions))
        except (Closed, OSError):
            raise
        except Exception as error:  # also a mistake in an adapter: it would be made again each time
            if self._access is not access:
                raise Closed("the connection is gone") from error
            if len(subscriptions) == 1:
                return {subscriptions[0]: error}
            refusals: dict[str, Exception] = {}
            for one in subscriptions:  # the others are to be there all the same
                refusals |= await self._subscribe(access, (one,))
            return refusals
        return {}

    async def _unsubscribe(self, access: Access, subscriptions: tuple[str, ...]) -> None:
        try:
            await self._answer(access.unsubscribe(subscriptions))
        except (Closed, OSError):
            raise
        except Exception as error:  # more may come than is wanted
            log.warning("%s: %s cannot be taken back: %r", self._name, subscriptions, error)

    async def _answer(self, call: Coroutine[Any, Any, None]) -> None:
        """Who gives it up does not cancel it: libraries may take that ill. It ends with the access."""
        self._call = asyncio.create_task(call)
        await asyncio.shield(self._call)

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
            self._confirming = asyncio.create_task(self._confirm(self._sent))

    async def _confirm(self, sent: Sent) -> None:
        """Say what the access point has, in order."""
        while sent:
            publication, task = sent[0]
            await asyncio.wait([task])
            sent.popleft()
            if task.cancelled():
                if sent is self._sent:  # not by us
                    self._tell(self._broken(asyncio.CancelledError()))
                continue  # it is asked again when there is another access
            error = task.exception()
            if isinstance(error, Closed):
                continue
            if isinstance(error, Exception):
                self._unwanted(publication, error)
            self._step(e.Published(self._client, publication))
        if sent is self._sent:
            self._confirming = None

    async def _confirmed(self) -> None:
        if self._confirming is not None:
            await asyncio.wait([self._confirming])


async def _goodbye(
    access: Access | None, suspend: bool, left: Sequence[asyncio.Task[None]] = ()
) -> None:
    """Close it, and end what is left of it."""
    try:
        if access is not None:
            with suppress(Closed):
                await access.close(suspend=suspend)
    finally:
        if left:
            await asyncio.wait(left, timeout=LEFT_S)
        for task in left:
            task.cancel()


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
