// SPDX-License-Identifier: Apache-2.0
#include "problem/tensor_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "checks.h"
#include "numerics/checked.h"

namespace flashprime {
namespace {

// One axis of the difference between two addresses: its index runs over [low, high].
struct Term {
  int64_t stride;  // bytes, > 0
  int64_t low;
  int64_t high;
};

// 128 bits, because differences of two addresses and of two spans need 65.
using Wide = __int128;

Wide floor_div(Wide a, Wide b) {
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
}

// Whether some choice of the terms' indices sums to a value in [low, high]. Terms come with the
// largest stride first; when axes nest, at most two indices of each fit, so the search is short.
// Running out of budget answers yes.
bool sum_reaches(const Term* term, const Term* end, Wide low, Wide high, int* budget) {
  if (--*budget < 0) return true;
  if (term == end) return low <= 0 && 0 <= high;
  Wide rest_low = 0, rest_high = 0;
  for (const Term* rest = term + 1; rest != end; ++rest) {
    rest_low += Wide{rest->stride} * rest->low;
    rest_high += Wide{rest->stride} * rest->high;
  }
  const Wide first = std::max<Wide>(term->low, -floor_div(-(low - rest_high), term->stride));
  const Wide last = std::min<Wide>(term->high, floor_div(high - rest_low, term->stride));
  for (Wide index = first; index <= last; ++index) {
    const Wide part = index * term->stride;
    if (sum_reaches(term + 1, end, low - part, high - part, budget)) return true;
  }
  return false;
}

constexpr int kSearchBudget = 10000;

std::vector<Term> terms_of(const TensorView& view, int64_t sign) {
  std::vector<Term> terms;
  const int64_t size = dtype_bytes(view.dtype);
  for (int32_t axis = 0; axis < view.rank; ++axis) {
    const int64_t last = view.shape[axis] - 1;
    if (last == 0 || view.stride[axis] == 0) continue;
    terms.push_back({view.stride[axis] * size, sign > 0 ? 0 : -last, sign > 0 ? last : 0});
  }
  return terms;
}

// Sorts by falling stride and joins the terms of equal stride.
void normalize(std::vector<Term>* terms) {
  std::sort(terms->begin(), terms->end(),
            [](const Term& a, const Term& b) { return a.stride > b.stride; });
  std::vector<Term> joined;
  for (const Term& term : *terms) {
    if (!joined.empty() && joined.back().stride == term.stride) {
      joined.back().low += term.low;
      joined.back().high += term.high;
    } else {
      joined.push_back(term);
    }
  }
  *terms = joined;
}

// Whether each axis steps over all of the axes after it, as in every row-major tensor or slice of
// one: then no two elements share a byte, and that is quickly seen.
bool nests(const TensorView& view) {
  Wide inner = 1;
  for (int32_t axis = view.rank - 1; axis >= 0; --axis) {
    if (view.shape[axis] <= 1) continue;
    if (view.stride[axis] < inner) return false;
    inner = Wide{view.stride[axis]} * view.shape[axis];
  }
  return true;
}

// Whether two elements of the view share a byte: a nonzero difference of indices smaller than an
// element. Axis by axis, largest stride first: that axis differs by 1 or more, those before do not.
bool overlaps_itself(const TensorView& view) {
  const int64_t size = dtype_bytes(view.dtype);
  if (nests(view)) return false;
  std::vector<Term> terms = terms_of(view, +1);
  std::sort(terms.begin(), terms.end(),
            [](const Term& a, const Term& b) { return a.stride > b.stride; });
  int budget = kSearchBudget;
  for (size_t first = 0; first < terms.size(); ++first) {
    std::vector<Term> difference(terms.begin() + static_cast<std::ptrdiff_t>(first), terms.end());
    difference[0].low = 1;
    for (size_t axis = 1; axis < difference.size(); ++axis) {
      difference[axis].low = -difference[axis].high;
    }
    if (sum_reaches(difference.data(), difference.data() + difference.size(), -(size - 1), size - 1,
                    &budget)) {
      return true;
    }
  }
  return false;
}

// Bytes from the first element's first to the last element's last, for a view with elements.
bool span_bytes(const TensorView& view, int64_t* bytes) {
  int64_t span = 1;
  for (int32_t axis = 0; axis < view.rank; ++axis) {
    int64_t reach;
    if (!checked_mul(view.shape[axis] - 1, view.stride[axis], &reach)) return false;
    if (!checked_add(span, reach, &span)) return false;
  }
  return checked_mul(span, dtype_bytes(view.dtype), bytes);
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return "bf16";
    case Dtype::kFp16: return "fp16";
    case Dtype::kFp32: return "fp32";
    case Dtype::kFp64: return "fp64";
    case Dtype::kE4m3: return "e4m3";
    case Dtype::kInt32: return "int32";
  }
  return "unknown dtype";
}

std::string shape_text(const int64_t* extents, int32_t rank) {
  std::string text = "[";
  for (int32_t axis = 0; axis < rank; ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(extents[axis]);
  }
  return text + "]";
}

std::string shape_text(const TensorView& view) {
  if (view.rank < 0 || view.rank > TensorView::kMaxRank) return concat("of rank ", view.rank);
  return shape_text(view.shape.data(), view.rank);
}

Status check_tensor(const TensorView& view, const TensorSpec& spec) {
  FLASHPRIME_REQUIRE(view.rank == spec.rank, StatusCode::kShape, spec.name, ": got rank ",
                     view.rank, ", wanted rank ", spec.rank, ", ", spec.meaning);
  FLASHPRIME_REQUIRE(
      std::equal(spec.shape.begin(), spec.shape.begin() + spec.rank, view.shape.begin()),
      StatusCode::kShape, spec.name, ": got shape ", shape_text(view), ", wanted ",
      shape_text(spec.shape.data(), spec.rank), " = ", spec.meaning);
  return check_memory(view, spec);
}

Status check_memory(const TensorView& view, const TensorSpec& spec) {
  const std::string_view name = spec.name;
  FLASHPRIME_REQUIRE(view.rank >= 1 && view.rank <= TensorView::kMaxRank, StatusCode::kShape, name,
                     ": got rank ", view.rank, ", wanted 1 to ", TensorView::kMaxRank);
  FLASHPRIME_REQUIRE(view.dtype == spec.dtype, StatusCode::kDtype, name, ": got ",
                     dtype_name(view.dtype), ", wanted ", dtype_name(spec.dtype));
  int64_t bytes = dtype_bytes(view.dtype);
  for (int32_t axis = 0; axis < view.rank; ++axis) {
    FLASHPRIME_REQUIRE(view.shape[axis] >= 0, StatusCode::kShape, name, ": got extent ",
                       view.shape[axis], " on axis ", axis, ", wanted 0 or more");
    FLASHPRIME_REQUIRE(checked_mul(bytes, view.shape[axis], &bytes), StatusCode::kRange, name,
                       ": got shape ", shape_text(view), ", whose size in bytes overflows 64 bits");
  }
  if (!has_elements(view)) return ok_status();

  const int32_t last = view.rank - 1;
  FLASHPRIME_REQUIRE(!spec.dense_last_axis || view.stride[last] == 1 || view.shape[last] == 1,
                     StatusCode::kStride, name, ": got stride ", view.stride[last],
                     " on the last axis, wanted 1");
  for (int32_t axis = 0; axis < view.rank; ++axis) {
    FLASHPRIME_REQUIRE(view.stride[axis] >= 0, StatusCode::kStride, name, ": got stride ",
                       view.stride[axis], " on axis ", axis, ", wanted 0 or more");
    FLASHPRIME_REQUIRE(
        spec.access == Access::kRead || view.stride[axis] > 0 || view.shape[axis] == 1,
        StatusCode::kStride, name, ": got stride 0 on axis ", axis,
        ", wanted 1 or more: its elements are written");
  }
  FLASHPRIME_REQUIRE(span_bytes(view, &bytes), StatusCode::kRange, name, ": got shape ",
                     shape_text(view), " with strides ", shape_text(view.stride.data(), view.rank),
                     ", whose last byte offset overflows 64 bits");
  FLASHPRIME_REQUIRE(spec.access == Access::kRead || !overlaps_itself(view), StatusCode::kStride,
                     name, ": got shape ", shape_text(view), " with strides ",
                     shape_text(view.stride.data(), view.rank),
                     ", whose elements overlap, wanted a place for each");
  FLASHPRIME_REQUIRE(view.data != nullptr, StatusCode::kNull, name,
                     ": got a null pointer for shape ", shape_text(view));
  const uint64_t address = reinterpret_cast<uint64_t>(view.data);
  FLASHPRIME_REQUIRE(address % static_cast<uint64_t>(dtype_bytes(view.dtype)) == 0,
                     StatusCode::kAlignment, name, ": got a pointer that is not a multiple of ",
                     dtype_bytes(view.dtype), " bytes, the size of a ", dtype_name(view.dtype));
  FLASHPRIME_REQUIRE(address <= std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(bytes),
                     StatusCode::kRange, name, ": got ", bytes,
                     " bytes from its pointer on, beyond the end of the address space");
  FLASHPRIME_REQUIRE(
      view.capacity_bytes == TensorView::kUnknownCapacity || view.capacity_bytes >= bytes,
      StatusCode::kRange, name, ": got a capacity of ", view.capacity_bytes,
      " bytes, wanted at least ", bytes, " for shape ", shape_text(view), " with strides ",
      shape_text(view.stride.data(), view.rank));
  return ok_status();
}

TensorSpec lse_spec(std::string_view name, Dtype dtype, LseLayout layout, int64_t tokens,
                    int64_t heads) {
  TensorSpec spec{name, dtype, 2, {heads, tokens}, "[H, T], the layout that lse_layout names"};
  if (layout == LseLayout::kTokensHeads) {
    spec.shape = {tokens, heads};
    spec.meaning = "[T, H], the layout that lse_layout names";
  }
  spec.dense_last_axis = false;
  return spec;
}

Status check_output_scale(const TensorView& view, Dtype out_dtype) {
  const bool wanted = out_dtype == Dtype::kE4m3;
  FLASHPRIME_REQUIRE(view.present() || !wanted, StatusCode::kDtype,
                     "output_scale: absent, wanted fp32 [1] because out is e4m3");
  FLASHPRIME_REQUIRE(!view.present() || wanted, StatusCode::kDtype,
                     "output_scale: present, wanted absent because out is ", dtype_name(out_dtype),
                     ", not e4m3");
  if (!wanted) return ok_status();
  return check_tensor(view, {"output_scale", Dtype::kFp32, 1, {1}, "[1]"});
}

Status check_output_scale_value(const TensorView& view) {
  if (!view.present()) return ok_status();
  const float scale = *static_cast<const float*>(view.data);
  FLASHPRIME_REQUIRE(std::isfinite(scale) && scale > 0.0f, StatusCode::kNumeric,
                     "output_scale: got ", scale, ", wanted a finite number above 0");
  return ok_status();
}

Status check_no_overlap(const NamedTensor& output, std::span<const NamedTensor> others) {
  if (!output.view.present()) return ok_status();
  for (const NamedTensor& other : others) {
    FLASHPRIME_REQUIRE(!other.view.present() || !overlap(output.view, other.view),
                       StatusCode::kAlias, output.name, ": got memory that overlaps ", other.name,
                       ", wanted memory of its own");
  }
  return ok_status();
}

Status check_no_overlap(const NamedTensor& output, std::initializer_list<NamedTensor> others) {
  return check_no_overlap(output, std::span(others.begin(), others.size()));
}

bool has_elements(const TensorView& view) {
  return std::all_of(view.shape.begin(), view.shape.begin() + view.rank,
                     [](int64_t extent) { return extent > 0; });
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (!has_elements(a) || !has_elements(b)) return false;
  const Wide begin_a = static_cast<Wide>(reinterpret_cast<uint64_t>(a.data));
  const Wide begin_b = static_cast<Wide>(reinterpret_cast<uint64_t>(b.data));
  int64_t bytes_a = 0, bytes_b = 0;
  if (!span_bytes(a, &bytes_a) || !span_bytes(b, &bytes_b)) return true;
  if (begin_a + bytes_a <= begin_b || begin_b + bytes_b <= begin_a) return false;

  // Byte i of an element of a is byte j of an element of b when the sum of a's steps less the sum
  // of b's is (begin_b + j) - (begin_a + i).
  std::vector<Term> terms = terms_of(a, +1);
  const std::vector<Term> terms_b = terms_of(b, -1);
  terms.insert(terms.end(), terms_b.begin(), terms_b.end());
  normalize(&terms);
  int budget = kSearchBudget;
  const Wide distance = begin_b - begin_a;
  return sum_reaches(terms.data(), terms.data() + terms.size(),
                     distance - (dtype_bytes(a.dtype) - 1), distance + (dtype_bytes(b.dtype) - 1),
                     &budget);
}

}  // namespace flashprime
