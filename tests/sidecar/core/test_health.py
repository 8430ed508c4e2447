"""A refusal is believed at once, a timeout only when nothing else speaks for the server."""

from ullage_sidecar.core.health import Health, Probe

GOOD = Probe(None)
REFUSED = Probe("Connection refused", gone=True)
LATE = Probe("no answer in time", certain=False)
LIMIT_S = 3.0


def after(*probes, start_s=100.0):
    health = Health()
    for number, probe in enumerate(probes):
        health = health.after(probe, start_s + number)
    return health


def test_nothing_asked_is_not_down():
    assert not Health().is_down(None, LIMIT_S, 100.0)


def test_a_refused_connection_is_down_at_once():
    assert after(GOOD, REFUSED).is_down(101.0, LIMIT_S, 101.0)


def test_one_late_answer_is_not_down():
    assert not after(GOOD, LATE).is_down(None, LIMIT_S, 101.0)


def test_late_answers_for_longer_than_the_limit_are_down():
    health = after(GOOD, LATE, LATE, LATE, LATE)
    assert not health.is_down(None, LIMIT_S, 104.0)
    assert health.is_down(None, LIMIT_S, 104.1)


def test_an_engine_that_steps_is_busy_and_not_down():
    assert not after(GOOD, LATE, LATE, LATE, LATE, LATE).is_down(104.9, LIMIT_S, 105.0)


def test_one_good_answer_ends_a_row_of_faults():
    health = after(GOOD, LATE, LATE, LATE, GOOD, LATE)
    assert health.fault_since_s == 105.0
    assert not health.is_down(None, LIMIT_S, 106.0)


ILL = Probe("status 503")


def test_who_says_that_it_is_ill_is_down_at_once_and_not_gone():
    health = after(GOOD, ILL)
    assert health.is_down(101.0, LIMIT_S, 101.0)
    assert not health.is_gone
    assert after(GOOD, ILL, GOOD).died_s is None


def test_who_was_gone_in_this_row_of_faults_is_gone_until_it_answers():
    for row in ((REFUSED,), (ILL, REFUSED), (REFUSED, ILL), (REFUSED, LATE)):
        assert after(GOOD, *row).is_gone
        assert not after(GOOD, *row, GOOD).is_gone
        assert not after(GOOD, *row, GOOD, ILL).is_gone


def test_having_answered_is_not_forgotten():
    assert after(GOOD, REFUSED, REFUSED).answered
    assert not after(REFUSED, LATE).answered
