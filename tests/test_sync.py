"""The synchronous twin: the same methods, from any thread, and Ctrl-C."""

import inspect
import signal
import subprocess
import sys
import threading
import time

import pytest

import wayfare
import wayfare.sync
from wayfare.errors import CannotConnect, Closed, NotAdvertised, UsageError
from wayfare.testing import Tree


@pytest.fixture(scope="module")
def tree():
    with Tree("porto-lisbon", "faro-lisbon") as tree:
        yield tree


@pytest.fixture(autouse=True)
def nothing_is_left(tree):
    before = {*threading.enumerate()}
    yield
    assert {*threading.enumerate()} == before


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def pair(tree, **options):
    return (
        wayfare.sync.connect(tree["porto"], client_id="anna", **options),
        wayfare.sync.connect(tree["faro"], client_id="tom", **options),
    )


def numbers(subscription, count):
    return [subscription.get(5)["x"] for _ in range(count)]


@pytest.mark.parametrize("name", ["Client", "Offer", "Subscription"])
def test_it_has_the_same_methods(name):
    """Every coroutine of the one is a method of the other, with the same arguments."""
    ours, theirs = getattr(wayfare.sync, name), getattr(wayfare, name)
    methods = {
        name: one
        for name, one in inspect.getmembers(theirs, inspect.isfunction)
        if inspect.iscoroutinefunction(one) and not name.startswith("_")
    }
    methods.pop("open", None)  # connect has done that
    assert methods
    if name == "Client":
        methods |= {name: getattr(theirs, name) for name in ("subscribe", "offer", "changes")}
    for method, one in methods.items():
        there = inspect.signature(getattr(ours, method, lambda: None)).parameters
        assert [*there.items()] == [*inspect.signature(one).parameters.items()], method


def test_publish_subscribe_and_move(tree):
    anna, tom = pair(tree)
    with anna, tom:
        assert (anna.name, anna.broker, anna.lost) == ("anna", "porto", 0)
        assert [str(one) for one in anna.addresses] == [tree["porto"]]
        tom.advertise("x > 0")
        with anna.subscribe("x > 5") as some:
            for x in range(1, 11):
                tom.publish({"x": x})
            assert numbers(some, 5) == [6, 7, 8, 9, 10]
            anna.move(tree["faro"])
            assert anna.broker == "faro"
            assert tom.publish({"x": 11}, b"!", confirm=True) > 0
            tom.flush(5)
            one = some.get(5)
            assert (one["x"], one.payload, one.publisher) == (11, b"!", "tom")
            anna.detach()
            tom.publish({"x": 12})
            anna.attach()
            assert numbers(some, 1) == [12]
            with pytest.raises(TimeoutError):
                some.get(0.01)
            assert (str(some.filter), some.terms, some.dropped) == ("x > 5", None, 0)
        tom.unadvertise("x > 0")
        with pytest.raises(NotAdvertised):
            tom.publish({"x": 1})


def test_a_for_loop_ends_with_the_subscription(tree):
    anna, tom = pair(tree)
    with anna, tom:
        tom.advertise("x > 0")
        some = anna.subscribe("x > 0")
        got = []
        with some:
            for x in range(1, 4):
                tom.publish({"x": x})
            for one in some:
                got.append(one["x"])
                if one["x"] == 3:
                    some.close()
        assert got == [1, 2, 3]
        with pytest.raises(Closed):
            some.get(1)


def test_many_threads_share_a_client(tree):
    anna, tom = pair(tree)
    with anna, tom, anna.subscribe("x > 0") as all:
        tom.advertise("x > 0")
        got, lock = [], threading.Lock()

        def write(start):
            for x in range(start, start + 50):
                tom.publish({"x": x})

        def read():
            for _ in range(50):
                one = all.get(5)["x"]
                with lock:
                    got.append(one)

        threads = [threading.Thread(target=write, args=(1 + 50 * n,)) for n in range(4)]
        threads += [threading.Thread(target=read) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sorted(got) == [*range(1, 201)]


def test_close_wakes_who_waits_in_other_threads(tree):
    anna = wayfare.sync.connect(tree["porto"])
    some = anna.subscribe("x > 0")
    said = []

    def read():
        try:
            some.get()
        except Closed as error:
            said.append(error)

    threads = [threading.Thread(target=read) for _ in range(5)]
    for one in threads:
        one.start()
    time.sleep(0.2)  # they wait by now
    closing = [threading.Thread(target=anna.close) for _ in range(3)]
    for one in [*closing, *threads]:
        if one in closing:
            one.start()
    for one in [*closing, *threads]:
        one.join(5)
    assert len(said) == 5
    for work in (some.get, anna.attach, lambda: anna.publish({"x": 1})):
        with pytest.raises(Closed):
            work()
    assert anna.close() == 0
    some.close()


def test_errors_come_out(tree):
    with pytest.raises(CannotConnect, match="cannot reach a broker"):
        wayfare.sync.connect("127.0.0.1:1", timeout=0.2)
    with pytest.raises(UsageError):
        wayfare.sync.connect(tree["porto"], policy="no")
    with wayfare.sync.connect(tree["porto"]) as anna:
        with pytest.raises(wayfare.FilterSyntaxError):
            anna.subscribe("x >")
        with pytest.raises(wayfare.FilterSyntaxError):
            anna.advertise("x >")


def test_a_callback_that_calls_back_is_told_so_and_does_not_hang(tree):
    said = []

    def record(event):
        if event.kind == "advertised":
            try:
                anna.flush()
            except UsageError as error:
                said.append(str(error))

    with wayfare.sync.connect(tree["porto"], client_id="anna", events=record) as anna:
        anna.advertise("x > 0")
    assert said[0].startswith("anna cannot wait for itself")


INTERRUPTED = '''
import signal, sys, threading, time
import wayfare.sync

def interrupt(number, frame):
    """While somebody waits; elsewhere, what was got already would be lost by whoever got it."""
    if frame.f_code.co_name == "wait":
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)

anna = wayfare.sync.connect(sys.argv[1], client_id="anna")
tom = wayfare.sync.connect(sys.argv[2], client_id="tom")
tom.advertise("x > 0")
got = []

def publish():
    for x in range(1, 301):
        tom.publish({"x": x})
        time.sleep(0.001)

with anna, tom, anna.subscribe("x > 0") as all:
    threading.Thread(target=publish).start()
    print("ready", flush=True)
    interrupted = 0
    while len(got) < 300:
        try:
            one = all.get(10)
            got.append(one["x"])
        except KeyboardInterrupt:
            interrupted += 1
    print(got == sorted(got), len({*got}), interrupted > 0, flush=True)
    print("waiting", flush=True)
    try:
        all.get()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print(threading.active_count(), flush=True)
'''


def test_ctrl_c_interrupts_and_loses_nothing(tree):
    """Many of them, while notifications come in."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", INTERRUPTED, tree["porto"], tree["faro"]],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        for _ in range(40):
            process.send_signal(signal.SIGINT)
            time.sleep(0.007)
        assert process.stdout.readline() == "True 300 True\n"
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.stdout.readline() == "1\n"
        assert process.wait(10) == 0


def test_ready_waits_until_all_brokers_know(tree):
    anna, tom = pair(tree)
    with anna, tom:
        offer = tom.offer("x > 0")
        offer.ready(5)
        some = anna.subscribe("x > 5")
        some.ready(5)
        tom.publish({"x": 6})
        assert numbers(some, 1) == [6]
        assert offer.wanted is True
        with pytest.raises(UsageError):
            some.ready(-1)
