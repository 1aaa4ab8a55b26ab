"""Annotations that older kernels write on arguments and tiles."""

from __future__ import annotations

from typing import Any


class tensor:
    """A tensor; `tensor[128, 512]` says its shape."""

    def __class_getitem__(cls, shape: Any) -> type[tensor]:
        """The same annotation, whatever the shape."""
        return cls


class mutable_tensor(tensor):
    """A tensor argument that the kernel writes to."""
