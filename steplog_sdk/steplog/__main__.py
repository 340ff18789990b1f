"""`python -m steplog` is the command `steplog`."""

from __future__ import annotations

from steplog._cli.main import main

if __name__ == "__main__":
    main()
