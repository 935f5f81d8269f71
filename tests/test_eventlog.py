"""One schema: what is written is what happened, in Parquet and in JSON lines alike."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wayfare import eventlog
from wayfare.core.codec import encode
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.eventlog import SCHEMA, Event, JsonLinesWriter, ParquetWriter, row, writer
from wayfare.sim import World, city, experiment, roaming
from wayfare.sim.links import SECOND_NS

KINDS = {
    "published",
    "delivered",
    "lost",
    "subscribed",
    "unsubscribed",
    "advertised",
    "unadvertised",
    "attached",
    "detached",
    "left",
    "sent",
}
OF_EXPERIMENTS = {
    "placed": {"broker", "path"},
    "updated": {"sender", "receiver", "entries"},
    "tables": {"broker", "entries"},
    "measured": {"since_ns"},
}
# Which columns each kind fills, beside run, time_ns and kind.
FILLED = {
    "published": {"client", "number", "epoch", "attributes"},
    "delivered": {"client", "publisher", "number", "delivery", "epoch", "attributes"},
    "lost": {"client", "count", "reason"},
    "subscribed": {"client", "filter", "count"},
    "unsubscribed": {"client", "filter"},
    "advertised": {"client", "filter"},
    "unadvertised": {"client", "filter"},
    "attached": {"client", "broker", "epoch"},
    "detached": {"client", "broker", "epoch"},
    "left": {"client", "broker", "epoch"},
    "sent": {"sender", "receiver", "message", "size"},
}


def eventful_world():
    """A run in which everything happens that is logged."""
    world = World(limits=Limits(backlog_count=1))
    world.add_brokers([("porto", "lisbon")])
    world.log_messages()
    ticker, anna = world.add_client("ticker", "lisbon"), world.add_client("anna", "porto")
    ticker.advertise("price > 0")
    ticker.advertise("topic = 'it''s'")
    anna.subscribe("price > 40")
    anna.subscribe("topic prefix 'i'")
    world.settle()
    ticker.publish({"price": 41, "topic": "it's", "open": True, "ratio": 0.5})
    world.settle()
    anna.detach()
    world.settle()
    for price in (42, 43, 44):
        ticker.publish({"price": price, "umlaut": "ärger"})
    world.settle()
    anna.attach()
    world.settle()
    anna.unsubscribe("price > 40")
    ticker.unadvertise("price > 0")
    world.settle()
    anna.detach(leave=True)
    world.settle()
    return world


@pytest.fixture(scope="module")
def events():
    return eventful_world().events


def written(path, events, run="r1"):
    with writer(path, run) as log:
        log.write(events)
    return path


def json_rows(path):
    """As in the other format: what was left out is None."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [{**dict.fromkeys(SCHEMA.names), **json.loads(line)} for line in lines]


def until(error, events):
    yield from events
    raise error


# What is logged


def test_every_kind_of_event_appears(events):
    assert {event.kind for event in events} == KINDS == set(FILLED)


def test_every_kind_fills_its_columns(events):
    for event in events:
        fields = row(event, "r1").items()
        there = {name for name, value in fields if value is not None}
        assert there - {"run", "time_ns", "kind"} == FILLED[event.kind], event.kind


@pytest.fixture(scope="module")
def experiments():
    """The logs of two experiments, and what they say of themselves."""
    logs: tuple[list[Event], list[Event]] = [], []
    one = roaming.Parameters(height=3, degree=2, publishers=2, movers=3, moves=2, relocation="home")
    other = experiment.Parameters(
        height=3, degree=2, publishers=2, subscribers=3, minutes=1.5, warm_up_ns=20 * SECOND_NS
    )
    return {
        "roaming": (logs[0], roaming.run(one, logs[0].extend), roaming.run(one)),
        "city": (logs[1], city.run(other, logs[1].extend), city.run(other)),
    }


def test_a_log_does_not_change_an_experiment(experiments):
    for _, logged, alone in experiments.values():
        assert logged == alone


def test_experiments_log_what_they_count(experiments):
    kinds = {name: {event.kind for event in log} for name, (log, _, _) in experiments.items()}
    client = {"published", "delivered", "subscribed", "advertised", "attached", "detached"}
    assert kinds["roaming"] == client | {"placed", "sent", "tables", "measured"}
    assert kinds["city"] == client | {"placed", "updated", "tables", "measured"}
    for log, _, _ in experiments.values():
        times = [event.time_ns for event in log]
        assert times == sorted(times)
        for event in log:
            if event.kind in OF_EXPERIMENTS:
                there = {name for name, value in row(event, "r").items() if value is not None}
                assert there - {"run", "time_ns", "kind"} == OF_EXPERIMENTS[event.kind]


def test_the_log_of_roaming_has_every_message_between_brokers(experiments):
    log, figures, _ = experiments["roaming"]
    said: dict[str, int] = {}
    for event in log:
        if event.kind == "sent":
            name = event.inner or event.message
            said[name] = said.get(name, 0) + (1 if event.count is None else event.count)
    assert said.pop("Deliver") == figures.tunnelled > 0
    assert said.pop("Ack") == figures.acknowledgements > 0
    assert said.pop("Notification") == figures.notifications - figures.tunnelled > 0
    assert sum(said.values()) == figures.control > 0
    tables = [event.entries["subscriptions"] for event in log if event.kind == "tables"]
    assert max(tables) == figures.subs_max and len(tables) == figures.brokers
    assert [event.path for event in log if event.broker == "b4" and event.kind == "placed"] == [
        ["b0", "b1", "b4"]
    ]


def test_the_log_of_the_city_has_every_entry_of_every_update(experiments):
    log, figures, _ = experiments["city"]
    (measured,) = [event for event in log if event.kind == "measured"]
    counted = [
        event.entries
        for event in log
        if event.kind == "updated" and measured.since_ns <= event.time_ns <= measured.time_ns
    ]
    assert len(counted) == figures.link_messages > 0
    for kind, count in figures.control.items():
        assert sum(entries.get(kind, 0) for entries in counted) == count
    assert measured.since_ns == 20 * SECOND_NS + 1
    assert measured.time_ns == 110 * SECOND_NS


def test_what_has_parts_is_written_as_json():
    assert row(Event(1, "placed", path=["a", "b"]), "r")["path"] == '["a", "b"]'
    assert row(Event(1, "tables", entries={"b": 2, "a": 1}), "r")["entries"] == '{"a": 1, "b": 2}'


def test_time_never_goes_back(events):
    times = [event.time_ns for event in events]
    assert times == sorted(times)


def test_a_message_is_logged_with_its_size():
    world = World()
    world.add_brokers([], alone="porto")
    frames = []
    world.watchers.append(
        lambda sender, receiver, message: frames.append((sender, receiver, message))
    )
    world.log_messages()
    world.add_client("anna", "porto").subscribe("price > 40")
    world.settle()
    sent = [event for event in world.events if event.kind == "sent"]
    assert [(one.sender, one.receiver, one.message) for one in sent] == [
        ("anna", "porto", "Attach"),
        ("anna", "porto", "Subscribe"),
        ("porto", "anna", "Welcome"),
    ]
    assert [one.size for one in sent] == [len(encode(message)) for _, _, message in frames]
    assert min(one.size for one in sent) > 4
    assert len(sent) == world.messages()


def test_messages_are_logged_only_when_asked_for():
    world = World()
    world.add_brokers([], alone="porto")
    world.add_client("anna", "porto")
    world.settle()
    assert [event.kind for event in world.events] == ["attached"]


# The schema


def test_the_schema_has_the_fields_of_an_event_behind_the_run():
    assert SCHEMA.names == ["run", *Event.__struct_fields__]


def test_columns_are_append_only():
    """Add new ones at the end of this list; never take one away or change its type."""
    assert [(field.name, str(field.type)) for field in SCHEMA][:17] == [
        ("run", "string"),
        ("time_ns", "int64"),
        ("kind", "string"),
        ("client", "string"),
        ("broker", "string"),
        ("publisher", "string"),
        ("number", "int64"),
        ("delivery", "int64"),
        ("epoch", "int64"),
        ("filter", "string"),
        ("attributes", "string"),
        ("sender", "string"),
        ("receiver", "string"),
        ("message", "string"),
        ("size", "int64"),
        ("count", "int64"),
        ("reason", "string"),
    ]
    assert [field.name for field in SCHEMA if not field.nullable] == ["run", "time_ns", "kind"]


def test_a_row_has_filters_as_text_and_attributes_as_json():
    filter = Filter.parse("price > 40 and topic = 'it''s'")
    event = Event(5, "published", client="anna", filter=filter, attributes={"b": 1, "a": "x"})
    found = row(event, "r1")
    assert list(found) == SCHEMA.names
    assert Filter.parse(found["filter"]) == filter
    assert found["attributes"] == '{"a": "x", "b": 1}'
    assert (found["run"], found["time_ns"], found["client"]) == ("r1", 5, "anna")
    assert found["broker"] is None


# Files


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl"])
def test_written_rows_are_the_events(tmp_path, events, name):
    path = written(tmp_path / name, events)
    rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else json_rows(path)
    assert rows == [row(event, "r1") for event in events]
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_both_formats_say_the_same(tmp_path, events):
    table = pq.read_table(written(tmp_path / "log.parquet", events))
    assert table.schema.equals(SCHEMA)
    again = pa.Table.from_pylist(json_rows(written(tmp_path / "log.jsonl", events)), schema=SCHEMA)
    assert again.equals(table)


def test_json_lines_leave_out_what_does_not_apply(tmp_path):
    path = written(tmp_path / "log.jsonl", [Event(5, "left", client="anna")])
    assert path.read_text() == '{"run": "r1", "time_ns": 5, "kind": "left", "client": "anna"}\n'


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl"])
def test_an_empty_log_is_a_file_with_the_schema(tmp_path, name):
    path = written(tmp_path / name, [])
    if path.suffix == ".parquet":
        assert pq.read_table(path).schema.equals(SCHEMA)
        assert pq.read_table(path).num_rows == 0
    else:
        assert path.read_bytes() == b""


def test_many_events_go_out_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(eventlog, "BATCH_ROWS", 10)
    path = tmp_path / "log.parquet"
    with ParquetWriter(path, "r1") as log:
        log.write(Event(time, "left") for time in range(17))
        log.write(Event(time, "left") for time in range(17, 25))
    assert pq.ParquetFile(path).num_row_groups == 3
    assert pq.read_table(path)["time_ns"].to_pylist() == list(range(25))


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl"])
def test_an_interrupted_writer_leaves_nothing(tmp_path, events, name):
    path = tmp_path / name
    log = writer(path, "r1")
    with pytest.raises(KeyboardInterrupt), log:
        log.write(until(KeyboardInterrupt(), events))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl"])
def test_an_interrupted_writer_leaves_the_older_file_alone(tmp_path, events, name):
    path = written(tmp_path / name, events)
    before = path.read_bytes()
    log = writer(path, "r2")
    with pytest.raises(RuntimeError, match="no more"), log:
        log.write(until(RuntimeError("no more"), events))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl"])
def test_until_it_is_complete_the_file_is_not_there(tmp_path, events, name):
    path = tmp_path / name
    with writer(path) as log:
        log.write(events)
        assert not path.exists()
    assert path.exists()


def test_a_later_run_replaces_the_file(tmp_path, events):
    path = written(tmp_path / "log.jsonl", events)
    written(path, events[:1])
    assert len(json_rows(path)) == 1


def test_the_name_of_the_file_chooses_the_format(tmp_path):
    for name, kind in (("a.parquet", ParquetWriter), ("a.jsonl", JsonLinesWriter)):
        with writer(tmp_path / name) as log:
            assert type(log) is kind


def test_the_log_of_a_run_is_the_same_each_time(tmp_path):
    first, second = (
        written(Path(tmp_path / f"{i}.jsonl"), eventful_world().events).read_bytes() for i in (1, 2)
    )
    assert first == second
