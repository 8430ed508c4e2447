"""A setting: what differs from the default, as tables of the two configurations.

What is measured is what is recommended: the tables that are printed are those that the policy was
made of, and both go through the configurations' own types.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import tomli_w

from ullage_router.config import Config as RouterConfig
from ullage_router.config import rules
from ullage_sidecar.core.settings import Settings
from ullage_tune.ours import Ours

Tables = Mapping[str, Any]
"""As TOML has them: a table is a mapping, in which a dotted name is another one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Empty tables are the default."""

    sidecar: Tables
    router: Tables

    def policy(self) -> Ours:
        """What ships, set so. Raises `msgspec.ValidationError`: the configuration refuses it."""
        settings = msgspec.convert(self.sidecar, Settings)
        return Ours(
            rules=rules(msgspec.convert(self.router, RouterConfig)),
            sidecar={table: getattr(settings, table) for table in self.sidecar},
        )


def toml(tables: Tables) -> str:
    """To be pasted; empty where there is nothing."""
    return tomli_w.dumps(tables)
