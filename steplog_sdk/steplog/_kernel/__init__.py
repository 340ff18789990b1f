"""The pure core: bytes and values in, bytes and values out.

Nothing here does I/O, reads a clock, draws a random number, starts a thread or logs. What is decided here can be
tested by millions of generated cases, and serves the live run, the replay, the command line and every store alike.
"""
