"""buildifier_repository: the buildifier program from its npm package, pinned by integrity hash."""

_ARCHITECTURES = {
    "aarch64": "arm64",
    "x86_64": "amd64",
}

_CHECK_INTEGRITY = """
import base64, hashlib, pathlib, sys
want, archive = sys.argv[1], pathlib.Path(sys.argv[2])
got = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
if got != want:
    sys.exit(f"{archive.name} has integrity {got}, pinned is {want}")
"""

def _run(rctx, arguments):
    result = rctx.execute(arguments)
    if result.return_code:
        fail("buildifier %s: %s" % (rctx.attr.version, result.stdout + result.stderr))
    return result.stdout.strip()

def _buildifier_repository_impl(rctx):
    npm = rctx.which("npm")
    if not npm:
        fail("npm is needed to get buildifier: install the package npm")
    machine = _run(rctx, ["uname", "-m"])
    if machine not in _ARCHITECTURES:
        fail("buildifier %s has no program for %s" % (rctx.attr.version, machine))
    archive = _run(rctx, [npm, "pack", "--silent", "@bazel/buildifier@" + rctx.attr.version])
    python = rctx.path(Label("@python3_11//:venv/bin/python3"))
    _run(rctx, [python, "-I", "-c", _CHECK_INTEGRITY, rctx.attr.integrity, archive])
    rctx.extract(archive, stripPrefix = "package")
    rctx.symlink("buildifier-linux_" + _ARCHITECTURES[machine], "buildifier")
    rctx.file("BUILD.bazel", """exports_files(["buildifier"], visibility = ["//visibility:public"])\n""")

buildifier_repository = repository_rule(
    implementation = _buildifier_repository_impl,
    attrs = {
        "integrity": attr.string(mandatory = True, doc = "sha512 of the npm package as npm prints it"),
        "version": attr.string(mandatory = True),
    },
    doc = "File @name//:buildifier, the program for this machine.",
)
