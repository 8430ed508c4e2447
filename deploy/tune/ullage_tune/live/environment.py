"""What a live twin is told, by environment variables."""

import json
from typing import Final

from ullage_tune.gpu import StepModel

STEP: Final = "ULLAGE_TWIN_STEP"
"""How long its modelled GPU takes: a `StepModel` as a JSON object."""

REPORT: Final = "ULLAGE_TWIN_REPORT"
"""The path of the file in which it says how it keeps up; empty or unset: nowhere."""


def told(model: StepModel) -> str:
    """What `read` reads."""
    return json.dumps(model._asdict())


def read(text: str) -> StepModel:
    """Raises `ValueError`, which names the field and what was wanted."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{STEP}: not JSON: {error}") from None
    if not isinstance(fields, dict) or set(fields) != set(StepModel._fields):
        raise ValueError(f"{STEP}: wanted an object of {', '.join(StepModel._fields)}; got {text}")
    for name, value in fields.items():
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise ValueError(f"{STEP}: {name} must be seconds >= 0; got {value!r}")
    return StepModel(**fields)
