"""One simulation of a study as a value: what to run, under which name, and by which command again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import blackout, city, experiment, location, one_move, placement, roaming, service
from wayfare.sim.links import MS_NS

Log = Callable[[Iterable[Event]], object]


class Kind(msgspec.Struct, frozen=True):
    """A simulation that takes parameters and gives figures."""

    parameters: type[Any]
    run: Callable[..., Any]


KINDS = {
    "roaming": Kind(roaming.Parameters, roaming.run),
    "city": Kind(experiment.Parameters, city.run),
    "location": Kind(location.Parameters, location.run),
    "blackout": Kind(blackout.Parameters, blackout.run),
    "placement": Kind(placement.Parameters, placement.run),
    "service": Kind(one_move.Parameters, service.run),
}
UNITS = ("_kmh", "_km")  # that an option leaves out; times are in milliseconds


class Point(msgspec.Struct, frozen=True):
    """Parameters that differ from the usual ones. Equal points are one run, whoever wants them."""

    kind: str
    given: dict[str, Any]

    def parameters(self) -> Any:
        try:
            return msgspec.convert(self.given, KINDS[self.kind].parameters)
        except (KeyError, msgspec.ValidationError) as error:
            raise UsageError(f"{self.kind} {self.given}: no such simulation: {error}") from None

    def text(self) -> str:
        """All its parameters, the usual ones too: a default that changes makes it another run."""
        whole = msgspec.to_builtins(self.parameters())
        return msgspec.json.encode(whole, order="sorted").decode()

    def run_name(self) -> str:
        return f"{self.kind}-{hashlib.sha256(self.text().encode()).hexdigest()[:12]}"

    def command(self) -> str:
        """What runs it again."""
        words = ["wayfare", "sim", self.kind]
        usual = KINDS[self.kind].parameters()
        for name in usual.__struct_fields__:
            value = getattr(self.parameters(), name)
            if value != getattr(usual, name):
                words += _option(name, value)
        return " ".join(words)

    def run(self, log: Log | None = None) -> Any:
        return KINDS[self.kind].run(self.parameters(), log)


def _option(name: str, value: Any) -> list[str]:
    if name.endswith("_ns"):
        name, value = name.removesuffix("_ns"), value / MS_NS
    for unit in UNITS:
        name = name.removesuffix(unit)
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    return [option, f"{value:g}" if isinstance(value, float) else str(value)]
