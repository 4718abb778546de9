// SPDX-License-Identifier: Apache-2.0
#include "cli/run_slices.h"

#include <algorithm>

#include "cli/flops.h"
#include "tests/cases/case.h"

namespace flashprime::cli {
namespace {

std::vector<int32_t> rebased(const TensorView& cu_seqlens, int64_t begin, int64_t end) {
  std::vector<int32_t> offsets;
  const int64_t first = seqlen_offset(cu_seqlens, begin);
  for (int64_t i = begin; i <= end; ++i) {
    offsets.push_back(static_cast<int32_t>(seqlen_offset(cu_seqlens, i) - first));
  }
  return offsets;
}

}  // namespace

int64_t seqlen_offset(const TensorView& cu_seqlens, int64_t i) {
  return static_cast<const int32_t*>(cu_seqlens.data)[i * cu_seqlens.stride[0]];
}

double sequence_flop(const PrefillProblem& problem, const PrefillArgs& args, int64_t sequence) {
  const int64_t q_len =
      seqlen_offset(args.cu_seqlens_q, sequence + 1) - seqlen_offset(args.cu_seqlens_q, sequence);
  const int64_t k_len =
      seqlen_offset(args.cu_seqlens_k, sequence + 1) - seqlen_offset(args.cu_seqlens_k, sequence);
  double pairs = 0.0;
  for (int64_t i = 0; i < q_len; ++i) {
    const cases::KeyRange keys = cases::visible_keys(problem.mask, i, q_len, k_len);
    pairs += static_cast<double>(std::max<int64_t>(keys.end - keys.begin, 0));
  }
  return attention_flop(pairs, 1, problem.dims);
}

std::vector<CallSlice> slice_call(const PrefillProblem& problem, const PrefillArgs& args,
                                  double max_flop) {
  const int64_t sequences = args.cu_seqlens_q.shape[0] - 1;
  const int32_t heads = problem.num_heads;
  std::vector<CallSlice> slices;
  int64_t begin = 0;
  double flop = 0.0;
  const auto close = [&](int64_t end) {
    if (end > begin) slices.push_back({begin, end, 0, heads});
    begin = end;
    flop = 0.0;
  };
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const double per_head = sequence_flop(problem, args, sequence);
    if (per_head * heads <= max_flop) {
      if (flop + per_head * heads > max_flop) close(sequence);
      flop += per_head * heads;
      continue;
    }
    close(sequence);
    const auto step = static_cast<int32_t>(std::max(max_flop / per_head, 1.0));
    for (int32_t head = 0; head < heads; head += step) {
      slices.push_back({sequence, sequence + 1, head, std::min(heads, head + step)});
    }
    begin = sequence + 1;
  }
  close(sequences);
  return slices;
}

SlicedCall::SlicedCall(const PrefillProblem& problem, const PrefillArgs& args,
                       const CallSlice& slice)
    : problem_(problem),
      args_(args),
      cu_seqlens_q_(rebased(args.cu_seqlens_q, slice.sequence_begin, slice.sequence_end)),
      cu_seqlens_k_(rebased(args.cu_seqlens_k, slice.sequence_begin, slice.sequence_end)) {
  problem_.num_heads = slice.head_end - slice.head_begin;
  const int64_t q_begin = seqlen_offset(args.cu_seqlens_q, slice.sequence_begin);
  const int64_t q_end = seqlen_offset(args.cu_seqlens_q, slice.sequence_end);
  const int64_t k_begin = seqlen_offset(args.cu_seqlens_k, slice.sequence_begin);
  const int64_t k_end = seqlen_offset(args.cu_seqlens_k, slice.sequence_end);
  const auto q_part = [&](const auto& view) {
    return narrow(view, 0, q_begin, q_end, 1, slice.head_begin, slice.head_end);
  };
  const auto k_part = [&](const auto& view) {
    return narrow(view, 0, k_begin, k_end, 1, slice.head_begin, slice.head_end);
  };
  args_.q = q_part(args.q);
  args_.q_nope = q_part(args.q_nope);
  args_.q_pe = q_part(args.q_pe);
  args_.k = k_part(args.k);
  args_.k_nope = k_part(args.k_nope);
  if (args.k_pe.present()) args_.k_pe = narrow(args.k_pe, 0, k_begin, k_end);  // of all heads
  args_.v = k_part(args.v);
  args_.out = q_part(args.out);
  const int32_t row_axis = problem.lse_layout == LseLayout::kHeadsTokens ? 1 : 0;
  args_.lse =
      narrow(args.lse, row_axis, q_begin, q_end, 1 - row_axis, slice.head_begin, slice.head_end);
  args_.max_seqlen_q = -1;
  args_.max_seqlen_k = -1;
  args_.cu_seqlens_q = TensorView::contiguous(cu_seqlens_q_.data(), Dtype::kInt32,
                                              {static_cast<int64_t>(cu_seqlens_q_.size())});
  args_.cu_seqlens_k = TensorView::contiguous(cu_seqlens_k_.data(), Dtype::kInt32,
                                              {static_cast<int64_t>(cu_seqlens_k_.size())});
}

}  // namespace flashprime::cli
