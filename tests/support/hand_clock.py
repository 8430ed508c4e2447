"""A router's clock, moved by hand."""


class Clock:
    """Says `now_s`, in seconds, until that is set to something else."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
