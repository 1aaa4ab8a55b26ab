"""Stand-in for rules_cc: the native rules that Bazel 4.2.3's own C++ toolchain loads from it."""

# What the native rules ask of every caller but the real rule set.
_MIGRATION_TAG = "__CC_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"

def _tagged(attributes):
    return dict(attributes, tags = (attributes.get("tags") or []) + [_MIGRATION_TAG])

# buildifier: disable=native-cc-binary
def cc_binary(**attributes):
    native.cc_binary(**_tagged(attributes))

# buildifier: disable=native-cc-library
def cc_library(**attributes):
    native.cc_library(**_tagged(attributes))

# buildifier: disable=native-cc-test
def cc_test(**attributes):
    native.cc_test(**_tagged(attributes))

# buildifier: disable=native-cc-toolchain
def cc_toolchain(**attributes):
    native.cc_toolchain(**_tagged(attributes))

# buildifier: disable=native-cc-toolchain-suite
def cc_toolchain_suite(**attributes):
    native.cc_toolchain_suite(**_tagged(attributes))
