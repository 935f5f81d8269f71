"""Every exception that Wayfare raises on purpose.

    WayfareError
    ├── FilterError             a filter that cannot be built
    │   ├── FilterSyntaxError   ... from this text: where, and why
    │   └── FilterNeverMatches  ... or would be of no use, because nothing can match it
    ├── InvalidNotification     attributes or payload that cannot be published
    ├── NotAdvertised           a publication that no advertisement of the client announces
    ├── OutboxFull              too many publications wait for an acknowledgement
    ├── NotConfirmed            a subscription or advertisement that is not in effect everywhere yet
    ├── NoResponders            a request to which nobody subscribes
    ├── NoReply                 a request that nobody has answered in time; also a TimeoutError
    ├── CannotConnect           no broker that was named can be reached
    ├── Refused                 a broker closed the connection for good, and says why
    │   └── LoginFailed         ... because the account or its password is wrong
    ├── Closed                  a client that is not connected any more, because it was closed
    ├── StoreError              a file that a broker keeps its memory in cannot be used
    ├── CodecError              bytes that are no frame of ours, or a message that fits none
    ├── ProtocolError           a peer that sends what it may not send now
    │   └── NotGranted          ... because its account does not grant it
    ├── ScenarioError           a scenario text that cannot be run: line, and why
    ├── ConfigError             a configuration that cannot be used: all its mistakes
    ├── ModelError              a model of movement that cannot be used: why, and what to do
    ├── PipelineError           a job on Spark that cannot be done: why, and what to do
    └── UsageError              a command line or option that makes no sense

The first four and the last four are the caller's mistake; `ProtocolError`, and `CodecError` when
bytes are read, are the peer's: the host closes that one connection and goes on serving the
others. `encode` raises `CodecError`, too, and then it is the mistake of whoever made the message.
A broken invariant of our own is neither: it is an `assert`.
"""

from __future__ import annotations

from collections.abc import Sequence


class WayfareError(Exception):
    """Base of all errors that Wayfare raises on purpose."""


class FilterError(WayfareError):
    """A filter that cannot be built, with the reason."""


class FilterSyntaxError(FilterError):
    """A filter text that cannot be parsed: `position` counts characters from 0."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        self.text, self.position, self.reason = text, position, reason
        start = max(0, position - 20)
        excerpt = text[start : position + 20]
        super().__init__(f"{reason} at column {position + 1}: {excerpt!r}")


class FilterNeverMatches(FilterError):
    """A filter that no notification can match, with what contradicts itself in it."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the filter can never match: {why}")


class InvalidNotification(WayfareError):
    """Attributes or a payload that cannot be published, with the reason."""


class NotAdvertised(WayfareError):
    """A publication that none of the client's advertisements announces."""


class OutboxFull(WayfareError):
    """Too many publications wait for an acknowledgement; try again later."""


class NotConfirmed(WayfareError):
    """A subscription or advertisement that is not in effect in the whole tree yet.

    `missing` are the neighbours of the client's broker that have not confirmed it; none if the client could
    not reach its broker. It stands, and takes effect as soon as they have heard of it.
    """

    def __init__(
        self, what: str, seconds: float, missing: Sequence[str], until: str, refusal: str = ""
    ) -> None:
        """A `refusal` is why it is not in effect now, and says what to do."""
        self.missing = tuple(missing)
        if refusal:
            told = (
                f"{what} is not in effect: {refusal}. It takes effect when there is room; {until}"
            )
            super().__init__(told)
            return
        where = "its broker did not answer"
        if missing:
            where = f"no answer from the brokers behind {', '.join(missing)}"
        super().__init__(
            f"{what} is not confirmed after {seconds:g} s: {where}. It takes effect there later; {until}"
        )


class NoResponders(WayfareError):
    """A request to which nobody subscribes, anywhere in the tree."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: nobody subscribes to such requests")


class NoReply(WayfareError, TimeoutError):
    """A request that nobody has answered in time."""

    def __init__(self, what: str, seconds: float, why: str) -> None:
        super().__init__(f"{what}: no reply within {seconds:g} s ({why})")


class CannotConnect(WayfareError):
    """None of the brokers that were named can be reached."""


class Refused(WayfareError):
    """A broker closed the connection, and there is no use in trying again: its reason."""


class LoginFailed(Refused):
    """A broker refused the account or its password."""


class Closed(WayfareError):
    """The client or subscription was closed."""


class StoreError(WayfareError):
    """The file that a broker keeps its memory in cannot be used: why, and what to do."""


class CodecError(WayfareError):
    """Bytes that are not a frame of this protocol version, or a message that cannot become one."""


class ProtocolError(WayfareError):
    """A message from a peer that it may not send now."""


class NotGranted(ProtocolError):
    """A message from a client that its account does not grant; `action` is attach, subscribe, ..."""

    def __init__(self, reason: str, action: str) -> None:
        self.action = action
        super().__init__(reason)


class ScenarioError(WayfareError):
    """A scenario text that cannot be run; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line, self.reason = line, reason
        super().__init__(f"line {line}: {reason}")


class ConfigError(WayfareError):
    """A configuration that cannot be used: all its mistakes, one a line."""

    def __init__(self, mistakes: Sequence[object]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))


class ModelError(WayfareError):
    """A model of movement that cannot be used: why, and what to do."""


class PipelineError(WayfareError):
    """A job on Spark that cannot be done: why, and what to do."""


class UsageError(WayfareError):
    """A command line or option that makes no sense."""
