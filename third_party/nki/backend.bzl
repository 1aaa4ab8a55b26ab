"""The build flag that decides where `nki` comes from."""

_BACKENDS = ["simulator", "device"]

def _backend_flag_impl(ctx):
    if ctx.build_setting_value not in _BACKENDS:
        fail("--%s: %r is not a backend, use one of %s" %
             (str(ctx.label).lstrip("@"), ctx.build_setting_value, ", ".join(_BACKENDS)))

backend_flag = rule(
    implementation = _backend_flag_impl,
    build_setting = config.string(flag = True),
    doc = "A string flag that refuses what is not a backend.",
)
