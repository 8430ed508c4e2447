"""A fit in words: for whoever runs it, and for the head of the engine file."""

from collections.abc import Mapping
from typing import Final

from ullage_tune.fit.fitted import Fitted
from ullage_tune.fit.recording import Said

SHARED: Final = 0.02
"""From here on what the cache gave makes context an estimate worth a word."""


def report(source: str, said: Said, fitted: Fitted, fixed: Mapping[str, float]) -> list[str]:
    """Lines, none of them long."""
    hello, solution = said.hello, fitted.solution
    models = ", ".join(hello.models) or "unknown"
    scheduling = ", asynchronous scheduling" if fitted.ahead else ""
    lines = [
        f"{source}: model {models}, vLLM {hello.vllm_version or 'unknown'}{scheduling}",
        f"{fitted.steps} of {said.steps} steps, in {fitted.rows} stretches; off by "
        f"{solution.median_error:.1%} in the median, {solution.p90_error:.1%} at p90",
    ]
    lines += [f"dropped: {count}, {why}" for why, count in fitted.dropped.items()]
    for name, (least, most) in fitted.spans.items():
        lines.append(f"seen in a step: {least:.4g} to {most:.4g} {name}")
    if fitted.found >= SHARED:
        lines += [
            f"{fitted.found:.0%} of the prompts' tokens were in the cache: context is an estimate,",
            "so per_sequence_s and per_context_token_s may each have some of the other's",
        ]
    for name, value in solution.model._asdict().items():
        error = getattr(solution.error, name)
        if name in fixed:
            lines.append(f"{name} = {value:.4g} assumed")
        elif name in solution.untold:
            lines.append(f"{name}: not told")
        else:
            lines.append(f"{name} = {value:.4g} ± {error:.1g}")
    return lines
