"""Where runs live: the `Store` protocol and its implementations.

`fs.py` is the only module that calls the operating system's file functions, so that tests can count and fail each one.
"""
