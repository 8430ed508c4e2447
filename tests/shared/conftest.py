"""Hypothesis here is repeatable and patient: the same examples each run, no limit on a slow box."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")
