"""Who waits for what: callers of a client, until the system or its proxy has answered.

moved       the client is where it was to be
known       the first proxy stands in for it
subscribed  the access point has this subscription
changed     the proxy has this change of subscriptions
published   the access point has this publication
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import partial
from typing import Literal

Kind = Literal["moved", "known", "subscribed", "changed", "published"]
Answer = asyncio.Future[None]


class Answers:
    """Each caller has a future of its own: who gives up gives up for nobody else."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Kind, Hashable], list[Answer]] = {}

    def wait(self, kind: Kind, what: Hashable = None) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((kind, what), []).append(answer)
        answer.add_done_callback(partial(self._forget, (kind, what)))
        return answer

    def waiting(self, kind: Kind, what: Hashable = None) -> list[Answer]:
        return list(self._waiting.get((kind, what), ()))

    def answer(self, kind: Kind, what: Hashable = None, error: Exception | None = None) -> bool:
        """Whether somebody was waiting for it."""
        answers = [one for one in self._waiting.pop((kind, what), ()) if not one.done()]
        for answer in answers:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)
        return bool(answers)

    def settle(self, *kinds: Kind) -> None:
        """Nobody is to wait any longer for something of these kinds."""
        for kind, what in [key for key in self._waiting if key[0] in kinds]:
            self.answer(kind, what)

    def close(self, error: Exception) -> None:
        """Nothing is answered any more."""
        for kind, what in list(self._waiting):
            self.answer(kind, what, error)

    def _forget(self, key: tuple[Kind, Hashable], answer: Answer) -> None:
        answers = self._waiting.get(key, [])
        if answer in answers:
            answers.remove(answer)
        if not answers:
            self._waiting.pop(key, None)


async def within(answer: Answer, seconds: float) -> bool:
    """Whether it came; the errors that it brings are raised."""
    try:
        await asyncio.wait_for(answer, seconds)
    except TimeoutError:
        return False
    return True
