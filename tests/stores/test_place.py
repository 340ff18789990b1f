"""What is said in time about the place where logs lie: network file systems, full disks, owners and modes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys

import pytest

import steplog
from steplog._kernel.line import Chain
from steplog._kernel.references import references
from steplog._runtime import settings
from steplog.errors import StoreError
from steplog.stores import place
from steplog.stores.files import FileStore
from steplog.stores.fs import Space
from steplog.testing import FaultyFS, PowerFailure
from steplog.testing.contract import fill, named
from tests.faults.scenario import release
from tests.support.processes import environment

LOCAL = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch):
    monkeypatch.setattr(place, "_said", set())


class Machine(FaultyFS):
    """A machine with other mounts, disks and users than this one."""

    def __init__(self, mounts=LOCAL, free=10**12, total=10**12, user=None, listable=True):
        super().__init__()
        self.said = (mounts, Space(free, total, names=True), os.geteuid() if user is None else user, listable)

    def mounts(self):
        return self.said[0]

    def space(self, path):
        return self.said[1]

    def user(self):
        return self.said[2]

    def can_list(self, path):
        return self.said[3]


def mount(point, kind):
    return f"40 22 0:40 / {point} rw,relatime - {kind} server:/export rw,vers=4.2\n"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "fuse.sshfs", "fuse.s3fs"])
def test_a_network_file_system_is_warned_of_once_and_noted_in_the_log(tmp_path, caplog, kind):
    store = FileStore(tmp_path / "home", fs=Machine(LOCAL + mount(tmp_path, kind)))
    steplog.install(store=store, interceptors=())
    with caplog.at_level(logging.WARNING):
        for run_id in ("r", "s"):
            with steplog.run(run_id):
                pass
    steplog.uninstall()
    warnings = [record.getMessage() for record in caplog.records if "network file system" in record.getMessage()]
    assert len(warnings) == 1
    assert f"({kind})" in warnings[0]
    assert "STEPLOG_HOME" in warnings[0]
    for run_id in ("r", "s"):
        (event,) = [event for event in store.read(run_id).events if event.type == "log.weakened"]
        assert kind in event.data["why"]
        assert event.data["asked"] == event.data["level"] == "durable"


def test_durable_full_refuses_a_network_file_system_and_makes_nothing(tmp_path):
    home = tmp_path / "home"
    store = FileStore(home, durability="durable-full", fs=Machine(LOCAL + mount(tmp_path, "nfs4")))
    with pytest.raises(StoreError, match="nothing less than a local disk") as caught:
        store.open("r")
    assert caught.value.run_id == "r"
    assert not home.exists()


@pytest.mark.parametrize(
    "mounts, found",
    [
        (LOCAL, None),
        ("", None),
        ("nonsense\n", None),
        (LOCAL + mount("/data", "nfs"), "nfs"),
        (LOCAL + mount("/dat", "nfs"), None),
        (LOCAL + mount("/data/home/runs", "nfs"), None),
        (LOCAL + mount("/data", "nfs") + mount("/data/home", "ext4"), None),
        (LOCAL + mount("/data/home", "ext4") + mount("/data/home", "cifs"), "cifs"),
        (LOCAL + mount("/", "nfs4"), "nfs4"),
        (LOCAL + mount("/data", "fuse.sshfs"), "fuse.sshfs"),
        (LOCAL + mount("/data", "fuse.portal"), None),
        (LOCAL + mount("/data", "overlay"), None),
    ],
)
def test_the_mount_of_a_path_is_the_innermost_and_the_last(mounts, found):
    assert place.network(Machine(mounts), "/data/home") == found


def test_a_mount_point_with_a_blank_in_its_name():
    assert place.network(Machine(LOCAL + mount(r"/my\040data", "nfs")), "/my data/home") == "nfs"


def test_the_mounts_of_this_machine_can_be_read(tmp_path):
    assert FileStore(tmp_path)._fs.mounts() == "" or place.network(FileStore(tmp_path)._fs, str(tmp_path)) is None


@pytest.mark.parametrize(
    "free, total, low",
    [(99e6, 1e12, True), (999e6, 1e12, True), (1001e6, 1e12, False), (101e6, 1e9, False), (99e6, 1e9, True)],
)
def test_a_disk_that_is_nearly_full_is_warned_of_once(tmp_path, caplog, free, total, low):
    store = FileStore(tmp_path / "home", fs=Machine(free=int(free), total=int(total)))
    for run_id in ("r", "s"):
        store.open(run_id).close()
    warnings = [record.getMessage() for record in caplog.records if " are free on the disk" in record.getMessage()]
    assert len(warnings) == low


def test_a_disk_that_fills_up_meanwhile_is_warned_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(place, "LOOK_EVERY", 1000)
    fs = Machine()
    writer = FileStore(tmp_path / "home", fs=fs).open("r")
    fs.said = (LOCAL, Space(50_000_000, 10**12, names=True), None, True)
    fill(writer, Chain("r"), 20)
    assert "only 50.0 MB are free on the disk of" in caplog.text
    writer.close()


def test_a_full_disk_is_reported_with_what_is_free(tmp_path):
    fs = FaultyFS()
    writer = FileStore(tmp_path / "home", fs=fs).open("r")
    fs.fail("write", errno=errno.ENOSPC)
    with pytest.raises(StoreError, match=r"The disk is full.*Free there now: [\d,]+ of [\d,]+ bytes"):
        fill(writer, Chain("r"))
    writer.close()


def test_a_forbidden_home_is_reported_with_its_owner(tmp_path):
    fs = FaultyFS()
    fs.fail("mkdir", errno=errno.EACCES)
    (tmp_path / "home").mkdir(mode=0o755)
    with pytest.raises(StoreError, match=rf"belongs to user {os.geteuid()} \(mode 0755\); this process is user"):
        FileStore(tmp_path / "home", fs=fs).open("r")


def test_a_read_only_home_says_so(tmp_path):
    fs = FaultyFS()
    fs.fail("mkdir", errno=errno.EROFS, persistent=True)
    with pytest.raises(StoreError, match="read-only: mount it writable, or point STEPLOG_HOME to a writable") as caught:
        FileStore(tmp_path / "home", fs=fs).open("r")
    assert "Nothing was written" in str(caught.value)


@pytest.mark.parametrize(
    "name, mode, said",
    [
        ("", 0o777, "can be changed by other users"),
        ("", 0o755, None),
        ("", 0o700, None),
        ("runs", 0o770, "can be changed by other users"),
        ("bodies.db", 0o644, "can be read by other users"),
        ("bodies.db", 0o600, None),
    ],
)
def test_what_others_can_read_or_change_is_warned_of_with_the_command_that_closes_it(
    tmp_path, caplog, name, mode, said
):
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True, mode=0o700)
    (home / "bodies.db").touch(mode=0o600)
    home.chmod(0o700)
    path = home / name if name else home
    path.chmod(mode)
    for run_id in ("r", "s"):
        FileStore(home, fs=Machine()).open(run_id).close()
    warnings = [record.getMessage() for record in caplog.records if "other users" in record.getMessage()]
    assert len(warnings) == bool(said)
    if said:
        assert said in warnings[0]
        assert warnings[0].endswith(f"chmod go-rwx {path}")


def test_a_home_of_somebody_else_is_warned_of(tmp_path, caplog):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    FileStore(home, fs=Machine(user=os.geteuid() + 1)).open("r").close()
    assert f"belongs to user {os.geteuid()}, and this process is user {os.geteuid() + 1}" in caplog.text


def test_a_home_below_a_directory_that_may_not_be_listed_is_opened(tmp_path):
    fs = Machine(listable=False)
    fill(FileStore(tmp_path / "home", fs=fs).open("r"), Chain("r"))
    assert str(tmp_path) not in {call.path for call in fs.calls if call.operation == "sync_dir"}
    release(FileStore(tmp_path))


def test_every_new_directory_above_a_home_has_its_name_synced(tmp_path):
    home = tmp_path / "new" / "newer" / "home"
    fs = FaultyFS()
    fill(FileStore(home, fs=fs).open("r"), Chain("r"))
    fs.stop()
    with pytest.raises(PowerFailure):
        fs.stat("anything")
    shutil.rmtree(tmp_path / "new")
    fs.lose_power()
    release(FileStore(tmp_path))
    assert len(FileStore(home).read("r").events) == 1


READER = """
import sys
from steplog._cli.main import main
from steplog.stores.files import FileStore
home = sys.argv[1]
store = FileStore(home)
print(len(store.bodies.get(sys.argv[2])))
for action in (lambda: store.open("new"), lambda: store.bodies.put([(sys.argv[3], b"y" * 5000)])):
    try:
        action()
    except Exception as error:
        print(type(error).__name__, "read-only" in str(error), home in str(error))
sys.argv[1:] = ["verify", "--all", "--home", home]
main()
"""


def test_what_may_only_be_read_here_and_is_written_elsewhere_is_looked_at_afresh(tmp_path):
    writer = FileStore(tmp_path).bodies
    one, two = named(b"1" * 5000), named(b"2" * 5000)
    writer.put([one])
    fs = FaultyFS()
    reader = FileStore(tmp_path, fs=fs).bodies
    fs.fail("create", errno=errno.EROFS, persistent=True)
    with pytest.raises(StoreError, match="read-only"):
        reader.get(one[0])  # the writer is at work: not everything is in the file
    writer.close()
    assert reader.get(one[0]) == one[1]
    assert not reader.has(two[0])
    writer.put([two])
    writer.close()
    assert reader.get(two[0]) == two[1]
    reader.close()


def test_a_home_on_a_medium_that_may_only_be_read_can_be_read_and_verified(tmp_path):
    home = tmp_path / "home"
    steplog.install(home=home, interceptors=())
    with steplog.run("r"):
        steplog.step("big", lambda: "x" * 9000)
    steplog.uninstall()
    settings.open_store(settings.resolve(home=home)).bodies.close()
    (body,) = references(FileStore(home).read("r").events[3].data)
    (home / "runs" / "reader.py").write_text(READER)
    mount = f'mount --bind "{home}" "{home}" && mount -o remount,ro,bind "{home}"'
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-Urm", "sh", "-c", mount], check=False).returncode
    ):
        pytest.skip("no user may mount anything here")
    other, _ = named(b"y" * 5000)
    read = f'"{sys.executable}" "{home}/runs/reader.py" "{home}" {body} {other}'
    command = ["unshare", "-Urm", "sh", "-c", f"{mount} && {read}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "9002",
        "StoreError True True",
        "StoreError True True",
        "ok: 1 whole run; 5 events, 1 body",
    ]
