"""What every test may count on: the Hypothesis profiles and the `--rewrite` option."""

import os

import pytest
from hypothesis import HealthCheck, settings

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
