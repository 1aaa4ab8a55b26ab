"""Serves an HTTP cache for Bazel from this machine, to this machine only.

    bazel run //tools/cache:serve
    bazel test --config=cache //...          (in any clone, while it runs)

Runs nginx in the foreground until it is interrupted. What it holds stays in the folder until deleted.
"""

import argparse
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
PORT = 8640  # build:cache in .bazelrc names it
FOLDER = Path("~/.cache/trainium_kernels/http_cache")

CONFIG = """\
{user}
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    log_not_found off;  # a miss is no error
    client_body_temp_path kept/incoming;  # on the cache's own disk, so that a finished upload is renamed
    fastcgi_temp_path fastcgi;
    proxy_temp_path proxy;
    scgi_temp_path scgi;
    uwsgi_temp_path uwsgi;
    server {{
        listen {host}:{port};
        location ~ ^/(ac|cas)/[0-9a-f]+$ {{
            root kept;
            client_max_body_size 0;
            create_full_put_path on;
            dav_methods PUT;
        }}
        location / {{
            return 404;
        }}
    }}
}}
"""


class NginxMissingError(Exception):
    """There is no nginx; the message says what to install."""


def start(folder: Path, port: int, state: Path) -> subprocess.Popen[bytes]:
    """Starts nginx on a cache folder, an absolute path; `state` is a folder for its own files.

    Raises:
        NginxMissingError: nginx is not installed.
    """
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if nginx is None:
        raise NginxMissingError("nginx is needed: as root, apt-get install nginx-light")
    folder.mkdir(parents=True, exist_ok=True)
    # Workers of an nginx that root starts would be another user, who may not write to the folder.
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    config = state / "nginx.conf"
    config.write_text(CONFIG.format(host=HOST, port=port, user=user))
    # The configuration names folders relative to `state`: nginx has no way to quote every path.
    (state / "kept").symlink_to(folder)
    return subprocess.Popen([nginx, "-p", state, "-e", "stderr", "-c", config])


def cache_folder(given: Path) -> Path:
    """The folder that the command line names, relative to where `bazel run` was called."""
    return Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), given.expanduser()).absolute()


def main() -> None:
    """Serves until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"folder of the cache (default {FOLDER})")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on {HOST} (default {PORT})")
    arguments = parser.parse_args()
    folder = cache_folder(arguments.folder)
    with tempfile.TemporaryDirectory() as state:
        try:
            server = start(folder, arguments.port, Path(state))
        except NginxMissingError as error:
            sys.exit(str(error))
        print(f"serving {folder} on {HOST}:{arguments.port}, interrupt to stop", flush=True)
        try:
            sys.exit(server.wait())
        except KeyboardInterrupt:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
