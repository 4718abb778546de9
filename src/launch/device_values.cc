// SPDX-License-Identifier: Apache-2.0
#include "launch/device_values.h"

#include <vector>

#include "checks.h"
#include "launch/launch.h"
#include "problem/validate_problem.h"

namespace flashprime {
namespace {

// Starts the copy of a dense view with elements; `view` becomes that of the copy.
template <typename T>
Status copy_to_host(const cuda::Driver& driver, TensorView& view, std::vector<T>& values,
                    StreamHandle stream) {
  if (!view.present() || view.data == nullptr || view.shape[0] == 0) return ok_status();
  values.resize(static_cast<size_t>(view.shape[0]));
  const auto from = reinterpret_cast<cuda::DevicePointer>(view.data);
  view.data = values.data();
  return driver.check(
      driver.api().cuMemcpyDtoHAsync_v2(values.data(), from, values.size() * sizeof(T), stream),
      "cuMemcpyDtoHAsync");
}

}  // namespace

Status validate_device_values(const GpuDevice& device, const PrefillProblem& problem,
                              const PrefillArgs& args, StreamHandle stream) {
  const cuda::Driver& driver = *device.driver;
  const LaunchScope scope(device, stream);
  FLASHPRIME_RETURN_IF_ERROR(scope.status());
  const StatusOr<bool> capturing = cuda::is_capturing(driver, stream);
  FLASHPRIME_RETURN_IF_ERROR(capturing.status());
  FLASHPRIME_REQUIRE(!*capturing, StatusCode::kStream,
                     "checked: got true while the stream records a graph, wanted false: lengths "
                     "cannot be read then");
  PrefillArgs copied = args;
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k;
  std::vector<float> output_scale;
  FLASHPRIME_RETURN_IF_ERROR(copy_to_host(driver, copied.cu_seqlens_q, cu_seqlens_q, stream));
  FLASHPRIME_RETURN_IF_ERROR(copy_to_host(driver, copied.cu_seqlens_k, cu_seqlens_k, stream));
  FLASHPRIME_RETURN_IF_ERROR(copy_to_host(driver, copied.output_scale, output_scale, stream));
  FLASHPRIME_RETURN_IF_ERROR(
      driver.check(driver.api().cuStreamSynchronize(stream), "cuStreamSynchronize"));
  return validate_values(problem, copied);
}

}  // namespace flashprime
