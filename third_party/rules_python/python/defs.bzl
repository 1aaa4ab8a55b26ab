"""Stand-in for rules_python's defs.bzl: the native Python rules of Bazel 4.2.3."""

load("@bazel_tools//tools/python:toolchain.bzl", _py_runtime_pair = "py_runtime_pair")

# What the native rules ask of every caller but the real rule set.
_MIGRATION_TAG = "__PYTHON_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"

py_runtime_pair = _py_runtime_pair

def _tagged(attributes):
    return dict(attributes, tags = (attributes.get("tags") or []) + [_MIGRATION_TAG])

# buildifier: disable=native-py
def py_library(**attributes):
    native.py_library(**_tagged(attributes))

# buildifier: disable=native-py
def py_binary(**attributes):
    native.py_binary(**_tagged(attributes))

# buildifier: disable=native-py
def py_test(**attributes):
    native.py_test(**_tagged(attributes))

# buildifier: disable=native-py
def py_runtime(**attributes):
    native.py_runtime(**_tagged(attributes))
