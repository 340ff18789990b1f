"""Agent frameworks, unmodified, under steplog: see `check.py` for what is asked of each of them."""
