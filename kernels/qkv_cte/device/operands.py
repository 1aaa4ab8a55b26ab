"""The HBM tensors of a call under one name."""

from dataclasses import dataclass

from nki.language import NKIObject, NkiTensor


@dataclass
class Operands(NKIObject):
    """HBM tensors of a call; None for what it does without. Shapes are those of the kernels' arguments.

    Attributes:
        hidden: activations.
        weight: in the layout that the products read.
        weight_scales: of columns (ROW_MX) or blocks (MXFP8).
        bias: one row.
        q_gamma, k_gamma, cos, sin: of the norm and RoPE pass; cos and sin also of the head stage.
        residuals: added to `hidden`.
        input_gamma, input_beta: of the input norm.
        k_cos, k_sin: K's own caches in the head stage.
        head_vectors: gammas and betas of the head stage by name, such as "q_before_gamma".
        k_cache, v_cache, slots, k_scale, v_scale: of the cache writes.
        sums: sums of squares by segment.
    """

    hidden: NkiTensor
    weight: NkiTensor
    weight_scales: NkiTensor | None = None
    bias: NkiTensor | None = None
    q_gamma: NkiTensor | None = None
    k_gamma: NkiTensor | None = None
    cos: NkiTensor | None = None
    sin: NkiTensor | None = None
    residuals: tuple[NkiTensor, ...] = ()
    input_gamma: NkiTensor | None = None
    input_beta: NkiTensor | None = None
    k_cos: NkiTensor | None = None
    k_sin: NkiTensor | None = None
    head_vectors: dict[str, NkiTensor] | None = None
    k_cache: NkiTensor | None = None
    v_cache: NkiTensor | None = None
    slots: NkiTensor | None = None
    k_scale: NkiTensor | None = None
    v_scale: NkiTensor | None = None
    sums: dict[str, NkiTensor] | None = None
