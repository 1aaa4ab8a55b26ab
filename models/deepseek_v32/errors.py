"""Prints how far every intermediate of the tiny model is from transformers', as the table of the README.

fp32: 64 greedy steps of three sequences, everything computed from the tokens on. bf16: each layer given the same input,
tokens whose selected positions and experts are transformers' own. The worst of all layers.
"""

from __future__ import annotations

import torch

from models.deepseek_v32.compare import Difference, measure
from models.deepseek_v32.generation import greedy
from models.deepseek_v32.model import Limits, Model
from models.deepseek_v32.testing import (
    BLOCK_SIZE,
    Collector,
    chosen,
    layer_inputs,
    random_prompts,
    run_oracle,
    run_oracle_layer,
    run_our_layer,
    tiny_oracle,
    tiny_weights,
)
from models.deepseek_v32.tiny import TINY

STEPS = 64
TOKENS, PREFILLED = 100, 36
CHOICES = ("selected", "experts", "expert_weights")

Worst = dict[str, list[Difference]]


def main() -> None:
    """Runs both, and prints."""
    single, half = decode_fp32(), layers_bf16()
    print("| intermediate | fp32 relative RMS | fp32 max ulps | bf16 cosine | bf16 relative RMS | bf16 max ulps |")
    print("|---|---|---|---|---|---|")
    for kind in single:
        cells = [kind.replace("_", " "), *_cells(single[kind])[1:], *_cells(half.get(kind, []))]
        print(f"| {' | '.join(cells)} |")


def decode_fp32() -> Worst:
    """Of 64 decode steps."""
    model = Model(TINY, [tiny_weights(torch.float32)], Limits(batch=3, n_blocks=40, block_size=BLOCK_SIZE))
    sequences = random_prompts(5, 17, 40)
    lengths = [len(sequence) for sequence in sequences]
    names, logits = model.add(sequences)
    seen, found = Collector(), Worst()
    for _ in range(STEPS):
        tokens = greedy(logits)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        logits = model.decode(dict(zip(names, tokens, strict=True)), seen)
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        made = seen.of_batch(row)
        for name, value in run_oracle(tiny_oracle(), sequence).items():
            kind = name.rpartition(".")[2]
            if kind not in CHOICES:
                found.setdefault(kind, []).append(measure(made[name], value[length:]))
    return found


def layers_bf16() -> Worst:
    """Of each layer by itself."""
    found = Worst()
    for layer, inputs in enumerate(layer_inputs(TOKENS)):
        hidden = inputs.bfloat16()
        weights = [tiny_weights(torch.bfloat16).layers[layer]]
        made = run_our_layer(TINY, weights, layer, hidden, range(PREFILLED, TOKENS))
        expected = run_oracle_layer(tiny_oracle(), layer, hidden)
        prefix = f"layers.{layer}."
        same = _same(made, expected, f"{prefix}selected", TOKENS)
        if not TINY.is_dense(layer):
            same &= _same(made, expected, f"{prefix}experts", TINY.n_routed_experts)
        for name, value in expected.items():
            kind = name.rpartition(".")[2]
            if kind not in CHOICES:
                found.setdefault(kind, []).append(measure(made[name][same], value[same], torch.bfloat16))
    return found


def _same(made: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], name: str, size: int) -> torch.Tensor:
    """[tokens]: whether a choice is the same; what lies behind a token's own position is no choice."""
    counted = torch.ones(TOKENS, size, dtype=torch.bool)
    if name.endswith("selected"):
        counted = counted.tril()
    return ((chosen(made[name], size) == chosen(expected[name], size)) | ~counted).all(dim=-1)


def _cells(found: list[Difference]) -> list[str]:
    if not found:
        return ["", "", ""]
    return [
        f"{min(one.cosine for one in found):.6f}",
        f"{max(one.relative_rms for one in found):.1e}",
        f"{max(one.max_ulps for one in found):.1f}",
    ]


if __name__ == "__main__":
    main()
