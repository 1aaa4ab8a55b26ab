"""Dependencies point one way: models -> kernels -> common, and kernels -> //third_party/nki -> simulator.

Visibility refuses what points the other way; this also sees what a widened visibility lets in.
"""

from pathlib import Path


def test_simulator_and_common_depend_on_nothing_above_them():
    labels = Path("nki_dependencies").read_text().split()
    assert {"//third_party/nki:nki", "//tools/nkisim:nkisim", "//common:common"} <= set(labels)
    packages = {label.split(":")[0] for label in labels if label.startswith("//")}
    assert packages == {"//common", "//third_party/nki", "//tools/nkisim"}
