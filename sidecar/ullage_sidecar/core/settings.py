"""Everything that decides a snapshot's numbers. Each rule's table stands beside its formula."""

import msgspec

from ullage_sidecar.core.depletion import DepletionSettings
from ullage_sidecar.core.health import HealthSettings
from ullage_sidecar.core.penalty import PenaltySettings
from ullage_sidecar.core.score import ScoreSettings
from ullage_sidecar.core.smoothing import WindowSettings
from ullage_sidecar.core.warmup import WarmUpSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of the configuration that the core reads."""

    score: ScoreSettings = ScoreSettings()
    window: WindowSettings = WindowSettings()
    penalty: PenaltySettings = PenaltySettings()
    depletion: DepletionSettings = DepletionSettings()
    warm_up: WarmUpSettings = WarmUpSettings()
    health: HealthSettings = HealthSettings()
