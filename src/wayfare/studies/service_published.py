"""The paper of the mobility service: the points at which it measured, and table 4, by GPRS with two publications a second."""

from __future__ import annotations

from typing import Any

from wayfare.sim.links import SECOND_NS
from wayfare.sim.one_move import Parameters

TITLES = {"elvin": "Elvin", "fioranomq": "FioranoMQ", "siena": "Siena"}
WHERE = {"lan": "on a LAN", "gprs": "by GPRS"}
S = (1, 2, 5, 10, 20, 50, 100)
P = (1.0, 2.0, 5.0, 10.0)
AWAY = (10 * SECOND_NS, 30 * SECOND_NS)
AT = {"p": 2.0, "away_ns": AWAY[0]}  # what the paper shows
# One way by radio, which it does not give.
USUAL_NS = Parameters(network="gprs").profile().down.latency_ns

# Table 4: delay in ms, losses, duplicates; basic, and with ping.
TABLE_4 = {
    "elvin": {
        10: ((13551, 0, 18), (17151, 0, 22)),
        50: ((48608, 0, 76), (52525, 0, 88)),
        100: ((95031, 0, 148), (98798, 0, 159)),
    },
    "fioranomq": {
        10: ((13932, 0, 11), (15747, 0, 18)),
        50: ((40544, 0, 43), (42215, 0, 50)),
        100: ((74773, 0, 90), (77304, 0, 90)),
    },
    "siena": {
        10: ((8294, 0, 7), (11751, 0, 12)),
        50: ((10984, 2, 4), (23585, 0, 17)),
        100: ((10841, 10, 4), (39608, 0, 30)),
    },
}
BEST_PUBLISHED_MS = min(
    delay for table in TABLE_4.values() for delay, _, _ in table[100]
)  # with 100 subscriptions
AIM_MS = 3000  # for Wayfare's own brokers, with as many
# Table 4 has ping add at most so many duplicates where publications are broadcast.
ADDED_MAX = max(
    ping[2] - basic[2]
    for system in ("elvin", "fioranomq")
    for basic, ping in TABLE_4[system].values()
)


def printed(system: str) -> dict[tuple[str, Any, str], float]:
    """What the paper measured of it, by GPRS."""
    return {
        (metric, s, support): value
        for s, pair in TABLE_4[system].items()
        for support, values in zip(("basic", "ping"), pair, strict=True)
        for metric, value in zip(("delay_ms", "lost_in", "duplicates_in"), values, strict=True)
    }
