"""The projection as a torch custom op, `torch.ops.qkv_cte.row_mx_qkv_proj`, so that it can be compiled and exported.

The schema of an op knows tensors, numbers, strings and flat lists: enums go by name, groups of ranks as the ranks in
their order and the size of a group. `row_mx_qkv_proj` calls the op while it is traced, and translates.
"""

from __future__ import annotations

import enum
import inspect
from typing import Any, TypeVar

import torch

from kernels.qkv_cte.host import arguments, launch
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QKVOutputLayout
from kernels.qkv_cte.planning.choice import Choice

Member = TypeVar("Member", bound=enum.Enum)


def _eager(
    packed_hidden: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int,
    fused_rope: bool = False,
    cos_cache: torch.Tensor | None = None,
    sin_cache: torch.Tensor | None = None,
    q_norm: str | None = None,
    k_norm: str | None = None,
    q_gamma: torch.Tensor | None = None,
    k_gamma: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    replica_ranks: list[int] | None = None,
    ranks_per_group: int = 0,
    output_layout: str = "BSD",
    *,
    choice: list[int] | None = None,
    target: str = "trn3",
    lnc: int = 2,
) -> torch.Tensor:
    """`shim.row_mx_qkv_proj`, with `q_norm` and `k_norm` the names of a NormType and `norm_eps` the norms' epsilon."""
    q_type, k_type = (None if name is None else member(NormType, name) for name in (q_norm, k_norm))
    return launch.run(
        target,
        lnc,
        packed_hidden=packed_hidden,
        weight=weight,
        weight_scales=weight_scales,
        bias=bias,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        fused_rope=fused_rope,
        cos_cache=cos_cache,
        sin_cache=sin_cache,
        qk_norm_pre_rope=QKNormConfig(q_type, k_type, norm_eps),
        qk_norm_pre_rope_q_gamma=q_gamma,
        qk_norm_pre_rope_k_gamma=k_gamma,
        norm_eps=norm_eps,
        replica_groups=None if replica_ranks is None else groups_of(replica_ranks, ranks_per_group),
        output_layout=member(QKVOutputLayout, output_layout),
        choice=None if choice is None else Choice.from_integers(choice),
    )


row_mx_qkv_proj = torch.library.custom_op("qkv_cte::row_mx_qkv_proj", _eager, mutates_args=())


@row_mx_qkv_proj.register_fake
def _(packed_hidden: torch.Tensor, weight: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
    given = inspect.signature(_eager).bind(packed_hidden, weight, *others, **named)
    given.apply_defaults()
    batch, seqlen, _ = packed_hidden.shape
    width, head_dim = weight.shape[1], given.arguments["head_dim"]
    shape: tuple[int, ...] = (batch, seqlen, width)
    if given.arguments["output_layout"] == QKVOutputLayout.NBSd.name:
        shape = (width // head_dim, batch, seqlen, head_dim)
    return packed_hidden.new_empty(shape, dtype=torch.bfloat16)


def member(kind: type[Member], name: str) -> Member:
    """A member of an enum by its name.

    Raises:
        ValueError: it has none of that name.
    """
    if name not in kind.__members__:
        raise ValueError(f"{kind.__name__} has no {name!r}; accepted: {', '.join(kind.__members__)}")
    return kind[name]


def groups_of(ranks: list[int], ranks_per_group: int) -> tuple[tuple[int, ...], ...]:
    """Ranks in their order as groups of one size.

    Raises:
        ValueError: they do not come out even.
    """
    if ranks_per_group < 1 or len(ranks) % ranks_per_group:
        raise ValueError(
            f"ranks_per_group is {ranks_per_group} of {len(ranks)} replica_ranks; accepted: a divisor of their number"
        )
    return tuple(tuple(ranks[first : first + ranks_per_group]) for first in range(0, len(ranks), ranks_per_group))


def traced(target: str, lnc: int, **call: Any) -> torch.Tensor:
    """The op, called with the arguments of `shim.row_mx_qkv_proj` by name."""
    # Detached: the op has no gradient, and eager calls give none either.
    call = {name: value.detach() if _wants_gradient(value) else value for name, value in call.items()}
    norms, groups = call.pop("qk_norm_pre_rope"), call.pop("replica_groups")
    arguments.require_replica_groups(groups)
    if call["choice"] is not None:
        call["choice"] = call["choice"].integers()
    names = {}
    if norms is not None:
        names = {"q_norm": norms.q_norm and norms.q_norm.name, "k_norm": norms.k_norm and norms.k_norm.name}
        call["norm_eps"] = norms.eps
    return torch.ops.qkv_cte.row_mx_qkv_proj(
        q_gamma=call.pop("qk_norm_pre_rope_q_gamma"),
        k_gamma=call.pop("qk_norm_pre_rope_k_gamma"),
        output_layout=call.pop("output_layout").name,
        replica_ranks=None if groups is None else [rank for group in groups for rank in group],
        ranks_per_group=0 if groups is None else len(groups[0]),
        target=target,
        lnc=lnc,
        **names,
        **call,
    )


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
