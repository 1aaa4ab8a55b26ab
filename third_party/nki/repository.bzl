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

# Fails when it is built with the device backend, so that all else and queries go on. Of Bazel's ways
# to fail, this one has no traceback.
_MISSING = """
load("@rules_python//python:defs.bzl", "py_library")

py_library(
    name = "nki",
    visibility = ["@trainium_kernels//third_party/nki:__pkg__"],
    deps = select(
        {{"@trainium_kernels//third_party/nki:simulator": []}},
        no_match_error = {reason},
    ),
)
"""

def _neuron_environment_repository_impl(rctx):
    python = rctx.path(Label("@python3_11//:venv/bin/python3"))
    script = rctx.path(Label("@trainium_kernels//third_party/nki:find_neuron_environment.py"))
    result = rctx.execute([python, "-I", script, "site"])
    if result.return_code:
        rctx.file("BUILD.bazel", _MISSING.format(reason = repr(result.stderr.strip())))
    else:
        rctx.file("BUILD.bazel", _FOUND)

neuron_environment_repository = repository_rule(
    implementation = _neuron_environment_repository_impl,
    environ = ["NEURON_ENVIRONMENT"],
    local = True,  # looks again whenever Bazel's server starts
    doc = "Target @name//:nki, to be used through //third_party/nki only.",
)
