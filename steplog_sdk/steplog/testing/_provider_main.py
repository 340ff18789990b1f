"""A model provider on 127.0.0.1 as a process of its own.

It answers from cassette files, or from a function of yours. Its first line of output is its URL; requests are counted
across the deaths of the processes that make them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from steplog.testing.provider import Fault, Hit, LocalProvider, Reply


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or the end of `--lifetime`."""
    arguments = _parser().parse_args(argv)
    with LocalProvider(
        *arguments.sources,
        handler=arguments.handler,
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
        if arguments.port_file is None:
            sys.stdout.write(f"{provider.url}\n")
            sys.stdout.flush()
        else:
            _announce(arguments.port_file, provider.url.rpartition(":")[2])
        signal.sigtimedwait(signals, arguments.lifetime)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m steplog.testing.provider",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", nargs="*", type=Path, metavar="DIR_OR_FILE", help="cassettes to answer from")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument(
        "--handler", type=_handler, metavar="MODULE:FUNCTION", help="called with each Hit; gives a Reply"
    )
    parser.add_argument(
        "--port-file", type=Path, help="gets the port number once the server listens; else it prints its URL"
    )
    parser.add_argument("--hits-file", type=Path, help="gets one JSON line for each request")
    parser.add_argument("--once", action="store_true", help="let each exchange answer once")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--event-delay", type=float, default=0.0, help="seconds between the events of a stream")
    parser.add_argument("--hang", type=_hang, action="append", default=[], metavar="HIT[:EVENTS]")
    parser.add_argument("--fail", type=_fail, action="append", default=[], metavar="HIT:STATUS[:TIMES]")
    parser.add_argument(
        "--lifetime", type=float, default=600.0, help="seconds, so that a lost provider ends by itself (600)"
    )
    return parser


def _handler(named: str) -> Callable[[Hit], Reply | None]:
    module, _, name = named.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{named}: {error}. Name a function: --handler answers:reply") from error
    return found  # type: ignore[no-any-return]  # called with a Hit, whatever it is


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
