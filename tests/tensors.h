#pragma once

// What tests over tensors share. Includes torch before Catch2.

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

#include "roformer/hf/safetensors.h"
#include "roformer/models/encoder.h"
#include "roformer/torch.h"
#include "roformer/train/world.h"
#include <ATen/CPUGeneratorImpl.h>
// after torch
#include "tests/formulas.h"
#include "tests/support.h"

namespace roformer::test {

inline torch::Tensor tensor_of(const formula::Matrix& rows) {
  torch::Tensor out = torch::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.front().size())},
                                   torch::kFloat64);
  for (size_t i = 0; i < rows.size(); ++i) {
    out[static_cast<int64_t>(i)].copy_(torch::tensor(rows[i], torch::kFloat64));
  }
  return out;
}

/// A 2-d tensor's rows.
inline formula::Matrix matrix_of(const torch::Tensor& tensor) {
  const torch::Tensor wide = tensor.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  formula::Matrix rows;
  for (int64_t i = 0; i < wide.size(0); ++i) {
    const double* row = wide.const_data_ptr<double>() + i * wide.size(1);
    rows.emplace_back(row, row + wide.size(1));
  }
  return rows;
}

/// Greatest absolute difference; shapes must agree.
inline double max_error(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    FAIL("shapes differ: " << c10::str(a.sizes()) << " and " << c10::str(b.sizes()));
  }
  if (a.numel() == 0) return 0.0;
  return (a.detach().to(torch::kCPU, torch::kFloat64) - b.detach().to(torch::kCPU, torch::kFloat64))
      .abs()
      .max()
      .item<double>();
}

/// Seeded normal numbers, independent of the default generator.
inline torch::Tensor random_tensor(at::IntArrayRef size, uint64_t seed, torch::Dtype dtype = torch::kFloat32) {
  return torch::randn(size, at::make_generator<at::CPUGeneratorImpl>(seed), torch::kFloat64).to(dtype);
}

/// Where device tests compute: ROFORMER_TEST_DEVICE (cpu, cuda, cuda:N), by default the CPU. Opened by World, so that the
/// CUDA library is there before the first question about CUDA.
inline torch::Device test_device() {
  static const torch::Device device = [] {
    const char* name = std::getenv("ROFORMER_TEST_DEVICE");
    return World::open(name && *name ? name : "cpu", 0).device;
  }();
  return device;
}

/// Two blocks without dropout; a head is 4 to 16 wide.
inline EncoderOptions small_encoder(int64_t dim, int64_t vocab_size,
                                    const PositionOptions& positions = RotaryOptions{}) {
  EncoderOptions options;
  options.dim = dim;
  options.layers = 2;
  options.heads = dim < 32 ? 2 : 4;
  options.ffn = dim * 3 / 2;
  options.dropout = 0.0;
  options.vocab_size = vocab_size;
  options.positions = {positions};
  return options;
}

/// One folder of reference values: inputs.safetensors, expected.safetensors, case.json.
struct OracleCase {
  explicit OracleCase(const std::filesystem::path& folder)
      : inputs(folder / "inputs.safetensors"),
        expected(folder / "expected.safetensors"),
        facts(nlohmann::json::parse(std::ifstream(folder / "case.json"))) {}

  double tolerance() const { return facts.at("tolerance_abs"); }

  SafetensorsFile inputs, expected;
  nlohmann::json facts;
};

}  // namespace roformer::test
