"""Benches of live brokers: what they report is what happened."""

from pathlib import Path

import pytest

from wayfare.bench import broker, move, processes, roam
from wayfare.cli.bench import BENCHES


def test_a_delivery_of_the_live_broker_is_measured_without_mosquitto(monkeypatch):
    monkeypatch.setattr(processes, "which_mosquitto", lambda: None)
    one, fifty, note = broker.run(quick=True)
    assert (one["subscribers"], fifty["subscribers"]) == (1, 50)
    for row in (one, fifty):
        assert 0 < row["us_per_delivery"] < row["paced_us"]  # frames that come together are cheaper
        assert 0 < row["p50_us"] <= row["p99_us"]
    assert fifty["us_per_delivery"] < one["us_per_delivery"]  # one decoding for fifty deliveries
    assert note == {"bench": "broker", "note": broker.ALONE}


def test_a_broker_that_delivers_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr(broker, "PATIENCE_S", 0.2)
    monkeypatch.setattr(broker, "TOPIC", "x")
    with processes.brokers() as running:
        load = broker.Load(broker.Wayfare(), running["lisbon"].port, 1, broker.START)
        monkeypatch.setattr(broker, "TOPIC", "y")  # that nobody subscribed to
        with pytest.raises(TimeoutError, match="delivered nothing"):
            load.saturate(10)
        load.close()


@pytest.mark.slow
def test_a_move_over_slow_links_takes_about_a_round_trip():
    fast, slow = move.run(quick=True, subscriptions=(1,))
    assert (fast["delay_ms"], slow["delay_ms"]) == (0, 10)
    assert fast["p50_ms"] < 60 <= slow["round_trip_p50_ms"]  # three links, there and back
    assert 0.9 < slow["round_trips"] < 2


@pytest.mark.slow
def test_clients_that_roam_get_everything_once_and_in_order():
    (row,) = roam.run(quick=True)
    assert (row["lost"], row["duplicates"], row["out_of_order"], row["told_lost"]) == (0, 0, 0, 0)
    assert row["deliveries"] == 10 * row["publications"] > 500
    assert row["moves"] > 20
    assert 0 < row["handover_p50_ms"] <= row["handover_p99_ms"]
    assert row["kb_per_session"] > 0


def test_what_roaming_clients_miss_is_counted():
    one = roam.Roamer("anna", 0)
    one.got = [("tom", 1), ("tom", 3), ("tom", 2), ("tom", 3), ("ida", 1)]
    published = {0: [("tom", 1), ("tom", 2), ("tom", 3), ("tom", 4), ("ida", 1)]}
    row = roam.figures({}, [one], published, [0.1, 0.2], 1.0, 5_000)
    assert (row["lost"], row["duplicates"], row["out_of_order"]) == (1, 1, 1)
    assert row["kb_per_session"] == 5.0


def test_make_bench_measures_live_brokers_too():
    recipe = (Path(__file__).resolve().parent.parent / "Makefile").read_text("utf-8")
    for one in ("matching", "cover", "sim", "broker", "move", "roam"):
        assert f"bench {one} " in recipe.replace("wayfare ", "")
        assert one in BENCHES
