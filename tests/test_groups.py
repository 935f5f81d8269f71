"""Queue groups: the coordinator, the member, and both in the simulator."""

import pytest
from msgspec.structs import replace

from wayfare.core import groups as g
from wayfare.core import membership as ms
from wayfare.core.broker import Broker
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Received, Send
from wayfare.core.filters import Filter
from wayfare.core.groups import Assign, Done, Expelled, Group, Lease, Leave, Member, Missed, Poll
from wayfare.core.history import Limits, Stored
from wayfare.core.membership import Enrol, Joined, Lacking, Listen, Membership, Ready, Tell, Work
from wayfare.core.messages import Attach, Deliver, Enlist, Notification
from wayfare.sim import World, check, scenario
from wayfare.sim.faults import Crash, Cut, Faults, Rollback
from wayfare.sim.links import MS_NS, SECOND_NS

F = Filter.parse("price > 0")
AWAY = 9_000
LIMITS = Limits(backlog_count=3, group_ns=100_000)


def note(number):
    return Notification("ticker", number, {"price": number})


def stored(number):
    return Stored(note(number), 10)


def enlist(member, beat=1, prefetch=2):
    return Enlist("workers", F, member, beat, prefetch, AWAY)


@pytest.fixture
def group():
    one = Group("workers", F, 0)
    one.confirm()
    return one


# The coordinator


def test_members_get_notifications_in_turn_as_many_as_they_may_have(group):
    for name in "ab":
        assert group.enlist(enlist(name), 5) == [(name, Lease("ab".index(name) + 1, 1))]
    for number in range(1, 6):
        assert group.put(stored(number), Limits(), 0) == []
    said = [(name, one.number, one.redelivered) for name, one in group.assign(10)]
    assert said == [("a", 1, 0), ("b", 2, 0), ("a", 3, 0), ("b", 4, 0)]
    answers, done = group.on_done(Done("b", 2, (2,), 7), 20)
    assert answers == [] and [one.notification.number for one in done] == [2]
    assert group.assign(20) == [("b", Assign(2, 5, note(5), 0, 7))]


def test_what_is_said_to_a_coordinator_that_was_forgotten_is_not_taken_for_something_else():
    earlier, later = Group("workers", F, 0), Group("workers", F, 500)
    ((_, lease),) = [*earlier.enlist(enlist("a"), 0), *earlier.confirm()]
    later.confirm()
    later.enlist(enlist("a"), 500)
    later.put(stored(1), Limits(), 501)
    assert len(later.assign(501)) == 1
    said, done = later.on_done(Done("a", lease.term, (1,), 2), 502)
    assert said == [("a", Expelled(lease.term))] and done == []


def test_what_was_assigned_before_a_rollback_has_another_number(group):
    ((_, lease),) = group.enlist(enlist("a"), 0)
    group.roll_back(500)  # it was member before the copy was made, and got more since
    group.put(stored(1), Limits(), 501)
    assert len(group.assign(501)) == 1
    _, done = group.on_done(Done("a", lease.term, (1,), 2), 502)
    assert done == []


def test_nothing_is_assigned_before_the_group_is_in_effect():
    group = Group("workers", F, 0)
    assert group.enlist(enlist("a"), 0) == []
    group.put(stored(1), Limits(), 0)
    assert group.assign(0) == []
    assert group.confirm() == [("a", Lease(1, 1))]
    assert len(group.assign(0)) == 1


def test_what_a_silent_member_has_goes_to_another_one_and_it_begins_a_new_term(group):
    group.enlist(enlist("a"), 0)
    group.put(stored(1), Limits(), 0)
    group.put(stored(2), Limits(), 0)
    group.assign(1_000)
    group.enlist(enlist("b"), 2_000)
    assert group.next_deadline(100_000) == 1_000 + AWAY, "it has something since then"
    group.on_done(Done("a", 1, (), 2), 5_000)
    assert group.mind_silent(100_000, 5_000 + AWAY - 1) == []
    assert [*group.members] == ["b", "a"] or "a" in group.members
    assert group.mind_silent(100_000, 5_000 + AWAY) == [("a", Expelled(1))]
    assert [*group.members] == ["b"]
    assert [(one.number, one.redelivered) for _, one in group.assign(20_000)] == [(1, 1), (2, 1)]
    answers, done = group.on_done(Done("a", 1, (1,), 3), 20_001)
    assert (answers, done) == ([("a", Expelled(1))], []), "that was void"
    assert group.enlist(enlist("a", 4), 20_002) == [("a", Lease(3, 4))]


def test_who_leaves_gives_back_in_order(group):
    group.enlist(enlist("a"), 0)
    for number in (1, 2, 3):
        group.put(stored(number), Limits(), 0)
    group.assign(0)
    group.remove("a", 7)
    assert [one.number for one in group.queue] == [1, 2, 3]
    assert group.empty_ns == 7 and group.next_deadline(100) == 107


def test_an_idle_member_is_asked_whether_it_is_there(group):
    group.enlist(enlist("a"), 0)
    assert group.mind_silent(100_000, 99_999) == []
    assert group.mind_silent(100_000, 100_000) == [("a", Poll(1, 1))]
    group.on_done(Done("a", 1, (), 2), 100_500)
    assert group.next_deadline(100_000) == 200_500
    group.mind_silent(100_000, 200_500)
    group.mind_silent(100_000, 200_500 + AWAY)
    assert group.members == {}


def test_a_queue_has_a_limit_and_a_member_is_told(group):
    dropped = [one for number in range(1, 6) for one in group.put(stored(number), LIMITS, 0)]
    assert [one.notification.number for one in dropped] == [1, 2]
    group.enlist(enlist("a"), 0)
    said = group.assign(0)
    assert said[0] == ("a", Missed(2, g.QUEUE_COUNT, 1))
    assert [one.number for _, one in said[1:]] == [3, 4]


@pytest.mark.parametrize("heard", [False, True])
def test_a_loss_of_which_only_a_member_that_is_gone_was_told_is_told_again(group, heard):
    group.enlist(enlist("a"), 0)
    group.lose(2, "memory")
    assert group.assign(0) == [("a", Missed(2, "memory", 1))]
    group.on_done(Done("a", 1, (), 2, missed=int(heard)), 1)
    group.remove("a", 2)
    group.enlist(enlist("b"), 3)
    told = [one for _, one in group.assign(3)]
    assert told == ([] if heard else [Missed(2, "memory", 2)])


def test_reports_that_nobody_hears_are_bounded(group):
    group.enlist(enlist("a"), 0)
    for _ in range(g.REPORTS_MAX + 5):
        group.lose(1, "memory")
        group.assign(0)
    assert len(group.reports) == g.REPORTS_MAX
    group.remove("a", 1)
    assert group.lost == g.REPORTS_MAX + 5


def test_what_may_be_lost_on_the_way_is_sent_again(group):
    group.enlist(enlist("a"), 0)
    group.put(stored(1), Limits(), 0)
    group.put(stored(2), Limits(), 0)
    group.assign(0)
    answers, _ = group.on_done(Done("a", 1, (), 2, has=(1,)), 5)
    assert answers == [("a", Lease(1, 2)), ("a", Assign(1, 2, note(2), 0, 2))]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91\x01", b"\x93\x09\x01\x02"], ids=repr)
def test_nonsense_is_nothing(payload):
    assert g.from_member(payload) is None and g.to_member(payload) is None


def test_all_brokers_choose_the_same_coordinator():
    brokers = ["porto", "lisbon", "faro", "evora"]
    ids = [g.group_id(f"g{number}", F) for number in range(40)]
    chosen = [g.coordinator(one, brokers) for one in ids]
    assert chosen == [g.coordinator(one, brokers[::-1]) for one in ids]
    assert {*chosen} == {*brokers}, "they share the work"


# The member


def member(prefetch=2):
    one = Membership("workers", F, "a", prefetch, AWAY)
    assert one.begin() == [Listen(Filter.parse("$member = 'a'"), one.offered)]
    (enrol,) = one.on_listening(100)
    assert enrol == Enrol(enlist("a", 1, prefetch))
    return one


def came(message, publisher="group:1"):
    return Notification(publisher, 1, {"$member": "a"}, g.encoded(message))


def told(actions):
    (tell,) = actions
    assert isinstance(tell, Tell)
    return g.from_member(tell.payload)


def tells(actions):
    return [one for one in actions if isinstance(one, Tell)]


def test_a_member_hands_out_while_its_lease_holds():
    one = member()
    assert one.on_notified(came(Lease(1, 1)), 300) == [Joined()]
    assert one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 301) == [Ready()]
    assert one.take(100 + AWAY - 1) == (Work((1, 5), note(5), 0), [])
    assert one.take(100 + AWAY - 1) == (None, [])
    assert one.done((1, 5)) and told(one.flush(9_200)) == Done("a", 1, (5,), 2)
    assert one.next_deadline() == 9_200 + AWAY // 3, "it may wait, and is not answered"


def test_a_member_asks_first_when_its_lease_is_over():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    late = 100 + AWAY
    assert told(one.on_notified(came(Assign(1, 5, note(5), 0, 1)), late)) == Done("a", 1, (), 2)
    assert one.on_notified(came(Assign(1, 6, note(6), 0, 1)), late + 1) == [], "it has asked"
    assert one.take(late + 2) == (None, []), "the application, too, waits for the answer"
    assert one.on_notified(came(Lease(1, 2)), late + 50) == [Ready()]
    assert [one.take(late + 51)[0].number for _ in range(2)] == [(1, 5), (1, 6)]


def test_an_application_that_reads_late_waits_for_the_lease():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    assert one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300) == [Ready()]
    late = 100 + AWAY
    one.on_disconnected()
    assert one.take(late) == (None, []), "nobody is there who could be asked"
    one.connected = True
    work, actions = one.take(late)
    assert work is None and told(actions) == Done("a", 1, (), 2)
    assert one.on_notified(came(Lease(1, 2)), late + 50) == [Ready()]
    assert one.take(late + 51)[0].number == (1, 5)


def test_what_waits_for_a_late_reader_that_was_given_up_is_void():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300)
    (enrol,) = one.on_notified(came(Expelled(1)), 2 * AWAY)
    assert one.on_notified(came(Lease(2, enrol.message.beat)), 2 * AWAY + 1) == []
    assert one.take(2 * AWAY + 2) == (None, [])


def test_what_the_application_puts_back_comes_first_unless_it_is_void():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    for number in (5, 6):
        one.on_notified(came(Assign(1, number, note(number), 0, 1)), 300)
    work, _ = one.take(301)
    one.put_back(work.number, 1)
    assert one.take(302) == (Work((1, 5), note(5), 1), [])
    assert one.next_deadline() is not None, "it is renewed"
    one.on_notified(came(Expelled(1)), 2 * AWAY)
    one.put_back(work.number, 2)
    assert one.take(2 * AWAY) == (None, []) and not one.done(work.number)


def test_what_was_assigned_to_a_member_that_was_given_up_is_void():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    late = 100 + AWAY
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), late)
    (enrol,) = one.on_notified(came(Expelled(1)), late + 50)
    assert isinstance(enrol, Enrol)
    assert one.on_notified(came(Lease(2, enrol.message.beat)), late + 100) == []
    assert one.on_notified(came(Assign(1, 6, note(6), 0, 2)), late + 101) == []
    one.on_notified(came(Assign(2, 7, note(7), 1, enrol.message.beat)), late + 102)
    assert one.take(late + 103) == (Work((2, 7), note(7), 1), [])


def test_a_coordinator_that_has_forgotten_begins_anew():
    one = member()
    one.on_notified(came(Lease(7, 1)), 300)
    check_has, enrol = one.on_lost(400)
    assert told([check_has]).has == () and isinstance(enrol, Enrol)
    assert one.on_notified(came(Lease(9, 1), "group:0"), 500) == [] and one.term == 7, "an old one"
    one.on_notified(came(Lease(1, enrol.message.beat), "group:2"), 500)
    assert one.term == 1


def test_what_was_lost_before_a_member_knew_that_it_is_one_is_asked_for():
    one = member()
    (enrol,) = one.on_lost(200)
    answer = came(Lease(1, enrol.message.beat))
    joined, check = one.on_notified(answer, 300)
    assert joined == Joined() and told([check]).has == ()


def test_a_member_that_was_told_of_a_loss_enlists_until_it_is_heard():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_lost(400)
    one.on_disconnected()
    (again,) = one.on_connected(500)
    assert again == Enrol(enlist("a", beat=4)), "the one before was lost with the connection"
    one.on_notified(came(Lease(1, 2)), 600)
    actions = one.tick(500 + AWAY)
    assert actions[-1] == Enrol(enlist("a", beat=5))
    one.on_notified(came(Lease(1, 5)), 700 + AWAY)
    while (due := one.next_deadline()) is not None:
        assert one.tick(due) == []


def test_the_same_assignment_twice_is_one():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    for time in (301, 302):
        assert one.on_notified(came(Assign(1, 5, note(5), 0, 1)), time) == [Ready()]
    assert one.take(303)[0].number == (1, 5)
    assert one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 304) == []


def test_what_is_done_is_said_again_until_the_coordinator_answers():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    for number in (5, 6):
        one.on_notified(came(Assign(1, number, note(number), 0, 1)), 300)
        one.take(300)
    assert one.done((1, 5)) and told(one.flush(310)) == Done("a", 1, (5,), 2), "lost on its way"
    check_done, _ = one.on_lost(400)
    assert told([check_done]) == Done("a", 1, (5,), 3, has=(6,))
    assert one.tick(400 + AWAY // 3) == [Enrol(enlist("a"))], "it is on its way, and may wait"
    later = 400 + 2 * ACK_DELAY_NS + 1
    check_done, _ = one.on_lost(later)
    assert told([check_done]) == Done("a", 1, (5,), 5, has=(6,)), "lost, too"
    one.on_notified(came(Lease(1, 6)), later + 100)
    assert told(one.tick(one.next_deadline())) == Done("a", 1, (), 7), "it was answered"


def test_a_member_that_is_told_of_one_loss_after_another_asks_later_each_time():
    """Or the answers to all members of a client may be the next loss, for ever."""
    one, now, pauses = member(), 300, []
    one.on_notified(came(Lease(1, 1)), now)
    assert len(one.on_lost(now)) == 2
    for _ in range(7):
        assert one.on_lost(now + 1) == one.on_lost(now + 2) == [], "not yet; once for both"
        before = now
        while not any(told([said]).has == () for said in tells(one.tick(now))):
            now = one.next_deadline()
        pauses.append((now - before - 1) // ACK_DELAY_NS)
    assert pauses[0] >= 1 and pauses[1] >= 2 and pauses[4] >= 16 and pauses[-1] < 32
    now += 2 * ms.PAUSE_MAX_NS + 1
    assert len(one.on_lost(now)) == 2, "the next one comes long after"


def test_a_member_that_waits_to_ask_what_it_missed_asks_when_it_is_connected_again():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_lost(300)
    assert one.on_lost(301) == []
    one.on_disconnected()
    assert Enrol in {type(action) for action in one.on_connected(302)}
    assert told(one.on_notified(came(Lease(1, 4)), 303)).has == ()


def test_a_member_says_again_what_a_coordinator_that_answers_has_not_heard():
    """Where it has just come to, some relocation strategies lose what a publisher says."""
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300)
    one.take(300)
    assert one.done((1, 5)) and told(one.flush(310)) == Done("a", 1, (5,), 2), "lost"
    now = 310
    while (now := now + 3 * SECOND_NS) < 310 + ms.UNHEARD_MAX_NS:
        one.on_notified(came(Lease(1, 1)), now - AWAY // 3)  # so it is not asked for long
        assert tells(one.tick(now)) == []
    one.on_notified(came(Lease(1, 1)), now - AWAY // 3)
    said, enlisted = one.tick(now)
    assert told([said]) == Done("a", 1, (5,), 3, has=()) and enlisted == Enrol(enlist("a"))
    one.on_notified(came(Lease(1, 3)), now + 10)
    while (due := one.next_deadline()) is not None:
        assert one.tick(due) == []


def test_what_is_assigned_again_after_it_was_done_is_done():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300)
    one.take(300)
    assert one.done((1, 5)) and told(one.flush(310)) == Done("a", 1, (5,), 2)
    assert told(one.on_notified(came(Assign(1, 5, note(5), 0, 2)), 320)) == Done("a", 1, (5,), 3)


def test_a_member_renews_while_it_has_something_and_is_connected():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300)
    assert one.next_deadline() == 300 + AWAY // 3
    assert told(one.tick(300 + AWAY // 3)) == Done("a", 1, (), 2)
    one.on_notified(came(Lease(1, 2)), 300 + AWAY // 2)
    one.on_disconnected()
    assert one.next_deadline() is None
    assert told(one.on_connected(20_000)) == Done("a", 1, (), 3)
    assert told(one.leave(20_001)) == Leave("a")
    assert one.next_deadline() is None and one.leave(20_002) == []


def test_renewals_do_not_pile_up_while_the_coordinator_cannot_be_reached():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300)
    one.take(300)
    assert told(one.tick(one.next_deadline())) == Done("a", 1, (), 2)
    again = [one.tick(one.next_deadline()) for _ in range(3)]
    keep_alive = Enrol(enlist("a"))
    assert again == [[keep_alive], [keep_alive], []] and one.next_deadline() is None
    one.on_disconnected()
    assert one.on_connected(20_000) == [keep_alive], "an answer may have been lost meanwhile"
    again = [one.tick(one.next_deadline()) for _ in range(3)]
    assert again == [[keep_alive], [keep_alive], []] and one.next_deadline() is None
    assert one.on_notified(came(Poll(1, 1)), 40_001) == []
    one.on_notified(came(Lease(1, 2)), 90_000)
    assert one.next_deadline() == 90_000, "the lease is over since long"
    assert told(one.tick(90_000)) == Done("a", 1, (), 3)


def test_a_member_whose_publications_wait_enlists_again_without_extending_its_lease():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    one.on_notified(came(Assign(1, 5, note(5), 0, 1)), 300)
    one.take(300)
    one.done((1, 5))
    assert told(one.flush(400)) == Done("a", 1, (5,), 2), "this is not answered, and it may wait"
    for _ in range(10):
        now = one.next_deadline()
        assert one.tick(now) == [Enrol(enlist("a"))]
        assert one.on_notified(came(Lease(1, 1)), now) == []
    one.on_notified(came(Assign(1, 6, note(6), 0, 1)), now + 2)
    assert one.take(now + 3) == (None, []), "it has asked for a longer lease"
    assert one.on_notified(came(Lease(1, one._beat)), now + 4) == [Ready()]
    assert one._unheard_ns is None and one.take(now + 5)[0] is not None


def test_a_coordinator_knows_that_a_member_is_there_whose_publications_wait():
    group = g.Group("workers", F, 0)
    group.enlist(enlist("a"), 0)
    group.confirm()
    group.put(stored(5), LIMITS, 1)
    ((_, assigned),) = group.assign(1)
    for now in range(AWAY // 3, 3 * AWAY, AWAY // 3):
        assert group.enlist(enlist("a"), now) == [("a", Lease(1, 1))]
        assert group.mind_silent(AWAY, now) == []
    done = Done("a", 1, (assigned.number,), 2)
    assert [one.notification for one in group.on_done(done, 3 * AWAY)[1]] == [note(5)]


def test_a_loss_is_told():
    one = member()
    one.on_notified(came(Lease(1, 1)), 300)
    lacking, tell = one.on_notified(came(Missed(3, "group_count", 7)), 300)
    assert lacking == Lacking(3, "group_count")
    assert told([tell]) == Done("a", 1, (), 2, missed=7)


# In the simulator


@pytest.fixture
def world():
    one = World(seed=1)
    one.add_brokers([("porto", "lisbon"), ("lisbon", "faro"), ("lisbon", "evora")])
    one.add_client("ticker", "faro").advertise("price > 0")
    one.settle()
    return one


def joined(world, *places, **options):
    some = [world.add_client(f"m{number}", place) for number, place in enumerate(places)]
    members = [one.join("workers", F, **options) for one in some]
    world.settle()
    assert all(one.term for one in members)
    return some


def publish(world, first, last):
    for number in range(first, last + 1):
        world.client("ticker").publish({"price": number})


def handed(world):
    return [(who, work.notification.attributes["price"]) for _, who, _, work in world.handed]


def test_each_goes_to_one_member_while_members_move(world):
    anna, bert = joined(world, "porto", "evora")
    for first in range(1, 41, 10):
        publish(world, first, first + 9)
        anna.attach("faro" if anna.home == "porto" else "porto")
        world.run_until(world.now + 20 * MS_NS)
        bert.disconnect()
        world.run_until(world.now + 20 * MS_NS)
        bert.attach("lisbon")
    world.settle()
    assert sorted(price for _, price in handed(world)) == list(range(1, 41))
    assert {who for who, _ in handed(world)} == {"m0", "m1"}
    assert check(world).violations == ()


def test_a_member_that_vanishes_has_its_part_done_by_another_one_and_not_by_itself(world):
    anna, bert = joined(world, "porto", "evora")
    anna.disconnect()
    publish(world, 1, 4)
    world.settle()
    assert [who for who, _ in handed(world)] == ["m1", "m1"]
    world.run_until(world.now + 15_000 * MS_NS)
    anna.attach("faro")
    world.settle()
    assert sorted(price for _, price in handed(world)) == [1, 2, 3, 4]
    assert {who for who, _ in handed(world)} == {"m1"}
    assert {work.redelivered for *_, work in world.handed} == {0, 1}
    del bert


def test_a_coordinator_that_crashes_goes_on_where_it_was(world):
    joined(world, "porto", "evora", prefetch=1)
    (there,) = [name for name, one in world.brokers.items() if one.core.groups.groups]
    publish(world, 1, 10)
    world.run_until(world.now + 12 * MS_NS)
    world.plan(Faults(crashes=(Crash(there, world.now, 500 * MS_NS),)))
    publish(world, 11, 20)
    world.settle()
    world.run_until(world.now + 60_000 * MS_NS)
    world.settle()
    assert sorted(price for _, price in handed(world)) == list(range(1, 21))
    assert check(world).violations == ()


def test_a_cut_for_longer_than_a_lease(world):
    joined(world, "porto", "evora", away_ns=1_000 * MS_NS)
    publish(world, 1, 5)
    world.plan(Faults(cuts=(Cut("porto", "lisbon", world.now + 15 * MS_NS, 5_000 * MS_NS),)))
    publish(world, 6, 10)
    world.settle()
    world.run_until(world.now + 20_000 * MS_NS)
    world.settle()
    assert {price for _, price in handed(world)} == set(range(1, 11))
    assert check(world).violations == ()


def test_a_member_that_fails_over_costs_the_others_no_report_of_a_loss():
    assert scenario.play(scenario.shipped()["member-fails-over"]).world.missed == []


def test_a_members_broker_that_forgets_the_tree_chooses_no_second_coordinator(world):
    joined(world, "porto", "evora", prefetch=1)
    (there,) = [name for name, one in world.brokers.items() if one.core.groups.groups]
    assert there != "porto"
    publish(world, 1, 10)
    world.run_until(world.now + 12 * MS_NS)
    rollback, cut = (
        Rollback("porto", None, world.now, 10 * MS_NS),
        Cut("porto", "lisbon", world.now, 1_000 * MS_NS),
    )
    world.plan(Faults(rollbacks=(rollback,), cuts=(cut,)))
    world.run_until(world.now + 500 * MS_NS)
    publish(world, 11, 20)
    world.settle()
    assert [name for name, one in world.brokers.items() if one.core.groups.groups] == [there]
    assert sorted(price for _, price in handed(world)) == list(range(1, 21))


def test_without_members_the_queue_is_kept_for_a_while_and_then_reported(world):
    (anna,) = joined(world, "porto")
    (member, _) = anna.memberships["m0/1/0"]
    anna.quit(member)
    publish(world, 1, 3)
    world.settle()
    anna.join("workers", F)
    world.settle()
    assert sorted(price for _, price in handed(world)) == [1, 2, 3]
    (again,) = [one for one, _ in anna.memberships.values() if not one.left]
    anna.quit(again)
    publish(world, 4, 5)
    world.settle()
    world.run_until(world.now + 2 * world.limits.group_ns)
    assert not any(one.core.groups.groups for one in world.brokers.values())
    anna.join("workers", F)
    world.settle()
    ((reported,),) = world.lacking.values()
    assert reported[1] == 2


def test_the_oracle_sees_what_goes_wrong(world, monkeypatch):
    """Without leases, a member that was given up hands out what somebody else has."""
    monkeypatch.setattr(Membership, "_extend", lambda self, _: setattr(self, "_lease_until", 2**62))
    anna, bert = joined(world, "porto", "evora")
    anna.disconnect()
    publish(world, 1, 4)
    world.settle()
    world.run_until(world.now + 15_000 * MS_NS)
    anna.attach()
    world.settle()
    assert {one.rule for one in check(world).violations} == {"shared"}
    world.handed.clear()
    found = [str(one) for one in check(world).violations]
    assert any("nobody in the queue group" in one for one in found)
    del bert


def shared(world):
    return [one for one in check(world).violations if one.rule == "shared"]


def nobody_got_four(world):
    """The members are there, and no record says that they got what was published."""
    joined(world, "porto", "evora")
    world.log("lost", client="m0", count=0, reason="long before")
    world.run_until(world.now + 1)
    publish(world, 1, 4)
    world.settle()
    assert len(world.handed) == 4
    world.handed.clear()


def test_the_oracle_wants_every_loss_of_a_group_to_be_reported(world):
    """A report of a number is of so many, and one of an unknown number is of what was published before it."""
    nobody_got_four(world)
    (found,) = shared(world)
    assert found.what.endswith("got ticker 1, ticker 2, ticker 3, ticker 4")
    world.log("lost", client="m1", count=2, reason="backlog_count")
    world.lacking["m0/1/0"] = [(world.now, 1)]
    assert shared(world) == [found]
    world.lacking["m0/1/0"].append((world.now, 1))
    assert shared(world) == []


@pytest.mark.parametrize("heard_of_by", ["the member", "its client"])
def test_a_report_of_an_unknown_number_is_enough_for_the_oracle(world, heard_of_by):
    nobody_got_four(world)
    if heard_of_by == "the member":
        world.lacking["m0/1/0"] = [(world.now, 0)]
    else:
        world.log("lost", client="m1", count=0, reason="a link began from nothing")
    assert shared(world) == []


def test_the_oracle_wants_to_know_what_a_coordinator_has_forgotten(world):
    """What it assigns again may come twice; what it does not assign any more is reported."""
    nobody_got_four(world)
    (there,) = [name for name, one in world.brokers.items() if one.core.groups.groups]
    world.rolled_back.add(there)
    assert len(shared(world)) == 1


@pytest.mark.parametrize("copied", [False, True])
def test_what_a_coordinator_forgets_is_reported_to_its_members(world, copied):
    world.worker = lambda *_: None
    anna, bert = joined(world, "porto", "evora", prefetch=1)
    (there,) = [name for name, one in world.brokers.items() if one.core.groups.groups]
    copied_ns = world.now if copied else None
    world.plan(Faults(rollbacks=(Rollback(there, copied_ns, world.now + 100 * MS_NS, MS_NS),)))
    world.run_until(world.now + MS_NS)
    publish(world, 1, 5)
    world.run_until(world.now + 2_000 * MS_NS)
    assert len(handed(world)) == 2
    told = [count for reports in world.lacking.values() for _, count in reports]
    told += [one.count for one in world.events if one.kind == "lost" and one.client != "ticker"]
    assert 0 in told
    del anna, bert


def test_the_oracle_sees_what_two_members_get(world, monkeypatch):
    """A coordinator that gives up on members which are there."""
    monkeypatch.setattr(Member, "silent_at", lambda self: self.busy_ns + 1_000 * MS_NS)
    world.worker = lambda host, one, work: world.agenda.at(
        world.now + 8_000 * MS_NS, lambda _: host.done(one, work.number)
    )
    joined(world, "porto", "evora")
    publish(world, 1, 4)
    world.run_until(world.now + 11_000 * MS_NS)
    assert any("was there" in str(one) for one in check(world).violations)


def test_ms_defaults_are_what_the_docs_say():
    assert (ms.PREFETCH, ms.AWAY_NS) == (16, 10_000 * MS_NS)


def test_another_group_costs_the_same_however_many_there_are(monkeypatch):
    """Each group was once made of the subscriptions of all others: 1,000 groups took 9 seconds."""
    core = Broker("porto")
    made = []
    where = Filter.where
    monkeypatch.setattr(Filter, "where", lambda one: made.append(one) or where(one))
    for number in range(20):
        made.clear()
        core.groups.on_convene(Enlist(f"workers {number}", F, "anna", 1, 1, AWAY), 0)
        assert len(made) == 1
    assert len(core.groups.session.subscriptions) == 21
    for group in list(core.groups.groups.values()):
        made.clear()
        core.groups._end(group, 0)
        assert len(made) == 1
    assert not core.groups.session.subscriptions


def begun(core, account, *names, now=5):
    """Which of these groups an account may begin, and what it is told of the others."""
    told = {}
    for name in names:
        enlisted = replace(enlist(f"member {name}"), group=name, client="c", account=account)
        for effect in core.groups.on_convene(enlisted, now):
            if isinstance(effect, Send) and type(effect.message) is Deliver:
                said = g.to_member(effect.message.notification.payload)
                assert isinstance(said, g.Full)
                told[name] = said.reason
        assert (g.group_id(name, F) in core.groups.groups) != (name in told)
    return told


def test_an_account_begins_no_more_groups_than_have_room_beside(monkeypatch):
    monkeypatch.setattr(g, "GROUPS_MAX", 10)
    core = Broker("porto")
    addresses = tuple(Filter.parse(f"$member = 'member {name}'") for name in "abcdefghijkl")
    core.step(Received("l", Attach("anna", 1, 0, addresses)), 0)
    assert [*begun(core, "eve", *"abcdef")] == ["f"]
    told = begun(core, "eve", "f")["f"]
    assert "the account eve has begun 5 of the queue groups that porto coordinates" in told
    assert "which are 5: close the members of groups that are not needed" in told
    assert begun(core, "eve", *"abc", "e") == {}, "those are there"
    assert [*begun(core, "tom", *"ghij")] == ["j"]
    assert begun(core, "", *"jk") == {}, "who has no account has no share"
    told = begun(core, "zoe", "l")["l"]
    assert "porto coordinates 10 queue groups, and has no room: close" in told
    assert core.groups.facts()["refused"] == 4

    again = Broker("porto")
    core.pay()
    again.load(core.save())
    for one in (core, again):
        for name in "abcd":
            one.groups._end(one.groups.groups[g.group_id(name, F)], 6)
        assert [*begun(one, "tom", "l", now=99)] == []
        assert [*begun(one, "eve", *"abcd", now=99)] == ["b", "c", "d"]
        for group in list(one.groups.groups.values()):
            one.groups._end(group, 6)
        assert not one.groups._owned


def test_a_member_for_whose_group_there_is_no_room_asks_again():
    one = Membership("workers", F, "a")
    one.begin()
    one.on_listening(0)
    assert one.on_notified(came(g.Full("no room")), 10) == [ms.NoRoom("no room")]
    (again,) = one.tick(one.next_deadline())
    assert again.message.member == "a"
    assert one.on_notified(came(Lease(1, 2)), ms.AWAY_NS + 10) == [Joined()]
    # Its coordinator has forgotten it, and is full.
    assert one.on_notified(came(g.Full("no room")), ms.AWAY_NS + 20) == [Lacking(0, "no room")]
