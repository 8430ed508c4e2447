"""How long an engine's steps take, learned from what its plugin said."""
