"""A model provider on 127.0.0.1: a real HTTP server whose answers are fixed before the test begins.

The SDKs speak to it over real sockets, so nothing of them is replaced, and what a program sends is counted where it
counts: at the receiver. It can also be run on its own, to outlive the process under test:

    python -m steplog.testing.provider --port 8080 --hits-file HITS cassettes/openai/runs/refund
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final, Literal, Self

from steplog.testing._exchange import (
    Exchange,
    Hit,
    Reply,
    canonical,
    first_difference,
    leaves,
    load,
    normal_path,
    plain,
)

__all__ = ["Exchange", "Fault", "Hit", "LocalProvider", "Reply", "load"]

Source = Exchange | Mapping[str, Any] | str | Path

# How long `close` waits for connections that are being answered; none of them waits for anything but its client.
_CLOSE_SECONDS: Final = 10.0

# What describes one connection belongs to the connection, not to the recorded answer.
_FRAMING: Final = {"content-length", "transfer-encoding", "connection", "content-encoding", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with a request.

    Attributes:
        kind: `status` answers an error instead; `hang` stops sending until `release()` or `close()`; `drop` closes the
            connection; `delay` waits first.
        hit: the number of the request concerned, from 1; None for the next one.
        times: how many requests in a row; with `hit`, counted from that one.
        after: for `hang` and `drop`: how many events of a stream are sent first (of any other body, a half is one);
            None for before the status line.
        status: for `status`.
        retry_after: for `status`: value of the header, in seconds.
        seconds: for `delay`.
    """

    kind: Literal["status", "hang", "drop", "delay"]
    hit: int | None = None
    times: int = 1
    after: int | None = None
    status: int = 429
    retry_after: str = "0"
    seconds: float = 0.0


class LocalProvider:
    """Answers from a script, from a handler, or from both (the handler first; None from it means the script).

    A script's exchange is recognised by method, path with query, and JSON body (a null field counts as absent, and so
    does `stream: false`); a body of any other type is not compared. Exchanges that nothing tells apart answer in their
    order, so that a poll can see progress. A request that nothing answers gets status 404 with a message that names
    the first difference from the nearest exchange, and is kept in `unmatched`.

    Args:
        *script: exchanges, schema-1 trees, cassette files, or folders of them.
        handler: called with each `Hit`, on the connection's thread.
        repeat: the last of a group of equal exchanges answers any number of times; False: each answers once.
        delay: seconds before every answer.
        event_delay: seconds between the events of a stream.
        hits_file: a file that gets one JSON line per request, written before the answer begins. It is appended to, so
            a count goes on across restarts.
        port: 0 for any free one.

    Attributes:
        url: `http://127.0.0.1:PORT`; the openai SDK wants `url + "/v1"`, the anthropic SDK `url`.
        hits: every request received.
        unmatched: those of them that nothing answered.
    """

    def __init__(
        self,
        *script: Source,
        handler: Callable[[Hit], Reply | None] | None = None,
        repeat: bool = True,
        delay: float = 0.0,
        event_delay: float = 0.0,
        hits_file: str | Path | None = None,
        port: int = 0,
    ) -> None:
        self.hits: list[Hit] = []
        self.unmatched: list[Hit] = []
        self.delay = delay
        self.event_delay = event_delay
        self._handler = handler
        self._repeat = repeat
        self._hits_file = hits_file
        self._script: dict[tuple[str, str, str | None], deque[Exchange]] = {}
        self._faults: list[Fault] = []
        self._changed = threading.Condition()
        self._released = threading.Event()
        self.add(*script)
        self._server = _Server(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name=self.url, daemon=True)
        self._thread.start()

    def add(self, *script: Source) -> None:
        """Append exchanges to the script."""
        with self._changed:
            for exchange in load(*script):
                self._script.setdefault((exchange.method, exchange.path, exchange.body), deque()).append(exchange)

    def inject(self, *faults: Fault) -> None:
        """Let things go wrong with the next requests, or with numbered ones."""
        with self._changed:
            for fault in faults:
                first = len(self.hits) + 1 if fault.hit is None else fault.hit
                self._faults += [_at(fault, first + i) for i in range(fault.times)]

    def wait_for_hits(self, count: int, timeout: float = 30.0) -> None:
        """Return when so many requests have arrived. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.hits) >= count, timeout):
                raise TimeoutError(f"{len(self.hits)} of {count} requests after {timeout} s")

    def release(self) -> None:
        """Let every request that hangs, now or later, go on to its answer."""
        self._released.set()

    def close(self) -> None:
        """Stop listening and close every connection, also idle ones. Idempotent."""
        self._server.stop()
        # Hung up before what hangs is released, so that nobody gets an answer out of a closing server.
        self._server.hang_up()
        self._released.set()
        self._server.wait_until_drained(_CLOSE_SECONDS)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[Reply, list[Fault]]:
        """Count a request, then find its answer and what is to go wrong with it."""
        with self._changed:
            hit = Hit(len(self.hits) + 1, method, path, headers, body)
            self.hits.append(hit)
            faults = [fault for fault in self._faults if fault.hit == hit.number]
            self._changed.notify_all()
        if self._hits_file is not None:
            _append_line(self._hits_file, hit)
        error = next((fault for fault in faults if fault.kind == "status"), None)
        return (_error_reply(error) if error else self._answer(hit)), faults

    def _answer(self, hit: Hit) -> Reply:
        try:
            reply: Any = self._handler(hit) if self._handler else None
        except Exception as error:  # noqa: BLE001 - the client is the one who must hear of it
            return Reply.json({"error": {"type": "handler_failed", "message": repr(error)}}, 500)
        if reply is not None and not isinstance(reply, Reply):
            message = f"the handler returned {type(reply).__name__}; return Reply.json(...), Reply.sse(...) or None"
            return Reply.json({"error": {"type": "handler_failed", "message": message}}, 500)
        return reply or self._from_script(hit) or self._no_answer(hit)

    def _from_script(self, hit: Hit) -> Reply | None:
        path = normal_path(hit.path)
        with self._changed:
            for body in (canonical(hit.json), None):
                exchanges = self._script.get((hit.method, path, body))
                if exchanges:
                    last = self._repeat and len(exchanges) == 1
                    return (exchanges[0] if last else exchanges.popleft()).reply
        return None

    def _no_answer(self, hit: Hit) -> Reply:
        with self._changed:
            self.unmatched.append(hit)
            known = [exchange for exchanges in self._script.values() for exchange in exchanges]
        here = [
            exchange for exchange in known if exchange.method == hit.method and exchange.path == normal_path(hit.path)
        ]
        message = f"no exchange answers {hit.method} {hit.path}; "
        message += f"{len(here)} of {len(known)} exchanges left in the script have this path"
        if here:
            message += f". {_nearest(here, hit.json)}"
        return Reply.json({"error": {"type": "no_exchange", "message": message}}, 404)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A thousand clients may connect at once; a full backlog costs each of them a second.
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], provider: LocalProvider) -> None:
        self.provider = provider
        self._open: set[socket.socket] = set()
        self._closed = threading.Condition()
        super().__init__(address, _Connection)

    def server_bind(self) -> None:
        # HTTPServer's own version looks the host's name up, which asks the network.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._closed:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._closed:
            self._open.discard(request)
            self._closed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed is what this server is for; any other error is in `hits` or in the answer."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def hang_up(self) -> None:
        with self._closed:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the client was faster

    def wait_until_drained(self, timeout: float) -> None:
        with self._closed:
            self._closed.wait_for(lambda: not self._open, timeout)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply, faults = self.server.provider._receive(self.command, self.path, headers, self._read_body())  # noqa: SLF001
            self._send(reply, faults)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_GET = do_DELETE = do_PUT = do_PATCH = do_POST  # noqa: N815 - the names are the protocol's

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: `hits` is the log."""

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self._read(int(self.headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self._read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _read(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            # Its sender was killed; a request that never arrived whole is none.
            raise ConnectionError
        return data

    def _send(self, reply: Reply, faults: list[Fault]) -> None:
        provider = self.server.provider
        time.sleep(provider.delay + sum(fault.seconds for fault in faults if fault.kind == "delay"))
        stops = [fault for fault in faults if fault.kind in {"hang", "drop"}]
        self._stop(stops, None)
        parts = reply.parts() if reply.streamed or not stops else _halves(reply.body)
        pending = self._head(reply)
        for number, part in enumerate(parts):
            if any(fault.after == number for fault in stops):
                self.wfile.write(pending)
                pending = b""
                self._stop(stops, number)
            # Head and first part leave in one write: a second small packet would wait for the client's delayed ack.
            self.wfile.write(pending + self._framed(part, reply))
            pending = b""
            if provider.event_delay and number + 1 < len(parts):
                time.sleep(provider.event_delay)
        self._stop(stops, len(parts))
        if reply.streamed:
            self.wfile.write(pending + b"0\r\n\r\n")

    def _head(self, reply: Reply) -> bytes:
        framing = "transfer-encoding: chunked" if reply.streamed else f"content-length: {len(reply.body)}"
        fields = [f"{name}: {value}" for name, value in reply.headers.items() if name.lower() not in _FRAMING]
        phrase = self.responses.get(reply.status, ("",))[0]
        return "\r\n".join([f"HTTP/1.1 {reply.status} {phrase}", *fields, framing, "", ""]).encode("latin-1")

    @staticmethod
    def _framed(part: bytes, reply: Reply) -> bytes:
        return b"%x\r\n%b\r\n" % (len(part), part) if reply.streamed and part else part

    def _stop(self, stops: list[Fault], sent: int | None) -> None:
        for fault in stops:
            if fault.after != sent:
                continue
            if fault.kind == "drop":
                raise ConnectionAbortedError
            self.server.provider._released.wait()  # noqa: SLF001


def _at(fault: Fault, hit: int) -> Fault:
    return Fault(fault.kind, hit, 1, fault.after, fault.status, fault.retry_after, fault.seconds)


def _error_reply(fault: Fault) -> Reply:
    error = {"type": "injected", "message": f"injected status {fault.status}", "param": None, "code": None}
    return Reply.json({"type": "error", "error": error}, fault.status, retry_after=fault.retry_after)


def _nearest(exchanges: Iterable[Exchange], found: Any) -> str:
    """Name the exchange that shares the most leaves with a body, and the first place where it differs."""
    mine = leaves(found)
    bodies = [(exchange.name, None if exchange.body is None else json.loads(exchange.body)) for exchange in exchanges]
    name, wanted = max(bodies, key=lambda pair: len(mine & leaves(pair[1])) / len(mine | leaves(pair[1])))
    return f"The nearest is {name}: {first_difference(wanted, plain(found))}"


def _append_line(file: str | Path, hit: Hit) -> None:
    digest = hashlib.sha256(hit.body).hexdigest()
    line = json.dumps({"hit": hit.number, "method": hit.method, "path": hit.path, "body_sha256": digest})
    # One write with O_APPEND is whole or absent, whoever else appends to the file.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def _halves(body: bytes) -> list[bytes]:
    return [body[: len(body) // 2], body[len(body) // 2 :]]


if __name__ == "__main__":
    from steplog.testing._provider_main import main

    main()
