"""The options of the data source: what each may be, and what is wrong with those that are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from wayfare.core.filters import Filter
from wayfare.errors import PipelineError, WayfareError
from wayfare.net.addresses import Address
from wayfare.net.options import CONNECT_S, Options

MAX_ROWS = 10_000  # of a batch of a stream
EVERYTHING = Filter(((),))
SPARKS = ("path", "checkpointlocation", "queryname")  # that Spark adds, or uses itself


class Settings(NamedTuple):
    """What the options say."""

    path: str | None
    addresses: list[str]
    client_id: str
    wanted: Filter
    since: float | None
    max_rows: int
    fail_on_data_loss: bool
    timeout: float
    advertise: Filter | None
    sort: bool
    expired: bool
    connection: Options


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e9:
        raise ValueError
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def _addresses(text: str) -> list[str]:
    return [str(Address.parse(one.strip())) for one in text.split(",")]


def _pair(text: str) -> tuple[str, str]:
    certificate, key = text.split(",")
    return certificate.strip(), key.strip()


READERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "broker": ("broker", _addresses, "addresses like wayfare://host:7410, with commas in between"),
    "client_id": ("client_id", str, "a name"),
    "filter": ("filter", Filter.parse, "a filter"),
    "since": ("since", _seconds, "a number of seconds"),
    "maxrows": ("maxRows", _count, "a whole number, at least 1"),
    "failondataloss": ("failOnDataLoss", _truth, "true or false"),
    "timeout": ("timeout", _seconds, "a number of seconds"),
    "advertise": ("advertise", Filter.parse, "a filter"),
    "sort": ("sort", _truth, "true or false"),
    "expired": ("expired", _truth, "true or false"),
    "ca": ("ca", str, "the path of a file"),
    "crl": ("crl", str, "the path of a file"),
    "cert": ("cert", _pair, "the paths of a certificate and its key, with a comma in between"),
    "account": ("account", str, "a name"),
    "password": ("password", str, "a text"),
}


def settings(options: Mapping[str, str]) -> Settings:
    """What they say; PipelineError for the first that says nothing good."""
    given: dict[str, Any] = {}
    for key, text in options.items():
        if key.lower() in READERS:
            given[key.lower()] = _read(*READERS[key.lower()], text)
        elif key.lower() not in SPARKS:
            names = ", ".join(name for name, _, _ in READERS.values())
            raise PipelineError(
                f"the data source wayfare has no option {key}: it has path, {names}"
            )
    if ("path" in options) == ("broker" in given):
        raise PipelineError(
            "say where notifications are: the option broker for the live network, or path for an"
            " archive, and one of them"
        )
    timeout = given.get("timeout", CONNECT_S)
    keys = "ca", "crl", "cert", "account", "password"
    connection = {one: given[one] for one in keys if one in given}
    return Settings(
        options.get("path"),
        given.get("broker", []),
        given.get("client_id", ""),
        given.get("filter", EVERYTHING),
        given.get("since"),
        given.get("maxrows", MAX_ROWS),
        given.get("failondataloss", True),
        timeout,
        given.get("advertise"),
        given.get("sort", False),
        given.get("expired", False),
        cast(Options, {"timeout": timeout, **connection}),
    )


def _read(name: str, read: Callable[[str], Any], what: str, text: str) -> Any:
    try:
        return read(text)
    except WayfareError as error:
        raise PipelineError(f"the option {name}: {error}") from None
    except (ValueError, KeyError):
        raise PipelineError(f"the option {name} is {what}, not {text!r:.60}") from None
