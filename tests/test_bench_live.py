"""Benches of live brokers: what they report is what happened."""

import pytest

from wayfare.bench import broker, processes


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
