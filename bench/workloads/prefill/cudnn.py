# SPDX-License-Identifier: Apache-2.0
"""cuDNN's fused attention through nvidia-cudnn-frontend: ragged batches by element offsets, and fixed
lengths. The plan is the heuristics' first."""

import functools

import torch

from .contender import Absent, Contender

NAMES = ("cudnn", "cudnn_fixed")


@functools.cache
def _module():
    try:
        import cudnn
    except Exception as error:
        raise Absent(f"cudnn: {error}") from error
    version = f"cuDNN {cudnn.backend_version_string()}, frontend {cudnn.__version__}"
    return cudnn, cudnn.create_handle(), version


def make(name, cell, data, setup):
    cudnn, handle, version = _module()
    ragged = name == "cudnn"
    if not ragged and not cell.uniform:
        raise Absent("lengths differ")
    out = data.empty_out(cell)
    lse = data.empty_lse(cell).T.contiguous()  # [tokens, heads]
    try:
        graph, buffers = _graph(cudnn, handle, cell, data, ragged, out, lse)
    except Exception as error:  # cudnnGraphNotSupportedError, or what the bindings throw
        raise Absent(str(error).splitlines()[0]) from error
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")

    def run():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(buffers, workspace, handle=handle)

    return Contender(run, lambda: out, lambda: lse.T, lambda: (out, lse), version)


def _graph(cudnn, handle, cell, data, ragged, out, lse):
    """The built graph, and which memory its tensors have."""
    batch, heads, max_q, max_k = cell.batch, cell.heads, data.max_q, data.max_k
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.BFLOAT16,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    buffers = {}

    def per_sequence(name, values):
        small = int(values.max()) < 2**31
        values = values.to(torch.int32 if small else torch.int64).contiguous()
        tensor = graph.tensor(
            name=name,
            dim=(values.numel(), 1, 1, 1),
            stride=(1, 1, 1, 1),
            data_type=cudnn.data_type.INT32 if small else cudnn.data_type.INT64,
        )
        buffers[tensor] = values
        return tensor

    def offsets(name, boundaries, tensor):
        return per_sequence(name, boundaries.long() * tensor.stride(0)) if ragged else None

    def layout(tensor, length):  # of [batch, heads, length, dim] over [tokens, heads, dim]
        return (length * tensor.stride(0), tensor.stride(1), tensor.stride(0), 1)

    inputs = {}
    for name, tensor, length, boundaries in (
        ("q", data.q, max_q, data.cu_seqlens_q),
        ("k", data.k, max_k, data.cu_seqlens_k),
        ("v", data.v, max_k, data.cu_seqlens_k),
    ):
        inputs[name] = graph.tensor(
            name=name,
            dim=(batch, heads, length, tensor.shape[-1]),
            stride=layout(tensor, length),
            data_type=cudnn.data_type.BFLOAT16,
            ragged_offset=offsets(f"offset_{name}", boundaries, tensor),
        )
        buffers[inputs[name]] = tensor
    options = {"generate_stats": True, "attn_scale": data.softmax_scale}
    if ragged:
        options["use_padding_mask"] = True
        options["seq_len_q"] = per_sequence("seq_len_q", data.cu_seqlens_q.diff())
        options["seq_len_kv"] = per_sequence("seq_len_kv", data.cu_seqlens_k.diff())
    if cell.causal:
        options["diagonal_band_right_bound"] = 0
        if cell.new != cell.keys:
            options["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
    o, stats = graph.sdpa(name="sdpa", **inputs, **options)
    o.set_output(True).set_dim((batch, heads, max_q, cell.d_v)).set_stride(layout(out, max_q))
    stats.set_output(True).set_data_type(cudnn.data_type.FLOAT).set_dim((batch, heads, max_q, 1))
    stats.set_stride((max_q * heads, 1, heads, 1))
    if ragged:
        o.set_ragged_offset(offsets("offset_o", data.cu_seqlens_q, out))
        stats.set_ragged_offset(offsets("offset_stats", data.cu_seqlens_q, lse))
    buffers[o], buffers[stats] = out, lse
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    return graph, buffers
