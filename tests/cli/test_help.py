"""`steplog --help` is a list that can be read: every verb once, under what it is for."""

from __future__ import annotations

from steplog._cli.main import _GROUPS, cli


def test_every_verb_stands_under_one_heading(invoke):
    shown = invoke("--help").stdout
    lines = shown.splitlines()
    for title in _GROUPS:
        assert f"{title}:" in lines
    for name in cli.commands:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1
    assert max(map(len, lines)) <= 80
