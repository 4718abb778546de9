// SPDX-License-Identifier: Apache-2.0
// The definition of the operator: fp64, plain loops, one query row at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "numerics/convert.h"

namespace flashprime::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct KeyRange {
  int64_t begin;
  int64_t end;
};

// The keys that query i of a sequence with sq queries and sk keys sees; empty when begin >= end.
KeyRange visible_keys(MaskKind mask, const PrefillParams& params, int64_t i, int64_t sq,
                      int64_t sk) {
  const int64_t position = i + (sk - sq);
  KeyRange keys{0, sk};
  if (mask == MaskKind::kCausal) {
    keys.end = std::min(sk, position + 1);
  } else if (mask == MaskKind::kWindow) {
    if (params.window_left >= 0) keys.begin = std::max<int64_t>(0, position - params.window_left);
    if (params.window_right >= 0) keys.end = std::min(sk, position + params.window_right + 1);
  }
  return keys;
}

int64_t row_offset(int64_t stride_token, int64_t stride_head, int64_t token, int64_t head) {
  return token * stride_token + head * stride_head;
}

// Reads `count` elements of a row into `row`.
void load_row(const RowTensor& tensor, Dtype dtype, int64_t token, int64_t head, int32_t count,
              double* row) {
  const int64_t offset = row_offset(tensor.stride_token, tensor.stride_head, token, head);
  for (int32_t c = 0; c < count; ++c) {
    row[c] = load_element_as_double(tensor.data, dtype, offset + c);
  }
}

}  // namespace

Status run_reference(const PrefillTraits& traits, const PrefillParams& params) {
  const auto [nope, rope, dim_v] = traits.dims;
  const int64_t dim_qk = int64_t{nope} + rope;
  const double softmax_scale = static_cast<double>(params.softmax_scale);
  const double out_factor =
      params.output_scale == nullptr ? 1.0 : static_cast<double>(1.0f / *params.output_scale);
  const Dtype lse_dtype = traits.out_dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32;

  std::vector<double> q(dim_qk), k(dim_qk), v(dim_v), out(dim_v);
  std::vector<double> weights;  // logits at first; one per visible key

  for (int64_t b = 0; b < params.batch; ++b) {
    const int64_t first_q = params.cu_seqlens_q[b];
    const int64_t first_k = params.cu_seqlens_k[b];
    const int64_t sq = params.cu_seqlens_q[b + 1] - first_q;
    const int64_t sk = params.cu_seqlens_k[b + 1] - first_k;

    for (int64_t i = 0; i < sq; ++i) {
      for (int32_t head = 0; head < params.num_heads; ++head) {
        const KeyRange keys = visible_keys(traits.mask, params, i, sq, sk);

        load_row(params.q_nope, traits.dtype, first_q + i, head, nope, q.data());
        load_row(params.q_pe, traits.dtype, first_q + i, head, rope, q.data() + nope);

        weights.clear();
        double max_logit = -kInfinity;
        bool sees_any_key = false;  // a key whose logit is -inf counts as unseen
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          load_row(params.k_nope, traits.dtype, first_k + j, head, nope, k.data());
          load_row(params.k_pe, traits.dtype, first_k + j, head, rope, k.data() + nope);
          double dot = 0.0;
          for (int64_t c = 0; c < dim_qk; ++c) dot += q[c] * k[c];
          const double logit = softmax_scale * dot;
          weights.push_back(logit);
          if (logit > max_logit) max_logit = logit;
          if (logit != -kInfinity) sees_any_key = true;
        }

        double lse = -kInfinity;
        std::fill(out.begin(), out.end(), 0.0);
        if (sees_any_key) {
          double sum = 0.0;
          for (double& weight : weights) {
            weight = std::exp(weight - max_logit);
            sum += weight;
          }
          for (int64_t j = keys.begin; j < keys.end; ++j) {
            load_row(params.v, traits.dtype, first_k + j, head, dim_v, v.data());
            for (int32_t c = 0; c < dim_v; ++c) out[c] += weights[j - keys.begin] * v[c];
          }
          for (double& value : out) value /= sum;
          lse = max_logit + std::log(sum);
        }

        const int64_t out_row =
            row_offset(params.out.stride_token, params.out.stride_head, first_q + i, head);
        for (int32_t c = 0; c < dim_v; ++c) {
          store_element(params.out.data, traits.out_dtype, out_row + c, out[c] * out_factor);
        }
        if (traits.return_lse) {
          const int64_t lse_row =
              row_offset(params.lse.stride_token, params.lse.stride_head, first_q + i, head);
          store_element(params.lse.data, lse_dtype, lse_row, lse);
        }
      }
    }
  }
  return ok_status();
}

}  // namespace flashprime::cpu
