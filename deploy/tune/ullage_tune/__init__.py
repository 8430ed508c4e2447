"""The lab: vLLM's own scheduler in virtual time, and the ways of routing that compete on it."""
