"""One client that moves once: what became of what was published, simulated and live.

    move-out is called   the client is gone    move-in is called
            |                    |                     |
------------+--------------------+---------------------+------------>  published
             <---- lost_out ---->  <--- lost_away ----> <- lost_in -
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class Moved(msgspec.Struct, frozen=True):
    """Times are from calling move-in."""

    missed: int  # published while the client was away
    lost_out: int  # published between the call of move-out and its end, and lost
    lost_away: int  # of those that were missed
    lost_in: int  # published since move-in was called, and lost
    duplicates_away: int  # copies of what was published before
    duplicates_in: int  # ... and since
    first_ns: int | None  # to the first publication; None: there was none
    delay_ns: (
        int | None
    )  # to the last one of those that were missed, and come; if none does, to the first


def judge_move(
    sent: Mapping[int, int], got: Iterable[tuple[int, int]], out: int, gone: int, back: int
) -> Moved:
    """From when each number was published, and what came when, in this order."""
    first: dict[int, int] = {}  # when each came at first
    twice = {True: 0, False: 0}  # published since move-in, or before
    begin = None
    for number, time in got:
        if number in first:
            twice[sent[number] >= back] += 1
        first.setdefault(number, time)
        if begin is None and time >= back:
            begin = time
    lost = [time for number, time in sent.items() if number not in first]
    missed = [number for number, time in sent.items() if gone <= time < back]
    end = max((first[number] for number in missed if number in first), default=begin)
    return Moved(
        missed=len(missed),
        lost_out=sum(out <= time < gone for time in lost),
        lost_away=sum(gone <= time < back for time in lost),
        lost_in=sum(time >= back for time in lost),
        duplicates_away=twice[False],
        duplicates_in=twice[True],
        first_ns=None if begin is None else begin - back,
        delay_ns=None if end is None else end - back,
    )
