"""Both ends of a link, whose stores may be rolled back at any time: what they take is what was sent, or both begin anew."""

import asyncio
import logging
from random import Random

import pytest

from live import HERE
from test_security import raw
from wayfare.core.codec import decode
from wayfare.core.messages import Announce, BrokerId, Join, Took
from wayfare.net.broker import BrokerHost
from wayfare.net.links import TOOK_EVERY, Link


class Line:
    """A connection that keeps what is sent on it."""

    blocked = False
    patient = False

    def __init__(self):
        self.out = []

    def send(self, frame):
        self.out.append(frame)

    def count_in(self, traffic):
        pass


class End:
    """One end: its link, and what was sent and taken in this generation, as its store has it."""

    def __init__(self, name, random):
        self.name, self.random = name, random
        self.link = Link(BrokerId(name), random.getrandbits(40) + 1)
        self.sent, self.taken = [], []
        self.copies = []
        self.fresh = True  # not rolled back since the ends were linked last

    def send(self, count):
        for _ in range(count):
            if self.link.known:
                frame = b"%d" % self.random.getrandbits(60)  # what is sent after a rollback is news
                self.link.send(frame)
                self.sent.append(frame)

    def state(self):
        saved = self.link.saved()
        return saved.life, saved.known, saved.start, list(self.sent), list(self.taken)

    def save(self):
        self.copies.append((self.link.saved(), list(self.sent), list(self.taken)))

    def restart(self, copy):
        """Another process, with this copy of the store; as the broker does it."""
        saved, sent, taken = copy
        self.link = Link(BrokerId(self.name), saved.life)
        self.link.load(saved)
        self.link.start()
        self.sent, self.taken = list(sent), list(taken)

    def give_up(self):
        self.link.give_up(self.random.getrandbits(40))
        self.sent, self.taken = [], []

    def begin(self):
        self.sent, self.taken = [], []

    def take(self, frames):
        for frame in frames:
            if len(frame) > 4 and frame[4:] and _took(frame) is not None:
                self.link.forget(_took(frame))
            else:
                self.taken.append(frame)
                self.link.take()


def _took(frame):
    try:
        message = decode(frame[4:])
    except Exception:
        return None
    return message.taken if isinstance(message, Took) else None


def connect(caller, callee):
    """As brokers do. Returns whether the link went on, and who found out that its store is old."""
    behind = set()
    for _ in range(3):
        join = caller.link.join()
        if checked(callee, join, behind) or callee.link.is_over(join):
            callee.give_up()
        answer = callee.link.join()
        lines = Line(), Line()
        on = callee.link.connect(lines[1], join)
        if not on:
            callee.begin()
        if checked(caller, answer, behind):
            caller.give_up()
            callee.link.disconnect(lines[1])
            continue  # it calls again
        same = caller.link.connect(lines[0], answer)
        assert same == on, "one end goes on, and the other one begins from nothing"
        if not same:
            caller.begin()
        return on, behind, lines
    raise AssertionError("the ends do not come together")


def checked(end, join, behind):
    if end.link.is_behind(join):
        behind.add(end.name)
        return True
    return end.link.is_ahead(join)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_taken_is_what_was_sent(seed):
    random = Random(seed)
    ends = End("a", random), End("b", random)
    linked = False
    for _ in range(random.randint(1, 12)):
        caller, callee = random.sample(ends, 2)
        on, behind, lines = connect(caller, callee)
        if linked and caller.fresh and callee.fresh:
            assert on, "nobody was rolled back, and the link begins from nothing"
        if not on and linked:
            assert not (caller.fresh and callee.fresh)
        assert not behind & {end.name for end in ends if end.fresh}, "it was not rolled back"
        linked = True
        for sender, receiver in ((caller, callee), (callee, caller)):
            assert receiver.taken == sender.sent[: len(receiver.taken)]
        for end in ends:
            end.fresh = True
        for end, other, line in ((caller, callee, lines[0]), (callee, caller, lines[1])):
            end.send(random.choice([0, 1, TOOK_EVERY + 3]))
            cut = random.randint(0, len(line.out))
            other.take(line.out[:cut])
            other.link.confirm(all=random.random() < 0.5)
        for _, other, line in ((caller, callee, lines[0]), (callee, caller, lines[1])):
            other.take([one for one in line.out if _took(one) is not None])
        for end, line in ((caller, lines[0]), (callee, lines[1])):
            end.link.disconnect(line)
            end.send(random.choice([0, 0, 5]))
            if random.random() < 0.5:
                end.save()
            if random.random() < 0.3:
                end.save()
                end.restart(end.copies[-1])  # a crash
            if end.copies and random.random() < 0.3:
                before = end.state()
                del end.copies[
                    random.randrange(len(end.copies)) + 1 :
                ]  # what followed did not happen
                end.restart(end.copies[-1])
                end.fresh = before == end.state()
                end.send(random.choice([0, 5, 200]))  # on top of what it remembers
                if random.random() < 0.5:
                    end.save()
                    end.restart(end.copies[-1])


@pytest.mark.parametrize("seed", range(100))
def test_what_is_sent_before_the_link_ever_began_is_taken_or_its_end_begins_from_nothing(seed):
    """Whatever becomes of the first connections, and of the processes."""
    random = Random(seed)
    ends = End("a", random), End("b", random)
    gave_up, hopeless = set(), False
    for end in ends:
        end.link.expect()
    for _ in range(random.randint(0, 5)):
        caller, callee = random.sample(ends, 2)
        for end in ends:
            if end.name not in gave_up:
                end.sent += (frames := [b"%d" % random.getrandbits(60) for _ in range(3)])
                for frame in frames:
                    end.link.send(frame)
            if random.random() < 0.3:
                end.save()
                end.restart(end.copies[-1])  # a crash
        if random.random() < 0.1:
            caller.give_up()
            gave_up.add(caller.name)
            hopeless = True
        if random.random() < 0.7:  # the caller never reads the answer
            join = caller.link.join()
            if callee.link.is_over(join):
                callee.give_up()
                gave_up.add(callee.name)
            line = Line()
            if not callee.link.connect(line, join):
                gave_up.add(callee.name)
            callee.link.disconnect(line)
    caller, callee = random.sample(ends, 2)
    join = caller.link.join()
    assert not callee.link.is_behind(join)
    if callee.link.is_over(join):
        callee.give_up()
        gave_up.add(callee.name)
    answer, lines = callee.link.join(), (Line(), Line())
    assert not caller.link.is_behind(answer)
    for end, said, line in ((callee, join, lines[1]), (caller, answer, lines[0])):
        if not end.link.connect(line, said):
            gave_up.add(end.name)
            end.sent.clear()
    for end, line in ((caller, lines[0]), (callee, lines[1])):
        assert line.out == end.sent, "all of it, from the first message on"
    assert not gave_up or hopeless, "nobody had to"


def test_an_end_that_was_rolled_back_to_before_the_link_began_is_behind():
    link = Link(BrokerId("faro"), 7)
    link.expect()
    link.send(b"a")
    assert not link.is_behind(Join(8, 7, 0, 0)), "the other end was connected, and this one was not"
    assert link.is_behind(Join(8, 7, 1, 0))
    assert link.is_behind(Join(8, 7, 0, 1))
    assert not link.is_behind(Join(8, 6, 1, 1)), "of another life"


def test_a_neighbour_of_an_older_release_says_nothing_of_what_was_confirmed():
    link = Link(BrokerId("faro"), 7)
    link.begin(8)
    link.take()
    assert not link.is_behind(Join(8, 7, 0))
    assert link.is_behind(Join(8, 7, 0, 2))
    assert not link.is_ahead(Join(8, 7, 0))


def test_an_older_copy_of_a_neighbour_is_known_by_what_it_lacks():
    """Of an older release, which does not compare the counts itself: only this end can see it."""
    link = Link(BrokerId("faro"), 7)
    link.begin(8)
    for frame in (b"a", b"b", b"c"):
        link.send(frame)
    link.forget(2)
    assert link.is_ahead(Join(8, 7, 1))
    assert not link.is_ahead(Join(8, 7, 2)), "it has what it had confirmed"
    assert not link.is_ahead(Join(9, 7, 0)), "another generation: nothing was confirmed in it"


def test_a_link_begins_from_nothing_when_a_neighbour_of_an_older_release_was_rolled_back(caplog):
    """Once, what the neighbour had confirmed and forgotten was never sent again, and no client knew."""
    caplog.set_level(logging.WARNING, "wayfare")

    async def story():
        broker = BrokerHost("porto", {"faro": None})
        await broker.start(HERE)
        try:
            async with raw(broker, "faro") as faro:
                await faro.say(Join(8, 0, 0))
                first = await faro.hear(Join)
                await faro.hear(Announce)
                await faro.say(Took(1))
                async with asyncio.timeout(10):
                    while broker.links["faro"].join().confirmed < 1:
                        await asyncio.sleep(0.01)
            async with raw(broker, "faro") as faro:
                await faro.say(Join(8, first.life, 0))
                return first, await faro.hear(Join)
        finally:
            await broker.stop()

    first, second = asyncio.run(story())
    assert (second.known, second.taken) == (0, 0) and second.life != first.life
    assert "the store of faro was rolled back" in caplog.text
