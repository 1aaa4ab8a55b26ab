"""Configurations of Wan's DiT, with the names and values of diffusers' published `transformer/config.json`."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.checks import require_int
from models.checkpoints import CheckpointError

HEAD_DIM = 128
"""Of every published Wan; the heads that the kernels' NBSd layout takes."""

H_MULTIPLE = 128
"""Contractions of the kernels are multiples of this."""

QK_NORM = "rms_norm_across_heads"
TEXT_TOKENS = 512
"""Of the text encoder's output, padding included."""


@dataclass(frozen=True)
class WanConfig:
    """Sizes of a DiT. Fields are those of diffusers' config; see there.

    Raises:
        TypeError, ValueError: a value is impossible, or asks for what is not built here.
    """

    num_layers: int = 40
    num_attention_heads: int = 40
    attention_head_dim: int = HEAD_DIM
    ffn_dim: int = 13824
    in_channels: int = 16
    out_channels: int = 16
    patch_size: tuple[int, int, int] = (1, 2, 2)
    text_dim: int = 4096
    freq_dim: int = 256
    eps: float = 1e-6
    rope_max_seq_len: int = 1024
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None
    qk_norm: str = QK_NORM
    cross_attn_norm: bool = True
    pos_embed_seq_len: None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_attention_heads", "in_channels", "out_channels", "text_dim"):
            require_int(name, getattr(self, name), at_least=1)
        require_int("rope_max_seq_len", self.rope_max_seq_len, at_least=1)
        _require(self, "attention_head_dim", self.attention_head_dim == HEAD_DIM, str(HEAD_DIM))
        _require(self, "ffn_dim", _is_multiple(self.ffn_dim, H_MULTIPLE), f"a multiple of {H_MULTIPLE}")
        _require(self, "freq_dim", _is_multiple(self.freq_dim, 2), "an even number")
        _require(self, "qk_norm", self.qk_norm == QK_NORM, repr(QK_NORM))
        _require(self, "cross_attn_norm", self.cross_attn_norm is True, "True")
        _require(self, "pos_embed_seq_len", self.pos_embed_seq_len is None, "None")
        _require(self, "eps", isinstance(self.eps, float) and 0 < self.eps < math.inf, "a number above 0")
        whole = isinstance(self.patch_size, tuple) and all(_is_multiple(size, 1) for size in self.patch_size)
        _require(self, "patch_size", whole and len(self.patch_size) == 3, "three integers from 1")
        if (self.image_dim is None) != (self.added_kv_proj_dim is None):
            raise ValueError(
                f"image_dim is {self.image_dim} and added_kv_proj_dim {self.added_kv_proj_dim}; accepted: both or none"
            )
        if self.image_dim is not None:
            require_int("image_dim", self.image_dim, at_least=1)
            _require(self, "added_kv_proj_dim", self.added_kv_proj_dim == self.hidden, f"the width, {self.hidden}")

    @property
    def hidden(self) -> int:
        """Width of the DiT."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def patch_elements(self) -> int:
        """Latent positions of a token."""
        return math.prod(self.patch_size)

    @property
    def has_image(self) -> bool:
        """Whether blocks attend to an embedded image too (Wan2.1 I2V; Wan2.2 has it in the latent's channels)."""
        return self.image_dim is not None

    def grid(self, latent_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Tokens in time, height and width of latents [B, C, T, H, W].

        Raises:
            ValueError: the latents are of another model, are no whole patches, or too long for RoPE.
        """
        whole = all(_is_multiple(size, 1) for size in latent_shape)
        if len(latent_shape) != 5 or latent_shape[1] != self.in_channels or not whole:
            raise ValueError(f"latents are {list(latent_shape)}; accepted: [B, {self.in_channels}, T, H, W]")
        for size, patch in zip(latent_shape[2:], self.patch_size, strict=True):
            if size % patch or size // patch > self.rope_max_seq_len:
                raise ValueError(
                    f"latents are {list(latent_shape)}; accepted: T, H, W in whole patches of {self.patch_size}, "
                    f"at most {self.rope_max_seq_len} each"
                )
        time, height, width = (size // patch for size, patch in zip(latent_shape[2:], self.patch_size, strict=True))
        return time, height, width

    def to_json(self) -> dict[str, Any]:
        """The config as diffusers writes it, without what begins with an underscore."""
        return dataclasses.asdict(self) | {"patch_size": list(self.patch_size)}


def from_json(values: Mapping[str, Any]) -> WanConfig:
    """A config from diffusers' JSON. Keys that begin with an underscore say who wrote it and are not read.

    Raises:
        TypeError, ValueError: this is no object, a key is unknown, or a value is refused by `WanConfig`.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"the config is a {type(values).__name__}; accepted: a JSON object")
    given = {name: value for name, value in values.items() if not str(name).startswith("_")}
    known = {field.name for field in dataclasses.fields(WanConfig)}
    if unknown := sorted(set(given) - known, key=str):
        raise ValueError(f"config has {reprlib.repr(unknown)}; accepted: {', '.join(sorted(known))}")
    if isinstance(given.get("patch_size"), list):
        given["patch_size"] = tuple(given["patch_size"])
    if type(given.get("eps")) is int and abs(given["eps"]) <= sys.maxsize:
        given["eps"] = float(given["eps"])
    return WanConfig(**given)


def read_config(folder: Path) -> WanConfig:
    """The config of a published `transformer` folder.

    Raises:
        CheckpointError: there is no `config.json`, or it is not one that can be served.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        raise CheckpointError(f"{path}: expected: diffusers' config of a Wan transformer; found: none") from None
    if not isinstance(values, dict) or values.get("_class_name", "WanTransformer3DModel") != "WanTransformer3DModel":
        raise CheckpointError(f"{path}: expected: WanTransformer3DModel; found: another class")
    try:
        return from_json(values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _is_multiple(value: Any, of: int) -> bool:
    return type(value) is int and value >= of and value % of == 0


def _require(config: WanConfig, name: str, holds: bool, accepted: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {reprlib.repr(getattr(config, name))}; accepted: {accepted}")


T2V_A14B = WanConfig()
"""Wan2.2-T2V-A14B-Diffusers: both `transformer` and `transformer_2`."""

I2V_A14B = WanConfig(in_channels=36)
"""Wan2.2-I2V-A14B-Diffusers, likewise: 16 channels of noise, 16 of the image and 4 of its mask."""
