"""What an application says of publications that are retained, and of its last will."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from wayfare.core import messages as m
from wayfare.core.reserved import check_unreserved
from wayfare.core.values import Payload, Publishable, plain_attributes, plain_payload
from wayfare.core.wills import offer_of
from wayfare.errors import UsageError

DELAY_S_MAX = 1e9  # 31 years


def retained_by(names: str | Sequence[str]) -> m.Retain | None:
    """What is to be retained, and by which attributes; None: it is not."""
    if not isinstance(names, str | tuple | list) or not all(
        one and isinstance(one, str) for one in names
    ):
        raise UsageError(f"retain names attributes, one or several, not {names!r:.60}")
    if not names:
        return None
    return m.Retain((names,) if isinstance(names, str) else tuple(names))


class Will:
    """What brokers publish when a client is gone for longer than `delay` seconds: `connect(will=...)`.

    With `retain`, as the current value of a key: see `Client.publish`.
    """

    def __init__(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        delay: float = 0.0,
        retain: str | Sequence[str] = (),
    ) -> None:
        good = isinstance(delay, int | float) and type(delay) is not bool and isfinite(delay)
        if not good or not 0 <= delay < DELAY_S_MAX:
            raise UsageError(f"delay is a number of seconds, not {delay!r:.60}")
        plain = plain_attributes(attributes)
        check_unreserved(plain)
        delay_ns = int(delay * 1e9)
        self.message = m.Will(dict(plain), plain_payload(payload), delay_ns, retained_by(retain))
        m.check_will(self.message, "")
        offer_of(self.message.attributes)
