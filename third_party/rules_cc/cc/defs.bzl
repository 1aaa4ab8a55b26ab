"""Stand-in for rules_cc: the native rules that Bazel 4.2.3's own C++ toolchain loads from it."""

# What the native rules ask of every caller but the real rule set.
_MIGRATION_TAG = "__CC_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"

def _tagged(attributes):
    return dict(attributes, tags = (attributes.get("tags") or []) + [_MIGRATION_TAG])

def cc_library(**attributes):
    native.cc_library(**_tagged(attributes))

def cc_binary(**attributes):
    native.cc_binary(**_tagged(attributes))

def cc_test(**attributes):
    native.cc_test(**_tagged(attributes))

def cc_import(**attributes):
    native.cc_import(**_tagged(attributes))

def cc_toolchain(**attributes):
    native.cc_toolchain(**_tagged(attributes))

def cc_toolchain_suite(**attributes):
    native.cc_toolchain_suite(**_tagged(attributes))
