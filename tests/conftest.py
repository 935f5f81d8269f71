"""What every test may count on: Hypothesis profiles, the `--rewrite` option, a Spark session, overlays."""

import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from wayfare.net.background import Background
from wayfare.service.overlays import Overlay, missing, overlay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline and no speed check: a busy machine must not fail a test. In CI the examples
# are the same in every run, so a red build is red again on the next try; elsewhere each run
# looks at new ones, and a failure prints the blob that brings it back.
settings.register_profile(
    "dev", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        default=False,
        help="write the golden traces anew instead of comparing; review the diff",
    )


@pytest.fixture(autouse=True)
def log_level() -> None:
    """Earlier tests, and commands that ran in this process, may have left a higher one: a log would be empty.

    Commands also leave handlers, whose streams are closed: each record would cost a traceback.
    """
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
        root.removeHandler(handler)
    logging.getLogger("wayfare").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden traces are to be written anew (`pytest --rewrite`)."""
    return bool(request.config.getoption("--rewrite"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Spark go to one worker, and so do those with one overlay: both take a while to start.

    The first of them waits for that, on a busy machine for minutes. RabbitMQ takes more than a few seconds.
    """
    for item in items:
        if (group := _group(item)) is not None:
            if group == "overlay of amqp":
                item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(group))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Collect what a failed test left open: else an innocent test fails later, with ResourceWarnings.

    Python keeps the frames of the last exception, and the sockets in them, until the next one.
    """
    result = yield
    if hasattr(sys, "last_value"):
        del sys.last_type, sys.last_value, sys.last_traceback
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result


def pytest_collection_finish() -> None:
    """What is there before the first test stays: tests that look for garbage need not look at all of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def _group(item: pytest.Item) -> str | None:
    fixtures = getattr(item, "fixturenames", ())
    if "overlay_of" in fixtures:
        if "system" not in fixtures:
            raise pytest.UsageError(f"{item.nodeid}: say which with parametrize('system', [...])")
        return f"overlay of {item.callspec.params['system']}"  # type: ignore[attr-defined]
    return "spark" if "spark" in fixtures else None


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The one session of the whole test run, for little data."""
    from wayfare.pipeline.spark import TINY, start

    session = start("local[2]", spark_sql_shuffle_partitions="4", **TINY)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def need_server() -> Callable[[str], None]:
    """Ends a test that needs a system which is not installed. In CI, that is a failure."""

    def need(system: str) -> None:
        if (sentence := missing(system)) is not None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(sentence)

    return need


@pytest.fixture(scope="session")
def overlay_of(
    need_server: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Overlay]]:
    """Gives the one overlay of a system, which lasts until the end of the run: `overlay_of("mqtt")`.

    Tests share it, so let each have topics of its own, and start again what it has killed. They
    are parametrized with `system`: all that have the same one are run by the same worker.
    """
    running: dict[str, Overlay] = {}
    stack = AsyncExitStack()
    background = Background("overlays")

    def of(system: str) -> Overlay:
        need_server(system)
        if system not in running:
            place = overlay(system, tmp_path_factory.mktemp(system))
            running[system] = background.call(lambda: stack.enter_async_context(place))
        return running[system]

    yield of
    background.call(stack.aclose)
    background.stop()


@pytest.fixture
def word() -> str:
    """The first word of topics, and the end of names, that no other test uses."""
    return f"t{random.randrange(10**9)}"
