"""How many tokens a prompt has, guessed from its bytes: a ratio learned per model.

    estimate = ceil(prompt_bytes · ratio)
    ratio   <- ratio + (clamp(prompt_tokens / prompt_bytes) − ratio) / min(answers, 32)

A mean that forgets: of the first answers the plain mean, the prior being one of them; then each new
answer counts 1/32. It starts at one token in four bytes, as English has; Chinese has one in two or
three, a model's own language or JSON's escapes anything between.

One odd prompt must not bend it: each answer is clamped before it counts (an image is a megabyte of
base64 and a thousand tokens; the chat template alone is some dozens), and prompts under 256 bytes,
which are mostly template, teach nothing. A model that has taught nothing yet is guessed by what all
have taught: they see the same traffic. Models beyond the bound: the one that taught least recently
is forgotten.
"""

from math import ceil
from typing import Final

PRIOR: Final = 0.25
"""Tokens per byte."""
LEAST: Final = 1 / 128
MOST: Final = 1.0
LEAST_BYTES: Final = 256
SURE_ANSWERS: Final = 512
SELDOM: Final = 16
MEMORY_ANSWERS: Final = 32
MOST_MODELS: Final = 256
MOST_NAME: Final = 1024
"""Characters of a model's name; a client may make up a longer one, and who serves any takes it."""


class _Mean:
    """Tokens per byte, of the answers so far."""

    __slots__ = ("answers", "ratio")

    def __init__(self) -> None:
        self.ratio = PRIOR
        self.answers = 1

    def learn(self, ratio: float) -> None:
        self.answers = min(self.answers + 1, MEMORY_ANSWERS)
        self.ratio += (ratio - self.ratio) / self.answers


class TokenRatio:
    """Tokens per byte of prompt, by model."""

    def __init__(self) -> None:
        self._of_all = _Mean()
        self._looks = 0
        self._by_model: dict[str | None, _Mean] = {}
        """The one that taught least recently comes first."""

    def estimate(self, model: str | None, prompt_bytes: int) -> int:
        """How many tokens a prompt of so many bytes has."""
        return ceil(prompt_bytes * self._by_model.get(model, self._of_all).ratio)

    def wants(self, prompt_bytes: int) -> bool:
        """Is an answer to a prompt of so many bytes to be looked at? The first `SURE_ANSWERS` all
        are, then each `SELDOM`th: whether it teaches or not, most streams do not."""
        if prompt_bytes < LEAST_BYTES:
            return False
        self._looks += 1
        return self._looks <= SURE_ANSWERS or self._looks % SELDOM == 0

    def learn(self, model: str | None, prompt_bytes: int, prompt_tokens: int) -> None:
        """A replica says how many tokens a prompt of so many bytes had."""
        if prompt_bytes < LEAST_BYTES or prompt_tokens <= 0:
            return
        if model is not None and len(model) > MOST_NAME:
            return
        ratio = min(max(prompt_tokens / prompt_bytes, LEAST), MOST)
        mean = self._by_model.pop(model, None)
        if mean is None:
            mean = _Mean()
            if len(self._by_model) >= MOST_MODELS:
                del self._by_model[next(iter(self._by_model))]
        self._by_model[model] = mean
        mean.learn(ratio)
        self._of_all.learn(ratio)

    def __len__(self) -> int:
        """How many models have taught."""
        return len(self._by_model)

    def __repr__(self) -> str:
        ratios = {model: round(mean.ratio, 3) for model, mean in self._by_model.items()}
        return f"TokenRatio({round(self._of_all.ratio, 3)}, {ratios})"
