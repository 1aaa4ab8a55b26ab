"""neuron_environment_repository: `nki` and its companions from this machine's Neuron environment."""

_FOUND = """
load("@rules_python//python:defs.bzl", "py_library")

py_library(
    name = "nki",
    data = ["site/.pip_stamp.json"],
    imports = ["site"],
    visibility = ["@trainium_kernels//third_party/nki:__pkg__"],
)
"""

_MISSING = """
load("@trainium_kernels//third_party/nki:backend.bzl", "missing_neuron_environment")

missing_neuron_environment(
    name = "nki",
    reason = {reason},
    visibility = ["@trainium_kernels//third_party/nki:__pkg__"],
)
"""

def _neuron_environment_repository_impl(rctx):
    python = rctx.path(Label("@python3_11//:venv/bin/python3"))
    script = rctx.path(Label("@trainium_kernels//third_party/nki:find_neuron_environment.py"))
    result = rctx.execute([python, "-I", script, "site"])
    if result.return_code:
        # A target that fails when it is built, so that simulator builds and queries go on.
        rctx.file("BUILD.bazel", _MISSING.format(reason = repr(result.stderr.strip())))
    else:
        rctx.file("BUILD.bazel", _FOUND)

neuron_environment_repository = repository_rule(
    implementation = _neuron_environment_repository_impl,
    environ = ["NEURON_ENVIRONMENT"],
    local = True,  # looks again whenever Bazel's server starts
    doc = "Target @name//:nki, to be used through //third_party/nki only.",
)
