"""plan_sweep: a sweep whose points are Bazel actions, so that they are cached and run wherever Bazel runs actions."""

def plan_sweep(name, kernel, knobs, target = "", **kwargs):
    """Plans and predicts every combination of knob values; the result is NAME.csv.

    Args:
      name: of the target that collects the points.
      kernel: "qkv_cte", "mla_decode" or "adaln_quant".
      knobs: from the name of an option of `bazel run //tools/plan -- KERNEL` to its values; others keep their defaults.
      target: "trn2" or "trn3"; the kernel's own where it is "".
      **kwargs: passed on to every genrule (tags, visibility, testonly).
    """
    points = [[]]
    for knob, values in knobs.items():
        points = [point + ["%s=%d" % (knob, value)] for point in points for value in values]
    outcomes = []
    for number, point in enumerate(points):
        outcome = "%s/%d.json" % (name, number)
        native.genrule(
            name = "%s_%d" % (name, number),
            outs = [outcome],
            cmd = "$(execpath //tools/plan:point) $@ %s '%s' %s" % (kernel, target, " ".join(point)),
            exec_tools = ["//tools/plan:point"],
            message = "Predicting %s %s" % (kernel, " ".join(point)),
            **kwargs
        )
        outcomes.append(outcome)
    native.genrule(
        name = name,
        srcs = outcomes,
        outs = [name + ".csv"],
        cmd = "$(execpath //tools/plan:collect) $@ $(SRCS)",
        exec_tools = ["//tools/plan:collect"],
        message = "Collecting %d points of %s" % (len(points), kernel),
        **kwargs
    )
