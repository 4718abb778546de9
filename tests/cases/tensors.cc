// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "flashprime/random.h"
#include "tests/cases/number_formats.h"

namespace flashprime::cases {
namespace {

constexpr unsigned char kSentinel = 0xa5;

// Guards are wide enough that a kernel which reads a whole tile past the last row meets poison.
int64_t guard_elements(int64_t elements) {
  return std::max<int64_t>(512, std::min<int64_t>(elements, 65536));
}

float normal_from(uint32_t word) {
  const int sum = static_cast<int>(word & 0xff) + static_cast<int>((word >> 8) & 0xff) +
                  static_cast<int>((word >> 16) & 0xff) + static_cast<int>(word >> 24);
  return static_cast<float>(sum - 510) * 0x1.bb688cp-8f;
}

uint32_t random_word(uint64_t seed, uint32_t tensor, int64_t row, int64_t element) {
  const auto words =
      philox4x32_10({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(row),
                     static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32), tensor},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return words[static_cast<size_t>(element % 4)];
}

constexpr uint32_t kTensorQ = 0;
constexpr uint32_t kTensorK = 1;
constexpr uint32_t kTensorV = 2;
constexpr uint32_t kTensorChoices = 16;  // added for the draws that are not the numbers themselves

float sign_pattern(int64_t i) {
  return (static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull >> 40) & 1 ? 1.0f : -1.0f;
}

}  // namespace

Buffer::Buffer(Dtype dtype, int64_t elements) : dtype_(dtype) {
  const int64_t guard = guard_elements(elements) * dtype_bytes(dtype);
  bytes_.resize(static_cast<size_t>(2 * guard + elements * dtype_bytes(dtype) + 64));
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data()) + static_cast<uintptr_t>(guard);
  begin_ = guard + static_cast<int64_t>((64 - address % 64) % 64);
}

void Buffer::poison() {
  const int64_t size = dtype_bytes(dtype_);
  std::array<std::byte, 64> pattern{};
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double values[8] = {nan, infinity, 6e4, -infinity, nan, -6e4, nan, infinity};
  const int32_t integers[8] = {-1, 0x7fffffff, 12345, -0x7fffffff, 1 << 30, -77, 3, 0x40000000};
  for (int64_t i = 0; i < 8; ++i) {
    if (dtype_ == Dtype::kInt32) {
      std::memcpy(pattern.data() + i * size, &integers[i], 4);
    } else {
      store(pattern.data(), dtype_, i, values[i]);
    }
  }
  // From begin_ outwards, so that elements stay aligned.
  const auto period = static_cast<size_t>(8 * size);
  const size_t phase = static_cast<size_t>(begin_) % period;
  for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = pattern[(i + period - phase) % period];
}

void Buffer::fill(unsigned char value) {
  std::fill(bytes_.begin(), bytes_.end(), std::byte{value});
}

Placement place(Layout layout, int64_t rows, int64_t heads, int64_t dim) {
  Placement p;
  switch (layout) {
    case Layout::kDense: p.stride_head = dim, p.stride_row = heads * dim; break;
    case Layout::kPadded:
      p.stride_head = dim + 8;
      p.stride_row = heads * p.stride_head + 40;
      break;
    case Layout::kTransposed: p.stride_head = rows * dim, p.stride_row = dim; break;
    case Layout::kOdd:
      p.offset = 1;
      p.stride_head = dim + 1;
      p.stride_row = heads * p.stride_head;
      break;
    case Layout::kSlice:
      p.offset = 16;
      p.stride_head = dim + 16;
      p.stride_row = heads * p.stride_head;
      break;
    case Layout::kBroadcast: p.stride_head = 0, p.stride_row = dim; break;
  }
  if (rows > 0) {
    p.elements = p.offset + (rows - 1) * p.stride_row + (heads - 1) * p.stride_head + dim;
  }
  return p;
}

ValueSource::ValueSource(const Case& c, uint64_t seed) : case_(c), seed_(seed) {
  for (size_t s = 0; s < c.q_lens.size(); ++s) {
    for (int64_t i = 0; i < c.q_lens[s]; ++i) {
      q_positions_.push_back({static_cast<int32_t>(s), i});
    }
    for (int64_t j = 0; j < c.k_lens[s]; ++j) {
      k_positions_.push_back({static_cast<int32_t>(s), j});
    }
  }
}

void ValueSource::random_row(uint32_t tensor, int64_t token, int64_t count, float* row) const {
  for (int64_t i = 0; i < count; i += 4) {
    const auto words =
        philox4x32_10({static_cast<uint32_t>(i / 4), static_cast<uint32_t>(token),
                       static_cast<uint32_t>(static_cast<uint64_t>(token) >> 32), tensor},
                      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    for (int64_t n = 0; n < 4 && i + n < count; ++n) {
      row[i + n] = normal_from(words[static_cast<size_t>(n)]);
    }
  }
  if (case_.distribution == Distribution::kOutliers) {
    for (int64_t i = 0; i < count; ++i) {
      if (random_word(seed_, tensor + kTensorChoices, token, i) % 1000 == 0) row[i] *= 10.0f;
    }
  }
  if (case_.distribution == Distribution::kIntegerGrid) {
    const uint32_t reach = tensor == kTensorV ? 8 : 2;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t draw = random_word(seed_, tensor, token, i) % (2 * reach + 1);
      row[i] = static_cast<float>(draw) - static_cast<float>(reach);
    }
  }
  if (case_.distribution == Distribution::kTiny) {
    const float factor = case_.dtype == Dtype::kFp16 ? 1e-4f : 1e-30f;
    for (int64_t i = 0; i < count; ++i) row[i] *= factor;
  }
}

void ValueSource::poison_row(Poison::Tensor tensor, Position position, int64_t count,
                             float* row) const {
  for (const Poison& p : case_.poison) {
    if (p.tensor != tensor || p.sequence != position.sequence) continue;
    if (p.row >= 0 && p.row != position.row) continue;
    const float value = p.value == Poison::Value::kNan ? std::numeric_limits<float>::quiet_NaN()
                        : p.value == Poison::Value::kInfinity
                            ? std::numeric_limits<float>::infinity()
                            : 6e4f;
    std::fill(row, row + count, value);
  }
}

namespace {

// The rope half of a head row at a position: unit vectors of decreasing frequency, times two.
void rotate(const HeadDims& dims, int64_t position, float* head) {
  for (int32_t i = 0; i + 1 < dims.rope; i += 2) {
    const double angle =
        static_cast<double>(position) * std::pow(1e4, -static_cast<double>(i) / dims.rope);
    head[dims.nope + i] = static_cast<float>(2 * std::cos(angle));
    head[dims.nope + i + 1] = static_cast<float>(2 * std::sin(angle));
  }
}

}  // namespace

void ValueSource::q_row(int64_t token, float* row) const {
  const HeadDims& dims = case_.dims;
  const int64_t d = dims.nope + dims.rope;
  const int64_t count = case_.heads * d;
  const Position position = q_positions_[static_cast<size_t>(token)];
  const int64_t offset = case_.k_lens[static_cast<size_t>(position.sequence)] -
                         case_.q_lens[static_cast<size_t>(position.sequence)];
  random_row(kTensorQ, token, count, row);
  for (int64_t h = 0; h < case_.heads; ++h) {
    float* head = row + h * d;
    switch (case_.distribution) {
      case Distribution::kPeaky:
        for (int64_t i = 0; i < d; ++i) head[i] *= 8.0f;
        break;
      case Distribution::kSinkToken: head[0] = 4.0f; break;
      case Distribution::kNegativeScores: head[0] = 8.0f; break;
      case Distribution::kHugeLogits: {
        const auto amplitude =
            static_cast<float>(1e4 / (static_cast<double>(case_.scale()) * static_cast<double>(d)));
        for (int64_t i = 0; i < d; ++i) head[i] = amplitude * sign_pattern(i);
        break;
      }
      case Distribution::kRotary: rotate(dims, position.row + offset, head); break;
      default: break;
    }
  }
  if (case_.distribution == Distribution::kOneHot && position.row + offset >= 0) {
    // The key at this row's own position, 16 times as long.
    int64_t first = 0;
    for (int32_t s = 0; s < position.sequence; ++s) first += case_.k_lens[static_cast<size_t>(s)];
    k_row(first + position.row + offset, row);
    for (int64_t i = 0; i < count; ++i) row[i] *= 16.0f;
  }
  poison_row(Poison::Tensor::kQ, position, count, row);
}

void ValueSource::k_row(int64_t token, float* row) const {
  const HeadDims& dims = case_.dims;
  const int64_t d = dims.nope + dims.rope;
  const int64_t count = case_.heads * d;
  const Position position = k_positions_[static_cast<size_t>(token)];
  int64_t drawn = token;
  if (case_.distribution == Distribution::kTiedMaxima) drawn = position.row % 3;
  if (case_.distribution == Distribution::kEqualLogits) drawn = 0;
  random_row(kTensorK, drawn, count, row);
  for (int64_t h = 0; h < case_.heads; ++h) {
    float* head = row + h * d;
    switch (case_.distribution) {
      case Distribution::kSinkToken:
        head[0] = position.row == 0
                      ? static_cast<float>(20.0 / (4.0 * static_cast<double>(case_.scale())))
                      : 0.0f;
        break;
      case Distribution::kNegativeScores:
        for (int64_t i = 0; i < d; ++i) head[i] *= 0.25f;
        head[0] = static_cast<float>(-120.0 / (8.0 * static_cast<double>(case_.scale())));
        break;
      case Distribution::kHugeLogits: {
        const float sign =
            random_word(seed_, kTensorK + kTensorChoices, token, h) & 1 ? 1.0f : -1.0f;
        for (int64_t i = 0; i < d; ++i) {
          head[i] = sign * sign_pattern(i) * (head[i] < 0.0f ? 1.0f : 1.0f - 0x1p-8f);
        }
        break;
      }
      case Distribution::kRotary: rotate(dims, position.row, head); break;
      default: break;
    }
  }
  for (int64_t h = 1; h < case_.heads; ++h) {
    if (!case_.k_split && case_.k_layout == Layout::kBroadcast) {
      std::copy(row, row + d, row + h * d);
    } else if (case_.k_split) {
      std::copy(row + dims.nope, row + d, row + h * d + dims.nope);
    }
  }
  poison_row(Poison::Tensor::kK, position, count, row);
}

void ValueSource::v_row(int64_t token, float* row) const {
  const int64_t count = static_cast<int64_t>(case_.heads) * case_.dims.v;
  const Position position = k_positions_[static_cast<size_t>(token)];
  random_row(kTensorV, token, count, row);
  for (int64_t i = 0; i < count; ++i) {
    if (case_.distribution == Distribution::kPositiveV) {
      row[i] = static_cast<float>(random_word(seed_, kTensorV, token, i) >> 8) * 0x1p-24f;
    } else if (case_.distribution == Distribution::kTiedMaxima) {
      row[i] = -std::fabs(row[i]) - 0.25f;
    }
  }
  if (case_.v_layout == Layout::kBroadcast) {
    for (int64_t h = 1; h < case_.heads; ++h) {
      std::copy(row, row + case_.dims.v, row + h * case_.dims.v);
    }
  }
  poison_row(Poison::Tensor::kV, position, count, row);
}

namespace {

// One tensor to be written: part [first, first + dim) of every head's row of a source.
struct Part {
  Buffer* buffer;
  Placement placement;
  int64_t first;
  int64_t dim;
  int64_t heads;  // 1 where heads share it
};

void write_rows(int64_t rows, int64_t heads, int64_t row_dim, const std::vector<Part>& parts,
                const std::function<void(int64_t, float*)>& row_of) {
  std::vector<float> row(static_cast<size_t>(heads * row_dim));
  for (int64_t token = 0; token < rows; ++token) {
    row_of(token, row.data());
    for (const Part& part : parts) {
      for (int64_t h = 0; h < part.heads; ++h) {
        const float* source = row.data() + h * row_dim + part.first;
        const int64_t base = part.placement.offset + token * part.placement.stride_row +
                             h * part.placement.stride_head;
        for (int64_t i = 0; i < part.dim; ++i) {
          store(part.buffer->data(), part.buffer->dtype(), base + i,
                static_cast<double>(source[i]));
        }
      }
    }
  }
}

TensorView view_of(Buffer& buffer, const Placement& p, int64_t rows, int64_t heads, int64_t dim) {
  const auto* base = static_cast<const std::byte*>(buffer.data());
  return TensorView::strided(base + p.offset * dtype_bytes(buffer.dtype()), buffer.dtype(),
                             {rows, heads, dim}, {p.stride_row, p.stride_head, 1});
}

}  // namespace

Buffer& InputTensors::add_buffer(Dtype dtype, int64_t elements) {
  buffers_.push_back(std::make_unique<Buffer>(dtype, elements));
  buffers_.back()->poison();
  return *buffers_.back();
}

InputTensors::InputTensors(const Case& c, uint64_t seed) {
  const ValueSource source(c, seed);
  const HeadDims dims = c.dims;
  const int64_t d = dims.nope + dims.rope;
  const int64_t rows_q = c.total_q();
  const int64_t rows_k = c.total_k();
  const int64_t heads = c.heads;

  std::vector<Part> q_parts;
  if (!c.q_split || c.q_layout == Layout::kSlice) {
    const Placement p = place(c.q_layout, rows_q, heads, d);
    Buffer& buffer = add_buffer(c.dtype, p.elements);
    q_parts.push_back({&buffer, p, 0, d, heads});
    if (!c.q_split) {
      args_.q = view_of(buffer, p, rows_q, heads, d);
    } else {
      Placement pe = p;
      pe.offset += dims.nope;
      args_.q_nope = view_of(buffer, p, rows_q, heads, dims.nope);
      if (dims.rope > 0) args_.q_pe = view_of(buffer, pe, rows_q, heads, dims.rope);
    }
  } else {
    const Placement nope = place(c.q_layout, rows_q, heads, dims.nope);
    Buffer& nope_buffer = add_buffer(c.dtype, nope.elements);
    q_parts.push_back({&nope_buffer, nope, 0, dims.nope, heads});
    args_.q_nope = view_of(nope_buffer, nope, rows_q, heads, dims.nope);
    if (dims.rope > 0) {
      const Placement pe = place(c.q_layout, rows_q, heads, dims.rope);
      Buffer& pe_buffer = add_buffer(c.dtype, pe.elements);
      q_parts.push_back({&pe_buffer, pe, dims.nope, dims.rope, heads});
      args_.q_pe = view_of(pe_buffer, pe, rows_q, heads, dims.rope);
    }
  }

  // k, and v where they share a buffer.
  std::vector<Part> k_parts;
  std::vector<Part> v_parts;
  const bool shared_buffer =
      c.k_layout == Layout::kSlice && c.v_layout == Layout::kSlice && (c.k_split || d == dims.v);
  if (shared_buffer) {
    // In parts: [Tk, H, nope + v]. Joined: [Tk, 2, H, d].
    const int64_t k_dim = c.k_split ? dims.nope : d;
    Placement k_place;
    k_place.stride_head = c.k_split ? dims.nope + dims.v : d;
    k_place.stride_row = c.k_split ? heads * k_place.stride_head : 2 * heads * d;
    k_place.elements = rows_k * k_place.stride_row;
    Placement v_place = k_place;
    v_place.offset = c.k_split ? dims.nope : heads * d;
    Buffer& buffer = add_buffer(c.dtype, k_place.elements);
    k_parts.push_back({&buffer, k_place, 0, k_dim, heads});
    v_parts.push_back({&buffer, v_place, 0, dims.v, heads});
    (c.k_split ? args_.k_nope : args_.k) = view_of(buffer, k_place, rows_k, heads, k_dim);
    args_.v = view_of(buffer, v_place, rows_k, heads, dims.v);
  } else {
    const int64_t k_dim = c.k_split ? dims.nope : d;
    const Placement k_place = place(c.k_layout, rows_k, heads, k_dim);
    Buffer& k_buffer = add_buffer(c.dtype, k_place.elements);
    k_parts.push_back({&k_buffer, k_place, 0, k_dim, c.k_layout == Layout::kBroadcast ? 1 : heads});
    (c.k_split ? args_.k_nope : args_.k) = view_of(k_buffer, k_place, rows_k, heads, k_dim);

    Placement v_place = place(c.v_layout, rows_k, heads, dims.v);
    if (c.v_layout == Layout::kSlice) {
      v_place.offset = dims.nope;
      v_place.stride_head = dims.nope + dims.v;
      v_place.stride_row = heads * v_place.stride_head;
      v_place.elements = rows_k * v_place.stride_row;
    }
    Buffer& v_buffer = add_buffer(c.dtype, v_place.elements);
    v_parts.push_back(
        {&v_buffer, v_place, 0, dims.v, c.v_layout == Layout::kBroadcast ? 1 : heads});
    args_.v = view_of(v_buffer, v_place, rows_k, heads, dims.v);
  }
  if (c.k_split && dims.rope > 0) {
    Placement pe;
    pe.offset = c.k_layout == Layout::kSlice ? 48 : c.k_layout == Layout::kOdd ? 1 : 0;
    pe.stride_row = dims.rope + pe.offset;
    pe.elements = rows_k * pe.stride_row;
    Buffer& buffer = add_buffer(c.dtype, pe.elements);
    k_parts.push_back({&buffer, pe, dims.nope, dims.rope, 1});
    const auto* data =
        static_cast<const std::byte*>(buffer.data()) + pe.offset * dtype_bytes(c.dtype);
    if (c.k_pe_rank3) {
      args_.k_pe =
          TensorView::strided(data, c.dtype, {rows_k, 1, dims.rope}, {pe.stride_row, dims.rope, 1});
    } else {
      args_.k_pe = TensorView::strided(data, c.dtype, {rows_k, dims.rope}, {pe.stride_row, 1});
    }
  }

  write_rows(rows_q, heads, d, q_parts,
             [&](int64_t token, float* row) { source.q_row(token, row); });
  write_rows(rows_k, heads, d, k_parts,
             [&](int64_t token, float* row) { source.k_row(token, row); });
  write_rows(rows_k, heads, dims.v, v_parts, [&](int64_t token, float* row) {
    source.v_row(token, row);
    for (int64_t i = 0; i < heads * dims.v; ++i) {
      if (!std::isfinite(row[i])) continue;
      max_abs_v_ = std::max(max_abs_v_, std::fabs(static_cast<double>(row[i])));
    }
  });
  v_has_one_sign_ =
      c.distribution == Distribution::kPositiveV || c.distribution == Distribution::kTiedMaxima;

  const auto batch = static_cast<int64_t>(c.q_lens.size());
  const auto prefix_sums = [&](const std::vector<int32_t>& lens) {
    Buffer& buffer = add_buffer(Dtype::kInt32, batch + 1);
    auto* sums = static_cast<int32_t*>(buffer.data());
    sums[0] = 0;
    for (int64_t s = 0; s < batch; ++s) sums[s + 1] = sums[s] + lens[static_cast<size_t>(s)];
    return TensorView::contiguous(sums, Dtype::kInt32, {batch + 1});
  };
  args_.cu_seqlens_q = prefix_sums(c.q_lens);
  args_.cu_seqlens_k = prefix_sums(c.k_lens);
  args_.max_seqlen_q = c.stated_max_q;
  args_.max_seqlen_k = c.stated_max_k;
  args_.softmax_scale = c.scale();
  Buffer& scale = add_buffer(Dtype::kFp32, 1);
  static_cast<float*>(scale.data())[0] = c.output_scale;
  output_scale_ = TensorView::contiguous(scale.data(), Dtype::kFp32, {1});
}

uint64_t InputTensors::hash() const {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const auto& buffer : buffers_) {
    const std::vector<std::byte>& bytes = buffer->bytes();
    for (size_t i = 0; i < bytes.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
      hash = (hash ^ word) * 0x100000001b3ull;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

OutputTensors::OutputTensors(const Case& c, Dtype out_dtype, double garbage)
    : out_buffer_(out_dtype, place(c.out_layout, c.total_q(), c.heads, c.dims.v).elements),
      lse_buffer_(out_dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32,
                  c.lse ? 3 * (c.total_q() + 8) * (c.heads + 8) : 0) {
  const int64_t rows = c.total_q();
  const int64_t heads = c.heads;
  const Placement p = place(c.out_layout, rows, heads, c.dims.v);
  out_buffer_.fill(kSentinel);
  lse_buffer_.fill(kSentinel);
  out_ = MutableTensorView::strided(
      static_cast<std::byte*>(out_buffer_.data()) + p.offset * dtype_bytes(out_dtype), out_dtype,
      {rows, heads, c.dims.v}, {p.stride_row, p.stride_head, 1});

  out_owned_.assign(out_buffer_.bytes().size(), false);
  const auto own = [](std::vector<bool>& owned, int64_t begin, int64_t bytes) {
    std::fill_n(owned.begin() + begin, bytes, true);
  };
  const int64_t out_size = dtype_bytes(out_dtype);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t first = p.offset + row * p.stride_row + h * p.stride_head;
      own(out_owned_, out_buffer_.begin() + first * out_size, c.dims.v * out_size);
      for (int64_t i = 0; i < c.dims.v; ++i) {
        store(out_buffer_.data(), out_dtype, first + i, garbage);
      }
    }
  }

  lse_owned_.assign(lse_buffer_.bytes().size(), false);
  if (!c.lse) return;
  const Dtype lse_dtype = lse_buffer_.dtype();
  const bool heads_first = c.lse_layout == LseLayout::kHeadsTokens;
  const int64_t inner = heads_first ? rows : heads;
  const int64_t inner_stride = c.lse_gapped ? 2 : 1;
  const int64_t outer_stride = inner * inner_stride + (c.lse_gapped ? 3 : 0);
  lse_ =
      MutableTensorView::strided(lse_buffer_.data(), lse_dtype, {heads_first ? heads : rows, inner},
                                 {outer_stride, inner_stride});
  for (int64_t outer = 0; outer < lse_.shape[0]; ++outer) {
    for (int64_t i = 0; i < inner; ++i) {
      const int64_t index = outer * outer_stride + i * inner_stride;
      own(lse_owned_, lse_buffer_.begin() + index * dtype_bytes(lse_dtype), dtype_bytes(lse_dtype));
      store(lse_buffer_.data(), lse_dtype, index, garbage);
    }
  }
}

int64_t OutputTensors::sentinels_changed() const {
  int64_t changed = 0;
  const auto count = [&](const Buffer& buffer, const std::vector<bool>& owned) {
    for (size_t i = 0; i < owned.size(); ++i) {
      if (!owned[i] && buffer.bytes()[i] != std::byte{kSentinel}) ++changed;
    }
  };
  count(out_buffer_, out_owned_);
  count(lse_buffer_, lse_owned_);
  return changed;
}

}  // namespace flashprime::cases
