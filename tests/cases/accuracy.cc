// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/accuracy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <utility>

#include "flashprime/random.h"
#include "tests/cases/number_formats.h"
#include "tests/cases/staging.h"

namespace flashprime::cases {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// What a single-row call of the oracle costs besides its arithmetic, in multiply-adds.
constexpr int64_t kCallOverhead = 1500;

template <typename... Values>
std::string text(const char* format, Values... values) {
  std::array<char, 320> line;
  std::snprintf(line.data(), line.size(), format, values...);
  return line.data();
}

// Rows [begin, begin + rows) of a [rows, heads, dim] view, and of its heads only `head`.
TensorView slice(TensorView view, int64_t begin, int64_t rows, int64_t head) {
  if (!view.present()) return view;
  int64_t offset = begin * view.stride[0];
  view.shape[0] = rows;
  if (view.rank == 3 && view.shape[1] > 1) offset += head * view.stride[1];
  if (view.rank == 3) view.shape[1] = 1;
  view.data = static_cast<const std::byte*>(view.data) + offset * dtype_bytes(view.dtype);
  return view;
}

// Appends |x| of the row's elements; a row lies in one view or in two parts.
void append_abs(const TensorView& view, int64_t row, std::vector<double>& to) {
  if (!view.present()) return;
  const int64_t dim = view.shape[view.rank - 1];
  for (int64_t i = 0; i < dim; ++i) {
    to.push_back(std::fabs(load(view.data, view.dtype, row * view.stride[0] + i)));
  }
}

struct OracleRow {
  int64_t token;  // of the whole batch
  int64_t head;
  int64_t sequence;   // for messages
  int64_t row;        // within it
  KeyRange keys;      // within the sequence
  int64_t first_key;  // of the sequence
  bool empty;
  double lse;
  double logit_sum;  // scale * max_j sum_i |q_i k_ij|
  size_t values;     // where out's row starts in State::oracle
};

// Remembers the first violation of each criterion and counts the rest.
class Violations {
 public:
  void add(const char* criterion, const std::string& detail) {
    for (Entry& entry : entries_) {
      if (entry.criterion == criterion) {
        ++entry.count;
        return;
      }
    }
    entries_.push_back({criterion, detail, 1});
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> result;
    for (const Entry& entry : entries_) {
      std::string line = entry.criterion + ": " + entry.detail;
      if (entry.count > 1)
        line += text(" (and %lld more)", static_cast<long long>(entry.count - 1));
      result.push_back(std::move(line));
    }
    return result;
  }

 private:
  struct Entry {
    std::string criterion;
    std::string detail;
    int64_t count;
  };
  std::vector<Entry> entries_;
};

std::string where(const OracleRow& row) {
  return text("sequence %lld row %lld head %lld", static_cast<long long>(row.sequence),
              static_cast<long long>(row.row), static_cast<long long>(row.head));
}

bool near_tile_edge(int64_t row) {
  for (const int64_t edge : {16, 32, 64, 128, 192, 256, 512, 1024, 2048, 4096, 8192}) {
    if (row >= edge - 1 && row <= edge + 1) return true;
  }
  return false;
}

// The (row, head) pairs to check, within the work that the options allow.
std::vector<OracleRow> choose_rows(const Case& c, const CheckOptions& options) {
  std::array<std::vector<OracleRow>, 3> by_priority;
  int64_t token = 0;
  int64_t first_key = 0;
  for (size_t s = 0; s < c.q_lens.size(); ++s) {
    for (int64_t i = 0; i < c.q_lens[s]; ++i, ++token) {
      const KeyRange keys = visible_keys(c.mask, i, c.q_lens[s], c.k_lens[s]);
      const size_t priority = i == 0 || i == c.q_lens[s] - 1 ? 0 : near_tile_edge(i) ? 1 : 2;
      for (int64_t h = 0; h < c.heads; ++h) {
        by_priority[priority].push_back({token, h, static_cast<int64_t>(s), i, keys, first_key,
                                         keys.end <= keys.begin, 0.0, 0.0, 0});
      }
    }
    first_key += c.k_lens[s];
  }
  const auto work = [&](const OracleRow& row) {
    const int64_t dims = 2 * (c.dims.nope + c.dims.rope) + c.dims.v;
    return row.empty ? c.dims.v : kCallOverhead + (row.keys.end - row.keys.begin) * dims;
  };
  std::vector<OracleRow> chosen;
  int64_t spent = 0;
  for (std::vector<OracleRow>& rows : by_priority) {
    for (size_t i = rows.size(); i > 1; --i) {  // Fisher-Yates, the same on every machine
      const auto draw = philox4x32_10({static_cast<uint32_t>(i), 0, 0, 0xca5e5},
                                      {static_cast<uint32_t>(options.seed), 0});
      std::swap(rows[i - 1], rows[draw[0] % i]);
    }
    for (const OracleRow& row : rows) {
      if (chosen.size() >= 8 && spent + work(row) > options.oracle_work) continue;
      spent += work(row);
      chosen.push_back(row);
    }
  }
  return chosen;
}

}  // namespace

Implementation library_prefill(ExecutionOptions options) {
  return [options = std::move(options)](const PrefillProblem& problem, const PrefillArgs& args) {
    return staged_prefill(problem, args, options);
  };
}

Dtype weights_dtype(const ExecutionOptions& options, Dtype dtype) {
  return options.device.kind == DeviceKind::kCuda ? dtype : Dtype::kFp32;
}

struct CaseChecker::State {
  State(const Case& the_case, const CheckOptions& check_options)
      : c(the_case), options(check_options), inputs(c, check_options.seed) {}

  Status make_oracle();
  void check_run(const Implementation& implementation, Dtype out_dtype, bool preround,
                 Verdict& verdict, Violations& violations);

  Case c;
  CheckOptions options;
  InputTensors inputs;
  std::vector<OracleRow> rows;
  std::vector<double> oracle;  // [rows][v]
  uint64_t input_hash = 0;
};

Status CaseChecker::State::make_oracle() {
  rows = choose_rows(c, options);
  oracle.assign(rows.size() * static_cast<size_t>(c.dims.v), 0.0);
  PrefillProblem problem = c.problem();
  problem.num_heads = 1;
  problem.out_dtype = Dtype::kFp64;
  problem.mask = Mask{MaskKind::kFull, -1, -1};
  problem.return_lse = true;
  problem.lse_layout = LseLayout::kHeadsTokens;
  ExecutionOptions execution;
  execution.device.kind = DeviceKind::kCpu;
  execution.kernel = "cpu_reference";

  std::vector<double> q_row;
  std::vector<double> k_row;
  for (size_t r = 0; r < rows.size(); ++r) {
    OracleRow& row = rows[r];
    row.values = r * static_cast<size_t>(c.dims.v);
    if (row.empty) {
      row.lse = -kInfinity;
      continue;
    }
    const int64_t key = row.first_key + row.keys.begin;
    const int64_t keys = row.keys.end - row.keys.begin;
    const PrefillArgs& all = inputs.args();
    const std::array<int32_t, 2> cu_q{0, 1};
    const std::array<int32_t, 2> cu_k{0, static_cast<int32_t>(keys)};
    PrefillArgs args;
    args.q = slice(all.q, row.token, 1, row.head);
    args.q_nope = slice(all.q_nope, row.token, 1, row.head);
    args.q_pe = slice(all.q_pe, row.token, 1, row.head);
    args.k = slice(all.k, key, keys, row.head);
    args.k_nope = slice(all.k_nope, key, keys, row.head);
    args.k_pe = slice(all.k_pe, key, keys, row.head);
    args.v = slice(all.v, key, keys, row.head);
    args.cu_seqlens_q = TensorView::contiguous(cu_q.data(), Dtype::kInt32, {2});
    args.cu_seqlens_k = TensorView::contiguous(cu_k.data(), Dtype::kInt32, {2});
    args.softmax_scale = all.softmax_scale;
    args.out =
        MutableTensorView::contiguous(oracle.data() + row.values, Dtype::kFp64, {1, 1, c.dims.v});
    args.lse = MutableTensorView::contiguous(&row.lse, Dtype::kFp64, {1, 1});
    const Status status = prefill(problem, args, execution);
    if (!status.ok()) return status;

    q_row.clear();
    append_abs(args.q, 0, q_row);
    append_abs(args.q_nope, 0, q_row);
    append_abs(args.q_pe, 0, q_row);
    double largest = 0;
    for (int64_t j = 0; j < keys; ++j) {
      k_row.clear();
      append_abs(args.k, j, k_row);
      append_abs(args.k_nope, j, k_row);
      append_abs(args.k_pe, j, k_row);
      double sum = 0;
      for (size_t i = 0; i < q_row.size(); ++i) sum += q_row[i] * k_row[i];
      if (std::isfinite(sum)) largest = std::max(largest, sum);
    }
    row.logit_sum = static_cast<double>(all.softmax_scale) * largest;
  }
  input_hash = inputs.hash();
  return {};
}

void CaseChecker::State::check_run(const Implementation& implementation, Dtype out_dtype,
                                   bool preround, Verdict& verdict, Violations& violations) {
  // NaN shows what was not written, except where NaN may be right.
  const double garbage = c.poison.empty() ? std::numeric_limits<double>::quiet_NaN() : 1234.5;
  OutputTensors outputs(c, out_dtype, garbage);
  PrefillProblem problem = c.problem();
  problem.out_dtype = out_dtype;
  PrefillArgs args = inputs.args();
  args.out = outputs.out();
  args.lse = outputs.lse();
  if (out_dtype == Dtype::kE4m3) args.output_scale = inputs.output_scale();
  const char* run = preround && c.out_dtype != Dtype::kFp32 ? " (fp32 output)" : "";
  const Status status = implementation(problem, args);
  if (!status.ok()) {
    violations.add("status", status.to_string() + run);
    return;
  }
  if (const int64_t changed = outputs.sentinels_changed(); changed != 0) {
    violations.add("wrote outside out and lse",
                   text("%lld bytes%s", static_cast<long long>(changed), run));
  }
  if (inputs.hash() != input_hash) violations.add("changed an input", run);

  const Tolerance& tolerance = c.tolerance;
  const bool e4m3 = out_dtype == Dtype::kE4m3;
  const double weight_rounding =
      options.weights == Dtype::kFp32 ? 0.0 : 0.5 * ulp_of(options.weights, 1.0);
  const double reciprocal = e4m3 ? static_cast<double>(1.0f / c.output_scale) : 1.0;
  double error2 = 0, ideal2 = 0, allowed2 = 0, oracle2 = 0, error_sum = 0, largest = 0;
  int64_t equal = 0;
  int64_t finite = 0;
  for (const OracleRow& row : rows) {
    const double allowance = row.empty ? 0.0
                                       : tolerance.preround_rel_rms +
                                             tolerance.preround_per_logit * row.logit_sum +
                                             weight_rounding;
    const double slack = tolerance.element_factor * allowance * inputs.max_abs_v() * reciprocal;
    for (int64_t i = 0; i < c.dims.v; ++i) {
      const double got = load(args.out.data, out_dtype,
                              row.token * args.out.stride[0] + row.head * args.out.stride[1] + i);
      const double wanted = oracle[row.values + static_cast<size_t>(i)] * reciprocal;
      if (std::isnan(wanted) || std::isnan(got)) {
        if (std::isnan(wanted) != std::isnan(got)) {
          violations.add(std::isnan(got) ? "NaN or not written" : "lost a NaN",
                         where(row) + text(" element %lld: got %g, wanted %g%s",
                                           static_cast<long long>(i), got, wanted, run));
        }
        continue;
      }
      const double rounded = round_to(out_dtype, wanted);
      if (got < round_to(out_dtype, wanted - slack) || got > round_to(out_dtype, wanted + slack)) {
        violations.add(row.empty ? "empty row" : "element",
                       where(row) + text(" element %lld: got %.9g, wanted %.9g +- %.2g%s",
                                         static_cast<long long>(i), got, wanted, slack, run));
      }
      const double error = got - wanted;
      ++finite;
      equal += got == rounded ? 1 : 0;
      error2 += error * error;
      error_sum += error;
      ideal2 += (rounded - wanted) * (rounded - wanted);
      oracle2 += wanted * wanted;
      allowed2 += allowance * allowance * wanted * wanted;
      largest = std::max(largest, std::fabs(error));
    }

    if (!c.lse) continue;
    const bool heads_first = c.lse_layout == LseLayout::kHeadsTokens;
    const int64_t index = row.head * args.lse.stride[heads_first ? 0 : 1] +
                          row.token * args.lse.stride[heads_first ? 1 : 0];
    const double got = load(args.lse.data, args.lse.dtype, index);
    const double ulp = ulp_of(Dtype::kFp32, std::isfinite(row.lse) ? row.lse : 1.0);
    const double bound =
        tolerance.lse_ulps * ulp + tolerance.lse_absolute + tolerance.lse_per_logit * row.logit_sum;
    const double error = std::fabs(got - row.lse);
    bool right;
    if (std::isnan(row.lse) || std::isinf(row.lse)) {
      right = std::isnan(row.lse) ? std::isnan(got) : got == row.lse;
    } else {
      right = error <= bound;
      verdict.metrics.lse_error = std::max(verdict.metrics.lse_error, error);
      verdict.metrics.lse_error_ulps = std::max(verdict.metrics.lse_error_ulps, error / ulp);
      verdict.metrics.lse_error_over_bound =
          std::max(verdict.metrics.lse_error_over_bound, error / bound);
    }
    if (!right) {
      violations.add(
          "LSE", where(row) + text(": got %.9g, wanted %.9g +- %.2g%s", got, row.lse, bound, run));
    }
  }

  const double norm = oracle2 > 0 ? std::sqrt(oracle2) : 1.0;
  const double relative = std::sqrt(error2) / norm;
  const double allowed = std::sqrt(allowed2) / norm;
  const double ideal = std::sqrt(ideal2) / norm;
  Metrics& metrics = verdict.metrics;
  if (!preround || c.out_dtype == Dtype::kFp32) {
    metrics.rel_rms = relative;
    metrics.ideal_rel_rms = ideal;
    metrics.equal_codes =
        finite == 0 ? 1.0 : static_cast<double>(equal) / static_cast<double>(finite);
    const double limit = tolerance.max_rms_over_ideal * ideal + allowed;
    if (!(relative <= limit)) {
      violations.add("RMS error", text("%.3g, wanted at most %.3g (correct rounding has %.3g)",
                                       relative, limit, ideal));
    }
  }
  if (preround) {
    metrics.preround_rel_rms = relative;
    metrics.preround_max = inputs.max_abs_v() > 0 ? largest / inputs.max_abs_v() : 0.0;
    if (!(relative <= allowed + ideal)) {
      violations.add("RMS error before rounding",
                     text("%.3g, wanted at most %.3g", relative, allowed));
    }
    if (inputs.v_has_one_sign() && finite > 0) {
      const auto count = static_cast<double>(finite);
      metrics.preround_bias = error_sum / count / (norm / std::sqrt(count));
      // Rounding errors of weights average out over rows.
      const double averaged =
          1.0 - std::max(0.1, 1.0 / std::sqrt(static_cast<double>(rows.size())));
      const double largest_bias = allowed - averaged * weight_rounding;
      if (!(std::fabs(metrics.preround_bias) <= largest_bias)) {
        violations.add("bias", text("%.3g of the RMS output, wanted at most %.3g",
                                    metrics.preround_bias, largest_bias));
      }
    }
  }
}

CaseChecker::CaseChecker(std::unique_ptr<State> state) : state_(std::move(state)) {}
CaseChecker::~CaseChecker() = default;

StatusOr<std::unique_ptr<CaseChecker>> CaseChecker::make(const Case& c,
                                                         const CheckOptions& options) {
  auto state = std::make_unique<State>(c, options);
  if (Status status = state->make_oracle(); !status.ok()) {
    return Status(status.code(), "the oracle cannot run case " + c.name + ": " + status.message());
  }
  return std::unique_ptr<CaseChecker>(new CaseChecker(std::move(state)));
}

const Case& CaseChecker::the_case() const {
  return state_->c;
}

Verdict CaseChecker::check(const Implementation& implementation) {
  Verdict verdict;
  Violations violations;
  const bool is_fp32 = state_->c.out_dtype == Dtype::kFp32;
  state_->check_run(implementation, state_->c.out_dtype, is_fp32, verdict, violations);
  if (!is_fp32 && state_->options.preround) {
    state_->check_run(implementation, Dtype::kFp32, true, verdict, violations);
  }
  verdict.metrics.rows_checked = static_cast<int64_t>(state_->rows.size());
  verdict.metrics.elements_checked = verdict.metrics.rows_checked * state_->c.dims.v;
  verdict.violations = violations.lines();
  return verdict;
}

}  // namespace flashprime::cases
