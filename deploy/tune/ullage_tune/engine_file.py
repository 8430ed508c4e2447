"""Engines of one's own: a `gpu.Engine` as a TOML file, as `ullage-tune fit` writes it.

    blocks = 30000                  # KV blocks
    block_size = 16                 # tokens per block
    max_num_seqs = 256
    max_num_batched_tokens = 8192
    max_model_len = 131072

    [step]                          # seconds, see `gpu`
    base_s = 0.018
    per_token_s = 1.1e-4
    per_sequence_s = 5e-5
    per_context_token_s = 5e-8

All of them are wanted, and nothing else: a figure that nobody gave is no default.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ullage_tune.gpu import ENGINES, Engine, StepModel

LEAST: Final = {
    "blocks": 2,  # vLLM never uses one of them.
    "block_size": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 1,
}


class EngineError(Exception):
    """The user's fault. The message names the file and the field, and what was wanted."""


def engine_of(name: str) -> Engine:
    """The engine of that name in `gpu.ENGINES`, or that of a file. Raises `EngineError`."""
    if name in ENGINES:
        return ENGINES[name]
    try:
        return parse(Path(name).read_bytes().decode())
    except FileNotFoundError:
        known = ", ".join(ENGINES)
        raise EngineError(f"{name!r}: wanted a file, or one of {known}") from None
    except OSError as error:
        raise EngineError(f"{name}: {error.strerror}") from None
    except ValueError as error:
        raise EngineError(f"{name}: {error}") from None


def parse(text: str) -> Engine:
    """Raises `ValueError`, which names the field and what was wanted."""
    fields = tomllib.loads(text)
    steps = fields.pop("step", None)
    if not isinstance(steps, dict):  # A file's fault, not a caller's.
        raise ValueError(  # noqa: TRY004
            f"wanted a table [step] with {', '.join(StepModel._fields)}"
        )
    _all_there(fields, LEAST, "")
    _all_there(steps, StepModel._fields, "step.")
    for name, least in LEAST.items():
        if type(fields[name]) is not int or fields[name] < least:
            raise ValueError(f"{name} = {fields[name]!r}: wanted a whole number of {least} or more")
    for name, value in steps.items():
        if type(value) not in (int, float) or not 0.0 <= value < float("inf"):
            raise ValueError(f"step.{name} = {value!r}: wanted seconds, 0 or more")
    model = StepModel(**steps)
    if not model.base_s + model.per_token_s + model.per_sequence_s:
        raise ValueError("step: wanted steps that take some time")
    return Engine(model, **fields)


def written(engine: Engine, comments: Sequence[str]) -> str:
    """The file, with these lines at its beginning."""
    lines = [f"# {comment}".rstrip() for comment in comments]
    lines += [f"{name} = {getattr(engine, name)}" for name in LEAST]
    lines += ["", "[step]"]
    lines += [f"{name} = {value:.4g}" for name, value in engine.steps._asdict().items()]
    return "\n".join(lines) + "\n"


def _all_there(
    fields: Mapping[str, Any], wanted: Mapping[str, Any] | Sequence[str], of: str
) -> None:
    missing = [name for name in wanted if name not in fields]
    if missing:
        raise ValueError(f"{of}{missing[0]} is missing: wanted {', '.join(wanted)}")
    beyond = [name for name in fields if name not in wanted]
    if beyond:
        raise ValueError(f"{of}{beyond[0]}: wanted only {', '.join(wanted)}")
