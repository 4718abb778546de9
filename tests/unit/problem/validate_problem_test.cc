// SPDX-License-Identifier: Apache-2.0
// Bad input: each row is one defect of an otherwise good call, the code that has to come back and
// the words that its message has to hold. No defect may cost a byte of any output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "flashprime/prefill.h"
#include "tests/unit/owned_tensor.h"

namespace flashprime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Two sequences of 2 + 3 queries and 3 + 4 keys, 2 heads, dims (4, 2, 3), everything split.
struct Call {
  Call() {
    problem.dims = {4, 2, 3};
    problem.num_heads = 2;
    problem.return_lse = true;
    args.q_nope = q_nope.input();
    args.q_pe = q_pe.input();
    args.k_nope = k_nope.input();
    args.k_pe = k_pe.input();
    args.v = v.input();
    args.cu_seqlens_q = TensorView::contiguous(cu_q.data(), Dtype::kInt32, {3});
    args.cu_seqlens_k = TensorView::contiguous(cu_k.data(), Dtype::kInt32, {3});
    args.max_seqlen_q = 3;
    args.max_seqlen_k = 100;
    args.softmax_scale = 0.5f;
    args.out = out.view();
    args.lse = lse.view();
    scale.set(0, 0, 0, 2.0);
  }

  void join_q() {
    args.q_nope = args.q_pe = {};
    args.q = q.input();
  }
  void join_k() {
    args.k_nope = args.k_pe = {};
    args.k = k.input();
  }
  void use_e4m3(float output_scale) {
    problem.out_dtype = Dtype::kE4m3;
    args.out.dtype = Dtype::kE4m3;
    args.output_scale = scale.input();
    scale.set(0, 0, 0, static_cast<double>(output_scale));
  }
  void use_rows(int64_t tq) {  // the query side's tensors have tq rows, all the same ones
    for (TensorView* view : {&args.q_nope, &args.q_pe}) {
      view->shape[0] = tq;
      view->stride[0] = 0;
    }
  }

  OwnedTensor q{Dtype::kBf16, {5, 2, 6}, 0}, q_nope{Dtype::kBf16, {5, 2, 4}, 0};
  OwnedTensor q_pe{Dtype::kBf16, {5, 2, 2}, 0};
  OwnedTensor k{Dtype::kBf16, {7, 2, 6}, 0}, k_nope{Dtype::kBf16, {7, 2, 4}, 0};
  OwnedTensor k_pe{Dtype::kBf16, {7, 2}, 0}, v{Dtype::kBf16, {7, 2, 3}, 0};
  OwnedTensor out{Dtype::kBf16, {5, 2, 3}}, lse{Dtype::kFp32, {2, 5}}, scale{Dtype::kFp32, {1}};
  std::vector<int32_t> cu_q{0, 2, 5}, cu_k{0, 3, 7};
  PrefillProblem problem;
  PrefillArgs args;
  ExecutionOptions options;
};

const void* shifted(const void* data, std::ptrdiff_t bytes) {
  return static_cast<const char*>(data) + bytes;
}
void* shifted(void* data, std::ptrdiff_t bytes) {
  return static_cast<char*>(data) + bytes;
}

struct Defect {
  const char* name;
  StatusCode code;
  const char* argument;  // the message starts with it
  const char* got;
  const char* wanted;
  void (*make)(Call&);
};

const Defect kDefects[] = {
    // The problem.
    {"NopeZero", StatusCode::kShape, "dims.nope", "got 0", "1 or more",
     [](Call& c) { c.problem.dims.nope = 0; }},
    {"NopeNegative", StatusCode::kShape, "dims.nope", "got -128", "1 or more",
     [](Call& c) { c.problem.dims.nope = -128; }},
    {"RopeNegative", StatusCode::kShape, "dims.rope", "got -1", "0 or more",
     [](Call& c) { c.problem.dims.rope = -1; }},
    {"ValueDimZero", StatusCode::kShape, "dims.v", "got 0", "1 or more",
     [](Call& c) { c.problem.dims.v = 0; }},
    {"HeadsZero", StatusCode::kShape, "num_heads", "got 0", "1 or more",
     [](Call& c) { c.problem.num_heads = 0; }},
    {"InputE4m3", StatusCode::kDtype, "dtype", "e4m3", "bf16, fp16 or fp32",
     [](Call& c) { c.problem.dtype = Dtype::kE4m3; }},
    {"InputInt32", StatusCode::kDtype, "dtype", "int32", "bf16, fp16 or fp32",
     [](Call& c) { c.problem.dtype = Dtype::kInt32; }},
    {"InputFp64", StatusCode::kDtype, "dtype", "fp64", "bf16, fp16 or fp32",
     [](Call& c) { c.problem.dtype = Dtype::kFp64; }},
    {"InputUnknown", StatusCode::kDtype, "dtype", "unknown dtype", "bf16, fp16 or fp32",
     [](Call& c) { c.problem.dtype = static_cast<Dtype>(200); }},
    {"OutFp16OfBf16", StatusCode::kDtype, "out_dtype", "fp16", "bf16 (the dtype), fp32",
     [](Call& c) { c.problem.out_dtype = Dtype::kFp16; }},
    {"OutInt32", StatusCode::kDtype, "out_dtype", "int32", "bf16 (the dtype), fp32",
     [](Call& c) { c.problem.out_dtype = Dtype::kInt32; }},
    {"MaskUnknown", StatusCode::kUnsupported, "mask.kind", "got 9", "causal (1)",
     [](Call& c) { c.problem.mask.kind = static_cast<MaskKind>(9); }},
    {"WindowReachOfCausal", StatusCode::kUnsupported, "mask", "(128, -1)", "negative",
     [](Call& c) { c.problem.mask.window_left = 128; }},
    {"WindowReachOfFull", StatusCode::kUnsupported, "mask", "(-1, 0)", "negative",
     [](Call& c) { c.problem.mask = {MaskKind::kFull, -1, 0}; }},
    {"LseLayoutUnknown", StatusCode::kShape, "lse_layout", "got 7", "[H, T] (0)",
     [](Call& c) { c.problem.lse_layout = static_cast<LseLayout>(7); }},
    {"SplitsNegative", StatusCode::kUnsupported, "num_splits", "got -1", "0 (the selector",
     [](Call& c) { c.problem.num_splits = -1; }},
    {"SplitsWhenInvariant", StatusCode::kUnsupported, "num_splits", "got 2", "batch_invariant",
     [](Call& c) {
       c.problem.num_splits = 2;
       c.problem.batch_invariant = true;
     }},
    {"SplitsOnTheCpu", StatusCode::kUnsupported, "problem", "num_splits: got 2", "at most 1",
     [](Call& c) { c.problem.num_splits = 2; }},
    {"Fp64OnTheFastKernel", StatusCode::kUnsupported, "problem", "out_dtype: got fp64", "one of",
     [](Call& c) {
       c.options.kernel = "cpu_fast";
       c.problem.out_dtype = c.args.out.dtype = c.args.lse.dtype = Dtype::kFp64;
       c.args.out = MutableTensorView::contiguous(c.k.view().data, Dtype::kFp64, {1, 2, 3});
       c.use_rows(1);
       c.args.lse.shape[1] = c.args.lse.stride[0] = 1;
       c.cu_q = {0, 0, 1};
     }},

    // The execution options.
    {"UnknownKernel", StatusCode::kUnsupported, "kernel", "got gpu_magic", "cpu_fast, cpu_reference",
     [](Call& c) { c.options.kernel = "gpu_magic"; }},
    {"ThreadsNegative", StatusCode::kNumeric, "num_threads", "got -1", "1 to 1024",
     [](Call& c) { c.options.num_threads = -1; }},

    // Which tensors are there.
    {"QueryAbsent", StatusCode::kShape, "q", "neither q nor q_nope", "one of them",
     [](Call& c) { c.args.q_nope = c.args.q_pe = {}; }},
    {"KeyAbsent", StatusCode::kShape, "k", "neither k nor k_nope", "one of them",
     [](Call& c) { c.args.k_nope = c.args.k_pe = {}; }},
    {"QueryJoinedAndSplit", StatusCode::kShape, "q", "both q and q_nope", "one of them",
     [](Call& c) { c.args.q = c.q.input(); }},
    {"KeyJoinedAndShared", StatusCode::kShape, "k", "both k and k_pe", "one of them",
     [](Call& c) {
       c.args.k = c.k.input();
       c.args.k_nope = {};
     }},
    {"QueryNopeAbsent", StatusCode::kShape, "q_nope", "absent", "with q_pe",
     [](Call& c) { c.args.q_nope = {}; }},
    {"QueryPeAbsent", StatusCode::kShape, "q_pe", "absent", "dims.rope is 2",
     [](Call& c) { c.args.q_pe = {}; }},
    {"KeyPeAbsent", StatusCode::kShape, "k_pe", "absent", "dims.rope is 2",
     [](Call& c) { c.args.k_pe = {}; }},
    {"KeyPeWithoutRope", StatusCode::kShape, "k_pe", "present", "dims.rope is 0",
     [](Call& c) {
       c.problem.dims.rope = 0;
       c.args.q_pe = {};
     }},
    {"ValueAbsent", StatusCode::kShape, "v", "absent", "[Tk, H, v]",
     [](Call& c) { c.args.v = {}; }},
    {"OutAbsent", StatusCode::kShape, "out", "rank 0", "rank 3",
     [](Call& c) { c.args.out = {}; }},
    {"LseAbsent", StatusCode::kShape, "lse", "absent", "return_lse is true",
     [](Call& c) { c.args.lse = {}; }},
    {"LseUnasked", StatusCode::kShape, "lse", "present", "return_lse is false",
     [](Call& c) { c.problem.return_lse = false; }},

    // Ranks and shapes.
    {"QueryRank2", StatusCode::kShape, "q", "rank 2", "rank 3, [T, H, nope + rope]",
     [](Call& c) {
       c.join_q();
       c.args.q.rank = 2;
     }},
    {"ValueRank5", StatusCode::kShape, "v", "rank 5", "rank 3",
     [](Call& c) { c.args.v.rank = 5; }},
    {"ValueRankNegative", StatusCode::kShape, "v", "rank -1", "rank 3",
     [](Call& c) { c.args.v.rank = -1; }},
    {"QueryHeads", StatusCode::kShape, "q", "[5, 1, 6]", "[5, 2, 6] = [T, H, nope + rope]",
     [](Call& c) {
       c.join_q();
       c.args.q.shape[1] = 1;
     }},
    {"KeyHeads", StatusCode::kShape, "k", "[7, 1, 6]", "[7, 2, 6] = [Tk, H, nope + rope]",
     [](Call& c) {
       c.join_k();
       c.args.k.shape[1] = 1;
     }},
    {"ValueHeads", StatusCode::kShape, "v", "[7, 1, 3]", "[7, 2, 3] = [Tk, H, v]",
     [](Call& c) { c.args.v.shape[1] = 1; }},
    {"QueryDim", StatusCode::kShape, "q_nope", "[5, 2, 5]", "[5, 2, 4] = [T, H, nope]",
     [](Call& c) { c.args.q_nope.shape[2] = 5; }},
    {"ValueDim", StatusCode::kShape, "v", "[7, 2, 2]", "[7, 2, 3] = [Tk, H, v]",
     [](Call& c) { c.args.v.shape[2] = 2; }},
    {"ValueRows", StatusCode::kShape, "v", "[6, 2, 3]", "[7, 2, 3] = [Tk, H, v]",
     [](Call& c) { c.args.v.shape[0] = 6; }},
    {"QueryPeRows", StatusCode::kShape, "q_pe", "[4, 2, 2]", "[5, 2, 2] = [T, H, rope]",
     [](Call& c) { c.args.q_pe.shape[0] = 4; }},
    {"KeyPeRows", StatusCode::kShape, "k_pe", "[6, 2]", "[7, 2] = [Tk, rope]",
     [](Call& c) { c.args.k_pe.shape[0] = 6; }},
    {"KeyPePerHead", StatusCode::kShape, "k_pe", "[7, 2, 2]", "[7, 1, 2] = [Tk, 1, rope]",
     [](Call& c) { c.args.k_pe = TensorView::contiguous(c.k.input().data, Dtype::kBf16, {7, 2, 2}); }},
    {"KeyPeRank1", StatusCode::kShape, "k_pe", "rank 1", "[Tk, rope] (or [Tk, 1, rope])",
     [](Call& c) { c.args.k_pe.rank = 1; }},
    {"RowsNegative", StatusCode::kShape, "q_nope", "got extent -5 on axis 0", "0 or more",
     [](Call& c) { c.args.q_nope.shape[0] = -5; }},
    {"OutRows", StatusCode::kShape, "out", "[4, 2, 3]", "[5, 2, 3] = [T, H, v]",
     [](Call& c) { c.args.out.shape[0] = 4; }},
    {"OutDimOfQuery", StatusCode::kShape, "out", "[5, 2, 6]", "[5, 2, 3] = [T, H, v]",
     [](Call& c) { c.args.out.shape[2] = 6; }},
    {"LseLayout", StatusCode::kShape, "lse", "[2, 5]", "[5, 2] = [T, H]",
     [](Call& c) { c.problem.lse_layout = LseLayout::kTokensHeads; }},
    {"LseRank3", StatusCode::kShape, "lse", "rank 3", "rank 2, [H, T]",
     [](Call& c) { c.args.lse.rank = 3; }},
    {"ScaleShape", StatusCode::kShape, "output_scale", "[2]", "[1]",
     [](Call& c) {
       c.use_e4m3(1.0f);
       c.args.output_scale.shape[0] = 2;
     }},

    // Dtypes.
    {"QueryDtype", StatusCode::kDtype, "q", "got fp16", "wanted bf16",
     [](Call& c) {
       c.join_q();
       c.args.q.dtype = Dtype::kFp16;
     }},
    {"KeyPeDtype", StatusCode::kDtype, "k_pe", "got fp32", "wanted bf16",
     [](Call& c) { c.args.k_pe.dtype = Dtype::kFp32; }},
    {"ValueDtype", StatusCode::kDtype, "v", "got fp16", "wanted bf16",
     [](Call& c) { c.args.v.dtype = Dtype::kFp16; }},
    {"OutDtype", StatusCode::kDtype, "out", "got bf16", "wanted fp32",
     [](Call& c) { c.problem.out_dtype = Dtype::kFp32; }},
    {"LseDtype", StatusCode::kDtype, "lse", "got bf16", "wanted fp32",
     [](Call& c) { c.args.lse.dtype = Dtype::kBf16; }},
    {"LseOfFp64Out", StatusCode::kDtype, "lse", "got fp32", "wanted fp64",
     [](Call& c) {
       c.problem.out_dtype = Dtype::kFp64;
       c.args.out = MutableTensorView::contiguous(c.k.view().data, Dtype::kFp64, {1, 2, 3});
       c.use_rows(1);
       c.args.lse.shape[1] = c.args.lse.stride[0] = 1;
     }},
    {"E4m3WithoutScale", StatusCode::kDtype, "output_scale", "absent", "fp32 [1]",
     [](Call& c) {
       c.use_e4m3(1.0f);
       c.args.output_scale = {};
     }},
    {"ScaleWithBf16Out", StatusCode::kDtype, "output_scale", "present", "out is bf16, not e4m3",
     [](Call& c) { c.args.output_scale = c.scale.input(); }},
    {"ScaleDtype", StatusCode::kDtype, "output_scale", "got bf16", "wanted fp32",
     [](Call& c) {
       c.use_e4m3(1.0f);
       c.args.output_scale.dtype = Dtype::kBf16;
     }},

    // Strides.
    {"QueryLastStride", StatusCode::kStride, "q_nope", "got stride 2 on the last axis", "wanted 1",
     [](Call& c) { c.args.q_nope.stride[2] = 2; }},
    {"KeyPeLastStride", StatusCode::kStride, "k_pe", "got stride 0 on the last axis", "wanted 1",
     [](Call& c) { c.args.k_pe.stride[1] = 0; }},
    {"ValueLastStride", StatusCode::kStride, "v", "got stride 7 on the last axis", "wanted 1",
     [](Call& c) { c.args.v.stride[2] = 7; }},
    {"OutLastStride", StatusCode::kStride, "out", "got stride 2 on the last axis", "wanted 1",
     [](Call& c) { c.args.out.stride[2] = 2; }},
    {"NegativeStrideOfInput", StatusCode::kStride, "v", "got stride -6 on axis 0", "0 or more",
     [](Call& c) { c.args.v.stride[0] = -6; }},
    {"NegativeStrideOfOut", StatusCode::kStride, "out", "got stride -3 on axis 1", "0 or more",
     [](Call& c) { c.args.out.stride[1] = -3; }},
    {"BroadcastOutTokens", StatusCode::kStride, "out", "got stride 0 on axis 0", "1 or more",
     [](Call& c) { c.args.out.stride[0] = 0; }},
    {"BroadcastOutHeads", StatusCode::kStride, "out", "got stride 0 on axis 1", "1 or more",
     [](Call& c) { c.args.out.stride[1] = 0; }},
    {"BroadcastLse", StatusCode::kStride, "lse", "got stride 0 on axis 0", "1 or more",
     [](Call& c) { c.args.lse.stride[0] = 0; }},
    {"OverlappingOutHeads", StatusCode::kStride, "out", "strides [6, 2, 1]", "overlap",
     [](Call& c) { c.args.out.stride[1] = 2; }},
    {"OverlappingOutTokens", StatusCode::kStride, "out", "strides [5, 3, 1]", "overlap",
     [](Call& c) { c.args.out.stride[0] = 5; }},
    {"OverlappingLse", StatusCode::kStride, "lse", "strides [4, 1]", "overlap",
     [](Call& c) { c.args.lse.stride[0] = 4; }},

    // Aliases.
    {"OutIsQuery", StatusCode::kAlias, "out", "overlaps q", "memory of its own",
     [](Call& c) {
       c.join_q();
       c.args.out.data = c.q.view().data;
     }},
    {"OutIsQueryNope", StatusCode::kAlias, "out", "overlaps q_nope", "memory of its own",
     [](Call& c) { c.args.out.data = c.q_nope.view().data; }},
    {"OutIsQueryPe", StatusCode::kAlias, "out", "overlaps q_pe", "memory of its own",
     [](Call& c) {
       c.args.q_pe.data = c.k.input().data;
       c.args.out.data = c.k.view().data;
     }},
    {"OutIsKey", StatusCode::kAlias, "out", "overlaps k,", "memory of its own",
     [](Call& c) {
       c.join_k();
       c.args.out.data = c.k.view().data;
     }},
    {"OutIsKeyNope", StatusCode::kAlias, "out", "overlaps k_nope", "memory of its own",
     [](Call& c) { c.args.out.data = c.k_nope.view().data; }},
    {"OutIsKeyPe", StatusCode::kAlias, "out", "overlaps k_pe", "memory of its own",
     [](Call& c) {
       c.args.k_pe.data = c.k.input().data;
       c.args.out.data = c.k.view().data;
     }},
    {"OutIsValue", StatusCode::kAlias, "out", "overlaps v", "memory of its own",
     [](Call& c) { c.args.out.data = c.v.view().data; }},
    {"OutSharesOneElementWithValue", StatusCode::kAlias, "out", "overlaps v", "memory of its own",
     [](Call& c) { c.args.v.data = shifted(c.out.input().data, 2 * 29); }},
    {"OutIsCuSeqlens", StatusCode::kAlias, "out", "overlaps cu_seqlens_k", "memory of its own",
     [](Call& c) {
       c.cu_k.resize(64);  // so that out ends inside
       c.args.cu_seqlens_k.data = c.args.out.data = c.cu_k.data();
     }},
    {"OutIsScale", StatusCode::kAlias, "out", "overlaps output_scale", "memory of its own",
     [](Call& c) {
       c.use_e4m3(1.0f);
       c.args.out.data = c.scale.view().data;
     }},
    {"OutInterleavedWithValue", StatusCode::kAlias, "out", "overlaps v", "memory of its own",
     [](Call& c) {  // slices [0, 3) and [2, 5) of the last axis of one buffer
       c.args.out = MutableTensorView::strided(c.k.view().data, Dtype::kBf16, {5, 2, 3}, {12, 6, 1});
       c.args.v = TensorView::strided(shifted(c.k.input().data, 4), Dtype::kBf16, {7, 2, 3},
                                      {12, 6, 1});
     }},
    {"LseIsOut", StatusCode::kAlias, "lse", "overlaps out", "memory of its own",
     [](Call& c) { c.args.lse.data = c.out.view().data; }},
    {"LseIsValue", StatusCode::kAlias, "lse", "overlaps v", "memory of its own",
     [](Call& c) { c.args.lse.data = c.v.view().data; }},
    {"LseIsQueryPe", StatusCode::kAlias, "lse", "overlaps q_pe", "memory of its own",
     [](Call& c) { c.args.lse.data = c.q_pe.view().data; }},

    // Pointers.
    {"NullQuery", StatusCode::kNull, "q_nope", "null pointer", "[5, 2, 4]",
     [](Call& c) { c.args.q_nope.data = nullptr; }},
    {"NullKeyPe", StatusCode::kNull, "k_pe", "null pointer", "[7, 2]",
     [](Call& c) { c.args.k_pe.data = nullptr; }},
    {"NullValue", StatusCode::kNull, "v", "null pointer", "[7, 2, 3]",
     [](Call& c) { c.args.v.data = nullptr; }},
    {"NullOut", StatusCode::kNull, "out", "null pointer", "[5, 2, 3]",
     [](Call& c) { c.args.out.data = nullptr; }},
    {"NullLse", StatusCode::kNull, "lse", "null pointer", "[2, 5]",
     [](Call& c) { c.args.lse.data = nullptr; }},
    {"NullCuSeqlens", StatusCode::kNull, "cu_seqlens_k", "null pointer", "[3]",
     [](Call& c) { c.args.cu_seqlens_k.data = nullptr; }},
    {"NullScale", StatusCode::kNull, "output_scale", "null pointer", "[1]",
     [](Call& c) {
       c.use_e4m3(1.0f);
       c.args.output_scale.data = nullptr;
     }},
    {"MisalignedValue", StatusCode::kAlignment, "v", "not a multiple", "2 bytes, the size of a bf16",
     [](Call& c) { c.args.v.data = shifted(c.args.v.data, 1); }},
    {"MisalignedLse", StatusCode::kAlignment, "lse", "not a multiple", "4 bytes, the size of a fp32",
     [](Call& c) { c.args.lse.data = shifted(c.args.lse.data, 2); }},
    {"MisalignedCuSeqlens", StatusCode::kAlignment, "cu_seqlens_q", "not a multiple",
     "4 bytes, the size of a int32",
     [](Call& c) { c.args.cu_seqlens_q.data = shifted(c.args.cu_seqlens_q.data, 2); }},

    // Ranges.
    {"CapacityOfQuery", StatusCode::kRange, "q_pe", "capacity of 39", "at least 40",
     [](Call& c) { c.args.q_pe.capacity_bytes = 39; }},
    {"CapacityOfOut", StatusCode::kRange, "out", "capacity of 0", "at least 60",
     [](Call& c) { c.args.out.capacity_bytes = 0; }},
    {"CapacityOfStridedLse", StatusCode::kRange, "lse", "capacity of 40", "at least 60",
     [](Call& c) {
       c.args.lse.stride[0] = 10;
       c.args.lse.capacity_bytes = 40;
     }},
    {"CapacityOfCuSeqlens", StatusCode::kRange, "cu_seqlens_q", "capacity of 8", "at least 12",
     [](Call& c) { c.args.cu_seqlens_q.capacity_bytes = 8; }},
    {"EndOfAddressSpace", StatusCode::kRange, "v", "84 bytes", "end of the address space",
     [](Call& c) { c.args.v.data = reinterpret_cast<const void*>(~uintptr_t{0} - 81); }},
    // Each product that overflows: extents; extent x stride; their sum; x element size.
    {"ProductOfExtents", StatusCode::kRange, "q_nope", "[4611686018427387904, 2, 4]", "overflows",
     [](Call& c) { c.args.q_nope.shape[0] = int64_t{1} << 62; }},
    {"ProductOfExtentsAndSize", StatusCode::kRange, "q_nope", "[576460752303423488, 2, 4]",
     "overflows", [](Call& c) { c.args.q_nope.shape[0] = int64_t{1} << 59; }},
    {"ProductOfExtentsWrappedByContiguous", StatusCode::kRange, "q_nope", "[4611686018427387904",
     "overflows",
     [](Call& c) {
       c.args.q_nope = TensorView::contiguous(c.args.q_nope.data, Dtype::kBf16,
                                              {int64_t{1} << 62, 2, 4});
     }},
    {"ProductOfExtentsOfOut", StatusCode::kRange, "q", "[3074457345618258603, 2147483647, 4294967294]",
     "overflows",
     [](Call& c) {
       c.problem.dims = {int32_t(kInt32Max), int32_t(kInt32Max), 3};
       c.problem.num_heads = int32_t(kInt32Max);
       c.args.q_nope = c.args.q_pe = {};
       c.args.q = TensorView::strided(c.q.input().data, Dtype::kBf16,
                                      {kInt64Max / 3 + 1, kInt32Max, 2 * kInt32Max}, {0, 0, 1});
     }},
    {"ProductOfExtentAndTokenStride", StatusCode::kRange, "v", "strides [2305843009213693952, 3, 1]",
     "overflows", [](Call& c) { c.args.v.stride[0] = int64_t{1} << 61; }},
    {"ProductOfExtentAndHeadStride", StatusCode::kRange, "k_nope", "9223372036854775807", "overflows",
     [](Call& c) { c.args.k_nope.stride[1] = kInt64Max; }},
    {"SumOfOffsets", StatusCode::kRange, "out", "9223372036854775804", "overflows",
     [](Call& c) { c.args.out.stride = {1, kInt64Max - 3, 1}; }},
    {"ProductOfOffsetAndSize", StatusCode::kRange, "lse", "[4611686018427387904, 1]", "overflows",
     [](Call& c) { c.args.lse.stride[0] = int64_t{1} << 62; }},
    {"ProductOfCuSeqlens", StatusCode::kRange, "cu_seqlens_k", "[4611686018427387904]", "overflows",
     [](Call& c) { c.args.cu_seqlens_k.shape[0] = int64_t{1} << 62; }},

    // cu_seqlens.
    {"CuSeqlensInt64", StatusCode::kCuSeqlens, "cu_seqlens_q", "unknown dtype", "wanted int32",
     [](Call& c) { c.args.cu_seqlens_q.dtype = static_cast<Dtype>(6); }},
    {"CuSeqlensFp64", StatusCode::kCuSeqlens, "cu_seqlens_k", "got fp64", "wanted int32",
     [](Call& c) { c.args.cu_seqlens_k.dtype = Dtype::kFp64; }},
    {"CuSeqlensAbsent", StatusCode::kCuSeqlens, "cu_seqlens_k", "rank 0", "rank 1, [B + 1]",
     [](Call& c) { c.args.cu_seqlens_k = {}; }},
    {"CuSeqlensRank2", StatusCode::kCuSeqlens, "cu_seqlens_q", "rank 2", "rank 1",
     [](Call& c) { c.args.cu_seqlens_q.rank = 2; }},
    {"CuSeqlensStrided", StatusCode::kCuSeqlens, "cu_seqlens_q", "stride 2", "wanted 1",
     [](Call& c) { c.args.cu_seqlens_q.stride[0] = 2; }},
    {"CuSeqlensEmpty", StatusCode::kCuSeqlens, "cu_seqlens_q", "length 0", "B + 1",
     [](Call& c) { c.args.cu_seqlens_q.shape[0] = 0; }},
    {"CuSeqlensLengthNegative", StatusCode::kCuSeqlens, "cu_seqlens_q", "length -3", "B + 1",
     [](Call& c) { c.args.cu_seqlens_q.shape[0] = -3; }},
    {"CuSeqlensFirst", StatusCode::kCuSeqlens, "cu_seqlens_q[0]", "got 1", "wanted 0",
     [](Call& c) { c.cu_q[0] = 1; }},
    {"CuSeqlensFirstNegative", StatusCode::kCuSeqlens, "cu_seqlens_k[0]", "got -1", "wanted 0",
     [](Call& c) { c.cu_k[0] = -1; }},
    {"CuSeqlensDecreasing", StatusCode::kCuSeqlens, "cu_seqlens_q[2]", "got 5", "at least 6",
     [](Call& c) { c.cu_q[1] = 6; }},
    {"CuSeqlensNegative", StatusCode::kCuSeqlens, "cu_seqlens_k[1]", "got -2147483648", "at least 0",
     [](Call& c) { c.cu_k[1] = std::numeric_limits<int32_t>::min(); }},
    {"CuSeqlensLastShort", StatusCode::kCuSeqlens, "cu_seqlens_q[2]", "got 4", "wanted 5",
     [](Call& c) { c.cu_q[2] = 4; }},
    {"CuSeqlensLastLong", StatusCode::kCuSeqlens, "cu_seqlens_k[2]", "got 8", "wanted 7",
     [](Call& c) { c.cu_k[2] = 8; }},
    {"RowsBeyondInt32", StatusCode::kCuSeqlens, "cu_seqlens_k", "2147483648 rows of k",
     "at most 2147483647",
     [](Call& c) {
       for (TensorView* view : {&c.args.k_nope, &c.args.k_pe, &c.args.v}) {
         view->shape[0] = kInt32Max + 1;
         view->stride[0] = 0;
       }
     }},
    {"BatchesDiffer", StatusCode::kCuSeqlens, "cu_seqlens_k", "got length 2", "wanted 3",
     [](Call& c) {
       c.cu_k = {0, 7};
       c.args.cu_seqlens_k = TensorView::contiguous(c.cu_k.data(), Dtype::kInt32, {2});
     }},
    {"NoSequencesButRows", StatusCode::kCuSeqlens, "cu_seqlens_q", "no sequence", "wanted 5",
     [](Call& c) { c.args.cu_seqlens_q = TensorView::contiguous(nullptr, Dtype::kInt32, {1}); }},
    {"NotSelfAttention", StatusCode::kCuSeqlens, "cu_seqlens_k[1]", "got 3", "wanted 2",
     [](Call& c) { c.problem.self_attention = true; }},
    {"MaxSeqlenQ", StatusCode::kCuSeqlens, "max_seqlen_q", "got 2",
     "at least 3, the length of sequence 1", [](Call& c) { c.args.max_seqlen_q = 2; }},
    {"MaxSeqlenK", StatusCode::kCuSeqlens, "max_seqlen_k", "got 0",
     "at least 3, the length of sequence 0", [](Call& c) { c.args.max_seqlen_k = 0; }},

    // Numbers.
    {"SoftmaxScaleUnset", StatusCode::kNumeric, "softmax_scale", "NaN", "not set",
     [](Call& c) { c.args.softmax_scale = PrefillArgs{}.softmax_scale; }},
    {"SoftmaxScaleInfinite", StatusCode::kNumeric, "softmax_scale", "got inf", "finite",
     [](Call& c) { c.args.softmax_scale = kInf; }},
    {"SoftmaxScaleNegative", StatusCode::kNumeric, "softmax_scale", "got -0.5", "0 or more",
     [](Call& c) { c.args.softmax_scale = -0.5f; }},
    {"OutputScaleZero", StatusCode::kNumeric, "output_scale", "got 0", "above 0",
     [](Call& c) { c.use_e4m3(0.0f); }},
    {"OutputScaleNegative", StatusCode::kNumeric, "output_scale", "got -2", "above 0",
     [](Call& c) { c.use_e4m3(-2.0f); }},
    {"OutputScaleNan", StatusCode::kNumeric, "output_scale", "got nan", "finite",
     [](Call& c) { c.use_e4m3(kNan); }},
    {"OutputScaleInfinite", StatusCode::kNumeric, "output_scale", "got inf", "finite",
     [](Call& c) { c.use_e4m3(kInf); }},
};

class PrefillRefuses : public testing::TestWithParam<Defect> {};

TEST_P(PrefillRefuses, NamingArgumentGotAndWantedAndWritingNothing) {
  const Defect& defect = GetParam();
  Call call;
  defect.make(call);
  const auto snapshot = [&] {
    std::vector<unsigned char> all;
    for (const OwnedTensor* tensor : {&call.q, &call.q_nope, &call.q_pe, &call.k, &call.k_nope,
                                      &call.k_pe, &call.v, &call.out, &call.lse, &call.scale}) {
      const std::vector<unsigned char> bytes = tensor->bytes();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  };
  const std::vector<unsigned char> before = snapshot();
  const std::vector<int32_t> cu_k = call.cu_k;

  const Status status = prefill(call.problem, call.args, call.options);
  EXPECT_EQ(status.code(), defect.code) << status.to_string();
  EXPECT_THAT(status.message(), testing::StartsWith(std::string(defect.argument) + ": "));
  EXPECT_THAT(status.message(), AllOf(HasSubstr(defect.got), HasSubstr(defect.wanted)));
  EXPECT_EQ(snapshot(), before);
  EXPECT_EQ(call.cu_k, cu_k);
}

INSTANTIATE_TEST_SUITE_P(Defects, PrefillRefuses, testing::ValuesIn(kDefects),
                         [](const auto& param) { return std::string(param.param.name); });

// Input that looks odd and is legal: each row has to run.
struct Oddity {
  const char* name;
  void (*make)(Call&);
};

const Oddity kOddities[] = {
    {"NothingOdd", [](Call&) {}},
    {"Joined",
     [](Call& c) {
       c.join_q();
       c.join_k();
     }},
    {"KeyPeOfRank3",
     [](Call& c) {
       c.args.k_pe = TensorView::contiguous(c.k_pe.input().data, Dtype::kBf16, {7, 1, 2});
     }},
    {"NoRope",
     [](Call& c) {
       c.problem.dims.rope = 0;
       c.args.q_pe = c.args.k_pe = {};
     }},
    {"KeysExpandedOverHeads", [](Call& c) { c.args.k_nope.stride[1] = c.args.v.stride[1] = 0; }},
    {"OneKeyRowForAll", [](Call& c) { c.args.k_nope.stride[0] = c.args.v.stride[0] = 0; }},
    {"OverlappingInputRows", [](Call& c) { c.args.v.stride[0] = 1; }},
    {"OneTensorAsKeyAndValue",
     [](Call& c) {
       c.args.v = c.args.k_nope;
       c.args.v.shape[2] = 3;
     }},
    {"OutBesideValueInOneBuffer",
     [](Call& c) {  // slices [0, 3) and [3, 6) of the last axis
       c.args.out =
           MutableTensorView::strided(c.k.view().data, Dtype::kBf16, {5, 2, 3}, {12, 6, 1});
       c.args.v =
           TensorView::strided(shifted(c.k.input().data, 6), Dtype::kBf16, {7, 2, 3}, {12, 6, 1});
     }},
    {"OutBetweenRowsOfValue",
     [](Call& c) {  // even tokens of a buffer are out, odd ones v, with other head strides
       c.args.out =
           MutableTensorView::strided(c.k.view().data, Dtype::kBf16, {3, 2, 3}, {12, 3, 1});
       c.args.v =
           TensorView::strided(shifted(c.k.input().data, 12), Dtype::kBf16, {7, 2, 3}, {12, 0, 1});
       c.args.v.shape[0] = 6;
       for (TensorView* view : {&c.args.k_nope, &c.args.k_pe}) view->shape[0] = 6;
       for (TensorView* view : {&c.args.q_nope, &c.args.q_pe}) view->shape[0] = 3;
       c.args.lse.shape[1] = 3;
       c.cu_q = {0, 1, 3};
       c.cu_k = {0, 3, 6};
     }},
    {"HeadsOutermostInOut", [](Call& c) { c.args.out.stride = {3, 15, 1}; }},
    {"LastAxisOfOneElement",
     [](Call& c) {
       c.problem.dims.v = 1;
       c.args.v.shape[2] = c.args.out.shape[2] = 1;
       c.args.v.stride[2] = c.args.out.stride[2] = 77;
     }},
    {"CapacityExact",
     [](Call& c) {
       c.args.out.capacity_bytes = 60;
       c.args.q_pe.capacity_bytes = 40;
     }},
    {"MoreQueriesThanKeys",
     [](Call& c) {
       for (TensorView* view : {&c.args.k_nope, &c.args.k_pe, &c.args.v}) view->shape[0] = 2;
       c.cu_k = {0, 1, 2};
     }},
    {"MaxSeqlenNotStated", [](Call& c) { c.args.max_seqlen_q = c.args.max_seqlen_k = -7; }},
    {"SelfAttention",
     [](Call& c) {
       c.problem.self_attention = true;
       for (TensorView* view : {&c.args.k_nope, &c.args.k_pe, &c.args.v}) view->shape[0] = 5;
       c.cu_k = c.cu_q;
     }},
    {"NoQueries",
     [](Call& c) {
       for (TensorView* view : {&c.args.q_nope, &c.args.q_pe}) {
         view->shape[0] = 0;
         view->data = nullptr;
       }
       c.args.out.shape[0] = c.args.lse.shape[1] = 0;
       c.args.out.data = c.args.lse.data = nullptr;
       c.cu_q = {0, 0, 0};
     }},
    {"NoKeys",
     [](Call& c) {
       for (TensorView* view : {&c.args.k_nope, &c.args.k_pe, &c.args.v}) {
         view->shape[0] = 0;
         view->data = nullptr;
       }
       c.cu_k = {0, 0, 0};
     }},
    {"NoSequences",
     [](Call& c) {
       for (TensorView* view :
            {&c.args.q_nope, &c.args.q_pe, &c.args.k_nope, &c.args.k_pe, &c.args.v}) {
         view->shape[0] = 0;
         view->data = nullptr;
       }
       c.args.out.shape[0] = c.args.lse.shape[1] = 0;
       c.args.out.data = c.args.lse.data = nullptr;
       c.args.cu_seqlens_q = c.args.cu_seqlens_k =
           TensorView::contiguous(nullptr, Dtype::kInt32, {1});
     }},
    {"ScaleZero", [](Call& c) { c.args.softmax_scale = 0.0f; }},
    {"OneSplit", [](Call& c) { c.problem.num_splits = 1; }},
    {"BatchInvariant", [](Call& c) { c.problem.batch_invariant = true; }},
    {"WindowWithoutReaches", [](Call& c) { c.problem.mask.kind = MaskKind::kWindow; }},
    {"WindowOfHugeReaches",
     [](Call& c) { c.problem.mask = {MaskKind::kWindow, kInt64Max, kInt64Max}; }},
};

class PrefillAccepts : public testing::TestWithParam<Oddity> {};

TEST_P(PrefillAccepts, OddButLegalInputOnEveryKernel) {
  for (const char* kernel : {"cpu_fast", "cpu_reference"}) {
    Call call;
    call.options.kernel = kernel;
    GetParam().make(call);
    EXPECT_EQ(prefill(call.problem, call.args, call.options).to_string(), "kOk") << kernel;
    const StatusOr<int64_t> workspace =
        prefill_workspace_bytes(call.problem, call.args, call.options);
    ASSERT_TRUE(workspace.ok()) << workspace.status().to_string();
    EXPECT_EQ(*workspace, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Oddities, PrefillAccepts, testing::ValuesIn(kOddities),
                         [](const auto& param) { return std::string(param.param.name); });

// The contents of q, k and v are never looked at before cu_seqlens are known to be good: pointers
// into the zero page are as good as any until then.
TEST(PrefillRefuses, BadCuSeqlensBeforeReadingAnyTensor) {
  Call call;
  const void* unmapped = reinterpret_cast<const void*>(uintptr_t{64});
  call.args.q_nope.data = call.args.q_pe.data = call.args.k_nope.data = unmapped;
  call.args.k_pe.data = call.args.v.data = unmapped;
  call.cu_q[1] = 1000;
  EXPECT_EQ(prefill(call.problem, call.args).code(), StatusCode::kCuSeqlens);
}

// Which of the two it is depends on the machine: there may be a driver.
TEST(PrefillRefuses, ADeviceThatIsNotThere) {
  Call call;
  call.options.device = {DeviceKind::kCuda, 99};
  const std::vector<unsigned char> before = call.out.bytes();
  const StatusCode code = prefill(call.problem, call.args, call.options).code();
  EXPECT_TRUE(code == StatusCode::kDriver || code == StatusCode::kDevice);
  EXPECT_EQ(call.out.bytes(), before);
}

TEST(PrefillWorkspaceBytes, RefusesWhatPrefillRefuses) {
  Call call;
  call.args.softmax_scale = kNan;
  EXPECT_EQ(prefill_workspace_bytes(call.problem, call.args).status().code(), StatusCode::kNumeric);
}

}  // namespace
}  // namespace flashprime
