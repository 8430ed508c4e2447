"""Live twins on this machine: `python -m twins`."""
