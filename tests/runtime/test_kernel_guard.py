"""The kernel's guard of `steplog replay`: what code in C asks of the kernel is refused, and told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from steplog._runtime.kernel_watch import Destination, destination

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard is one of Linux")

PROGRAM = """
import ctypes, json, multiprocessing, os, socket, struct, subprocess, sys
from steplog._runtime import kernel_guard

server = socket.create_server(("127.0.0.1", 0))
port, allowed, libc = server.getsockname()[1], socket.create_server(("127.0.0.1", 0)), ctypes.CDLL(None, use_errno=True)
guard = kernel_guard.start([f"127.0.0.1:{allowed.getsockname()[1]}", "bash"])
if guard is None:
    sys.exit(77)

def connect(host, port, kind=socket.SOCK_STREAM):
    fd = libc.socket(socket.AF_INET, kind, 0)
    name = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)
    passed = libc.connect(fd, name, len(name)) == 0
    os.close(fd)
    return passed

def sent(how, *words):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            getattr(one, how)(*words)
        except PermissionError:
            return False
        return True

def forked():
    child = os.fork()
    if child == 0:
        os._exit(connect("192.0.2.3", 443))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

found = {
    "another machine": connect("192.0.2.1", 443),
    "this machine": connect("127.0.0.1", port),
    "what is allowed": connect("127.0.0.1", allowed.getsockname()[1]),
    "sorting addresses": connect("127.0.0.1", 9, socket.SOCK_DGRAM),
    "a datagram": sent("sendto", b"x", ("192.0.2.2", 9)),
    "a message": sent("sendmsg", [b"x"], [], 0, ("192.0.2.2", 10)),
    "a fork": forked(),
    "localhost": bool(socket.getaddrinfo("localhost", port)),
}
guard.passes("127.0.0.1", port)
found["what the interpreter lets pass"] = connect("127.0.0.1", port)
one, other = socket.socketpair()
one.sendmsg([b"x"])
found["a socket pair"] = other.recv(1) == b"x"
shell = "exec 3<>/dev/tcp/127.0.0.1/%d" % port
found["an allowed program"] = subprocess.run(["bash", "-c", shell]).returncode == 0
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    found["a child of ours to wait for"] = False
print(json.dumps([found, guard.refused(), port]))
"""


def test_what_passes_and_what_does_not(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("this kernel, or the container around it, has no user notification")
    assert done.returncode == 0, done.stderr
    found, refused, port = json.loads(done.stdout)

    assert {what for what, passed in found.items() if not passed} == {
        "another machine",
        "this machine",
        "a datagram",
        "a message",
        "a fork",
        "a child of ours to wait for",
    }
    assert refused == [
        "connection to 192.0.2.1:443",
        f"connection to 127.0.0.1:{port}",
        "connection to 192.0.2.2:9",
        "connection to 192.0.2.2:10",
        "connection to 192.0.2.3:443",
    ]


@pytest.mark.parametrize(
    "name, told",
    [
        ("0200 01bb c0000201" + "00" * 8, Destination("192.0.2.1", 443)),
        ("0a00 01bb 00000000" + "20010db8" + "00" * 11 + "01", Destination("2001:db8::1", 443)),
        ("0a00 01bb 00000000" + "00" * 10 + "ffff 7f000001", Destination("127.0.0.1", 443)),
        ("0100 2f746d70", None),  # a unix socket
        ("02", None),
        ("", None),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="written for machines of this byte order")
def test_an_address_in_memory_is_read(name, told):
    assert destination(bytes.fromhex(name.replace(" ", ""))) == told
