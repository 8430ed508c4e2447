"""The mission's own way of choosing (R2, R4, R5, R6): it must be there, exact; it is no default."""

from typing import Final

from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules

BY_SCORE: Final = Policy(Way.WEIGHTED)
AS_ASKED: Final = Rules(BY_SCORE)
