"""What a judge of a run says: which promises were broken, and how much there was to break."""

from __future__ import annotations

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken."""

    # complete, once, fifo, wanted, gap, tidy, owner, interest; crash, when the run itself failed
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class Verdict(msgspec.Struct, frozen=True):
    """What the oracle found in one run."""

    violations: tuple[Violation, ...]
    published: int
    delivered: int
    required: int  # deliveries that had to happen
    lost: int  # that clients were told of
