#include "tests/strict_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <set>

namespace roformer::test {
namespace {

constexpr auto strict_type = c10::DeviceType::PrivateUse1;
const c10::Device strict(strict_type, 0);
std::atomic<int64_t> reads_back{0};

struct StrictAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, c10::free_cpu, strict};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} strict_allocator;

/// The same memory and shape under another device's name; the old storage lives as long as the new one.
torch::Tensor relabel(const torch::Tensor& t, c10::Device device, c10::DispatchKey key,
                      c10::Allocator* allocator) {
  const c10::Storage& old = t.storage();
  auto* owner = new c10::Storage(old);
  c10::DataPtr data(
      const_cast<void*>(old.data()), owner, [](void* p) { delete static_cast<c10::Storage*>(p); }, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), old.nbytes(), std::move(data), allocator,
                       /*resizable=*/true);
  torch::Tensor renamed =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), t.dtype());
  renamed.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) renamed._set_conj(true);
  if (t.is_neg()) renamed._set_neg(true);
  return renamed;
}

torch::Tensor on_cpu(const torch::Tensor& t) {
  return relabel(t, c10::kCPU, c10::DispatchKey::CPU, c10::GetAllocator(c10::kCPU));
}
torch::Tensor on_strict(const torch::Tensor& t) {
  return relabel(t, strict, c10::DispatchKey::PrivateUse1, &strict_allocator);
}

/// Runs a CPU kernel on tensors of the strict device, and refuses all others.
struct StrictCall {
  const c10::OperatorHandle& op;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> renamed;  // CPU alias, original

  torch::Tensor enter(const torch::Tensor& t, bool number_allowed) {
    if (!t.defined()) return t;
    if (t.device() != strict) {
      TORCH_CHECK(number_allowed && t.is_cpu() && t.dim() == 0, op.operator_name(), ": a tensor ", t.sizes(),
                  " on ", t.device(), " among tensors on ", strict);
      return t;
    }
    renamed.emplace_back(on_cpu(t), t);
    return renamed.back().first;
  }

  torch::Tensor leave(const torch::Tensor& t) {
    if (!t.defined() || !t.is_cpu()) return t;
    for (const auto& [alias, original] : renamed) {
      if (!alias.is_same(t)) continue;
      if (t.storage().data() != original.storage().data() ||
          t.sizes() != original.sizes()) {  // it was resized
        const torch::Tensor resized = on_strict(t);
        original.unsafeGetTensorImpl()->set_storage_keep_dtype(resized.storage());
        original.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
      }
      return original;
    }
    return on_strict(t);
  }

  c10::IValue enter(const c10::IValue& value) {
    if (value.isTensor()) return enter(value.toTensor(), /*number_allowed=*/true);
    if (value.isTensorList()) {
      c10::List<torch::Tensor> list;
      for (const torch::Tensor& t : value.toTensorVector()) list.push_back(enter(t, false));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<torch::Tensor>> list;
      for (const std::optional<torch::Tensor>& t : value.toOptionalTensorVector()) {
        list.push_back(t ? std::optional(enter(*t, false)) : std::nullopt);
      }
      return list;
    }
    return value;
  }

  c10::IValue leave(const c10::IValue& value) {
    if (value.isTensor()) return leave(value.toTensor());
    if (value.isTensorList()) {
      c10::List<torch::Tensor> list;
      for (const torch::Tensor& t : value.toTensorVector()) list.push_back(leave(t));
      return list;
    }
    return value;
  }
};

void strict_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  static const std::set<std::string> waits{"aten::_local_scalar_dense", "aten::nonzero",
                                           "aten::masked_select", "aten::equal"};
  if (waits.count(op.operator_name().name)) ++reads_back;

  StrictCall call{op, {}};
  const size_t inputs = op.schema().arguments().size();
  const size_t outputs = op.schema().returns().size();
  for (size_t i = stack->size() - inputs; i < stack->size(); ++i) (*stack)[i] = call.enter((*stack)[i]);
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(stack);
  }
  for (size_t i = stack->size() - outputs; i < stack->size(); ++i) (*stack)[i] = call.leave((*stack)[i]);
}

torch::Tensor strict_empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>,
                           std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &strict_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

torch::Tensor strict_empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                                   std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                                   std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &strict_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

/// copy_ between devices, and within this one.
torch::Tensor strict_copy(const torch::Tensor& from, const torch::Tensor& to, bool) {
  if (to.is_cpu()) ++reads_back;
  const torch::Tensor target = to.is_cpu() ? to : on_cpu(to);
  target.copy_(from.is_cpu() ? from : on_cpu(from));
  return to;
}

/// Lets Module::to move a parameter in place.
bool strict_may_replace(const torch::Tensor&, const torch::Tensor&) { return true; }

/// Fused attention has no kernel for this device; its reference formula has.
int64_t strict_attention(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                         const std::optional<torch::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&strict_fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", strict_empty);
  m.impl("empty_strided", strict_empty_strided);
  m.impl("_copy_from", strict_copy);
  m.impl("_has_compatible_shallow_copy_type", strict_may_replace);
  m.impl("_fused_sdp_choice", strict_attention);
}

// Else a copy of a conjugated tensor resolves it first, by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

/// One device with one stream.
struct StrictGuard final : c10::impl::NoOpDeviceGuardImpl<strict_type> {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, strict); }
  c10::Device exchangeDevice(c10::Device) const override { return strict; }
  c10::Device getDevice() const override { return strict; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, StrictGuard)

struct StrictHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

}  // namespace

torch::Device strict_device() {
  // The autograd engine takes the named device for the machine's accelerator, so only a program that asks
  // names it.
  static const bool named = [] {
    static StrictHooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("strict");
    return true;
  }();
  (void)named;
  return strict;
}

int64_t strict_device_reads() { return reads_back; }

}  // namespace roformer::test
