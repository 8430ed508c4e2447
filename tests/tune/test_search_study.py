"""The search on a made-up objective, whose best is known."""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from made_up_lab import AtOnce, MadeUpLab, bowl
from ullage_router.core.policy import Way
from ullage_shared.snapshot import RequestClass
from ullage_tune.grid import Cell
from ullage_tune.search.objective import AIMS
from ullage_tune.search.race import IN_FULL, Mark, Trial, mark_of
from ullage_tune.search.setting import Setting
from ullage_tune.search.space import Space
from ullage_tune.search.study import DEFAULT, Draws, Search

SPACE = Space(Way.WEIGHTED, [RequestClass.SHORT])
CELLS = (Cell("a"), Cell("b"))


class Counts:
    made = 0
    less = 0

    def done(self, row):
        self.made += 1

    def spared(self, runs):
        self.less += runs


def searched(late=bowl, settings=40, seeds=3, dice=1, pool=None, lab=None):
    """A search of so many settings; what it was told of, too."""
    lab, pool = lab or MadeUpLab(late), pool or AtOnce()
    search, counts = Search(SPACE, Draws(CELLS, range(seeds)), AIMS["ttft_p99"], dice), Counts()
    search.run(
        settings,
        lambda task, setting: pool.submit(lab.measure, None, task, setting.policy()),
        counts,
    )
    return search, lab, counts


def trial(number, log_ratios, cut=False):
    return Trial(number, {}, Setting({}, {}), (), tuple(log_ratios), cut)


def test_the_best_is_found_in_a_bowl():
    search, _, _ = searched(settings=60)
    values = SPACE.values(search.best().point)
    assert 0.5 <= values["window.span_s"] <= 2.0
    assert 3.0 <= values["choose.exponent"] <= 12.0
    assert search.best().loss < math.log(0.4)


def test_what_matters_is_told_from_what_does_not():
    search, _, _ = searched(settings=60)
    shares = search.what_mattered()
    assert next(iter(shares)) == "window.span_s"
    assert shares["window.span_s"] + shares["choose.exponent"] > 0.6
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares.keys() == SPACE.sizes.keys()


def test_of_few_trials_nobody_can_tell_what_mattered():
    search, _, _ = searched(settings=12)
    assert search.what_mattered() == {}


def test_the_first_trial_is_the_default_and_is_run_on_every_draw():
    search, lab, _ = searched(settings=1)
    first = search.trials[0]
    assert first.number == 0
    assert first.setting == SPACE.setting(SPACE.default)
    assert first.log_ratios == (0.0,) * 6
    assert [task.policy for task in lab.made[:6]] == [DEFAULT] * 6


def test_so_many_settings_are_tried_beside_the_default():
    for settings in (1, 4, 6):
        search, _, _ = searched(settings=settings)
        assert [t.number for t in search.trials] == list(range(settings + 1))


def test_where_nothing_is_better_the_default_wins():
    def late(make, task):
        return 1.0 if make.rules.choose.exponent == 2.0 and not make.sidecar else 1.1

    search, _, _ = searched(late)
    assert search.best().number == 0


def test_where_all_are_alike_the_default_wins_and_nothing_mattered():
    search, _, _ = searched(lambda make, task: 1.0)
    assert search.best().number == 0
    assert search.what_mattered() == {}


def test_the_same_dice_give_the_same_trials_whoever_is_done_first():
    def told(search):
        return [(t.number, t.point, t.log_ratios, t.cut) for t in search.trials]

    alone = told(searched(settings=24)[0])
    assert told(searched(settings=24)[0]) == alone
    with ThreadPoolExecutor(5) as pool:
        assert told(searched(settings=24, pool=pool)[0]) == alone
    assert told(searched(settings=24, dice=2)[0]) != alone


def test_hopeless_trials_are_cut_after_few_seeds_and_their_runs_spared():
    search, lab, counts = searched(settings=60)
    cut = [t for t in search.trials if t.cut]
    assert len(cut) >= 10
    assert {len(t.rows) for t in cut} <= {2, 4}
    assert all(not t.cut for t in search.trials[:IN_FULL])
    assert search.best() not in cut
    assert counts.made == len(lab.made)
    assert counts.made + counts.less == 61 * 6
    runs = Counter(task.policy for task in lab.made)
    assert runs[f"setting {cut[0].number}"] == len(cut[0].rows)


def test_a_trial_that_could_still_be_the_best_is_not_cut():
    mark = Mark(best=-0.25, records=(-1.0, -0.5, 0.0, -0.25))
    assert not mark.out_of_reach([-0.375])  # With the records of the other three: below -0.25.
    assert mark.out_of_reach([-0.25])  # As good is not better.
    assert mark.out_of_reach([-1.0, -0.25, 0.5])
    assert not mark.out_of_reach([-1.0, -0.25, 0.0])


def test_records_are_the_least_of_any_trial_at_each_draw_and_the_best_is_of_whole_ones():
    full = [trial(k, (0.0, 0.1 * k)) for k in range(IN_FULL)]
    assert mark_of(full[1:]) is None
    assert mark_of(full) == Mark(0.0, (0.0, 0.0))
    assert mark_of([*full, trial(9, [-0.4], cut=True)]) == Mark(0.0, (-0.4, 0.0))
    assert mark_of([*full, trial(9, [-0.4, 0.2])]) == Mark(-0.1, (-0.4, 0.0))


def test_a_setting_that_refuses_never_wins():
    def late(make, task):
        refuses = make.rules.choose.exponent > 2.0 and task.seed == 2
        return None if refuses else bowl(make, task)

    search, _, _ = searched(late, settings=60)
    assert SPACE.values(search.best().point)["choose.exponent"] <= 2.0


@pytest.mark.parametrize("after", [0, 5, 6, 9, 30])
def test_ctrl_c_leaves_the_trials_that_have_ended(after):
    lab = MadeUpLab(bowl)
    lab.stop_after = {after: KeyboardInterrupt}
    search = Search(SPACE, Draws(CELLS, range(3)), AIMS["ttft_p99"], 1)
    with pytest.raises(KeyboardInterrupt):
        search.run(
            20,
            lambda task, setting: AtOnce().submit(lab.measure, None, task, setting.policy()),
            Counts(),
        )
    whole, _, _ = searched(settings=20)
    assert search.trials == whole.trials[: len(search.trials)]
    assert bool(search.trials) == (after >= 6)
