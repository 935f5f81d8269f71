"""Logs: one event a line, with its facts, and none a thousand times."""

import asyncio
import io
import json
import logging
from contextlib import contextmanager

import pytest

import wayfare
from live import tree, until
from test_net import LINE, live, numbers
from wayfare.core.codec import encode
from wayfare.core.messages import PROTOCOL_VERSION, Hello
from wayfare.net import logs

logger = logging.getLogger("wayfare.test")


@contextmanager
def log(format, level="debug", clock=None):
    """What is written meanwhile."""
    ours = logging.getLogger("wayfare")  # other tests make it quiet
    before, ours_before = logging.getLogger().level, ours.level
    ours.setLevel(logging.NOTSET)
    out = io.StringIO()
    handler = logs.start(level, format, out)
    if clock is not None:
        handler.filters[:] = [logs.Sparing(clock)]
    try:
        yield out
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(before)
        ours.setLevel(ours_before)


def test_a_line_for_people():
    with log("text", "info") as out:
        logs.tell(
            logger, logging.INFO, "link_up", "%(broker)s, %(peer)s", broker="a", peer="b\n\x1b"
        )
        logs.tell(logger, logging.DEBUG, "nothing", "not at this level")
    time, _, rest = out.getvalue().partition(" ")
    assert rest == "INFO a, b??\n"
    assert len(time) == len("2026-11-16T06:00:00.123Z") and time.endswith("Z")


def test_a_line_for_programs():
    with log("json") as out:
        logs.tell(
            logger,
            logging.WARNING,
            "refused",
            "%(peer)s: %(reason)s",
            peer="b\n",
            reason=OSError(3),
        )
        logger.warning("%s of another kind", 1)
        try:
            raise ValueError("a bug")
        except ValueError:
            logger.exception("it failed")
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning",
        "event": "refused",
        "peer": "b\n",
        "reason": "3",
        "message": "b\n: 3",
    }
    assert (second["event"], second["logger"]) == ("log", "wayfare.test")
    assert second["message"] == "1 of another kind"
    assert third["error"].startswith("Traceback") and third["error"].endswith("ValueError: a bug")


@pytest.mark.parametrize("format", logs.FORMATS)
def test_lines_of_one_kind_are_not_repeated_for_ever(format):
    now = [0.0]
    with log(format, clock=lambda: now[0]) as out:
        for peer in range(1000):
            logs.tell(logger, logging.WARNING, "refused", "no, %(peer)s", peer=peer)
        logs.tell(logger, logging.WARNING, "other", "another kind")
        lines = out.getvalue().splitlines()
        assert len(lines) == logs.REPEATED_MAX + 1
        assert "more like this are left out" in lines[-2]
        assert "left out" not in lines[-1]
        now[0] = logs.REPEATED_S
        logs.tell(logger, logging.WARNING, "refused", "no, %(peer)s", peer="eve")
        assert "980 like this were left out before" in out.getvalue().splitlines()[-1]
        logs.tell(logger, logging.WARNING, "refused", "no, %(peer)s", peer="eve")
        assert "left out" not in out.getvalue().splitlines()[-1]


def test_what_is_counted_is_bounded():
    sparing = logs.Sparing()
    for number in range(3 * logs.KINDS_MAX):
        assert sparing.filter(logging.LogRecord("x", 10, "", 1, f"line {number}", (), None))
    assert len(sparing._kinds) <= logs.KINDS_MAX


@live
async def test_what_happens_to_a_broker_is_an_event_with_its_facts():
    with log("json") as out:
        async with (
            tree(*LINE) as net,
            wayfare.connect(net.url("porto"), client_id="anna") as anna,
            wayfare.connect(net.url("faro"), client_id="tom") as tom,
        ):
            logging.getLogger("wayfare").setLevel(logging.DEBUG)
            await tom.advertise("x > 0")
            async with anna.subscribe("x > 0") as some:
                await tom.publish({"x": 1, "name": "geheim"}, payload=b"geheim")
                assert await numbers(some, 1) == [1]
            reader, writer = await asyncio.open_connection(
                net.brokers["porto"].address.host, net.brokers["porto"].address.port
            )
            writer.write(encode(Hello(PROTOCOL_VERSION + 1, "eve")))
            await reader.read()
            writer.close()
            await net.restart("lisbon")
            await net.linked()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    told = {(one["event"], one.get("broker"), one.get("peer")): one for one in lines}
    assert ("link_down", "porto", "lisbon") in told
    assert ("link_up", "porto", "lisbon") in told
    assert ("listening", "lisbon", None) in told
    refused = [one for one in lines if one["event"] == "refused"]
    assert (refused[0]["broker"], refused[0]["why"]) == ("porto", "bytes")
    assert "version" in refused[0]["reason"]
    assert "geheim" not in out.getvalue()


@live
async def test_a_broker_that_has_too_much_to_tell_says_so():
    with log("json") as out:
        async with (
            tree(*LINE) as net,
            wayfare.connect(net.url("porto"), client_id="tom") as tom,
        ):
            logging.getLogger("wayfare").setLevel(logging.WARNING)
            porto = net.brokers["porto"]
            for _ in range(10_001):
                porto.links["lisbon"].send(b"")
            await tom.advertise("x > 0")
            await until(lambda: "congested" in out.getvalue())
            porto.links["lisbon"].begin(0)
    assert '"event":"congested","broker":"porto"' in out.getvalue()
