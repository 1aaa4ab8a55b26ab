"""The launches whose time is predicted are those that a step makes."""

from collections import Counter

import pytest

from common import hardware
from models.wan22 import block, projecting, ranks
from models.wan22.config import WanConfig
from models.wan22.conversion import convert_checkpoint, open_wan
from models.wan22.device_time import Sizes, attention_floor_us, block_calls
from models.wan22.launching import Call
from models.wan22.mesh import Mesh
from models.wan22.model import WanDiT
from models.wan22.oracle import random_inputs
from models.wan22.projections import FFN_DOWN, SELF_QKV, choose_precisions
from models.wan22.random_checkpoint import write_checkpoint
from models.wan22.time_tables import totals


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "transformer"
    write_checkpoint(folder, heads=2, layers=1, ffn_dim=384)
    return folder


class Launches:
    """Records the launches of the first rank: kernel, [B, S, H], width."""

    def __init__(self, monkeypatch):
        self.seen = []
        for module, name in (
            (block, "adaln_modulate"),
            (projecting, "row_quantize_packed"),
            (block, "launch"),
            (projecting, "launch"),
        ):
            monkeypatch.setattr(module, name, self.recording(getattr(module, name)))
        project = ranks.LocalRanks.project

        def project_all(self_, calls, lnc):
            self.note(calls[0])
            return project(self_, calls, lnc)

        monkeypatch.setattr(ranks.LocalRanks, "project", project_all)

    def recording(self, launch):
        def recorded(first, *arguments, **named):
            self.note(first)
            return launch(first, *arguments, **named)

        return recorded

    def note(self, given):
        if not isinstance(given, Call):
            self.seen.append(("adaln_quant", (*given.shape, given.shape[2])))
            return
        weight = given.arguments["weight" if given.quantised else "fused_qkv_weights"]
        batch, tokens, row = given.arguments["packed_hidden" if given.quantised else "input"].shape
        self.seen.append(("qkv_cte", (batch, tokens, row - 4 if given.quantised else row, weight.shape[1])))


@pytest.mark.parametrize("bf16", [(), (SELF_QKV, FFN_DOWN, "attn2.to_k")])
def test_the_launches_of_a_step(published, tmp_path, monkeypatch, bf16):
    convert_checkpoint(published, tmp_path / "out", bf16)
    inputs = random_inputs(batch=2, size=(1, 6, 10), text_tokens=512)
    model = WanDiT.load(tmp_path / "out")
    launches = Launches(monkeypatch)
    prompt = model.encode(inputs.text)
    once = len(launches.seen)
    model(inputs.latents, inputs.timestep, prompt)
    converted = open_wan(tmp_path / "out")
    calls = block_calls(converted.config, converted.precisions, Sizes(2, 15, Mesh()))
    assert [(call.kernel, call.shape) for call in calls] == launches.seen
    assert [call.once for call in calls] == [index < once for index in range(len(calls))]


def test_with_ranks(published, tmp_path, monkeypatch):
    """Of two ranks that share heads, and two more that share tokens: each makes every launch.

    Self-attention's is seen once, since all ranks launch it together.
    """
    convert_checkpoint(published, tmp_path / "out")
    inputs = random_inputs(size=(1, 6, 10))
    mesh = Mesh(tp=2, cp=2)
    model = WanDiT.load(tmp_path / "out", mesh=mesh)
    prompt = model.encode(inputs.text)
    launches = Launches(monkeypatch)
    model(inputs.latents, inputs.timestep, prompt)
    expected: Counter[tuple[str, tuple[int, int, int, int]]] = Counter()
    for call in block_calls(model.config, choose_precisions(model.config), Sizes(1, 15, mesh)):
        if not call.once:
            expected[call.kernel, call.shape] += 1 if call.name == SELF_QKV else mesh.size
    assert Counter(launches.seen) == expected


def test_times():
    """A block's time is the sum of its launches', and twice the tokens take about twice as long."""
    config = WanConfig(num_layers=3, num_attention_heads=4, ffn_dim=1024)
    times = {}
    for tokens in (1024, 2048):
        sizes = Sizes(1, tokens, Mesh(tp=2, cp=1))
        calls = block_calls(config, choose_precisions(config), sizes)
        times[tokens] = {call: call.timeline().total_ns / 1e3 for call in calls}
        assert all(time > 0 for time in times[tokens].values())
        lines = list(totals(config, sizes, times[tokens]))
        total = sum(time for call, time in times[tokens].items() if not call.once)
        assert lines[0].startswith(f"block: {total:,.1f} us")
        once = sum(time for call, time in times[tokens].items() if call.once)
        assert f"  {3 * total / 1e3:,.2f} ms of kernels per step, and {3 * once / 1e3:,.2f} ms for the text" in lines[5]
        parts = {"adaln_quant": 0.0, "qkv_cte": 0.0}
        for call, time in times[tokens].items():
            parts[call.kernel] += 0 if call.once else time
        for kernel, part in parts.items():
            assert f"  {kernel}: {part:,.1f} us, {part / total:.1%}" in lines[1:3]
    short, long = (sum(t for call, t in times[n].items() if not call.once) for n in (1024, 2048))
    assert 1.3 < long / short < 2.2


def test_attention_floor():
    """One head of 128, by hand: two products of 2 * 128 operations for each pair of tokens."""
    config = WanConfig(num_layers=1, num_attention_heads=1, ffn_dim=128)
    peak = hardware.get("trn3").tensor_peak_bf16_tflops * 1e12
    seconds = 2 * 2 * 128 * (1000 * 1000 + 1000 * 512) / peak
    assert attention_floor_us(config, Sizes(1, 1000, Mesh(lnc=1))) == pytest.approx(seconds * 1e6)


def test_a_mesh_that_does_not_fit():
    config = WanConfig(num_attention_heads=4)
    with pytest.raises(ValueError, match="tp is 3 with 4 attention heads"):
        block_calls(config, choose_precisions(config), Sizes(1, 100, Mesh(tp=3)))
