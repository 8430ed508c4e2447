"""Pure: no I/O, no clock, no dice. Time and randomness arrive as arguments."""
