"""Heartbeats: every connection is checked once in each, and no turn of the loop checks all of them."""

import asyncio
import gc
import weakref

from wayfare.net.connection import Connection
from wayfare.net.heartbeat import SILENT_BEATS, TURN, Heartbeats
from wayfare.net.limits import DEFAULT_NET_LIMITS

BEAT_S = 0.1


class Peer(Connection):
    """A connection without a socket that knows in which turn of the loop it was checked."""

    def __init__(self, owner):
        super().__init__(owner, "porto", DEFAULT_NET_LIMITS)
        self.owner, self.speaks = owner, True

    def beat(self):
        self.owner.turns.append(self.owner.turn)
        self.heard |= self.speaks
        return super().beat()


class Owner:
    """Counts the turns of the loop."""

    def __init__(self):
        self.turn, self.turns = 0, []

    def on_output(self, connection):
        pass

    async def run(self, seconds):
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            self.turn += 1
            await asyncio.sleep(0)


def test_no_turn_of_the_loop_checks_more_than_a_few():
    async def check():
        owner, beats = Owner(), Heartbeats(BEAT_S)
        peers = [Peer(owner) for _ in range(10 * TURN)]
        for peer in peers:
            beats.add(peer)
        await owner.run(1.5 * BEAT_S)
        beats.stop()
        assert len(owner.turns) == len(peers)
        assert max(map(owner.turns.count, set(owner.turns))) <= TURN

    asyncio.run(check())


def test_each_is_checked_once_in_a_heartbeat_and_the_silent_are_cut_off():
    async def check():
        owner, beats = Owner(), Heartbeats(BEAT_S)
        alive, dead = Peer(owner), Peer(owner)
        dead.speaks = False
        beats.add(alive)
        await owner.run(BEAT_S / 2)
        beats.add(dead)
        await owner.run((SILENT_BEATS - 0.3) * BEAT_S)
        assert not dead.closing
        await owner.run(BEAT_S)
        assert dead.closing and dead.why == "silent"
        checked = len(owner.turns)
        await owner.run(2 * BEAT_S)
        assert not alive.closing
        assert 1 <= len(owner.turns) - checked <= 3  # the dead one is not checked again
        beats.stop()

    asyncio.run(check())


def test_a_closed_connection_is_not_kept_until_it_would_be_due():
    """It may have megabytes of an unfinished frame."""

    async def check():
        beats, gone = Heartbeats(3600), Peer(Owner())
        beats.add(gone)
        beats.on_closed(gone)
        known = weakref.ref(gone)
        del gone
        gc.collect()
        assert known() is None
        beats.stop()

    asyncio.run(check())


def test_a_peer_that_is_gone_takes_no_more_turns():
    async def check():
        owner, beats = Owner(), Heartbeats(BEAT_S)
        gone = Peer(owner)
        beats.add(gone)
        gone.abort("gone")
        await owner.run(1.5 * BEAT_S)
        assert owner.turns == []
        beats.add(Peer(owner))  # the timer runs again
        await owner.run(1.5 * BEAT_S)
        assert len(owner.turns) == 1
        beats.stop()

    asyncio.run(check())


def test_a_turn_in_which_all_connections_are_closed_is_not_the_last():
    """A silent peer is disconnected, and because of that, the broker closes the other connection at once."""

    async def check():
        owner, beats = Owner(), Heartbeats(BEAT_S)
        silent, other = Peer(owner), Peer(owner)
        closed = asyncio.Event()

        def close_both(_why):
            beats.on_closed(silent)
            beats.on_closed(other)
            closed.set()

        silent.speaks, silent.abort = False, close_both
        beats.add(silent)
        beats.add(other)
        await asyncio.wait_for(closed.wait(), 30)
        checked = len(owner.turns)
        beats.add(Peer(owner))
        await owner.run(1.5 * BEAT_S)
        assert len(owner.turns) > checked
        beats.stop()

    asyncio.run(check())
