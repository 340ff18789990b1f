"""An inbox: whoever sends at once, dies in the middle or damages it, what was acknowledged is read in order."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from steplog._kernel.inbox import Message, parse, seal
from steplog.errors import Corrupt, StoreError
from steplog.stores.files import FileStore
from steplog.stores.memory import MemoryStore
from steplog.testing.faults import FaultyFS
from tests.support.processes import environment


def message(number):
    return Message(f"m{number}", "signal", {"name": "n", "value": number}, "ann", None, "2026-01-01T00:00:00.000Z")


def numbers(inbox):
    found = parse(inbox.read())
    assert found.damaged is None
    return [each.data["value"] for each in found.messages]


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path):
    return FileStore(tmp_path, durability="process") if request.param == "files" else MemoryStore()


def new_inbox(store):
    store.open("r").close()
    return store.inbox("r")


def test_messages_come_out_as_they_went_in_and_in_order(store):
    inbox = new_inbox(store)
    assert (inbox.size(), inbox.read()) == (0, b"")

    for number in range(3):
        inbox.append(seal(message(number)))

    assert parse(inbox.read()).messages == [message(0), message(1), message(2)]
    assert inbox.size() == parse(inbox.read()).size == len(inbox.read())
    assert parse(inbox.read(len(seal(message(0))))).messages == [message(1), message(2)]


def test_threads_that_send_at_once_lose_nothing(store):
    inbox = new_inbox(store)
    threads = [
        threading.Thread(target=lambda base=base: [store.inbox("r").append(seal(message(base + n))) for n in range(10)])
        for base in range(0, 80, 10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = numbers(inbox)
    assert sorted(found) == list(range(80))
    assert [n for n in found if n < 10] == list(range(10))


@pytest.mark.parametrize("left", [1, 20, -2])
def test_what_a_dead_sender_has_left_of_a_line_is_passed_over_and_then_cut_off(tmp_path, left):
    inbox = new_inbox(FileStore(tmp_path))
    inbox.append(seal(message(0)))
    with open(inbox.path, "ab") as file:
        file.write(seal(message(1))[:left])

    assert numbers(inbox) == [0]
    inbox.append(seal(message(2)))
    assert numbers(inbox) == [0, 2]


def test_a_line_that_lacks_only_its_newline_counts_before_and_after_it_is_completed(tmp_path):
    inbox = new_inbox(FileStore(tmp_path))
    with open(inbox.path, "wb") as file:
        file.write(seal(message(0))[:-1])

    first = parse(inbox.read())
    inbox.append(seal(message(1)))

    assert [each.id for each in first.messages] == ["m0"]
    assert numbers(inbox) == [0, 1]
    # Whoever has read it as it was goes on behind it.
    assert [each.id for each in parse(inbox.read(first.size)).messages] == ["m1"]


def test_a_message_that_was_changed_is_told_by_its_line(tmp_path):
    inbox = new_inbox(FileStore(tmp_path))
    for number in range(3):
        inbox.append(seal(message(number)))
    with open(inbox.path, "rb") as file:
        data = file.read().replace(b'"value":1', b'"value":9')
    with open(inbox.path, "wb") as file:
        file.write(data + b'{"torn')

    found = parse(inbox.read())
    assert ([each.id for each in found.messages], found.damaged) == (["m0"], 2)
    with pytest.raises(Corrupt, match="line 2: this message is not what was sent"):
        inbox.append(seal(message(3)))


def test_a_message_whose_newline_was_changed_is_told_and_not_cut_off(tmp_path):
    inbox = new_inbox(FileStore(tmp_path))
    inbox.append(seal(message(0)))
    with open(inbox.path, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x0b")
    before = inbox.read()

    with pytest.raises(Corrupt, match="line 1"):
        inbox.append(seal(message(1)))

    assert inbox.read() == before


def test_a_message_that_is_cut_short_counts_for_nothing(tmp_path):
    fs = FaultyFS()
    inbox = new_inbox(FileStore(tmp_path, fs=fs))
    inbox.append(seal(message(0)))
    fs.shorten(10)

    with pytest.raises(StoreError, match="was not sent"):
        inbox.append(seal(message(1)))
    inbox.append(seal(message(2)))

    assert numbers(inbox) == [0, 2]


KILLED = """
import os, signal, sys
from steplog._kernel.inbox import Message, seal
from steplog.stores.files import FileStore
from steplog.stores.fs import FS

class Dying(FS):
    def write(self, fd, data):
        os.write(fd, data[:40])
        os.kill(os.getpid(), signal.SIGKILL)

inbox = FileStore(sys.argv[1], fs=Dying()).inbox("r")
inbox.append(seal(Message("killed", "signal", {}, None, None, "")))
"""


def test_a_sender_that_is_killed_while_it_writes_leaves_the_inbox_to_others(tmp_path):
    inbox = new_inbox(FileStore(tmp_path))
    inbox.append(seal(message(0)))

    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment(), check=False, timeout=30)

    assert done.returncode == -9
    assert inbox.read().endswith(seal(Message("killed", "signal", {}, None, None, ""))[:40])
    inbox.append(seal(message(1)))
    assert numbers(inbox) == [0, 1]


def test_a_message_whose_sync_fails_is_told_as_what_it_is(tmp_path):
    fs = FaultyFS()
    inbox = new_inbox(FileStore(tmp_path, fs=fs))
    fs.fail("sync")

    with pytest.raises(StoreError, match="in the inbox, but a loss of power may take it away"):
        inbox.append(seal(message(0)))


def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path):
    fs = FaultyFS()
    inbox = new_inbox(FileStore(tmp_path, fs=fs))
    inbox.append(seal(message(0)))
    fs.lose_power()

    assert numbers(FileStore(tmp_path).inbox("r")) == [0]
