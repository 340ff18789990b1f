"""Logs of every released format, kept and replayed for ever."""
