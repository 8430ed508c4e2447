"""What a workload looks like, so that two can be laid side by side: lengths, sharing, arrivals.

* **Sharing** is what an unbounded prefix cache would find, counted in whole segments: of each
  prompt, the longest run of leading segments that an earlier prompt began with.
* **Turns.** A request follows the latest of those that share its longest known beginning, if that
  is longer than what most prompts begin with. A chain of such is a conversation, also where the
  workload does not say so (`Request.session` is not looked at: traces have none).
* **Arrivals**: the coefficient of variation of counts in windows of a given width; Poisson's is
  1/√mean. A last, partial window is left out.

Edges: an empty workload has no shape (`ValueError`); one request follows nobody; fewer than two
windows vary by 0.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ullage_tune.workload import Request, Segment, Workload


class Link(NamedTuple):
    """How one request hangs on those before it."""

    follows: int | None
    """The one that it goes on from, by its place; `None`: a new conversation."""
    shared: int
    """Leading segments that were seen before."""
    tokens: int
    """What they hold."""


class Shape(NamedTuple):
    """A workload in figures."""

    requests: int
    per_s: float
    """Requests per second."""
    prompt_tokens: tuple[float, ...]
    """Quantiles 10, 50, 90, 99 %, and the mean."""
    output_tokens: tuple[float, ...]
    """Likewise."""
    correlation: float
    """Of the logarithms of both, −1..1; 0 where one does not vary."""
    found: float
    """Share of all prompt tokens in an unbounded prefix cache, 0..1."""
    follow: float
    """Share of requests that go on from an earlier one, 0..1."""
    turns: tuple[float, ...]
    """Per conversation: mean, quantiles 90 and 99 %, the most."""
    cv_1s: float
    cv_10s: float
    """Coefficients of variation of arrivals in windows."""


def shape(workload: Workload) -> Shape:
    """Measure it."""
    requests = workload.requests
    if not requests:
        raise ValueError(f"{workload.name}: no requests, so no shape")
    chained = links(requests)
    prompts = np.array([request.prompt_tokens for request in requests], dtype=float)
    outputs = np.array([request.output_tokens for request in requests], dtype=float)
    turns = np.array(list(Counter(conversations(chained)).values()), dtype=float)
    return Shape(
        requests=len(requests),
        per_s=len(requests) / workload.duration_s if workload.duration_s else math.inf,
        prompt_tokens=_summary(prompts),
        output_tokens=_summary(outputs),
        correlation=_correlation(np.log(prompts), np.log(outputs)),
        found=sum(link.tokens for link in chained) / float(prompts.sum()),
        follow=sum(link.follows is not None for link in chained) / len(requests),
        turns=(
            float(turns.mean()),
            *(float(q) for q in np.quantile(turns, (0.9, 0.99))),
            float(turns.max()),
        ),
        cv_1s=variation(requests, 1.0),
        cv_10s=variation(requests, 10.0),
    )


def links(requests: Sequence[Request]) -> list[Link]:
    """For each request what it shares with those before it."""
    common = _common(requests)
    children: dict[tuple[int, Segment], int] = {}
    latest: list[int] = [-1]
    made: list[Link] = []
    for place, request in enumerate(requests):
        node = shared = tokens = 0
        path: list[int] = []
        for segment in request.prompt:
            child = children.get((node, segment))
            if child is None:
                child = children[node, segment] = len(latest)
                latest.append(-1)
            else:
                shared += 1
                tokens += segment.tokens
            path.append(child)
            node = child
        follows = latest[path[shared - 1]] if shared > common else None
        made.append(Link(follows, shared, tokens))
        for child in path:
            latest[child] = place
    return made


def conversations(chained: Sequence[Link]) -> list[int]:
    """For each request the place of the first one of its conversation."""
    first: list[int] = []
    for place, link in enumerate(chained):
        first.append(place if link.follows is None else first[link.follows])
    return first


def counts(instants_s: Sequence[float], window_s: float, span_s: float) -> list[int]:
    """How many fall into each whole window of the span."""
    windows = math.floor(span_s / window_s)
    seen = Counter(math.floor(at_s / window_s) for at_s in instants_s)
    return [seen[k] for k in range(windows)]


def variation(requests: Sequence[Request], window_s: float) -> float:
    """The coefficient of variation of arrivals in windows of this width."""
    seen = counts([r.at_s for r in requests], window_s, requests[-1].at_s if requests else 0.0)
    if len(seen) < 2 or not any(seen):
        return 0.0
    return float(np.std(seen) / np.mean(seen))


def _common(requests: Sequence[Request]) -> int:
    """Leading segments that most prompts begin with; 0 for one request alone."""
    if len(requests) < 2:
        return 0
    alike = list(requests)
    for depth in range(max(len(request.prompt) for request in requests)):
        seen = Counter(r.prompt[depth] for r in alike if len(r.prompt) > depth)
        if not seen or 2 * seen.most_common(1)[0][1] <= len(requests):
            return depth
        segment = seen.most_common(1)[0][0]
        alike = [r for r in alike if r.prompt[depth : depth + 1] == (segment,)]
    return depth + 1


def _summary(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, ...]:
    return (
        *(float(q) for q in np.quantile(values, (0.1, 0.5, 0.9, 0.99))),
        float(values.mean()),
    )


def _correlation(
    a: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    b: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> float:
    if a.std() == 0.0 or b.std() == 0.0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
