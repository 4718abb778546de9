// SPDX-License-Identifier: Apache-2.0
#include "launch/place_call.h"

#include <algorithm>

#include "checks.h"

namespace flashprime {
namespace {

constexpr int32_t kHostMemory = -1;

bool has_elements(const TensorView& view) {
  if (view.rank < 1 || view.rank > TensorView::kMaxRank || view.data == nullptr) return false;
  return std::all_of(view.shape.begin(), view.shape.begin() + view.rank,
                     [](int64_t extent) { return extent > 0; });
}

// CUDA ordinal of the device that owns the memory, kHostMemory for memory of the host: pageable,
// pinned or registered.
int32_t owner(const cuda::Driver& driver, const void* data) {
  const auto pointer = reinterpret_cast<cuda::DevicePointer>(data);
  unsigned int type = cuda::kMemoryHost;
  int ordinal = kHostMemory;
  const auto& api = driver.api();
  if (api.cuPointerGetAttribute(&type, cuda::kPointerMemoryType, pointer) != cuda::kSuccess ||
      type != cuda::kMemoryDevice ||
      api.cuPointerGetAttribute(&ordinal, cuda::kPointerDeviceOrdinal, pointer) != cuda::kSuccess) {
    return kHostMemory;
  }
  return ordinal;
}

std::string place_name(int32_t ordinal) {
  return ordinal == kHostMemory ? "host memory" : concat("memory of cuda:", ordinal);
}

Status check_owner(const cuda::Driver& driver, const NamedTensor& tensor, int32_t wanted,
                   std::string_view why) {
  const int32_t found = owner(driver, tensor.view.data);
  FLASHPRIME_REQUIRE(found == wanted, StatusCode::kDevice, tensor.name, ": got ", place_name(found),
                     ", wanted ", place_name(wanted), why);
  return ok_status();
}

}  // namespace

StatusOr<const GpuDevice*> place_call(const Device& device, std::span<const NamedTensor> tensors) {
  const cuda::Driver* driver = nullptr;
  int32_t wanted = kHostMemory;
  std::string why;
  if (device.kind == DeviceKind::kCuda) {
    const StatusOr<const cuda::Driver*> found = cuda::Driver::get();
    if (!found.ok()) return found.status();
    driver = *found;
    wanted = device.index;
    FLASHPRIME_REQUIRE(wanted >= 0 && wanted < driver->device_count(), StatusCode::kDevice,
                       "device: got cuda:", wanted, ", there are ", driver->device_count());
    why = ", the device of the call";
  } else {
    driver = cuda::Driver::get_if_loaded();
    if (driver == nullptr) return static_cast<const GpuDevice*>(nullptr);
    if (device.kind == DeviceKind::kCpu) {
      why = " because the call runs on the CPU";
    } else {
      // The first tensor with elements decides; the others have to be where it is.
      const auto first =
          std::find_if(tensors.begin(), tensors.end(),
                       [](const NamedTensor& tensor) { return has_elements(tensor.view); });
      if (first == tensors.end()) return static_cast<const GpuDevice*>(nullptr);
      wanted = owner(*driver, first->view.data);
      why = concat(", where ", first->name, " is");
    }
  }
  for (const NamedTensor& tensor : tensors) {
    if (!has_elements(tensor.view)) continue;
    FLASHPRIME_RETURN_IF_ERROR(check_owner(*driver, tensor, wanted, why));
  }
  if (wanted == kHostMemory) return static_cast<const GpuDevice*>(nullptr);
  return GpuDevice::get(wanted);
}

std::array<NamedTensor, 13> tensors_of(const PrefillArgs& args) {
  const TensorView workspace =
      TensorView::contiguous(args.workspace, Dtype::kE4m3, {args.workspace_bytes});
  return {{{"q", args.q},
           {"q_nope", args.q_nope},
           {"q_pe", args.q_pe},
           {"k", args.k},
           {"k_nope", args.k_nope},
           {"k_pe", args.k_pe},
           {"v", args.v},
           {"cu_seqlens_q", args.cu_seqlens_q},
           {"cu_seqlens_k", args.cu_seqlens_k},
           {"out", as_const(args.out)},
           {"lse", as_const(args.lse)},
           {"output_scale", args.output_scale},
           {"workspace", workspace}}};
}

}  // namespace flashprime
