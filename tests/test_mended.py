"""What once went wrong with clients that move, each with its story."""

import pytest

from roads import TREE, Roads, homes, lost, network, publish, session_of, xs
from wayfare.core.broker import DEFAULT_LIMITS, Broker
from wayfare.core.effects import Close, LinkUp, Lost, Received, Send
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.history import Limits
from wayfare.core.messages import (
    Announce,
    Attach,
    BrokerId,
    ClientId,
    LinkId,
    Request,
    State,
    Update,
)
from wayfare.core.places import of_edges
from wayfare.core.relocation import NO_SESSION
from wayfare.core.virtual import Ahead
from wayfare.sim import World, check
from wayfare.sim.fuzz import Fuzz, Job, fuzz
from wayfare.sim.links import MS_NS

ANSWER_NS = DEFAULT_LIMITS.answer_ns
AWAY_NS = DEFAULT_LIMITS.away_ns


def forget(net, broker, name):
    """The broker loses all that it knew of a client."""
    core = net.brokers[broker]
    for session in core.border.of(name):
        core.border.end(session, 0)
    core.border.tombstones.clear()
    net._perform(broker, core._with_updates([]))
    net.settle()


def publisher(**more):
    """Pia publishes at porto, anna is at braga."""
    net = Roads(*TREE, **more)
    net.subscribe("anna", "x > 0")
    net.attach("anna", "braga")
    for name in ("pia", "tom"):  # for tom's sake everybody at porto knows what anna wants
        net.advertise(name, "x > 0")
        net.attach(name, "porto")
    net.settle()
    publish(net, 1, who="pia")
    return net


@pytest.mark.parametrize("lost_attachment", [False, True])
def test_a_late_reply_follows_a_session_past_a_request_that_came_by(lost_attachment):
    """What a passing request leaves behind must not hide where the session went."""
    net = network(*TREE, "lisbon-evora", at="porto")
    net.cut("anna")
    net.stop("porto", "lisbon")
    net.stop("lisbon", "porto")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS)
    net.settle()
    net.move("anna", "braga")
    if lost_attachment:
        net.attach("anna", "faro")
        link = net.clients["anna"].link
        net._wires["anna", link].cut()
        net._wires["faro", link].cut()
    net.move("anna", "evora")
    publish(net, 7)
    net.go()
    publish(net, 8)
    assert net.got("anna") == xs(7, 8)
    assert homes(net) == [("evora", 5 if lost_attachment else 4)]


def test_a_session_that_somebody_waits_for_does_not_wait_for_ever():
    """Porto is dead; faro hands to braga what it has when its own time is up."""
    net = network()
    net.cut("anna")
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 1, 2)
    net.move("anna", "braga")
    net.pass_time(3 * ANSWER_NS)
    net.settle()
    publish(net, 3)
    assert homes(net) == [("braga", 3)]
    assert net.got("anna") == xs(1, 2, 3)
    assert Lost(0, NO_ANSWER) in lost(net)


def test_a_publisher_leaves_whom_its_old_broker_has_forgotten():
    net = publisher()
    net.cut("pia")
    forget(net, "porto", "pia")
    net.stop("lisbon", "faro")
    net.attach("pia", "faro")
    net.publish("pia", x=2)
    net.settle()
    net.detach("pia", leave=True)
    net.settle()
    net.go()
    assert net.got("anna") == xs(1, 2)
    assert homes(net, "pia") == []


def test_a_publisher_leaves_whose_old_broker_is_dead():
    net = publisher()
    net.cut("pia")
    net.stop("porto", "lisbon")
    net.attach("pia", "faro")
    net.publish("pia", x=2)
    net.settle()
    net.detach("pia", leave=True)
    net.settle()
    for _ in range(4):  # what was put off for it arrives before it waits no longer
        net.pass_time(ANSWER_NS // 2)
        net.settle()
    assert net.got("anna") == xs(1, 2)
    assert homes(net, "pia") == []


def test_an_orphan_whose_connection_never_ends_goes_when_its_client_is_elsewhere():
    net = network()
    net.cut("anna")
    forget(net, "porto", "anna")
    net.move("anna", "faro")
    assert session_of(net, "faro").orphan
    assert lost(net) == [Lost(0, NO_SESSION)]
    net.clients["anna"].link = None  # faro does not notice
    net.move("anna", "braga")
    assert homes(net) == [("braga", 3)]


def test_what_comes_late_is_not_for_a_client_that_began_anew():
    """She said goodbye for good; what she had before must not follow her."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.clients["anna"].detach(leave=True)  # her goodbye is lost
    net.move("anna", "faro")
    net.move("anna", "braga")
    publish(net, 2)
    net.go()
    assert net.got("anna") == xs(2)
    assert lost(net) == []


def test_junction_tells_that_nobody_has_the_session_also_in_a_hurry():
    """Away for too long, and attached again before the search was over."""
    limits = Limits(away_ns=100 * MS_NS)
    world = World(seed=1, relocation="junction", limits=limits)
    world.add_brokers([("b0", "b1"), ("b1", "b2")])
    ticker = world.add_client("ticker", "b1")
    ticker.advertise("x > 0")
    anna = world.add_client("anna", "b0")
    anna.subscribe("x > 0")
    world.settle()
    anna.disconnect()
    world.run_until(world.now + 200 * MS_NS)
    ticker.publish({"x": 1})
    world.settle()
    anna.attach("b2")
    world.run_until(world.now + 20 * MS_NS)
    anna.attach("b2")
    world.settle()
    assert [event.reason for event in world.events if event.kind == "lost"] == [NO_SESSION]
    assert check(world).violations == ()


def test_a_client_whose_name_looks_like_a_tunnel():
    world = World(relocation="home")
    world.add_brokers([("porto", "lisbon")])
    anna = world.add_client("anna", "porto")
    world.settle()
    anna.attach("lisbon")
    world.settle()
    other = world.add_client("lisbon|anna", "porto")
    other.attach("porto")
    world.settle()
    assert anna.connection is not None
    assert other.connection is not None
    assert check(world).violations == ()


def test_a_search_for_what_nobody_answers_ends():
    net = network(relocation="junction")
    net.cut("anna")
    net.stop("porto", "lisbon")
    net.stop("lisbon", "porto")
    net.move("anna", "faro")
    net.pass_time(AWAY_NS)
    net.settle()
    net.pass_time(AWAY_NS)
    assert {name for name, core in net.brokers.items() if core.relocation.searches} == set()


def test_publications_are_held_back_within_a_limit_of_bytes():
    net = publisher(limits=Limits(backlog_bytes=1000))
    net.cut("pia")
    net.stop("porto", "lisbon")
    net.attach("pia", "faro")
    for _ in range(10):
        net._perform("pia", net.clients["pia"].publish({"x": 2}, bytes(300)))
    net.settle()
    wait = session_of(net, "faro", "pia").wait
    assert (len(wait.publications), wait.refused) == (3, True)


@pytest.mark.parametrize("seed", [4536, 8870, 14029])
def test_a_gap_counts_nothing_twice_when_subscriptions_change_while_a_session_waits(seed):
    """Found at random; what was lost under a filter came again when it was subscribed to anew."""
    assert fuzz(Job(seed, "covering")).verdict.violations == ()


def test_a_gap_comes_behind_older_news_of_a_new_subscription():
    """Found at random; a session lost what was published after the first news that a new filter brings."""
    assert fuzz(Job(16612, "covering")).verdict.violations == ()


def test_junction_needs_no_search_for_a_client_that_stays():
    """Found at random; two attachments were not heard, and a notification was held back until it was unwanted."""
    assert fuzz(Job(16, "simple", "junction")).verdict.violations == ()


def test_memory_is_freed_although_a_session_has_only_losses_to_report():
    """Found at random; the search for something to drop did not end."""
    assert fuzz(Job(170, "covering", "junction", mobile="both")).verdict.violations == ()


def test_what_a_broker_refuses_for_want_of_memory_is_published_later():
    """Found at random; the oracle took it for accepted while its publisher was without a connection."""
    job = Job(1000512, "identity", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize(
    "job",
    [
        Job(1000611, "simple", faults=True),
        Job(1000789, "merging", faults=True, mobile="both"),
    ],
    ids=str,
)
def test_brokers_that_are_suspended_have_time_for_many_hand_offs_in_a_row(job):
    """Found at random; the chain of hand-offs took longer than a broker waits for an answer."""
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize(("seed", "mobile"), [(2000250, "subscribers"), (2001825, "both")])
def test_what_is_dropped_after_a_time_out_is_not_counted(seed, mobile):
    """Found at random; a broker dropped a notification that its client had got elsewhere."""
    job = Job(seed, "flooding", faults=True, mobile=mobile)
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize("mobile", ["subscribers", "both"])
def test_what_was_reported_as_lost_may_come_after_a_time_out(mobile):
    """Found at random; the oracle took the report for wrong when a late copy was delivered."""
    job = Job(2002341, "simple", faults=True, mobile=mobile)
    assert fuzz(job).verdict.violations == ()


def test_nothing_is_sought_that_never_took_place():
    """Found at random; a broker said that it forgot an attachment that had never reached it."""
    assert fuzz(Job(4012023, "covering", faults=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "mobile"), [(7000620, "subscribers"), (7000950, "both")])
def test_an_orphan_of_a_stopped_broker_is_no_ghost(seed, mobile):
    """Found at random; its broker had not heard yet that the connection was gone, with which it ends."""
    job = Job(seed, "flooding", faults=True, mobile=mobile)
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize(
    "job",
    [
        Job(95118, "covering", rollbacks=True),
        Job(96529, "merging", rollbacks=True),
        Job(97094, "merging", rollbacks=True, faults=True),
    ],
    ids=str,
)
def test_every_gap_is_at_its_place_after_a_rollback(job):
    """Found at random; one gap came behind, or in front of, several notifications between which there were losses."""
    assert fuzz(job).verdict.violations == ()


def test_nobody_misses_what_a_broker_forgot_before_it_could_welcome_a_client():
    """Found at random; the oracle took subscriptions for settled that the client could not know to be heard."""
    assert fuzz(Job(96325, "flooding", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize("seed", [81, 170])
def test_a_loss_of_one_old_session_is_reported_around_what_another_one_kept(seed):
    """Found at random; junction merged two old sessions, and what one had kept moved in front of the gap."""
    assert fuzz(Job(seed, "simple", "junction")).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(9110434, "merging"), (9111150, "flooding")])
def test_a_session_that_a_later_attachment_superseded_ends(seed, routing):
    """Found at random; the answer came too late, and a session that nobody asks for waited for a week."""
    assert fuzz(Job(seed, routing, faults=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(9100456, "simple"), (9105527, "identity"), (9112071, "simple")]
)
def test_notifications_stay_behind_the_advertisement_that_shows_them_the_way(seed, routing):
    """Found at random; a broker applied a long update and sent what came behind it on, in one event."""
    assert fuzz(Job(seed, routing, faults=True)).verdict.violations == ()


def test_a_subscription_is_confirmed_when_all_older_sessions_are_merged():
    """Found at random; an older session had heard a part, and took the rest for known."""
    job = Job(9102328, "covering", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_what_is_recalled_from_the_past_is_in_front_of_a_loss():
    """Found at random; the gap came before what was older than the loss."""
    assert fuzz(Job(5028, "covering", rollbacks=True)).verdict.violations == ()


def test_a_link_that_begins_from_nothing_makes_no_storm_of_gaps():
    """Found at random; each table that was repaired made a gap for everybody, and these went round for ever."""
    run = fuzz(Job(5053, "covering", faults=True, rollbacks=True))
    assert run.verdict.violations == ()
    assert run.messages < 50_000


def test_a_probe_behind_an_attachment_does_not_prove_that_its_client_is_there():
    """Found at random; a session that nobody asks for was taken for that of a client which had spoken."""
    assert fuzz(Job(6013, "covering", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(7149, "merging"), (7091, "simple")])
def test_a_lost_link_is_reported_to_those_who_cannot_know_what_was_offered(seed, routing):
    """Found at random; an advertisement was lost with its first publication, and only its audience was told."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(7118, "covering"), (7029, "merging")])
def test_a_session_that_returns_is_told_whether_anybody_is_interested(seed, routing):
    """Found at random; the answer waited for subscriptions of its own that were confirmed later."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


def test_what_was_late_leaves_the_gap_in_front_of_what_overtook_it():
    """Found at random; a session held a publisher's late notifications, and sorted them behind the gap."""
    job = Job(9400125, "flooding", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_request_that_meets_an_old_store_leads_to_what_is_sought_behind_it():
    """Found at random; the oracle took a session for nobody's that the answer to a request would make known."""
    job = Job(9400307, "identity", rollbacks=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_loss_on_the_way_to_a_new_subscription_is_between_what_an_older_session_kept():
    """Found at random; the gap came behind all that the old broker had kept for other subscriptions."""
    assert fuzz(Job(9400068, "covering", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(9500170, "flooding"), (150722, "identity"), (93392, "identity")]
)
def test_an_earlier_process_is_closed_where_its_successor_was_forgotten(seed, routing):
    """Found at random; a store was rolled back, and nobody remembered that the client had begun anew."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


def test_a_link_that_begins_twice_is_reported_though_nothing_came_over_it():
    """Found at random; a broker without a store was not announced to by its neighbour before that was rolled back."""
    assert fuzz(Job(9501362, "identity", rollbacks=True)).verdict.violations == ()


def test_a_session_that_its_client_had_left_is_not_that_of_its_next_life():
    """Found at random; it came back with an old store, and ended again while its client was attached."""
    assert fuzz(Job(5121, "simple", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(6013, "covering"), (2186, "simple"), (2393, "covering")]
)
def test_older_sessions_are_sought_behind_late_answers(seed, routing):
    """Found at random; the answer that came late said that others are missing, and nobody sought them."""
    job = Job(seed, routing, faults=True, rollbacks=True)
    assert fuzz(job).verdict.violations == ()


def test_losses_are_reported_between_what_comes_late_of_other_subscriptions():
    """Found at random; a session of the client's earlier life was found when a loss had been reported."""
    job = Job(6043, "covering", faults=True, rollbacks=True)
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize(
    "job",
    [
        Job(97373, "covering", faults=True, rollbacks=True),
        Job(99071, "simple", faults=True, rollbacks=True, mobile="both"),
    ],
    ids=str,
)
def test_the_news_of_forgotten_sessions_follows_the_session_that_asked(job):
    """Found at random; the answer came when its session had gone on, and was dropped."""
    assert fuzz(job).verdict.violations == ()


def test_publications_are_not_accepted_late_where_their_client_is_no_more():
    """Found at random; a waiting session published what its client had sent again elsewhere, behind a gap for later ones."""
    job = Job(99294, "merging", faults=True, rollbacks=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_what_a_virtual_client_keeps_is_noted_when_it_grows_again():
    """Found at random; a backlog that had shrunk was noted only when it was as long as before."""
    job = Job(9701312, "identity", faults=True, mobile="walkers")
    assert fuzz(job).verdict.violations == ()


def test_a_message_that_waits_behind_work_on_tables_is_under_way():
    """Found at random; the oracle did not see there that the client of a session had begun anew."""
    job = Job(9701323, "covering", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_gap_says_why_its_size_is_unknown():
    """Found at random; a limit took the place of the time-out, which says that something may be missing behind it."""
    assert fuzz(Job(9703126, "simple", faults=True)).verdict.violations == ()


@pytest.mark.parametrize(
    "job",
    [
        Job(9530327, "identity", rollbacks=True, mobile="both"),
        Job(9530128, "covering", rollbacks=True, mobile="both"),
    ],
    ids=str,
)
def test_a_session_of_an_old_store_is_claimed_when_its_client_comes_later(job):
    """Found at random; when it was announced, the later session was an orphan, or had expired."""
    assert fuzz(job).verdict.violations == ()


def test_a_request_under_way_will_find_out_what_was_forgotten():
    """Found at random; the oracle looked only at requests that somebody waits for."""
    job = Job(9530119, "merging", faults=True, rollbacks=True)
    assert fuzz(job).verdict.violations == ()


def test_doubt_goes_with_a_publisher_that_moves_on():
    """Found at random; the session after one that had not waited long enough took its publications for certain."""
    job = Job(9721447, "identity", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_who_learns_late_that_its_session_is_gone_is_told_again():
    """Found at random; what was published between the time-out and the answer was lost without a report."""
    job = Job(9730075, "flooding", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_who_begins_anew_and_has_published_nothing_causes_no_gap():
    """Found at random; subscribers were told of a loss whenever a client had to exceed an earlier process."""
    assert fuzz(Job(1003, "covering", mobile="both")).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing", "mobile"),
    [(640283, "covering", "subscribers"), (9800212, "identity", "both")],
)
def test_sessions_that_expire_are_judged_as_ended(seed, routing, mobile):
    """Found at random: of a requester whose only responder expired, and of a past that is asked for afterwards."""
    assert fuzz(Job(seed, routing, mobile=mobile)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(35, "covering"), (40130, "flooding")])
def test_the_will_of_an_evicted_session_reports_that_an_earlier_one_may_be_missing(seed, routing):
    """Found at random; the session still waited for its old broker, which had published the will before."""
    assert fuzz(Job(seed, routing, mobile="both")).verdict.violations == ()


def test_who_begins_anew_hears_what_to_exceed_wherever_its_session_is():
    """Found at random; a broker announced a client that it had no room for, and the answer reached no session."""
    job = Job(9172, "identity", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_the_past_does_not_replace_a_current_value():
    """Found at random; the client had something newer of the publisher, and dropped what came of the past."""
    assert fuzz(Job(753, "identity")).verdict.violations == ()


def test_a_confirmation_that_overtakes_notifications_says_nothing_of_them():
    """Found at random; a value that was read later than the confirmation came twice: as published, and as current."""
    assert fuzz(Job(9750078, "covering")).verdict.violations == ()


def test_a_connection_that_ends_is_not_paused_again_by_what_waited_in_it():
    """Found at random, in the simulator's host only."""
    job = Job(9073, "flooding", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_request_asks_for_the_session_of_its_own_process():
    """Found at random; another process of the name, whose clock was behind, had used the same epoch."""
    assert fuzz(Job(655, "identity", mobile="both")).verdict.violations == ()


def test_a_session_waits_for_its_filters_no_longer_because_its_client_attached_again():
    """Found at random; it waited for `answer_ns` then, as for the session of an old broker."""
    run = Fuzz(Job(3100289, "simple", faults=True, mobile="both"))
    world, late = run.world, []

    def look(event):
        sessions = (one for host in world.brokers.values() for one in host.core.border.all())
        waits = (one.wait for one in sessions if one.wait is not None and one.wait.returning)
        late.extend(one for one in waits if one.until > world.now + world.limits.confirm_ns)

    world.listeners.append(look)
    assert run.run().violations == () and late == []


@pytest.mark.parametrize(
    ("seed", "routing", "mobile"),
    [
        (3200774, "merging", "subscribers"),
        (3201341, "simple", "subscribers"),
        (9730064, "covering", "both"),
    ],
)
def test_a_process_that_is_behind_an_earlier_one_hears_so_wherever_it_goes(seed, routing, mobile):
    """Found at random: it was refused where it went next, or its first session had expired."""
    assert fuzz(Job(seed, routing, faults=True, mobile=mobile)).verdict.violations == ()


def test_what_a_late_reply_lost_may_be_missing_anywhere_since_the_time_out():
    """Found at random; the gap named a limit of the old session, as if it were at its place."""
    assert fuzz(Job(3310171, "simple", faults=True)).verdict.violations == ()


def test_a_loss_of_a_queue_group_is_reported_to_a_member_that_hears_of_it():
    """Found at random; only a member was told whose process was replaced before the report came."""
    assert fuzz(Job(3310340, "flooding", faults=True, mobile="both")).verdict.violations == ()


def test_a_responder_is_not_back_before_a_broker_has_heard_of_it():
    """Found at random, in the judge: its session had expired, and its connections were too short."""
    assert fuzz(Job(3310849, "merging", faults=True, mobile="both")).verdict.violations == ()


def test_a_member_that_left_and_is_back_asks_for_what_was_assigned_to_it_meanwhile():
    """Found at random: it knew nothing of that, did not renew its lease, and was expelled with something at hand."""
    assert fuzz(Job(3241482, "identity", faults=True, mobile="both")).verdict.violations == ()


@pytest.mark.parametrize("routing", ["simple", "merging"])
def test_a_process_that_exceeds_another_seeks_the_sessions_of_its_former_epochs(routing):
    """Found at random; another process of its name had used these epochs, and a session was left behind."""
    assert fuzz(Job(3501019, routing, faults=True)).verdict.violations == ()


def test_what_waits_in_a_connection_that_a_broker_closes_is_not_read():
    """Found at random, in the simulator's host only; its client was paused."""
    assert fuzz(Job(3503564, "merging", faults=True)).verdict.violations == ()


def test_an_earlier_will_that_comes_late_moves_no_gap():
    """Found at random, in the judge: the broker that had published it was down meanwhile."""
    assert fuzz(Job(3503827, "identity", faults=True, mobile="both")).verdict.violations == ()


def test_a_member_asks_for_what_it_ignored_when_it_did_not_know_its_coordinator():
    """Found at random; it never renewed the lease of that, and was expelled with something else at hand."""
    assert fuzz(Job(3502169, "merging", faults=True, mobile="both")).verdict.violations == ()


def test_what_came_by_a_subscription_while_nothing_was_followed_does_not_come_again():
    places = of_edges([("porto", "lisbon"), ("lisbon", "faro")])
    world = World(seed=1, ahead=Ahead(places, nlb=places.next_brokers))
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    city, car = world.add_client("city", "porto"), world.add_client("car", "lisbon")
    city.advertise("exists location")
    car.be(State("lisbon"))
    template = car.follow("location in myloc")
    car.subscribe("topic = 'parking'")
    world.settle()
    car.detach()
    city.publish({"location": "lisbon", "topic": "parking"})
    world.settle()
    car.be(State("faro"))
    car.unfollow(template)
    car.attach("faro")
    world.settle()
    car.detach()
    car.follow("location in myloc")
    car.be(State("lisbon"))
    car.attach("lisbon")
    world.settle()
    assert [(one.notification.number, one.past) for one in car.received] == [(1, False)]


@pytest.mark.parametrize("seed", [18, 21])
def test_a_walker_that_exceeds_another_process_is_not_told_of_a_loss(seed):
    """Found at random; no broker had followed anything for it, and it said that one had."""
    assert fuzz(Job(seed, "simple", mobile="walkers")).verdict.violations == ()


def test_a_will_that_a_later_one_overtook_is_reported_in_front_of_that():
    """Found at random, in the judge: the broker of the earlier session published it last."""
    assert fuzz(Job(21000039, "merging", faults=True, mobile="both")).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(22100092, "identity"), (22100335, "flooding")])
def test_what_a_broker_held_of_a_publisher_whose_session_ended_is_sent_again(seed, routing):
    """Found at random, in the judge: until then it is not accepted, and so no current value."""
    assert fuzz(Job(seed, routing, mobile="both")).verdict.violations == ()


def test_a_session_expires_later_at_a_broker_that_did_nothing_for_a_while():
    """Found at random, in the judge."""
    assert fuzz(Job(20002768, "covering", faults=True, mobile="both")).verdict.violations == ()


def test_an_evicted_session_is_missed_also_if_an_older_one_is_found():
    """Found at random; the reply of the older session came while the gap waited for the filters, and replaced it."""
    assert fuzz(Job(20003449, "merging", faults=True)).verdict.violations == ()


def test_a_responder_that_is_evicted_before_a_request_is_accepted_does_not_reply():
    """Found at random, in the judge: the session of the requester had expired, and the request came again."""
    assert fuzz(Job(20000084, "merging", faults=True)).verdict.violations == ()


def test_what_comes_late_is_known_to_be_late_before_its_gap_is():
    """Found at random: after five failovers the replies of old brokers came before the sessions that had missed them."""
    assert fuzz(Job(20002569, "merging", faults=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(50720, "flooding"), (51574, "merging")])
def test_who_began_anew_is_not_closed_where_that_is_announced_again(seed, routing):
    """Found at random; an announcement on a link that began from nothing did not say whose process it is."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"),
    [
        (51546, "simple"),
        (51550, "flooding"),
        (51604, "merging"),
        (51830, "flooding"),
        (52042, "identity"),
    ],
)
def test_a_process_does_not_go_on_with_the_session_of_an_earlier_one(seed, routing):
    """Found at random; a store was rolled back to it, and later attachments did not find it any more."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(52130, "flooding"), (51378, "covering")])
def test_an_earlier_process_that_was_forgotten_does_not_stay_beside_its_successor(seed, routing):
    """Found at random; the clock of the later process was behind, so both had the same number."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"),
    [(50199, "merging"), (51399, "merging"), (51728, "covering"), (52144, "merging")],
)
def test_a_will_that_is_published_twice_was_retained_before(seed, routing):
    """Found at random; a broker had forgotten that it published the will, and the judge the first time."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


def test_who_was_told_of_a_loss_is_no_responder_that_a_broker_forgot():
    """Found at random; its session had ended at one broker, and was not yet known at the next one."""
    assert fuzz(Job(50563, "covering", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(52532, "identity"), (52535, "flooding"), (600540, "flooding")]
)
def test_a_forgotten_process_does_not_get_the_session_of_its_successor(seed, routing):
    """Found at random; it came back by a number that the later process had, too, or sought what is older."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


def test_what_only_forgotten_subscriptions_ask_for_is_lost_until_they_are_in_effect():
    """Found at random; the session was handed over by a broker whose store was rolled back."""
    assert fuzz(Job(50624, "merging", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(20001654, "merging"), (20002083, "covering"), (20003244, "merging")]
)
def test_what_is_followed_comes_in_the_order_of_its_publisher_after_a_time_out(seed, routing):
    """Found at random: what a broker had held of a publisher came behind what it published elsewhere."""
    assert fuzz(Job(seed, routing, faults=True, mobile="walkers")).verdict.violations == ()


def test_a_process_that_has_to_exceed_another_subscribes_later():
    """Found at random, in the judge, which knew that only of clocks that are behind."""
    job = Job(20000852, "identity", faults=True, mobile="walkers")
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize("routing", ["simple", "identity"])
def test_publications_that_a_client_sends_again_do_not_come_behind_a_lost_link(routing):
    """Found at random; their client had published more elsewhere, and that was lost with the link."""
    job = Job(9510010, routing, faults=True, rollbacks=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_value_that_a_broker_has_forgotten_may_outlast_its_successor():
    """Found at random, in the judge; the successor had a lower version, because the store was rolled back."""
    assert fuzz(Job(52808, "covering", rollbacks=True)).verdict.violations == ()


def test_a_profile_is_asked_for_also_beside_a_process_that_is_told_to_exceed():
    """Found at random; both had the same epoch, and the answer was taken for the other one's."""
    assert fuzz(Job(600063, "covering", rollbacks=True)).verdict.violations == ()


def test_a_filter_of_several_conditions_is_known_when_a_session_is_taken_over():
    """Found at random: only the conditions were looked up, so what such a subscription alone wanted was no news."""
    assert fuzz(Job(25000016, "simple", faults=True, mobile="both")).verdict.violations == ()


def test_a_value_that_an_older_session_was_given_comes_behind_what_is_earlier():
    """Found at random: a client takes nothing of a publisher that is earlier than a value which it has."""
    assert fuzz(Job(27000496, "simple", faults=True)).verdict.violations == ()


def test_what_comes_late_may_be_reported_together_with_what_a_limit_drops():
    """Found at random, in the judge: both losses are one gap, whose reason is the limit."""
    assert fuzz(Job(29000123, "covering", faults=True)).verdict.violations == ()


def test_a_session_expires_later_where_a_slow_broker_crashed():
    """Found at random, in the judge: the tick waited twice."""
    assert fuzz(Job(29000040, "flooding", faults=True)).verdict.violations == ()


def test_a_loss_between_current_values_is_reported_there():
    """They went to all brokers before the subscriptions of the waiting session were in effect."""
    job = Job(31003048, "covering", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_what_comes_after_a_forgotten_session_has_a_loss_behind_it():
    """Found at random: the broker of a session that waited was rolled back, and what it had held was lost without a report."""
    assert fuzz(Job(601398, "covering", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(602079, "merging"), (701983, "covering")])
def test_a_lost_link_may_have_lost_something_between_what_a_waiting_session_holds(seed, routing):
    """Found at random: others at the broker had subscribed to a part, so the session held some, with a gap in front only."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(601762, "identity"), (602388, "covering"), (705498, "covering")]
)
def test_an_earlier_process_ends_wherever_its_successor_is_heard_of(seed, routing):
    """Found at random: it had attached where nobody knew of its successor, or the beginning of that was forgotten."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"),
    [
        (601742, "identity"),
        (601918, "covering"),
        (703900, "flooding"),
        (704072, "identity"),
        (704964, "merging"),
    ],
)
def test_renewals_of_a_queue_group_do_not_pile_up(seed, routing):
    """Found at random: the old broker of a member did not answer, and its outbox was full of renewals, or they never ended."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


def test_a_process_that_exceeds_another_is_owed_no_answer():
    """Found at random: nobody had an older session, and that was taken for an answer which had come too late."""
    job = Job(27000253, "covering", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_process_that_never_began_anew_does_not_displace_one_that_did():
    """Found at random: all brokers had forgotten it, so its successor, whose clock was behind, had a lower number."""
    assert fuzz(Job(705130, "flooding", rollbacks=True)).verdict.violations == ()


def test_a_reply_brings_along_that_older_sessions_are_sought():
    """Found at random, in the judge: a link began from nothing while the reply was under way."""
    assert fuzz(Job(702969, "merging", rollbacks=True)).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(702757, "identity"), (704244, "merging")])
def test_a_publication_may_expire_later_while_a_forgotten_session_waits(seed, routing):
    """Found at random, in the judge: its broker held it until the filters of its publisher were in effect again."""
    assert fuzz(Job(seed, routing, rollbacks=True)).verdict.violations == ()


def test_a_loss_may_be_of_what_a_coordinator_said_before_anybody_had_joined():
    """Found at random, in the judge: a small backlog dropped the lease of the first member."""
    assert fuzz(Job(705478, "covering", rollbacks=True)).verdict.violations == ()


def test_sessions_of_a_broker_that_gets_an_old_store_are_not_judged_before():
    """Found at random, in the judge: the broker was down, and its sessions were about to be replaced."""
    assert fuzz(Job(711171, "simple", rollbacks=True)).verdict.violations == ()


def test_a_clock_is_not_behind_where_a_broker_is_about_to_forget_the_process_before():
    """Found at random, in the run: nobody could tell which of the two processes is the later one."""
    assert fuzz(Job(710573, "covering", rollbacks=True)).verdict.violations == ()


def test_a_clock_is_not_behind_where_a_client_has_just_come_back_after_it_had_left():
    """Found at random, in the run: a broker heard of the next process first, and took the earlier one for the later."""
    job = Job(32000721, "simple", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing"), [(5068, "covering"), (5106, "simple"), (5140, "flooding")]
)
def test_an_application_that_reads_late_gets_nothing_that_others_have_had(seed, routing):
    """Found at random, once applications read late: what waited for a member outlived its lease."""
    run = Fuzz(Job(seed, routing))
    assert run.world.reader is not None
    assert run.run().violations == ()


def test_a_session_of_another_process_that_is_sought_ends_and_is_not_handed_over():
    """Found at random: the client was told that more of its publications were accepted than it had published."""
    porto = Broker(BrokerId("porto"), [BrokerId("faro")])
    porto.step(LinkUp(LinkId("faro")), 0)
    porto.step(Received(LinkId("faro"), Announce((BrokerId("faro"),))), 0)
    anna, link = ClientId("anna"), LinkId("anna#5")
    porto.step(Received(link, Attach(anna, 5, 0, anew=5, life=2)), 0)
    sought = Request(BrokerId("faro"), anna, 9, 0, (), 0, welcomed=True, life=1)
    effects = porto.step(Received(LinkId("faro"), Announce((), sought=(sought,))), 0)
    sent = [one.message for one in effects if isinstance(one, Send)]
    assert porto.border.of(anna) == [] and link in [
        one.link for one in effects if isinstance(one, Close)
    ]
    assert not any(one.errands for one in sent if isinstance(one, Update))


def test_a_client_may_subscribe_while_terms_are_applied_to_what_it_missed():
    """Found at random: the broker crashed when the subscriptions changed between two slices."""
    assert fuzz(Job(8100010, "flooding", faults=True, mobile="both")).verdict.violations == ()


def test_a_member_that_is_slowed_as_a_publisher_stays_a_member():
    """Found at random: what it told its coordinator waited with its publications, for longer than it may be silent."""
    assert fuzz(Job(51000043, "covering", faults=True)).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing", "mobile"),
    [(60000033, "covering", "subscribers"), (60000170, "flooding", "both")],
)
def test_a_group_loses_only_while_a_member_does_not_take_what_it_has(seed, routing, mobile):
    """Found at random: the judge saw that an application was slow only once it had taken the notification."""
    job = Job(seed, routing, faults=True, mobile=mobile)
    assert fuzz(job).verdict.violations == ()


def test_a_broker_that_was_not_told_to_listen_ahead_keeps_nothing():
    """Found at random: a message between replicators was lost, and the judge required the past all the same."""
    job = Job(70000901, "simple", faults=True, mobile="walkers")
    assert fuzz(job).verdict.violations == ()


def test_a_member_of_an_earlier_process_says_nothing():
    """Found at random, in the run: it renewed its lease when that process attached once more."""
    assert fuzz(Job(12000014, "merging", faults=True)).verdict.violations == ()


def test_a_goodbye_that_is_lost_with_the_connection_does_not_delay_a_will():
    """Found at random, in the judge: the broker crashed before it heard that the client moves."""
    assert fuzz(Job(12001045, "flooding", faults=True)).verdict.violations == ()


def test_nothing_of_the_past_is_due_that_is_of_use_elsewhere():
    """Found at random, in the judge, once publications said where they are of use."""
    assert fuzz(Job(12001272, "identity", mobile="both")).verdict.violations == ()


def test_who_moves_on_in_a_hurry_is_told_of_a_loss_when_all_sessions_have_come():
    """Found at random, in the judge: what was lost while it was away came through six brokers."""
    assert fuzz(Job(13300050, "flooding", mobile="walkers")).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing", "relocation", "faults"),
    [
        (13300040, "simple", "prefetching", True),
        (13300053, "identity", "prefetching+delayed", False),
        (13300262, "covering", "proxy", True),
    ],
)
def test_without_support_who_moves_may_get_the_earlier_later(seed, routing, relocation, faults):
    """Found at random, in the judge: it gave no promise of order up where nobody makes one."""
    job = Job(seed, routing, relocation, faults=faults, mobile="walkers")
    assert fuzz(job).verdict.violations == ()


def test_a_member_asks_for_what_was_lost_before_it_knew_that_it_is_one():
    """Found at random: it was given up as silent, and meanwhile its group lost notifications."""
    assert fuzz(Job(12001104, "merging", mobile="both")).verdict.violations == ()


@pytest.mark.parametrize(
    ("seed", "routing", "faults"), [(12001016, "simple", False), (12001209, "merging", True)]
)
def test_a_member_that_enlisted_in_vain_does_not_say_for_ever_that_it_is_there(
    seed, routing, faults
):
    """Found at random: that had been lost with its connection, and the member took a publication to wait."""
    assert fuzz(Job(seed, routing, faults=faults, mobile="both")).verdict.violations == ()


def test_publishers_are_slowed_once_for_a_group_that_is_congested_without_a_break():
    """Found at random, in the judge: nothing had waited for the bound itself."""
    assert fuzz(Job(12000097, "identity", faults=True)).verdict.violations == ()


def test_the_last_broker_hands_over_what_it_kept_of_where_the_client_is_now():
    """Found at random: it answered only with what was for the place where the client had been."""
    assert fuzz(Job(317, "identity", mobile="walkers")).verdict.violations == ()


def test_a_client_is_told_of_a_loss_before_it_gets_of_that_what_comes_late():
    """Found at random: what an old broker had kept overtook the session which knew that something was missing."""
    assert fuzz(Job(13200839, "merging", faults=True)).verdict.violations == ()


def test_a_backlog_may_overflow_by_an_unknown_number_before_something_is_recalled():
    """Found at random, in the judge: it knew that other losses of unknown numbers make a client unsure."""
    assert fuzz(Job(13201238, "covering")).verdict.violations == ()


def test_nobody_hears_a_request_while_a_session_that_expired_is_opened_again():
    """Found at random, in the judge: the client was back, and its filters were on their way to the other brokers."""
    assert fuzz(Job(13201054, "merging")).verdict.violations == ()


def test_a_member_that_its_coordinator_cannot_hear_is_given_up():
    """Found at random, in the judge: a broker between them was down for longer than the member may be silent."""
    assert fuzz(Job(13110584, "merging", faults=True, mobile="both")).verdict.violations == ()


@pytest.mark.parametrize(
    ("routing", "relocation", "mobile"),
    [
        ("merging", "handoff", "walkers"),
        ("merging", "handoff", "learners"),
        ("identity", "naive", "walkers"),
    ],
)
def test_what_is_recalled_does_not_come_as_live_ahead_of_the_earlier(routing, relocation, mobile):
    """Found at random: it was younger than the attachment, and something earlier was still on its way."""
    job = Job(13300249, routing, relocation, faults=True, mobile=mobile)
    assert fuzz(job).verdict.violations == ()


def test_a_broker_delivers_nothing_for_a_place_of_which_it_did_not_hear_before_the_connection_broke():
    """Found at random, in the judge: the client was there for less time than it takes to say so."""
    job = Job(1020061, "simple", faults=True, mobile="walkers")
    assert fuzz(job).verdict.violations == ()


def test_a_session_that_is_handed_over_in_slices_is_owned_meanwhile():
    """Found at random, in the judge: its client had moved on before it had heard of the attachment that asked for it."""
    assert fuzz(Job(13111315, "flooding", faults=True, mobile="both")).verdict.violations == ()


def test_who_comes_back_after_its_session_ended_is_told_that_something_may_be_missing():
    """Found at random: what it follows was kept in a buffer only, which dropped some of it."""
    job = Job(13301080, "simple", "standard", mobile="walkers")
    assert fuzz(job).verdict.violations == ()


def test_without_support_what_was_not_acknowledged_is_published_again_as_live():
    """Found at random, in the judge: the connection broke before the acknowledgement was there."""
    assert fuzz(Job(13301007, "merging", "naive", mobile="walkers")).verdict.violations == ()


def test_a_value_that_is_replaced_before_the_past_has_come_is_a_part_of_that():
    """Found at random: it was left out of the past as a current value, and then it was none any more."""
    assert fuzz(Job(13203306, "simple")).verdict.violations == ()


def test_what_a_subscription_asks_for_too_waits_until_the_session_has_come():
    """Found at random, in the judge: the client had put it aside, moved on and left."""
    assert fuzz(Job(13320016, "simple", mobile="walkers")).verdict.violations == ()


def test_a_queue_may_be_congested_before_its_first_member_knows_that_it_is_one():
    """Found at random, in the judge: it did not count what was published just before."""
    assert fuzz(Job(13203441, "simple")).verdict.violations == ()


def test_a_member_hears_nothing_while_its_application_does_not_read_another_subscription():
    """Found at random, in the judge: it was given up, although it was connected, and its group lost notifications."""
    assert fuzz(Job(13101697, "identity", mobile="both")).verdict.violations == ()


def test_who_was_elsewhere_in_vain_and_comes_back_is_told_of_no_loss():
    """Found at random: another broker listened for it meanwhile, and its session had not ended."""
    assert fuzz(Job(13301557, "identity", mobile="walkers")).verdict.violations == ()


def test_a_broker_keeps_and_recalls_nothing_that_is_of_use_elsewhere():
    """Found at random, in the judge: it required of the last broker what is of no use in its range."""
    assert fuzz(Job(13301512, "identity", mobile="walkers")).verdict.violations == ()


def test_what_was_kept_for_a_client_may_wait_for_its_window_and_so_may_the_report_of_a_loss():
    """Found at random, in the judge: two fit in the window, and a gap was between them."""
    assert fuzz(Job(13301564, "merging", mobile="walkers")).verdict.violations == ()


def test_members_of_queue_groups_do_not_lose_what_they_asked_for_after_a_loss_for_ever():
    """Found at random: all asked at once, and the answers were more than there was room for behind the gap."""
    assert fuzz(Job(13203125, "flooding")).verdict.violations == ()


@pytest.mark.parametrize("relocation", ["standard", "prefetching"])
def test_a_member_says_again_what_was_lost_where_it_had_just_come_to(relocation):
    """Found at random: it said for ever that it was there. These baselines lose publications."""
    found = fuzz(Job(300010, "covering", relocation, mobile="both")).verdict.violations
    assert {one.rule for one in found} == {"complete"}


def test_a_session_that_has_to_begin_above_another_number_does_not_stay_without_support():
    """Found at random: its broker had closed the connection, so no link went down any more."""
    job = Job(7740013, "identity", "naive", faults=True, mobile="walkers")
    assert fuzz(job).verdict.violations == ()


def test_who_wanted_nothing_of_its_lost_session_is_told_of_no_loss_when_it_asks_for_the_past():
    """Found at random: its session had ended, and what that had might have been missing in between."""
    assert fuzz(Job(13800021, "covering", mobile="both")).verdict.violations == ()


def test_no_timer_goes_off_in_a_broker_that_has_crashed():
    """A coordinator gave its members up in the middle of a crash."""
    assert fuzz(Job(13124166, "simple", faults=True)).verdict.violations == ()


def test_no_will_waits_for_a_neighbour_that_was_never_there():
    """Found at random, in the judge: it took a link that had never begun for one that was down."""
    assert fuzz(Job(13800098, "covering", mobile="both")).verdict.violations == ()


def test_a_connection_whose_end_was_not_read_before_a_rollback_is_not_paused_for_ever():
    """Found at random, in the simulator."""
    job = Job(13800361, "simple", faults=True, mobile="both", rollbacks=True)
    assert fuzz(job).verdict.violations == ()


def test_a_client_elsewhere_learns_that_it_is_to_attach_again():
    """What closes a connection says so; on the way back from the home broker that was left out."""
    job = Job(13710118, "covering", "home", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize("seed", [67, 92])
def test_a_client_whose_home_is_not_known_yet_tries_again(seed):
    """Its home broker starts late, and nobody has heard of it."""
    assert fuzz(Job(seed, "covering", "home", mobile="both")).verdict.violations == ()


def test_no_reply_of_an_earlier_process_answers_a_request_with_its_number():
    """Two processes of a client whose clock is behind had one reply address in the simulator."""
    assert fuzz(Job(209, "covering", mobile="both")).verdict.violations == ()


def test_a_value_that_is_published_again_while_a_session_waits_is_current_once():
    """Found at random: the session of its publisher had ended, and it had not heard that it was accepted."""
    assert fuzz(Job(32000352, "covering", mobile="both")).verdict.violations == ()


def test_nobody_has_to_reply_whose_next_session_ended_before_it_sent_anything():
    """Found at random, in the judge: its session had expired, and it had only been told so when it went away."""
    assert fuzz(Job(32000342, "covering", mobile="both")).verdict.violations == ()


def test_a_reader_for_which_nobody_is_slowed_may_lose_what_comes_first():
    job = Job(13124334, "merging", faults=True)
    assert fuzz(job).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(3000057, "covering"), (4100180, "flooding")])
def test_the_judge_of_walkers_knows_why_a_loss_may_be_reported_without_faults(seed, routing):
    """A broker that a walker left in a hurry reports it on its return; a new process overtakes its predecessor."""
    assert fuzz(Job(seed, routing, mobile="walkers")).verdict.violations == ()


@pytest.mark.parametrize(("seed", "routing"), [(800014, "merging"), (41000083, "covering")])
def test_what_a_publisher_sends_expires_while_its_broker_holds_it_back(seed, routing):
    """Found at random; its old broker waited for the past, and each new one for the session, and lifetimes stood still."""
    assert fuzz(Job(seed, routing, rollbacks=True, mobile="both")).verdict.violations == ()


def test_no_will_waits_for_a_neighbour_of_which_nothing_was_heard_yet():
    """Found at random, in the judge: the link was there at last, and cut before the first message had come."""
    job = Job(22001385, "flooding", faults=True, mobile="both")
    assert fuzz(job).verdict.violations == ()


def test_a_client_in_a_hurry_waits_for_all_its_requests():
    """Found at random, in the judge: twenty moves between the ends of a line, faster than the requests go there."""
    assert fuzz(Job(23000157, "identity", faults=True, mobile="both")).verdict.violations == ()


@pytest.mark.parametrize(
    "job",
    [
        Job(36000736, "simple", mobile="walkers"),
        Job(36000117, "identity", faults=True, mobile="learners"),
        Job(36000271, "simple", faults=True, mobile="learners"),
    ],
)
def test_what_a_virtual_client_has_fetched_of_the_past_counts_as_kept(job):
    """Found at random, in the judge: it looked while the search was under way."""
    assert fuzz(job).verdict.violations == ()


def test_what_comes_while_a_reply_is_lost_is_thinned_like_the_past():
    """Found at random, in the judge: a broker waits for `limits.recall` then, and not only for a round trip."""
    job = Job(36000348, "covering", faults=True, mobile="learners")
    assert fuzz(job).verdict.violations == ()
