"""The plan against hand-made arithmetic and against what a simulated run allocates and moves."""

import dataclasses
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.budget import BudgetError
from common.hardware import TRN2, TRN3
from common.tiling import ceil_div, round_up
from kernels.mla_decode.bench.measure import run_without_values
from kernels.mla_decode.device.config import Schedule
from kernels.mla_decode.oracle.cases import BATCH, CORNERS, FP8, PRODUCTION, TP, Case
from kernels.mla_decode.oracle.front_cases import FRONT_CORNERS, FRONT_PRODUCTION, FrontCase
from kernels.mla_decode.planning import plan
from kernels.mla_decode.planning.dims import Dims, FrontDims


def on_chip(core):
    """Name, first byte and bytes of every SBUF tensor that instructions touched."""
    touched = set()
    for record in core.stream:
        for region in (*record.writes, *record.reads):
            tensor = region.allocation
            if tensor.buffer.name == "sbuf":
                touched.add((tensor.name, tensor.address[1], tensor.row_bytes))
    return touched


def psum_addresses(core):
    """First byte of every PSUM tensor that instructions touched."""
    regions = (region for record in core.stream for region in (*record.writes, *record.reads))
    return {region.allocation.address[1] for region in regions if region.allocation.buffer.name == "psum"}


class Noted(dict):
    """A dict that notes which of its keys are read."""

    def __init__(self, values):
        super().__init__(values)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def run_and_note_banks(made):
    """A run's measurement, and the names of the PSUM banks that the kernel took from the plan."""
    config = made.config
    banks = Noted(config.banks)
    noting = property(lambda _: dataclasses.replace(config, banks=banks))
    with mock.patch.object(plan.Plan, "config", noting):
        return run_without_values(made), banks.read


def covered_bytes(made):
    """Bytes per partition that some allocation takes, in the ledger's alignment."""
    words = torch.zeros(ceil_div(made.sbuf.peak_bytes, 4), dtype=torch.bool)
    for allocation in made.sbuf.allocations:
        words[allocation.address_bytes // 4 : ceil_div(allocation.end_bytes, 4)] = True
    return 4 * int(words.sum())


def assert_exact(made):
    """Every tensor where the plan has it, SBUF's peak to the byte, PSUM's to the bank, and HBM bytes by purpose."""
    measured, banks = run_and_note_banks(made)
    assert len(measured.cores) == made.dims.cores
    assert measured.hbm == made.hbm
    planned = {(a.name, a.address_bytes, a.bytes_per_partition) for a in made.sbuf.allocations}
    for core in measured.cores:
        assert on_chip(core) ^ planned == set()
        assert core.memory.sbuf_peak_bytes == covered_bytes(made)
    assert banks == {a.name for a in made.psum.allocations}
    psum = set().union(*(psum_addresses(core) for core in measured.cores))
    assert psum == {a.address_bytes for a in made.psum.allocations}
    # Of an odd number of columns one core makes more than the other, maybe in a bank more.
    assert max(core.memory.psum_peak_banks for core in measured.cores) * 2048 == made.psum.peak_bytes
    if not made.dma_transposed_chunks:  # padding before what DMA transposes write is allocated and not used
        assert covered_bytes(made) == round_up(made.sbuf.peak_bytes, 4)


@pytest.mark.parametrize(
    "case", [*CORNERS, *PRODUCTION, *FP8, *TP, *BATCH, *FRONT_CORNERS, *FRONT_PRODUCTION], ids=lambda case: case.name
)
def test_plan_is_what_a_run_allocates_and_moves(case):
    assert_exact(case.plan)


@st.composite
def cases(draw):
    latents = draw(st.integers(1, 4))
    dtype, fp8 = draw(st.sampled_from([(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)]))
    n_prior, (lnc, shared) = draw(st.integers(1, 400)), draw(st.sampled_from([(1, None), (2, "tokens"), (2, "heads")]))
    return Case(
        "random",
        n_tokens=(2 if shared == "tokens" else 1) * draw(st.integers(1, 6)),
        lnc=lnc,
        cores_share=shared,
        n_heads=(2 if shared == "heads" else 1) * draw(st.integers(1, 20)),
        n_prior=n_prior,
        kv_lora_rank=128 * latents,
        rope=2 * draw(st.integers(1, 64)),
        v_head_dim=draw(st.integers(1, 128)),
        hidden=draw(st.integers(lnc, 8000)),
        dtype=dtype,
        context=n_prior + draw(st.integers(1, 100)),
        dma_transposed_chunks=0 if dtype is torch.float32 or fp8 else draw(st.integers(0, latents)),
        fp8_cache=fp8,
        target="trn3" if fp8 else "trn2",
    )


@st.composite
def front_cases(draw):
    return FrontCase(
        draw(cases()),
        q_lora=draw(st.integers(1, 5000)),
        nope=draw(st.integers(1, 128)),
        input_norm=draw(st.booleans()),
    )


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(case=cases() | front_cases())
def test_any_plan_is_what_a_run_allocates_and_moves(case):
    assert_exact(case.plan)


def test_production_by_hand():
    """The seed's figures: 4 tokens x 16 key tiles x 576 x 2 B of keys, the o-projection 1.8 MB once."""
    made = dataclasses.replace(PRODUCTION[1], group_tokens=4).plan
    assert (made.group_tokens, made.key_buffers, made.pass_columns) == (4, 8, 3584)
    assert sum(made.sbuf[f"rows_{i}"].bytes_per_partition for i in range(4)) == 4 * 16 * 576 * 2
    assert made.hbm.keys == (16 * 2048 + 2 * 16) * 576 * 2
    assert made.hbm.weights == 128 * 512 * 2 + 128 * 7168 * 2
    assert made.hbm.tables == 16 * 2048 * 8 + 16 * 128 * 4
    assert made.hbm.output == 16 * 7168 * 2
    assert made.minimum.total < made.hbm.total <= 1.02 * made.minimum.total


def test_banks_by_hand():
    """Two of each kind in turn and one for what crosses partitions; 3,584 columns are 7 banks."""
    fused = FRONT_PRODUCTION[0].plan.config.banks
    front = ["projection_0", "projection_1", "projection_2", "gamma", "transposed_0", "transposed_1"]
    keys = ["transposed_keys_0", "transposed_keys_1", "scores_0", "softmax", "weighted_sum_0", "weighted_sum_1"]
    parts = (
        [*front, "absorbed_query"],  # 1,536 columns are 3 banks
        ["current_features_0", "current_features_1"],
        [*keys, "denominator"],  # 16 key tiles of one head are one bank of scores
        ["absorb_0", "absorb_1", "values_0"],
        [f"output_{i}" for i in range(7)],
    )
    expected = {name: number for part in parts for number, name in enumerate(part)}
    assert fused == expected
    assert PRODUCTION[0].plan.config.banks == {name: number for name, number in fused.items() if name not in parts[0]}
    with_many_heads = plan.make(Dims(16, 64, 2048), TRN2).config.banks
    assert (with_many_heads["scores_1"], with_many_heads["denominator"], with_many_heads["values_1"]) == (3, 7, 3)


def test_a_chunk_by_dma_reads_its_columns_again():
    """8.39 MB for a latent chunk at the production shape."""
    by_choice, without = PRODUCTION
    assert by_choice.plan.dma_transposed_chunks == 1
    assert by_choice.plan.hbm.keys - without.plan.hbm.keys == 16 * 2048 * 128 * 2


def test_transposes_by_dma_from_8_tokens_of_a_core_on():
    for tokens, cores, chunks in ((7, 1, 0), (8, 1, 1), (14, 2, 0), (16, 2, 1)):
        assert plan.make(Dims(tokens, 1, 256, cores=cores), TRN2).dma_transposed_chunks == chunks
    assert plan.make(Dims(8, 1, 256, itemsize=4), TRN2).dma_transposed_chunks == 0
    assert plan.make(Dims(8, 1, 256, fp8_cache=True), TRN3).dma_transposed_chunks == 0


def test_passes_of_the_o_projection_are_of_one_width():
    for hidden, cores, columns in ((7168, 1, 3584), (3584, 1, 3584), (4000, 1, 2000), (7169, 2, 1793), (7169, 1, 2390)):
        assert plan.make(Dims(2, 1, 100, hidden=hidden, cores=cores), TRN2).pass_columns == columns


def test_softmax_groups_by_keys():
    for n_prior, group in ((512, 4), (513, 2), (2048, 2)):
        assert plan.make(Dims(16, 1, n_prior), TRN2).group_tokens == group
    assert plan.make(Dims(3, 64, 512), TRN2).group_tokens == 2


def test_two_cores_share_tokens_unless_heads_are_many_or_tokens_odd():
    for tokens, heads, alone, with_front in (
        (1, 2, "heads", "heads"),
        (3, 4, "heads", "heads"),
        (2, 1, "tokens", "tokens"),
        (16, 16, "tokens", "tokens"),
        (2, 2, "tokens", "tokens"),
        (2, 4, "tokens", "heads"),
        (2, 18, "tokens", "heads"),
        (2, 20, "heads", "heads"),
        (2, 127, "tokens", "tokens"),
    ):
        dims = Dims(tokens, heads, 128, kv_lora_rank=128, cores=2)
        assert plan.make(dims, TRN2).cores_share == alone
        assert plan.make(dims, TRN2, front=FrontDims(128, 8)).cores_share == with_front
        for shared in dims.shareable:
            assert plan.make(dims, TRN2, cores_share=shared).cores_share == shared


def test_weights_of_two_cores_by_hand():
    """The o-projection once; of the rest what a core's tokens or heads need; norms' weights twice."""
    dims, front = Dims(2, 8, 2048, cores=2), FrontDims(1536, 128, input_norm=True)
    o_proj, absorb = 8 * 128 * 7168 * 2, 8 * 128 * 512 * 2
    queries = 8 * (1536 * 192 + 128 * 512) * 2
    low, gammas = 7168 * (1536 + 576) * 2, (1536 + 512 + 7168) * 4
    keys = (2 * 2048 + 2 * 2) * 576 * 2
    for shared, each in (("tokens", 2), ("heads", 1)):
        made = plan.make(dims, TRN2, 0, front, cores_share=shared)
        assert made.hbm.weights == o_proj + each * (absorb + queries + low) + 2 * gammas
        assert made.hbm.keys == (3 - each) * keys
        assert made.hbm.rows_written == 2 * 2 * 576 * 2
        assert made.minimum.weights == o_proj + absorb + queries + low + gammas


def test_what_the_cores_cannot_share_is_refused_by_name():
    for dims, shared, accepted in (
        (Dims(3, 2, 10, cores=2), "tokens", "3 tokens of 2 heads: 'heads'"),
        (Dims(2, 3, 10, cores=2), "heads", "2 tokens of 3 heads: 'tokens'"),
        (Dims(2, 2, 10, cores=2), "keys", "2 tokens of 2 heads: 'tokens' or 'heads'"),
        (Dims(2, 2, 10), "heads", "2 tokens of 2 heads: 'tokens'"),
    ):
        with pytest.raises(ValueError, match=f"cores_share is '{shared}'; accepted with {accepted}"):
            plan.make(dims, TRN2, cores_share=shared)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("dims must be a Dims, got None", {"dims": None}),
        ("hardware must be a Hardware, got 'trn2'", {"hardware": "trn2"}),
        ("front must be a FrontDims, got 7", {"front": 7}),
        ("schedule must be a Schedule, got None", {"schedule": None}),
        ("group_tokens must be an integer, got True", {"group_tokens": True}),
    ],
)
def test_what_is_no_size_or_schedule_is_refused_by_name(words, changes):
    with pytest.raises(TypeError, match=words):
        plan.make(**{"dims": Dims(2, 1, 100), "hardware": TRN2, **changes})


@pytest.mark.parametrize("rope", [2, 6, 64])
@pytest.mark.parametrize("heads", [1, 3, 7])
def test_dma_transposes_write_from_a_32_byte_boundary(heads, rope):
    made = plan.make(Dims(3, heads, 130, rope=rope), TRN2, 1, group_tokens=1)
    addresses = [made.sbuf[f"features_{i}"].address_bytes for i in range(2)]
    assert [address % 32 for address in addresses] == [0, 0]


@pytest.mark.parametrize(
    ("key_tiles", "group", "key_buffers", "dma_transposed_chunks"),
    [(28, 2, 4, 1), (29, 2, 2, 1), (41, 2, 2, 1), (42, 1, 1, 1), (53, 1, 1, 1), (54, 1, 1, 0)],
)
def test_what_does_not_fit_is_split(key_tiles, group, key_buffers, dma_transposed_chunks):
    """16 tokens of a head: a key tile takes 1,152 B for each key buffer and 2,560 B in all for features.

    28 tiles of 4 and 41 tiles of 2 key buffers are 200,704 and 199,424 B of 212,984. Beside the buffers are indices,
    192 B a tile, 256 with a latent tile transposed by DMA, and what does not depend on the keys.
    """
    made = plan.make(Dims(16, 1, 128 * key_tiles), TRN2)
    found = made.group_tokens, made.key_buffers, made.dma_transposed_chunks
    assert found == (group, key_buffers, dma_transposed_chunks)


def test_what_cannot_be_split_is_refused_by_name():
    with pytest.raises(BudgetError, match="SBUF of trn2: 'features_1' needs"):
        plan.make(Dims(16, 1, 128 * 55), TRN2)
    with pytest.raises(BudgetError, match="SBUF of trn2: 'latent_features' needs"):
        plan.make(Dims(128, 128, 2048), TRN2)
    with pytest.raises(BudgetError, match="SBUF of trn3: 'rows_0' needs"):
        plan.make(Dims(1, 1, 60_000), TRN3)


@pytest.mark.parametrize(
    ("words", "changes", "chunks"),
    [
        ("n_tokens is 129; accepted: up to 128", {"n_tokens": 129}, 0),
        ("n_heads is 200; accepted: up to 128", {"n_heads": 200}, 0),
        ("n_prior is 0", {"n_prior": 0}, 0),
        ("rope is 63; accepted: an even number", {"rope": 63}, 0),
        ("rope is 130; accepted: up to 128", {"rope": 130}, 0),
        ("kv_lora_rank is 192; accepted: a multiple of 128 up to 512", {"kv_lora_rank": 192}, 0),
        ("kv_lora_rank is 640; accepted: a multiple of 128 up to 512", {"kv_lora_rank": 640}, 0),
        ("v_head_dim is 129", {"v_head_dim": 129}, 0),
        ("itemsize is 1; accepted: 2", {"itemsize": 1}, 0),
        ("hidden is True", {"hidden": True}, 0),
        ("n_tokens is 1.5; accepted: an integer", {"n_tokens": 1.5}, 0),
        ("n_tokens is 3 and n_heads 1; accepted on 2 cores: an even number of one", {"n_tokens": 3, "cores": 2}, 0),
        ("hidden is 1; accepted on 2 cores: from 2", {"hidden": 1, "cores": 2}, 0),
        ("cores is 4; accepted: 1 or 2", {"n_tokens": 4, "cores": 4}, 0),
        ("dma_transposed_chunks is 5; accepted: 0 to 4", {}, 5),
        ("dma_transposed_chunks is 1; accepted in float32: 0", {"itemsize": 4}, 1),
        ("dma_transposed_chunks must be at least 0, got -1", {}, -1),
    ],
)
def test_impossible_sizes_are_refused_by_name(words, changes, chunks):
    with pytest.raises(ValueError, match=words):
        plan.make(Dims(**{"n_tokens": 2, "n_heads": 1, "n_prior": 100, **changes}), TRN2, chunks)


def test_table_names_every_allocation():
    made = PRODUCTION[0].plan
    text = str(made)
    assert "softmax groups of 2, 4 key buffers" in text
    for memory in (made.sbuf, made.psum):
        assert str(memory) in text
        for allocation in memory.allocations:
            assert allocation.name in text


def test_text_says_what_is_read_how_often():
    text = str(dataclasses.replace(PRODUCTION[0], dma_transposed_chunks=4, lnc=2).plan)
    traffic = text[text.index("HBM") : text.index("SBUF")].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in traffic if line}
    keys = (16 * 2048 * (576 + 4 * 128) + 2 * 16 * 576) * 2
    assert rows["keys"] == [f"{keys:,}", f"{keys / ((16 * 2048 + 16) * 576 * 2):.3f}"]
    assert rows["weights"] == [f"{128 * (2 * 512 + 7168) * 2:,}", "1.067"]
    assert "2 of trn2's cores, which share the tokens" in text
    assert rows["output"] == [f"{16 * 7168 * 2:,}", "1.000"]


def test_front_fold_of_production_by_hand():
    """Each weight of the layer once; no queries through HBM."""
    made = FRONT_PRODUCTION[0].plan
    elements = 7168 * (1536 + 576) + 1536 * 192 + 128 * 512 + 128 * 512 + 128 * 7168
    assert made.hbm.weights == made.minimum.weights == 2 * elements + 4 * (1536 + 512 + 7168)
    assert made.hbm.queries == 0
    keys_again = 16 * 2048 * 128 * 2
    assert made.hbm.total <= 1.02 * made.minimum.total + keys_again + 16 * 2048 * 4


def test_a_plan_without_front_fold_has_no_front_config():
    with pytest.raises(ValueError, match="accepted: one made with front"):
        _ = PRODUCTION[0].plan.front_config


@pytest.mark.parametrize(
    ("words", "sizes"),
    [("q_lora is 0", {"q_lora": 0}), ("nope is 129; accepted: up to 128", {"nope": 129}), ("nope is -1", {"nope": -1})],
)
def test_impossible_fronts_are_refused_by_name(words, sizes):
    with pytest.raises(ValueError, match=words):
        FrontDims(**sizes)


def test_a_group_may_be_forced():
    dims = Dims(6, 10, 100)
    for group in range(1, 7):
        assert plan.make(dims, TRN2, group_tokens=group).group_tokens == group
    with pytest.raises(ValueError, match="group_tokens is 7; accepted: 1 to 6 with 6 tokens of 10 heads"):
        plan.make(dims, TRN2, group_tokens=7)
    with pytest.raises(ValueError, match="group_tokens is 5; accepted: 1 to 4"):
        plan.make(dataclasses.replace(dims, n_heads=32), TRN2, group_tokens=5)


@pytest.mark.parametrize(
    ("schedule", "changes", "words"),
    [
        (Schedule(latent_bands=True), {}, "without head_major"),
        (Schedule(head_major=True, latent_bands=True), {"n_heads": 33}, "n_heads is 33"),
        (Schedule(head_major=True, latent_bands=True), {"kv_lora_rank": 128}, "kv_lora_rank is 128"),
    ],
)
def test_a_schedule_that_the_sizes_do_not_allow(schedule, changes, words):
    with pytest.raises(ValueError, match=words):
        plan.make(Dims(**({"n_tokens": 4, "n_heads": 2, "n_prior": 256} | changes)), TRN2, schedule=schedule)


def test_a_late_sum_needs_more_key_buffers_than_its_group():
    """Else the next group's first rows would come into those that are still summed."""
    late = Schedule(late_weighted_sum=True)
    tight = next(case for case in CORNERS if case.name == "late_in_little_memory")
    assert (tight.plan.group_tokens, tight.plan.key_buffers) == (4, 5)
    assert dataclasses.replace(tight, schedule=Schedule()).plan.key_buffers == 4
    for tokens in range(1, 10):
        made = plan.make(Dims(tokens, 1, 256), TRN2, schedule=late)
        assert made.key_buffers > made.group_tokens or made.group_tokens == tokens
