"""What a client wants and offers, and what it is like.

Whatever changes it goes by here, so that the core, the event log and the store of the client have the same.
"""

from __future__ import annotations

from collections.abc import Callable

from wayfare.core import messages as m
from wayfare.core.client import Client
from wayfare.core.effects import Effect
from wayfare.core.filters import Filter
from wayfare.core.messages import Terms
from wayfare.core.templates import Template
from wayfare.net.unrecorded import Unrecorded


class Profile:
    """That of one client."""

    def __init__(
        self,
        core: Client,
        recorder: Unrecorded,
        changed: Callable[[], None],
        perform: Callable[[list[Effect]], None],
        *,
        lasting: bool = False,
    ) -> None:
        """`changed` is called for each change, before what follows from it is performed."""
        self.said = 0  # changes
        self.lasting = lasting  # it outlives the process, so what is wanted twice is wanted once
        self._core = core
        self._recorder = recorder
        self._changed, self._perform = changed, perform

    def has(self, wanted: Filter | Template, terms: Terms | None) -> bool:
        """Whether it is wanted already, and so."""
        mine = self._core
        if isinstance(wanted, Template):
            before = mine.following.terms.get(wanted)
        else:
            before = mine.terms.get(wanted)
        return mine.asks_for(wanted) and before == terms

    def want(
        self,
        wanted: Filter | Template,
        terms: Terms | None,
        since_ns: int = 0,
        retained: bool = True,
    ) -> int:
        """Returns the number of the request for current values; 0: what follows the client has none."""
        ask = 0
        if isinstance(wanted, Template):
            effects = self._core.follow(wanted, terms, since_ns)
            kind = "followed"
        else:
            effects = self._core.subscribe(wanted, terms, since_ns, current=retained)
            kind = "subscribed"
            ask = self._core.asks if retained else 0
        self._change()
        self._recorder.asked(kind, wanted, None if terms is None else m.terms_text(terms), ask)
        self._perform(effects)
        return ask

    def unwant(self, wanted: Filter | Template) -> None:
        """Once; it may be wanted more often."""
        self._change()
        if isinstance(wanted, Template):
            self._recorder.asked("unfollowed", wanted, None)
            self._perform(self._core.unfollow(wanted))
        else:
            self._recorder.asked("unsubscribed", wanted, None)
            self._perform(self._core.unsubscribe(wanted))

    def drop(self, wanted: Filter | Template) -> None:
        """However often it is wanted."""
        while self._core.asks_for(wanted):
            self.unwant(wanted)

    def advertise(self, offered: Filter) -> None:
        if self.lasting and offered in self._core.advertisements:
            return
        effects = self._core.advertise(offered)
        self._change()
        self._recorder.fact("advertised", filter=offered)
        self._perform(effects)

    def unadvertise(self, offered: Filter) -> None:
        self._change()
        self._recorder.fact("unadvertised", filter=offered)
        self._perform(self._core.unadvertise(offered))

    def watch(self, offered: Filter) -> None:
        """Be told whether anybody wants it."""
        self._change()
        self._perform(self._core.watch(offered))

    def unwatch(self, offered: Filter) -> None:
        self._change()
        self._perform(self._core.unwatch(offered))

    def is_watched(self, offered: Filter) -> bool:
        return offered in self._core.watched

    def is_wanted(self, offered: Filter) -> bool | None:
        """None: no broker has said anything yet."""
        return self._core.wanted.get(offered)

    def be(self, state: m.State) -> None:
        if self._core.following.declared(state) == self._core.following.state:
            return
        effects = self._core.be(state)
        self._change()
        self._recorder.became(state)
        self._perform(effects)

    def _change(self) -> None:
        self.said += 1
        self._changed()
