#include "roformer/train/world.h"

#include <dlfcn.h>

#include <filesystem>
#include <optional>

#include "roformer/core/error.h"

namespace roformer {
namespace {

/// Opens the CUDA part; the reason when it cannot be.
std::optional<std::string> open_cuda_library() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string name = "libroformer_cuda.so";
  for (const std::filesystem::path& path : {program / name, program / "../lib" / name}) {
    if (!std::filesystem::exists(path, ignored)) continue;
    return dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) ? std::nullopt : std::optional<std::string>(dlerror());
  }
  return name + " is not beside the program; build it with 'make build CUDA=1'";
}

}  // namespace

void validate_device(const std::string& device) {
  const bool indexed = device.starts_with("cuda:") && device.size() > 5 && device.size() < 8 &&
                       device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "auto" && device != "cpu" && device != "cuda" && !indexed) {
    fail("device must be auto, cpu, cuda or cuda:N, got '{}'", device);
  }
}

World World::open(const std::string& device, int64_t threads) {
  validate_device(device);
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  World world;
  if (device == "cpu") return world;
  std::error_code ignored;
  const bool driver = std::filesystem::exists("/proc/driver/nvidia/version", ignored);
  if (device == "auto" && !driver) return world;
  std::optional<std::string> problem = driver ? open_cuda_library() : "this machine has no NVIDIA driver";
  if (!problem && !torch::cuda::is_available()) problem = "LibTorch finds no CUDA device";
  if (problem) {
    if (device == "auto") return world;
    fail("device {}: {}; or use --device cpu", device, *problem);
  }
  world.device = torch::Device(device == "auto" ? "cuda" : device);
  const int64_t index = world.device.has_index() ? world.device.index() : 0;
  if (index >= static_cast<int64_t>(torch::cuda::device_count())) {
    fail("device {}: this machine has {} CUDA device(s)", device, torch::cuda::device_count());
  }
  world.device = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(index));
  return world;
}

}  // namespace roformer
