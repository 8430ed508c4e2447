"""What came over the wire, as it may be shown on a terminal."""


def plain(text: str) -> str:
    """Without what a terminal would obey, or hide: one line, `?` for each such character."""
    return "".join(char if char.isprintable() else "?" for char in text)
