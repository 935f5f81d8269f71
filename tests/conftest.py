"""What every test may count on: the Hypothesis profiles, the `--rewrite` option, a Spark session."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden traces are to be written anew (`pytest --rewrite`)."""
    return bool(request.config.getoption("--rewrite"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Spark go to one worker: a session takes a while to start, and much memory.

    The first of them also waits for Java to load and compile everything, on a busy machine for minutes.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The one session of the whole test run."""
    from wayfare.pipeline.spark import SHORT, start

    session = start("local[2]", spark_sql_shuffle_partitions="4", **SHORT)
    yield session
    session.stop()
