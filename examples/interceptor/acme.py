"""The client of a weather service that does not exist: somebody else's SDK, which knows nothing of steplog.

It asks with urllib and, in tasks, over a socket of its own. All calls pass two methods: `_call` for an answer that
comes whole, `_lines` for one that comes line by line.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class AcmeError(Exception):
    """The service refused, or its answer broke off.

    Attributes:
        status: HTTP status, or None.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Forecast:
    city: str
    degrees: float


@dataclass(frozen=True)
class Booking:
    reference: str


class Client:
    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def forecast(self, city: str) -> Forecast:
        return Forecast(**self._call("/forecast", {"city": city}))

    def book(self, city: str, *, idempotency_key: str | None = None) -> Booking:
        """Book a table outside. The service takes a second request with the same key for the first one."""
        return Booking(**self._call("/book", {"city": city}, idempotency_key=idempotency_key))

    def report(self, city: str) -> Report:
        return Report(self._lines("/report", {"city": city}))

    def _call(self, path: str, body: dict[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        with self._open(path, body, idempotency_key) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _lines(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        with self._open(path, body, None) as response:
            for line in response:
                yield line.decode().rstrip("\n")

    def _open(self, path: str, body: dict[str, Any], idempotency_key: str | None) -> Any:
        headers = _headers(self._key, idempotency_key)
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        try:
            return self._opener.open(request)
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error.code, error.read()) from None


class AsyncClient:
    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    async def forecast(self, city: str) -> Forecast:
        return Forecast(**await self._call("/forecast", {"city": city}))

    async def book(self, city: str, *, idempotency_key: str | None = None) -> Booking:
        return Booking(**await self._call("/book", {"city": city}, idempotency_key=idempotency_key))

    def report(self, city: str) -> AsyncReport:
        return AsyncReport(self._lines("/report", {"city": city}))

    async def _call(self, path: str, body: dict[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads("\n".join([line async for line in self._get(path, body, idempotency_key)]))
        return answer

    async def _lines(self, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
        async for line in self._get(path, body, None):
            yield line

    async def _get(self, path: str, body: dict[str, Any], idempotency_key: str | None) -> AsyncIterator[str]:
        place = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            content = json.dumps(body).encode()
            fields = {"host": place.netloc, "content-length": str(len(content)), "connection": "close"}
            head = [f"{name}: {value}" for name, value in (_headers(self._key, idempotency_key) | fields).items()]
            writer.write("\r\n".join([f"POST {path} HTTP/1.1", *head, "", ""]).encode() + content)
            status, chunked = await _read_head(reader)
            if status >= 400:
                raise _refused(status, await reader.read())
            async for line in _read_lines(reader, chunked=chunked):
                yield line
        finally:
            writer.close()


class Report(Iterator[str]):
    """The lines of a report, as they come. The last one on the wire is END."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            raise AcmeError("the report breaks off")
        if line == "END":
            raise StopIteration
        return line

    def close(self) -> None:
        self._lines.close()  # type: ignore[attr-defined]  # it is a generator


class AsyncReport(AsyncIterator[str]):
    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def __anext__(self) -> str:
        line = await anext(self._lines, None)
        if line is None:
            raise AcmeError("the report breaks off")
        if line == "END":
            raise StopAsyncIteration
        return line

    async def aclose(self) -> None:
        await self._lines.aclose()  # type: ignore[attr-defined]  # it is a generator


def _headers(key: str, idempotency_key: str | None) -> dict[str, str]:
    headers = {"x-acme-key": key, "content-type": "application/json"}
    return headers if idempotency_key is None else {**headers, "idempotency-key": idempotency_key}


def _refused(status: int, body: bytes) -> AcmeError:
    return AcmeError(f"{status}: {json.loads(body)['error']['message']}", status)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    return int(head.split(" ", 2)[1]), "transfer-encoding: chunked" in head


async def _read_lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[str]:
    rest = b""
    while True:
        if chunked:
            size = int(await reader.readline() or b"0", 16)
            part = (await reader.readexactly(size + 2))[:-2] if size else b""
        else:
            part = await reader.read(65536)
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode()
        if not part:
            if rest:
                yield rest.decode()
            return
