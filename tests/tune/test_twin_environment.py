"""How a live twin is told how slow its GPU is."""

import pytest

from ullage_tune.gpu import StepModel
from ullage_tune.live.environment import read, told

MODEL = StepModel(0.018, 1.1e-4, 5e-5, 5e-8)


def test_what_is_told_is_what_is_read() -> None:
    assert read(told(MODEL)) == MODEL


def test_whole_seconds_are_seconds() -> None:
    assert read(told(StepModel(0, 0, 0, 0))).step_s(9, 9, 9) == 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "not JSON"),
        ("[1]", "wanted an object of base_s, per_token_s"),
        ('{"base_s": 1}', "wanted an object of base_s, per_token_s"),
        (told(MODEL._replace(per_token_s=-0.1)), "per_token_s must be seconds >= 0; got -0.1"),
        (told(MODEL._replace(base_s=float("inf"))), "base_s must be seconds >= 0; got inf"),
        (told(MODEL._replace(base_s=float("nan"))), "base_s must be seconds >= 0; got nan"),
        (told(MODEL._replace(base_s=True)), "base_s must be seconds >= 0; got True"),
    ],
)
def test_nonsense_is_refused_by_name(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match="ULLAGE_TWIN_STEP") as refused:
        read(text)
    assert wanted in str(refused.value)
