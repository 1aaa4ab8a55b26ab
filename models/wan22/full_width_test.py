"""One layer at full width, 5120 and 40 heads, against diffusers: the figures of the README. A minute and 4 GB.

bazel test --test_output=all //models/wan22:full_width_test
"""

import pytest
import torch

from common.row_mx import row_quantise_packed
from kernels.qkv_cte.host.lanes import to_interleaved
from models.wan22.compare import table
from models.wan22.config import HEAD_DIM, T2V_A14B
from models.wan22.conversion import convert_checkpoint, open_wan
from models.wan22.embeddings import rope_caches
from models.wan22.evaluation import evaluate
from models.wan22.launching import launch
from models.wan22.model import WanDiT
from models.wan22.oracle import random_inputs, run_oracle, self_attention_heads
from models.wan22.projecting import fused_call
from models.wan22.projections import all_bf16
from models.wan22.random_checkpoint import write_checkpoint

HEADINGS = {
    "in_chain": "Whole layer, errors accumulate",
    "alone": "Each projection alone, with diffusers' inputs",
    "blocks": "Block alone, with diffusers' input tokens",
    "updates": "Block alone, output minus input",
}
BF16_COSINE, PROJECTION_COSINE, BLOCK_COSINE = 0.99999, 0.999, 0.998


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """One layer with outlier channels, 120 tokens of video and 64 of text."""
    folder = tmp_path_factory.mktemp("full") / "transformer"
    full = T2V_A14B
    write_checkpoint(
        folder, heads=40, layers=1, outliers=True, shard_size="1GB", ffn_dim=full.ffn_dim, text_dim=full.text_dim
    )
    inputs = random_inputs(size=(2, 12, 20), text_tokens=64, text_dim=full.text_dim)
    return folder, inputs, run_oracle(folder, inputs)


def test_full_width(oracle, tmp_path):
    folder, inputs, expected = oracle
    convert_checkpoint(folder, tmp_path / "row_mx")
    config = open_wan(tmp_path / "row_mx").config
    assert (config.hidden, config.ffn_dim) == (T2V_A14B.hidden, T2V_A14B.ffn_dim)
    convert_checkpoint(folder, tmp_path / "bf16", tuple(all_bf16(config)))
    errors = {
        label: evaluate(tmp_path / name, inputs, expected) for label, name in (("bf16", "bf16"), ("ROW_MX", "row_mx"))
    }
    for part, heading in HEADINGS.items():
        print(f"\n{heading}\n" + table({label: getattr(found, part) for label, found in errors.items()}))
    for part in ("in_chain", "alone", "blocks"):
        for name, error in getattr(errors["bf16"], part).items():
            assert error.cosine >= BF16_COSINE, name
    for name, error in errors["ROW_MX"].alone.items():
        assert error.cosine >= PROJECTION_COSINE, name
    # Errors add up: the MLP's output is that of two quantised projections.
    for name, error in errors["ROW_MX"].in_chain.items():
        assert error.cosine >= BLOCK_COSINE, name
    for name, error in (*errors["ROW_MX"].blocks.items(), *errors["ROW_MX"].updates.items()):
        assert error.cosine >= BLOCK_COSINE, name
    outliers = expected["blocks.0.attn1.input"].float().square().mean((0, 1)).sqrt()
    assert float(outliers.max() / outliers.median()) > 20
    assert torch.isfinite(expected["output"]).all()


def test_w5_heads_of_75600_tokens(oracle, tmp_path):
    """512 of the tokens of 720p x 81 frames, with outlier channels: SNR of every head of Q, K and V against fp32.

    fp8 codes of activations and weights each err by at most 2**-4 / sqrt(3) of a value, 3.6 %: together 25.8 dB.
    """
    folder, _, _ = oracle
    convert_checkpoint(folder, tmp_path / "row_mx")
    model = WanDiT.load(tmp_path / "row_mx")
    latents = torch.empty(1, 16, 21, 90, 160)
    places = torch.linspace(0, 75_599, 512).long()
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 512, 5120, generator=generator)
    states[..., :8] *= 30
    expected = self_attention_heads(folder, states, latents, places)
    share, config = model.blocks[0].weights.shares[0], model.config
    cos, sin = rope_caches(config, config.grid(tuple(latents.shape)))
    rows = row_quantise_packed(states)
    call = fused_call(share.qkv, rows, HEAD_DIM, share.gammas, (cos[places], sin[places]), config.eps, None)
    segments = launch(call, 2).unflatten(-1, (3, 40, HEAD_DIM)).unbind(2)
    for name, segment in zip(("query", "key", "value"), segments, strict=True):
        found = segment if name == "value" else to_interleaved(segment, HEAD_DIM)
        wanted = expected[name].transpose(1, 2).double()
        errors = (found.double() - wanted).square().sum((0, 1, 3))
        snr_db = 10 * torch.log10(wanted.square().sum((0, 1, 3)) / errors)
        print(f"{name}: SNR of {len(snr_db)} heads: least {snr_db.min():.1f}, median {snr_db.median():.1f} dB")
        assert snr_db.min() >= 25.8
