"""`steplog export` and `steplog import`: a run goes from one home to another as it is, or not at all."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

import steplog
from steplog.errors import SteplogError
from steplog.stores import archive
from steplog.stores.files import FileStore
from steplog.stores.intake import import_run
from tests.cli import test_prune
from tests.cli.test_prune import record, text
from tests.support.processes import environment

runs = test_prune.runs


@pytest.fixture
def there(tmp_path):
    return tmp_path / "there"


@pytest.fixture
def exported(home, there, invoke, tmp_path):
    """A file with a run of three steps, the directory of another home beside it."""
    record(home, "r", 1, 2, 3)
    path = tmp_path / "r.steplog"
    result = invoke("export", "r", "-o", str(path))
    assert (result.exit_code, result.stdout.startswith(str(path))) == (0, True)
    return path


def taken(invoke, file, there, *words):
    return invoke("import", str(file), "--home", str(there), *words)


def rewritten(path, change):
    """The file with its members changed; hashes are as they were."""
    with zipfile.ZipFile(path) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    members = change(members) or members
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    path.write_bytes(data.getvalue())


def with_manifest(change):
    def apply(members):
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return apply


def test_a_run_is_replayed_in_another_home(home, there, exported, invoke, ask):
    assert oct(exported.stat().st_mode & 0o777) == "0o600"

    result = taken(invoke, exported, there)

    assert result.stdout.startswith("imported run r:")
    ours, theirs = (path / "runs" / "r" / "events.jsonl" for path in (home, there))
    assert theirs.read_bytes() == ours.read_bytes()
    assert ask("verify", "r", "--home", str(there))["ok"]
    assert oct(theirs.stat().st_mode & 0o777) == "0o600"
    assert oct(theirs.parent.stat().st_mode & 0o777) == "0o700"
    steplog.install(home=there, interceptors=[])
    with steplog.run("r") as run:
        assert [steplog.step(f"read {number}", lambda: 1 / 0) for number in (1, 2, 3)] == [text(1), text(2), text(3)]
        assert run.executed == 0


def test_a_run_that_stopped_goes_on_elsewhere(home, there, invoke, tmp_path):
    steplog.install(home=home, interceptors=[])
    with pytest.raises(ZeroDivisionError), steplog.run("r"):
        steplog.step("read 1", lambda: text(1))
        steplog.step("read 2", lambda: 1 / 0)
    path = tmp_path / "r.steplog"
    assert invoke("export", "r", "-o", str(path)).exit_code == 0
    assert taken(invoke, path, there).exit_code == 0
    steplog.install(home=there, interceptors=[])
    with steplog.run("r") as run:
        assert steplog.step("read 1", lambda: 1 / 0) == text(1)
        assert steplog.step("read 2", lambda: text(2)) == text(2)
        assert run.executed == 1


def test_an_encrypted_run_stays_encrypted(home, there, invoke, tmp_path, monkeypatch, ask):
    pytest.importorskip("cryptography")
    key, other = (invoke("key").stdout.strip() for _ in range(2))
    monkeypatch.setenv("STEPLOG_KEY", key)
    token = "ghp_" + "a1B2c3D4" * 4 + "e5F6"
    steplog.install(home=home, interceptors=[])
    with steplog.run("r"):
        steplog.step("read 1", lambda: text(1))
        assert steplog.step("token", lambda: token) == token
    path = tmp_path / "r.steplog"
    assert invoke("export", "r", "-o", str(path)).exit_code == 0
    with zipfile.ZipFile(path) as file:
        inside = b"".join(file.read(info) for info in file.infolist())
    for secret in (token.encode(), text(1)[:40].encode(), sha256(text(1).encode()).hexdigest().encode()):
        assert secret not in inside
    for wrong in (other, ""):
        monkeypatch.setenv("STEPLOG_KEY", wrong)
        assert taken(invoke, path, there).exit_code == 1
        assert not (there / "runs").exists()
    monkeypatch.setenv("STEPLOG_KEY", f"{other},{key}")
    assert taken(invoke, path, there).exit_code == 0
    steplog.install(home=there, interceptors=[])
    with steplog.run("r"):
        assert steplog.step("read 1", lambda: 1 / 0) == text(1)
        assert steplog.step("token", lambda: 1 / 0) == token


def test_the_same_run_again_changes_nothing_and_brings_back_bodies(home, there, exported, invoke, ask):
    taken(invoke, exported, there)
    names = [os.fspath(path) for path in there.rglob("*") if path.is_file()]
    os.unlink(there / "bodies.db")
    again = taken(invoke, exported, there)
    assert again.stdout.startswith("already there: run r")
    assert sorted(os.fspath(path) for path in there.rglob("*") if path.is_file()) == sorted(names)
    assert ask("verify", "r", "--home", str(there))["ok"]


@pytest.mark.parametrize("relation", ["another log", "has gone on", "earlier state"])
def test_another_run_of_that_id_is_not_replaced(home, there, exported, invoke, relation):
    if relation == "another log":
        record(there, "r", 1)
    else:
        taken(invoke, exported, there)
        log = there / "runs" / "r" / "events.jsonl"
        if relation == "has gone on":
            record(there, "r", 1, 2, 3)
        else:
            log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:4]))
    log = (there / "runs" / "r" / "events.jsonl").read_bytes()
    result = taken(invoke, exported, there)
    assert result.exit_code == 1
    assert relation in result.stderr
    assert (there / "runs" / "r" / "events.jsonl").read_bytes() == log


def test_bodies_that_are_gone_are_listed(home, there, invoke, tmp_path, ask):
    record(home, "r", 1, 2)
    store = FileStore(home)
    store.bodies.put([])
    store.bodies.database.connection.execute("DELETE FROM bodies WHERE sha256 = (SELECT min(sha256) FROM bodies)")
    store.bodies.close()
    path = tmp_path / "r.steplog"
    assert "1 body that it names is gone" in invoke("export", "r", "-o", str(path)).stdout
    facts = json.loads(taken(invoke, path, there, "--json").stdout)
    assert (facts["new"], facts["bodies"], len(facts["missing"])) == (True, 1, 1)
    assert len(ask("verify", "r", "--home", str(there))["faults"]) == 1


def test_bodies_that_were_pruned_are_so_in_the_other_home_too(runs, there, invoke, tmp_path, ask):
    ask("prune", "--bodies", "30d")
    path = tmp_path / "a" / "directory" / "old.steplog"
    assert "2 bodies that it names are gone" in invoke("export", "old", "-o", str(path)).stdout
    assert taken(invoke, path, there).exit_code == 0
    assert ask("verify", "old", "--home", str(there)) == ask("verify", "old")
    steplog.install(home=there, interceptors=[])
    today = time.strftime("%Y-%m-%d", time.gmtime())
    with pytest.raises(steplog.RunStopped, match=f"pruned on {today}"), steplog.run("old"):
        steplog.step("read 1", lambda: text(1))
    bodies = FileStore(there).bodies
    bodies.put([(sha256(b"again").hexdigest(), b"again")])
    assert bodies.get(sha256(b"again").hexdigest()) == b"again"


def test_a_run_under_way_is_written_as_far_as_it_is(home, there, invoke, tmp_path, ask):
    steplog.install(home=home, interceptors=[])
    path = tmp_path / "r.steplog"
    with steplog.run("r"):
        steplog.step("read 1", lambda: text(1))
        assert invoke("export", "r", "-o", str(path)).exit_code == 0
    assert taken(invoke, path, there).exit_code == 0
    assert ask("verify", "r", "--home", str(there))["ok"]


def test_a_conversation_takes_the_space_of_what_is_said(tmp_path):
    store = FileStore(tmp_path / "home")
    pieces = archive._Pieces()
    from tests.stores.test_bodies import conversation  # its generator of growing requests

    requests = list(conversation(150))
    for request in requests:
        pieces.add(sha256(request).hexdigest(), request)
    assert len(pieces.data.getvalue()) < 1.1 * len(requests[-1])
    assert sum(len(body["pieces"]) for body in pieces.bodies) <= 4 * len(requests)
    store.bodies.close()


def hostile():
    """Files that must not be imported, by what is wrong with them."""

    def log(members):
        members["events.jsonl"] = members["events.jsonl"].replace(b"read 1", b"read 7")

    def sealed(members):
        log(members)
        manifest = json.loads(members["manifest.json"])
        manifest["log"]["sha256"] = sha256(members["events.jsonl"]).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()

    def piece(members):
        members["pieces"] = members["pieces"][:-1] + b"!"

    def resealed(members):
        piece(members)
        manifest = json.loads(members["manifest.json"])
        manifest["pieces"]["sha256"] = sha256(members["pieces"]).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()

    return {
        "a line is altered": log,
        "a line is altered, and its hash": sealed,
        "a piece is altered": piece,
        "a piece is altered, and its hash": resealed,
        "a body is missing": with_manifest(lambda manifest: manifest["bodies"].pop()),
        "a body is renamed": with_manifest(lambda manifest: manifest["bodies"][0].update(name="../x")),
        "another run id": with_manifest(lambda manifest: manifest.update(run_id="other")),
        "a path as run id": with_manifest(lambda manifest: manifest.update(run_id="../../r")),
        "no run id": with_manifest(lambda manifest: manifest.pop("run_id")),
        "a newer format": with_manifest(lambda manifest: manifest.update(format="steplog-run/9")),
        "a piece that is not there": with_manifest(lambda manifest: manifest["bodies"][0]["pieces"].append(10**9)),
        "a negative size": with_manifest(lambda manifest: manifest["pieces"]["sizes"].append(-1)),
        "an enormous body": with_manifest(lambda manifest: manifest["bodies"][0].update(size=10**15)),
        "a reference forward": with_manifest(lambda manifest: manifest["bodies"][0].update({"as": 1, "first": 1})),
        "an enormous log": with_manifest(lambda manifest: manifest["log"].update(size=10**15)),
        "a list as manifest": lambda members: members.update({"manifest.json": b"[]"}),
        "no manifest": lambda members: members.pop("manifest.json") and None,
        "another member": lambda members: members.update({"../../evil": b"x"}),
        "a bomb": lambda members: members.update({"pieces": b"\0" * (70 << 20)}),
    }


@pytest.mark.parametrize("what", hostile())
def test_a_file_that_is_not_whole_is_not_imported(there, exported, invoke, what):
    rewritten(exported, hostile()[what])
    result = taken(invoke, exported, there)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: ")
    assert not (there / "runs").exists()


@pytest.mark.parametrize("size", [0, 10, 200, -1, -30])
def test_a_file_that_is_cut_off_is_not_imported(there, exported, invoke, size):
    exported.write_bytes(exported.read_bytes()[:size])
    assert taken(invoke, exported, there).exit_code == 2
    assert not there.exists()


KILLED = """
import os, signal, sys
from steplog._cli.export import _names
from steplog.stores import archive, intake
from steplog.stores.files import FileStore
what, name, number = sys.argv[1:4]
calls = 0
def counted(real):
    def call(*words):
        global calls
        calls += 1
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*words)
    return call
for each in ("create", "write", "sync", "sync_dir", "close", "mkdir"):
    setattr(archive.FS, each, counted(getattr(archive.FS, each)))
for each in ("rename", "replace"):
    setattr(archive.os, each, counted(getattr(os, each)))
store = FileStore(sys.argv[4])
if what == "export":
    archive.export_run(store, "r", name, _names)
else:
    intake.import_run(store, name, _names)
"""


def test_a_file_with_a_changed_byte_is_refused_or_the_same_run(home, there, exported):
    whole = exported.read_bytes()
    log = (home / "runs" / "r" / "events.jsonl").read_bytes()
    refused = 0
    for at in range(0, len(whole), 19):
        exported.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        target = there / str(at)
        try:
            import_run(FileStore(target), str(exported), lambda _event: ())
        except SteplogError:
            refused += 1
            assert not (target / "runs").exists()
        else:
            # Zip holds dates and the like that nothing depends on.
            assert (target / "runs" / "r" / "events.jsonl").read_bytes() == log
    assert refused > len(whole) // 19 // 2


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["export", "import"])
def test_killed_at_every_call_it_is_there_whole_or_not_at_all(home, there, exported, invoke, tmp_path, what):
    whole = exported.read_bytes()
    number, done = 0, False
    while not done:
        number += 1
        target = str(tmp_path / f"{number}.steplog") if what == "export" else str(exported)
        at = home if what == "export" else tmp_path / f"home-{number}"
        command = [sys.executable, "-c", KILLED, what, target, str(number), str(at)]
        done = subprocess.run(command, env=environment(), check=False).returncode == 0
        if what == "export":
            assert not os.path.exists(target) or Path(target).read_bytes() == whole
        else:
            assert FileStore(at).runs() in ([], ["r"])
            assert taken(invoke, exported, at).exit_code == 0
            assert invoke("verify", "r", "--home", str(at)).exit_code == 0
    assert number > 5


def test_messages_that_were_not_taken_yet_go_along(home, there, invoke, tmp_path):
    record(home, "r", 1)
    store, file = FileStore(str(home)), tmp_path / "r.steplog"
    steplog.signal("r", "go", 1, store=store)
    sent = store.inbox("r").read()
    invoke("export", "r", "-o", str(file))
    assert taken(invoke, file, there).exit_code == 0
    other = FileStore(str(there)).inbox("r")
    assert other.read() == sent
    steplog.signal("r", "go", 2, store=store)
    invoke("export", "r", "-o", str(file))
    for _ in range(2):
        assert taken(invoke, file, there).exit_code == 0
        assert other.read() == store.inbox("r").read() != sent


def test_a_file_with_a_message_that_nobody_sent_is_refused(home, there, invoke, exported):
    steplog.signal("r", "go", 1, store=FileStore(str(home)))
    invoke("export", "r", "-o", str(exported))
    rewritten(exported, with_manifest(lambda manifest: manifest.update(inbox=manifest["inbox"].replace("go", "no"))))
    result = taken(invoke, exported, there)
    assert (result.exit_code, "a message of its inbox is not what was sent" in result.stderr) == (1, True)
    assert not there.joinpath("runs", "r").exists()
