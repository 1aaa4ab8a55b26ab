"""Shows that a fresh clone re-runs no test that another clone has run.

    bazel run //tools/cache:show_shared_cache [-- TARGET_PATTERN...]

Makes two clones of this workspace's last commit in a temporary folder, each with an output base of its
own and no disk cache. The first fills an HTTP cache on nginx, the second tests with it. Prints how
many tests each executed and took from the cache; the exit status is 1 unless all passed and the
second executed none. Nothing is left behind.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.cache import serve


class Clone:
    """A clone of the workspace with a Bazel server and an output base of its own."""

    def __init__(self, workspace: Path, folder: Path) -> None:
        self.source = folder / "source"
        self.bazel = ["bazel", f"--output_base={folder / 'output_base'}"]
        self.events = folder / "events.json"
        subprocess.run(["git", "clone", "--quiet", workspace, self.source], check=True)

    def test(self, port: int, targets: list[str]) -> tuple[int, int]:
        """Tests with the cache on `port`; returns the numbers of tests executed and taken from it.

        Raises:
            subprocess.CalledProcessError: a test failed.
        """
        options = [f"--remote_cache=http://{serve.HOST}:{port}", "--disk_cache="]
        options += [f"--build_event_json_file={self.events}"]
        subprocess.run([*self.bazel, "test", *options, "--", *targets], cwd=self.source, check=True)
        events = [json.loads(line) for line in self.events.read_text().splitlines()]
        results = [event["testResult"] for event in events if "testResult" in event]
        cached = [result.get("executionInfo", {}).get("cachedRemotely", False) for result in results]
        return cached.count(False), cached.count(True)

    def remove(self) -> None:
        """Stops the server and deletes the output base, whose folders are read-only."""
        subprocess.run([*self.bazel, "clean", "--expunge"], cwd=self.source, check=False)


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((serve.HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def show(workspace: Path, folder: Path, targets: list[str]) -> bool:
    """Runs both clones in `folder`; returns whether the second executed nothing."""
    port = free_port()
    server = serve.start(folder / "cache", port, folder)
    clones: list[Clone] = []
    try:
        for name in ("first", "second"):
            clones.append(Clone(workspace, folder / name))
            executed, cached = clones[-1].test(port, targets)
            print(f"{name} clone: {executed} tests executed, {cached} from the cache", flush=True)
    finally:
        for clone in clones:
            clone.remove()
        server.terminate()
        server.wait()
    return executed == 0 and cached > 0


def main() -> None:
    """Shows it for the targets of the command line, or all."""
    workspace = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            shared = show(workspace, Path(folder), sys.argv[1:] or ["//..."])
        except serve.NginxMissingError as error:
            sys.exit(str(error))
        except subprocess.CalledProcessError as error:
            sys.exit(f"{error.cmd[0]} exited with {error.returncode}")
    sys.exit(0 if shared else "the second clone executed tests that the first had run")


if __name__ == "__main__":
    main()
