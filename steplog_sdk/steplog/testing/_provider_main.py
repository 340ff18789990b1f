"""The provider as a process of its own, so that requests are counted across the deaths of the process under test."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from steplog.testing.provider import Fault, LocalProvider


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or the end of `--lifetime`."""
    arguments = _parser().parse_args(argv)
    with LocalProvider(
        *arguments.sources,
        repeat=not arguments.once,
        delay=arguments.delay,
        event_delay=arguments.event_delay,
        hits_file=arguments.hits_file,
        port=arguments.port,
    ) as provider:
        provider.inject(*arguments.hang, *arguments.fail)
        signals = {signal.SIGTERM, signal.SIGINT}
        # Blocked before the port is announced: a signal that comes at once is waited for, not fatal.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        _announce(arguments.port_file, provider.url.rpartition(":")[2])
        signal.sigtimedwait(signals, arguments.lifetime)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m steplog.testing.provider", description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, metavar="DIR_OR_FILE", help="cassettes to answer from")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--port-file", type=Path, required=True, help="gets the port number once the server listens")
    parser.add_argument("--hits-file", type=Path, help="gets one JSON line for each request")
    parser.add_argument("--once", action="store_true", help="let each exchange answer once")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--event-delay", type=float, default=0.0, help="seconds between the events of a stream")
    parser.add_argument("--hang", type=_hang, action="append", default=[], metavar="HIT[:EVENTS]")
    parser.add_argument("--fail", type=_fail, action="append", default=[], metavar="HIT:STATUS[:TIMES]")
    parser.add_argument("--lifetime", type=float, default=600.0, help="seconds, so that a lost provider ends by itself")
    return parser


def _hang(text: str) -> Fault:
    hit, _, events = text.partition(":")
    return Fault("hang", hit=int(hit), after=int(events) if events else None)


def _fail(text: str) -> Fault:
    hit, status, *times = (int(number) for number in text.split(":"))
    return Fault("status", hit=hit, status=status, times=times[0] if times else 1)


def _announce(file: Path, port: str) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(f"{port}\n")
    # Renamed into place, because the reader waits for the file to exist and must then find it whole.
    draft.replace(file)
