"""What a request asks for, found in its head and body."""

import re
from typing import Final

from ullage_router.core.ask import Ask, ask_of
from ullage_router.http.errors import Refusal, bad_priority
from ullage_router.http.message import CACHE_KEY, PRIORITY, Fields

_INT: Final = re.compile(rb"[+-]?\d{1,9}")


def asked(target: bytes, fields: Fields, body: bytes, session_header: bytes) -> Ask | Refusal:
    """What choosing may go by; or a refusal, where a header that is for us cannot be read."""
    values = fields.values
    priority = None
    if PRIORITY in values:
        said = values[PRIORITY][0].strip()
        if _INT.fullmatch(said) is None:
            return bad_priority(said)
        priority = int(said)
    cache_key = values[CACHE_KEY][0] if CACHE_KEY in values else None
    session = values[session_header][0] if session_header in values else None
    return ask_of(target, body, cache_key=cache_key, session=session, priority=priority)
