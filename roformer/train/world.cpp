#include "roformer/train/world.h"

#include <dlfcn.h>

#include <filesystem>
#include <optional>

#include "roformer/core/error.h"
#include "roformer/core/log.h"
#include "roformer/nn/kernels/rotary_cuda.h"

namespace roformer {
namespace {

/// Opens the CUDA part, beside the program or on the loader's path, and hands out what it holds; the reason when it
/// cannot be opened.
std::optional<std::string> open_cuda_library() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::filesystem::path path = "libroformer_cuda.so";
  const std::filesystem::path name = path;
  for (const std::filesystem::path& near : {program / name, program / "../lib" / name}) {
    if (std::filesystem::exists(near, ignored)) path = near;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    const std::string reason = dlerror();
    if (reason.starts_with(name.string())) {
      return name.string() + " is neither beside the program nor on the loader's path; 'make build CUDA=1' builds it";
    }
    return reason + "; 'make setup CUDA=1' installs LibTorch's CUDA libraries";
  }
  kernels::rotary_cuda = reinterpret_cast<kernels::RotaryCuda>(dlsym(library, kernels::rotary_cuda_symbol));
  if (!kernels::rotary_cuda) return path.string() + " is of another version of this program";
  return std::nullopt;
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
  const bool driver = dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;  // what every CUDA program needs first
  std::optional<std::string> problem = driver ? open_cuda_library() : "this machine has no NVIDIA driver";
  if (!problem && !torch::cuda::is_available()) problem = "LibTorch finds no CUDA device";
  if (problem) {
    if (device == "auto") {
      if (driver) log::warn("the GPU is not used: {}", *problem);
      return world;
    }
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
