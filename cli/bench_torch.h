// SPDX-License-Identifier: Apache-2.0
// torch's scaled_dot_product_attention as a contender, in a Python process of its own.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/batch_spec.h"
#include "flashprime/prefill.h"

namespace flashprime::cli {

class TorchContender {
 public:
  // Starts `python` with torch on `threads` threads. An error names what is missing.
  static StatusOr<std::unique_ptr<TorchContender>> start(const std::string& python,
                                                         int32_t threads);
  ~TorchContender();
  TorchContender(const TorchContender&) = delete;
  TorchContender& operator=(const TorchContender&) = delete;

  const std::string& version() const { return version_; }

  // Random tensors of the same shapes as torch likes them best: [batch, heads, tokens, dim],
  // requests of equal lengths together. Takes the fastest of torch's routes, which it names: the
  // problem's dtype or fp32, V as it is or padded to the width of K.
  StatusOr<std::string> prepare(const PrefillProblem& problem, float softmax_scale,
                                const std::vector<BatchRequest>& batch, int64_t seed);
  // Seconds of one call over all requests of the last prepare().
  StatusOr<double> time();

 private:
  TorchContender() = default;
  Status send(const std::string& line);
  // The rest of a line that starts with `word`. "error WHAT" and a closed pipe are errors.
  StatusOr<std::string> receive(const std::string& word);

  std::string python_;
  std::string version_;
  std::string buffer_;
  pid_t child_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
};

}  // namespace flashprime::cli
