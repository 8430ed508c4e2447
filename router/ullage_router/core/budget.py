"""How many requests may be tried a second time: a share of what was asked lately.

    second tries of the last 10 s  <  share · requests of the last 10 s + spare

Without a bound, replicas that fail under load get twice the load. A share lets one lost replica of
many go unnoticed by clients, and a fleet that fails as a whole fail fast. (The idea is Finagle's
`RetryBudget`.) Counted in whole seconds, so that the window is 9 to 10 s long.
"""

from typing import Final

from ullage_router.core.policy import RetryPolicy

WINDOW_S: Final = 10


class RetryBudget:
    """The count of the last 10 s. A clock set back empties it."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self._second = 0
        self._requests = [0] * WINDOW_S
        self._tries = [0] * WINDOW_S

    def request(self, now_s: float) -> None:
        """A request has come."""
        second = int(now_s)
        if second != self._second:
            self._turn_to(second)
        self._requests[second % WINDOW_S] += 1

    def allows(self, now_s: float) -> bool:
        """May a request be tried again now?"""
        second = int(now_s)
        if second != self._second:
            self._turn_to(second)
        allowed = self.policy.share * sum(self._requests) + self.policy.spare
        return sum(self._tries) + 1 <= allowed

    def spend(self, now_s: float) -> bool:
        """Count a second try, if it is allowed."""
        if not self.allows(now_s):
            return False
        self._tries[int(now_s) % WINDOW_S] += 1
        return True

    def _turn_to(self, second: int) -> None:
        passed = second - self._second
        self._second = second
        if not 0 < passed < WINDOW_S:
            self._requests = [0] * WINDOW_S
            self._tries = [0] * WINDOW_S
            return
        for past in range(second - passed + 1, second + 1):
            self._requests[past % WINDOW_S] = 0
            self._tries[past % WINDOW_S] = 0
