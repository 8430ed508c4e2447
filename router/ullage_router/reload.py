"""What a reload may change.

Rule: a configuration is taken over whole or not at all.
"""

from operator import attrgetter
from typing import Final

from ullage_router.config import Config
from ullage_router.tls import Material
from ullage_shared.config import ConfigError, keys

_FIXED: Final = ("listen", "admin", "workers", "trace.otlp", "trace.share")


def changes(old: Config, new: Config) -> tuple[str, ...]:
    """The keys whose values differ. Raises `ConfigError` if one of them needs a restart."""
    names = [key.name for key in keys(Config)]
    changed = [name for name in names if attrgetter(name)(old) != attrgetter(name)(new)]
    fixed = [name for name in changed if name in _FIXED]
    if bool(old.tls.certificate) != bool(new.tls.certificate):
        fixed.append("tls.certificate")
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: cannot change while the router runs, restart it")
    return tuple(changed)


def renewed(old: Material, new: Material) -> tuple[str, ...]:
    """The keys of TLS files that have another content now."""
    return tuple(key for key, print_ in new.prints.items() if old.prints.get(key) != print_)
