"""Whoever starts the tests in a script's background has Ctrl-C ignored, and so would all that they
start: tests send it to processes that must end by it."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
