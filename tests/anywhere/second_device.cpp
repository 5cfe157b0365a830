// A second device without hardware: tensors in host memory that torch takes to be elsewhere.
//
// Every operation is carried out on the CPU by copies there and back. As on a GPU, an operation on
// tensors of both devices fails, unless the other tensor is a single number or an index.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kHere = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void release(void* memory) { std::free(memory); }

struct HostMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : std::malloc(bytes);
    return {memory, memory, &release, c10::Device(kHere, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

HostMemory memory;
REGISTER_ALLOCATOR(kHere, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void init() const override {}
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = memory.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

// Everything is done when a call returns: there is nothing to wait for.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kHere> {
  c10::Device getDevice() const override { return {kHere, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {kHere, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return only(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only(); }
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kHere, 0)); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys,
                                           c10::dtype_or_default(dtype));
}

// The same memory, seen as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto seen = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
  seen._set_conj(tensor.is_conj());
  seen._set_neg(tensor.is_neg());
  return seen;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  at::NoGradGuard guard;
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& tensor) { return on_host(tensor).item(); }

bool takes_indices(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name == "aten::index" || name.rfind("aten::index_put", 0) == 0 ||
         name == "aten::_index_put_impl_";
}

void refuse_mixed(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  TORCH_CHECK(!tensor.defined() || !tensor.device().is_cpu() || tensor.dim() == 0,
              "Expected all tensors to be on the same device, but found cpu and ",
              c10::Device(kHere, 0), " in ", op.schema().name());
}

void through_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!takes_indices(op)) {
    for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
      if (value.isTensor()) refuse_mixed(value.toTensor(), op);
      if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorList()) refuse_mixed(tensor, op);
    }
  }
  at::native::cpu_fallback(op, stack);
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&through_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("as_strided", &at::cpu::as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::cpu::unfold);
  m.impl("set_.source_Storage_storage_offset",
         [](at::Tensor& t, at::Storage s, int64_t offset, at::IntArrayRef size,
            at::IntArrayRef stride) -> at::Tensor& {
           auto* impl = t.unsafeGetTensorImpl();
           impl->set_storage_keep_dtype(s);
           impl->set_storage_offset(offset);
           impl->set_sizes_and_strides(size, stride);
           return t;
         });
  m.impl("set_.source_Storage", [](at::Tensor& t, at::Storage s) -> at::Tensor& {
    auto* impl = t.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(s);
    impl->set_storage_offset(0);
    impl->set_sizes_contiguous(static_cast<int64_t>(s.nbytes() / t.element_size()));
    return t;
  });
  m.impl("resize_", [](const at::Tensor& t, at::IntArrayRef size,
                       std::optional<at::MemoryFormat>) -> const at::Tensor& {
    if (t.sizes() == size) return t;
    auto* impl = t.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(size);
    auto bytes = static_cast<size_t>(t.numel() + t.storage_offset()) * t.element_size();
    if (t.storage().nbytes() < bytes) Hooks().resizePrivateUse1Bytes(t.storage(), bytes);
    return t;
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("begin", [] { at::RegisterPrivateUse1HooksInterface(new Hooks()); });
}
