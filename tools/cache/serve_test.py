import http.client
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.cache import serve

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="nginx is not installed"
)
DIGEST = "0123456789abcdef"


@pytest.fixture
def cache(tmp_path, request):
    """Folder and port of a running server; a parameter is the folder's name."""
    with socket.socket() as free:
        free.bind((serve.HOST, 0))
        port = free.getsockname()[1]
    folder, state = tmp_path / getattr(request, "param", "cache"), tmp_path / "state"
    state.mkdir()
    server = serve.start(folder, port, state)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex((serve.HOST, port)) == 0:
                    break
            time.sleep(0.05)
        yield folder, port
    finally:
        server.terminate()
        server.wait()


def answer(port, method, path, body=None):
    connection = http.client.HTTPConnection(serve.HOST, port, timeout=10)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, response.read()


@needs_nginx
@pytest.mark.parametrize("cache", ["cache", """a 'cache' of "$mine"; {x} #\\"""], indirect=True)
def test_keeps_what_is_put(cache):
    folder, port = cache
    body = b"result" * 1_000_000  # more than nginx accepts by default
    assert answer(port, "GET", f"/cas/{DIGEST}")[0] == 404
    assert answer(port, "PUT", f"/cas/{DIGEST}", body)[0] == 201
    assert answer(port, "GET", f"/cas/{DIGEST}") == (200, body)
    assert answer(port, "GET", f"/ac/{DIGEST}")[0] == 404
    assert (folder / "cas" / DIGEST).read_bytes() == body


@needs_nginx
@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/elsewhere"), ("PUT", "/cas/../x"), ("DELETE", f"/cas/{DIGEST}"), ("GET", "/")],
)
def test_nothing_but_a_cache(cache, method, path):
    assert answer(cache[1], method, path, b"x" if method == "PUT" else None)[0] in (400, 403, 404, 405)


@needs_nginx
def test_loopback_only(cache):
    with open("/proc/net/tcp") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    ours = [address for address in listening if int(address.split(":")[1], 16) == cache[1]]
    assert ours == [f"0100007F:{cache[1]:04X}"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a cache", "/called/here/a cache"), ("../cache", "/called/here/../cache"), ("/x", "/x"), ("~/x", "/home/me/x")],
)
def test_a_relative_folder_is_one_of_the_callers(monkeypatch, given, expected):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", "/called/here")
    assert str(serve.cache_folder(Path(given))) == expected


def test_without_bazel_a_relative_folder_is_one_of_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BUILD_WORKING_DIRECTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    assert serve.cache_folder(Path("cache")) == tmp_path / "cache"


def test_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(serve.shutil, "which", lambda *_, **__: None)
    with pytest.raises(serve.NginxMissingError, match="apt-get install nginx-light"):
        serve.start(tmp_path / "cache", serve.PORT, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bazelrc_names_the_default_port():
    with open(".bazelrc") as file:
        assert f"build:cache --remote_cache=http://{serve.HOST}:{serve.PORT}\n" in file.readlines()


def test_help_has_an_example():
    command = [sys.executable, "-m", "tools.cache.serve", "--help"]
    assert "bazel run //tools/cache:serve" in subprocess.run(command, capture_output=True, text=True).stdout
