"""What a simulated run of a plan allocates and moves, against the plan. For tests."""

from collections import Counter

import nkisim
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import norm_rope_cases
from kernels.qkv_cte.planning.plan import Plan
from nkisim import CoreReport, Run
from nkisim.record import hbm_traffic


def run_without_values(made: Plan) -> Run:
    """Records the instructions of a plan, and computes nothing."""
    options = nkisim.Options(target=made.hardware.name, numerics=False)
    return nkisim.run(row_mx_projection[made.dims.cores], *norm_rope_cases.without_values(made), options=options)


def on_chip(core: CoreReport) -> set[tuple[str, int, int]]:
    """Name, first byte and bytes of every SBUF and PSUM tensor that instructions touched."""
    touched = set()
    for record in core.stream:
        for region in (*record.writes, *record.reads):
            tensor = region.allocation
            if tensor.address is not None:
                touched.add((tensor.name, tensor.address[1], tensor.row_bytes))
    return touched


def moved_bytes(finished: Run) -> Counter[tuple[str, str]]:
    """HBM bytes of all cores by direction and tensor."""
    moved: Counter[tuple[str, str]] = Counter()
    for core in finished.cores:
        for name, traffic in hbm_traffic(core.stream).items():
            moved["read", name] += traffic.read_bytes
            moved["written", name] += traffic.written_bytes
    return moved


def assert_exact(made: Plan) -> None:
    """Addresses, peaks and HBM bytes of a run are those of the plan."""
    finished = run_without_values(made)
    dims = made.dims
    assert len(finished.cores) == dims.cores
    allocations = (*made.sbuf.allocations, *made.psum.allocations)
    planned = {(a.name, a.address_bytes, a.bytes_per_partition) for a in allocations}
    for core in finished.cores:
        assert on_chip(core) ^ planned == set()
        assert core.memory.sbuf_peak_bytes == made.sbuf.peak_bytes
        assert core.memory.psum_peak_banks == len(made.psum.allocations)
    moved = moved_bytes(finished)
    assert moved["read", "weight"] == made.hbm.weights
    assert moved["read", "packed_hidden"] == made.hbm.activations
    assert moved["read", "weight_scales"] + moved["read", "bias"] == made.hbm.channels
    assert moved["written", "output"] == made.hbm.outputs + made.hbm.norm_rope_writes
    assert moved["read", "output"] == made.hbm.norm_rope_reads
    assert moved["read", "q_gamma"] + moved["read", "k_gamma"] == made.hbm.gammas
    assert moved["read", "cos_cache"] + moved["read", "sin_cache"] == made.hbm.rope_caches
    assert moved.total() == made.hbm.total
    assert made.sbuf.peak_bytes == max(a.end_bytes for a in made.sbuf.allocations)
    if made.flow.early or (made.flow.scalar_every and not dims.bias_bytes):
        # The rule reserves an output row where rows are kept whole, and fp32 buffers for evictions that are not made;
        # the rows' staging may reach beyond the outputs.
        return
    reserved = made.flow.chunk_buffers * made.schedule.chunk_buffer_bytes
    planned_chunks = sum(a.bytes_per_partition for a in made.sbuf.allocations if a.name.startswith("weight_chunk"))
    projection_end = max(a.end_bytes for a in made.sbuf.allocations if not a.scope.startswith("norm and RoPE pass"))
    assert made.schedule.sbuf_used_bytes - reserved == projection_end - planned_chunks
