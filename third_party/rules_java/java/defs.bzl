"""Stand-in for rules_java: the native rules that Bazel 4.2.3's own tools load from it."""

# What the native rules ask of every caller but the real rule set.
_MIGRATION_TAG = "__JAVA_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"

def _tagged(attributes):
    return dict(attributes, tags = (attributes.get("tags") or []) + [_MIGRATION_TAG])

# buildifier: disable=native-java-binary
def java_binary(**attributes):
    native.java_binary(**_tagged(attributes))

# buildifier: disable=native-java-import
def java_import(**attributes):
    native.java_import(**_tagged(attributes))

# buildifier: disable=native-java-library
def java_library(**attributes):
    native.java_library(**_tagged(attributes))

# buildifier: disable=native-java-runtime
def java_runtime(**attributes):
    native.java_runtime(**_tagged(attributes))

# buildifier: disable=native-java-toolchain
def java_toolchain(**attributes):
    native.java_toolchain(**_tagged(attributes))
