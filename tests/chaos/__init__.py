"""Chaos: real broker and client processes, random faults, and a judge that no time-out satisfies.

    plan.py      a seed gives the brokers, the clients and every fault with its time
    network.py   the processes, and the TCP relays between them
    faults.py    one function for each kind of fault
    client.py    the program that every client process runs
    journal.py   what the client processes write down, and how it is read
    judge.py     compares what was confirmed with what was delivered
    rounds.py    plays a plan, waits until everything has arrived, and has it judged

`make chaos` plays for ten minutes; `tests/test_chaos.py` plays a short round.
"""
