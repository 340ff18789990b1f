"""The provider as a server: what arrives on the wire, what is counted, and what goes wrong on request."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from steplog.errors import InvalidArgument
from steplog.testing import Exchange, Fault, LocalProvider, Reply
from tests.support.processes import environment, hits, provider_process
from tests.support.recorded import OWN

PLAIN = OWN / "openai/chat/plain.json"
STREAM = OWN / "openai/chat/stream-usage.json"


def exchange(body, answer, path="/v1/x", method="POST"):
    return Exchange(method, path, None if body is None else json.dumps(body, separators=(",", ":")), Reply.json(answer))


def ask(provider, body=None, path="/v1/x", method="POST", connection=None, headers=None):
    own = connection or connect(provider)
    try:
        own.request(method, path, None if body is None else json.dumps(body), headers or {})
        response = own.getresponse()
        text = response.read()
        return response, text if response.status >= 400 or b"data:" in text else json.loads(text or "null")
    finally:
        if connection is None:
            own.close()


def connect(provider):
    return http.client.HTTPConnection(urlsplit(getattr(provider, "url", provider)).netloc, timeout=30)


def body_of(file):
    return json.loads(file.read_bytes())["request"]["body"]


def test_the_body_decides_between_exchanges_of_one_path():
    with LocalProvider(exchange({"q": 1}, "one"), exchange({"q": 2}, "two")) as provider:
        assert ask(provider, {"q": 2})[1] == "two"
        assert ask(provider, {"q": 1})[1] == "one"


@pytest.mark.parametrize("same", [{"a": 1, "b": {"c": 2}}, {"b": {"c": 2, "d": None}, "a": 1, "stream": False}])
def test_order_and_nulls_do_not_matter(same):
    with LocalProvider(exchange({"a": 1, "b": {"c": 2}}, "found")) as provider:
        assert ask(provider, same)[1] == "found"


@pytest.mark.parametrize(
    "other", [{"a": 1.0}, {"a": True}, {"a": "1"}, {"a": 1, "b": 0}, {"a": 1, "stream": True}, [1]]
)
def test_values_and_types_matter(other):
    with LocalProvider(exchange({"a": 1}, "found")) as provider:
        assert ask(provider, other)[0].status == 404


def test_the_order_of_query_parameters_does_not_matter():
    with LocalProvider(Exchange.of(tree(path="/v1/x?b=2&a=1"))) as provider:
        assert ask(provider, {}, "/v1/x?a=1&b=2")[0].status == 200
        assert ask(provider, {}, "/v1/x?a=1")[0].status == 404


def tree(path="/v1/x", body_type="json", body="ok", schema=1):
    request = {"method": "POST", "path": path, "headers": {}, "body_type": "json", "body": {}}
    response = {"status": 200, "headers": {}, "body_type": body_type, "body": body}
    return {"schema": schema, "request": request, "response": response}


def test_a_file_of_another_schema_is_refused_by_name(tmp_path):
    (tmp_path / "new.json").write_text(json.dumps(tree(schema=2)))

    with pytest.raises(InvalidArgument, match=r"new\.json: schema 2"):
        LocalProvider(tmp_path)


def test_equal_exchanges_answer_in_order_and_the_last_repeats():
    with LocalProvider(exchange({}, "queued"), exchange({}, "done")) as provider:
        assert [ask(provider, {})[1] for _ in range(3)] == ["queued", "done", "done"]


def test_without_repeat_each_answers_once():
    with LocalProvider(exchange({}, "queued"), exchange({}, "done"), repeat=False) as provider:
        assert [ask(provider, {})[0].status for _ in range(3)] == [200, 200, 404]
        assert len(provider.unmatched) == 1


def test_an_unknown_request_learns_what_differs_from_the_nearest():
    with LocalProvider(PLAIN, STREAM) as provider:
        asked = body_of(PLAIN) | {"model": "gpt-9"}
        response, text = ask(provider, asked, "/v1/chat/completions")

        message = json.loads(text)["error"]["message"]
        assert response.status == 404
        assert f'{PLAIN}: body.model: wanted "gpt-4o-mini", found "gpt-9"' in message
        assert [hit.json for hit in provider.unmatched] == [asked]


def test_a_handler_goes_first_and_may_leave_it_to_the_script():
    def handler(hit):
        return Reply.json({"n": hit.number, "q": hit.json["q"]}, 202, x_own="yes") if hit.json["q"] else None

    with LocalProvider(exchange({"q": 0}, "script"), handler=handler) as provider:
        response, body = ask(provider, {"q": 7})

        assert (response.status, response.headers["x-own"], body) == (202, "yes", {"n": 1, "q": 7})
        assert ask(provider, {"q": 0})[1] == "script"


def test_a_handler_that_fails_tells_the_client():
    def handler(_):
        raise ZeroDivisionError("nothing to divide by")

    with LocalProvider(handler=handler) as provider:
        response, text = ask(provider, {})

    assert response.status == 500
    assert b"nothing to divide by" in text


def test_hits_keep_what_was_sent():
    with LocalProvider(exchange(None, "any")) as provider:
        ask(provider, {"q": 1}, headers={"Authorization": "Bearer test"})
        ask(provider, method="DELETE")

        first, second = provider.hits
        assert (first.number, first.method, first.path, first.json) == (1, "POST", "/v1/x", {"q": 1})
        assert first.headers["authorization"] == "Bearer test"
        assert (second.number, second.method, second.json) == (2, "DELETE", None)


def test_the_hits_file_grows_across_restarts_and_names_no_credential(tmp_path):
    for _ in range(2):
        with LocalProvider(exchange(None, "any"), hits_file=tmp_path / "hits") as provider:
            ask(provider, {"q": 1}, headers={"Authorization": "Bearer test"})

    lines = [json.loads(line) for line in (tmp_path / "hits").read_text().splitlines()]
    assert len(lines) == 2
    assert set(lines[0]) == {"hit", "method", "path", "body_sha256"}
    assert lines[0]["body_sha256"] == lines[1]["body_sha256"]


def test_every_one_of_many_concurrent_requests_is_counted(tmp_path):
    with LocalProvider(exchange(None, "any"), hits_file=tmp_path / "hits") as provider:
        with ThreadPoolExecutor(32) as pool:
            statuses = list(pool.map(lambda n: ask(provider, {"n": n})[0].status, range(200)))

    assert statuses == [200] * 200
    assert sorted(hit.json["n"] for hit in provider.hits) == list(range(200))
    assert [hit.number for hit in provider.hits] == list(range(1, 201))
    assert len((tmp_path / "hits").read_text().splitlines()) == 200


def test_a_connection_is_kept_for_the_next_request():
    with LocalProvider(exchange(None, "any"), STREAM) as provider:
        connection = connect(provider)
        ask(provider, {}, connection=connection)
        before = connection.sock
        ask(provider, body_of(STREAM), "/v1/chat/completions", connection=connection)
        ask(provider, {}, connection=connection)

        assert connection.sock is before is not None
        connection.close()


def test_a_plain_answer_has_its_length_and_a_stream_is_chunked_by_event():
    with LocalProvider(PLAIN, STREAM) as provider:
        plain, _ = ask(provider, body_of(PLAIN), "/v1/chat/completions")
        sizes = chunk_sizes(provider)

    recorded = json.loads(STREAM.read_bytes())["response"]["body"]
    assert plain.headers["content-length"] == str(
        len(json.dumps(json.loads(PLAIN.read_bytes())["response"]["body"], separators=(",", ":")))
    )
    assert plain.headers["x-request-id"] == "req_openai_chat_plain"
    assert sizes == [len(event) + 2 for event in recorded.split("\n\n")[:-1]] + [0]


def chunk_sizes(provider):
    connection = connect(provider)
    connection.request("POST", "/v1/chat/completions", json.dumps(body_of(STREAM)))
    response = connection.getresponse()
    assert response.headers["transfer-encoding"] == "chunked"
    sizes = []
    while not sizes or sizes[-1]:
        sizes.append(int(response.fp.readline(), 16))
        response.fp.read(sizes[-1] + 2)
    connection.close()
    return sizes


@pytest.mark.parametrize(
    "kind, body, sent",
    [
        ("json", {"é": 1}, '{"é":1}'.encode()),
        ("base64", "AP8=", b"\x00\xff"),
        ("ndjson", "1\n2\n", b"1\n2\n"),
        ("empty", None, b""),
    ],
)
def test_every_kind_of_body_arrives_as_it_is(kind, body, sent):
    with LocalProvider(tree(body_type=kind, body=body)) as provider:
        connection = connect(provider)
        connection.request("POST", "/v1/x", "{}")

        assert connection.getresponse().read() == sent
        connection.close()


@pytest.mark.parametrize(
    "text", ["data: 1\n\ndata: 2\n\n", "data: 1\r\n\r\ndata: 2\r\n\r\n", "data: 1\n\n: a comment\n\ndata: 2"]
)
def test_a_stream_is_cut_at_its_events_and_loses_nothing(text):
    parts = Reply.sse(text).parts()

    assert b"".join(parts) == text.encode()
    assert len(parts) == text.count("data") + text.count("comment")


def test_a_request_sent_in_chunks_is_read_whole():
    with LocalProvider(exchange({"q": 1}, "found")) as provider:
        connection = connect(provider)
        connection.request(
            "POST", "/v1/x", iter([b'{"q"', b":1}"]), encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
        )

        assert json.loads(connection.getresponse().read()) == "found"
        connection.close()


def test_status_faults_come_first_and_say_when_to_retry():
    with LocalProvider(exchange({}, "ok")) as provider:
        provider.inject(Fault("status", status=429, retry_after="3", times=2))
        answers = [ask(provider, {})[0] for _ in range(3)]

    assert [answer.status for answer in answers] == [429, 429, 200]
    assert [answer.headers["retry-after"] for answer in answers] == ["3", "3", None]


def test_a_fault_waits_for_its_hit():
    with LocalProvider(exchange({}, "ok")) as provider:
        provider.inject(Fault("status", status=500, hit=2))

        assert [ask(provider, {})[0].status for _ in range(3)] == [200, 500, 200]


def test_dropped_before_the_answer():
    with LocalProvider(exchange({}, "ok")) as provider:
        provider.inject(Fault("drop"))

        with pytest.raises(http.client.RemoteDisconnected):
            ask(provider, {})
        assert ask(provider, {})[1] == "ok"


@pytest.mark.parametrize("after", [0, 1, 3])
def test_dropped_in_the_middle_of_a_stream(after):
    with LocalProvider(STREAM) as provider:
        provider.inject(Fault("drop", after=after))
        connection = connect(provider)
        connection.request("POST", "/v1/chat/completions", json.dumps(body_of(STREAM)))
        with pytest.raises(http.client.IncompleteRead) as caught:
            connection.getresponse().read()
        connection.close()

    assert caught.value.partial.count(b"data:") == after


def test_dropped_in_the_middle_of_a_body():
    with LocalProvider(exchange({}, "0123456789")) as provider:
        provider.inject(Fault("drop", after=1))

        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(provider, {})

    assert caught.value.partial == b'"01234'


@pytest.mark.parametrize("after", [None, 0, 2])
def test_what_hangs_goes_on_when_released(after):
    with LocalProvider(STREAM) as provider, ThreadPoolExecutor(1) as pool:
        provider.inject(Fault("hang", after=after))
        asked = pool.submit(ask, provider, body_of(STREAM), "/v1/chat/completions")
        provider.wait_for_hits(1)
        assert not asked.done()
        provider.release()

        assert asked.result(30)[1].count(b"data:") == 17


def test_closing_ends_what_hangs_without_an_answer():
    provider = LocalProvider(exchange({}, "ok"))
    with ThreadPoolExecutor(1) as pool:
        provider.inject(Fault("hang"))
        asked = pool.submit(ask, provider, {})
        provider.wait_for_hits(1)
        provider.close()

        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            asked.result(30)


def test_a_closed_provider_serves_nobody_not_even_kept_connections():
    provider = LocalProvider(exchange({}, "ok"))
    connection = connect(provider)
    ask(provider, {}, connection=connection)
    provider.close()
    provider.close()

    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        ask(provider, {}, connection=connection)
    connection.close()
    with pytest.raises(ConnectionError):
        ask(provider, {})
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(provider.url)] == []


@pytest.mark.parametrize(
    "options, fault, least",
    [({"delay": 0.05}, (), 0.05), ({"event_delay": 0.005}, (), 0.08), ({}, (Fault("delay", seconds=0.05),), 0.05)],
)
def test_delays_are_at_least_what_they_say(options, fault, least):
    with LocalProvider(STREAM, **options) as provider:
        provider.inject(*fault)
        begun = time.monotonic()
        ask(provider, body_of(STREAM), "/v1/chat/completions")

        assert time.monotonic() - begun >= least


def test_waiting_for_hits_that_never_come_says_how_many_did():
    with LocalProvider(exchange({}, "ok")) as provider:
        ask(provider, {})
        with pytest.raises(TimeoutError, match="1 of 2"):
            provider.wait_for_hits(2, timeout=0.01)


def test_standing_alone_it_serves_counts_and_fails_as_told(tmp_path):
    with provider_process(tmp_path, PLAIN, "--fail", "1:529:2", "--once") as url:
        statuses = [ask(url, body_of(PLAIN), "/v1/chat/completions")[0].status for _ in range(4)]
    with provider_process(tmp_path, PLAIN) as url:
        assert ask(url, body_of(PLAIN), "/v1/chat/completions")[0].status == 200

    assert statuses == [529, 529, 200, 404]
    assert [hit["hit"] for hit in hits(tmp_path)] == [1, 2, 3, 4, 1]


def test_standing_alone_it_outlives_a_client_that_is_killed_while_it_hangs(tmp_path):
    client = (
        f"import sys, urllib.request; urllib.request.urlopen(sys.argv[1], data={json.dumps(body_of(PLAIN))!r}.encode())"
    )
    with provider_process(tmp_path, PLAIN, "--hang", "1") as url:
        process = subprocess.Popen([sys.executable, "-c", client, f"{url}/v1/chat/completions"], env=environment())
        while not hits(tmp_path):
            assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGKILL)

        assert process.wait(30) == -signal.SIGKILL
        assert ask(url, body_of(PLAIN), "/v1/chat/completions")[0].status == 200
    assert len(hits(tmp_path)) == 2


def test_events_get_the_names_of_their_types_where_they_are_asked_for():
    events = [{"type": "ping"}, {"type": "message_stop", "n": 1}]

    assert Reply.sse(events).body == b'data: {"type":"ping"}\n\ndata: {"type":"message_stop","n":1}\n\n'
    assert Reply.sse(events, named=True).body == (
        b'event: ping\ndata: {"type":"ping"}\n\nevent: message_stop\ndata: {"type":"message_stop","n":1}\n\n'
    )
    assert len(Reply.sse(events, named=True).parts()) == 2


@pytest.mark.parametrize("events", [[{"id": 1}], [{"type": 7}], ["[DONE]"], "data: 1\n\n"])
def test_an_event_without_a_type_cannot_be_named(events):
    with pytest.raises(InvalidArgument, match="named=True"):
        Reply.sse(events, named=True)


def test_from_a_shell_it_prints_its_url_and_answers_by_a_function(tmp_path):
    (tmp_path / "answers.py").write_text(
        "from steplog.testing import Reply\n\ndef reply(hit): return Reply.json({'said': hit.json})\n"
    )
    command = [sys.executable, "-m", "steplog.testing.provider", "--handler", "answers:reply", "--lifetime", "60"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        assert httpx.post(f"{url}/v1/x", json={"a": 1}, trust_env=False).json() == {"said": {"a": 1}}
    finally:
        process.kill()
        process.communicate()
