"""Child processes that are started below `subprocess`, without an audit event.

`multiprocessing.util.spawnv_passfds` hands any program to the C function behind `subprocess`. It takes the function
from its module whenever it is called, so the guard stands in its place while it is on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

Check = Callable[[Any, list[Any], "dict[str, str] | None"], None]
"""Given the program, the command line and the environment (None: this one's); raises where it may not be started."""

_FUNCTION: Final = "fork_exec"


class Spawns:
    """The function in question, asking `check` first.

    Args:
        check: raises where a child may not be started.
    """

    def __init__(self, check: Check) -> None:
        try:
            import _posixsubprocess
        except ImportError:  # another system than POSIX: `subprocess` and `multiprocessing` raise their events there
            self._module: Any = None
            return
        self._module = _posixsubprocess
        self._original = getattr(_posixsubprocess, _FUNCTION)
        original = self._original

        def asks_first(words: Any, programs: Any, *rest: Any) -> Any:
            environment = rest[3]
            known = None if environment is None else dict(os.fsdecode(one).partition("=")[::2] for one in environment)
            check(next(iter(programs), None), list(words), known)
            return original(words, programs, *rest)

        self._put = asks_first
        setattr(_posixsubprocess, _FUNCTION, asks_first)

    def take_back(self) -> None:
        """Leave the module as it was; what somebody else has put there meanwhile stays."""
        if self._module is not None and getattr(self._module, _FUNCTION) is self._put:
            setattr(self._module, _FUNCTION, self._original)
