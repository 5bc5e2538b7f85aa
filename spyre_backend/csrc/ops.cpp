// Operators: a few native ones for storage and metadata, and for all others a fallback that runs the CPU kernel on
// aliases of device memory, with no copy, and counts what it did.
#include "spyre.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

namespace spyre {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using c10::OperatorName;
using torch::jit::Stack;

// ---- what is known and counted about each operator ----

struct OpRecord {
  std::string name;                 // aten::add.Tensor
  std::atomic<int64_t> count{0};
  std::atomic<bool> warned{false};
  bool counted = true;              // views move no data and compute nothing
  bool has_cpu_kernel = false;
  bool mutates = false;
  bool hidden_randomness = false;   // random, but takes no generator
  bool contiguous_results = false;  // what shape inference promises, where the CPU kernel prefers another layout
  bool mixes_devices = false;       // takes CPU tensors beside device tensors by design
};

// Shape inference for an unknown device promises contiguous convolutions; oneDNN may prefer channels_last.
constexpr std::array<std::string_view, 2> kContiguousResults{"aten::convolution", "aten::convolution_backward"};

constexpr std::array<std::string_view, 8> kMixesDevices{
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_index_put_impl",
    "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_pad_packed_sequence"};

template <class Table>
bool listed(const Table& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

struct Records {
  std::mutex mutex;
  std::unordered_map<OperatorName, OpRecord> by_name;
};

Records& records() {
  static auto* instance = new Records;
  return *instance;
}

std::atomic<FirstFallback> first_fallback{nullptr};

OpRecord& record_of(const OperatorHandle& op) {
  auto& all = records();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto [entry, is_new] = all.by_name.try_emplace(op.operator_name());
  auto& record = entry->second;  // stable: nodes of the map never move
  if (is_new) {
    const auto& schema = op.schema();
    record.name = c10::toString(op.operator_name());
    record.has_cpu_kernel = op.hasComputedKernelForDispatchKey(DispatchKey::CPU);
    record.mutates = schema.is_mutable();
    record.contiguous_results = listed(kContiguousResults, op.operator_name().name);
    record.mixes_devices = listed(kMixesDevices, op.operator_name().name);
    bool takes_generator = false;
    for (const auto& argument : schema.arguments()) {
      takes_generator |= argument.real_type()->str().find("Generator") != std::string::npos;
    }
    record.hidden_randomness = !takes_generator && op.hasTag(at::Tag::nondeterministic_seeded);
    const auto& returns = schema.returns();
    record.counted = returns.empty() || record.mutates || !std::all_of(returns.begin(), returns.end(), [](auto& ret) {
      return ret.alias_info() != nullptr && !ret.alias_info()->isWrite();
    });
  }
  return record;
}

void count(OpRecord& record) {
  if (!record.counted) {
    return;
  }
  record.count.fetch_add(1, std::memory_order_relaxed);
  if (!record.warned.exchange(true)) {
    if (const auto callback = first_fallback.load()) {
      callback(record.name);
    }
  }
}

OperatorHandle find_op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

// ---- numbers as the device has them ----

std::atomic<NarrowedInteger> narrowed_integer{nullptr};  // set where the device computes in DL16

// What becomes of an infinity: one that arrives from the host is NaN, since DL16 has one code for both; in memory of the
// device it stands for a number beyond the range of float16, and stays.
enum class Infinity { kBecomesNaN, kStays };

// The nearest number of 9 fraction bits, ties away from zero; below 2^-15 float16 has no more bits than that.
uint16_t to_dl16(uint16_t bits, Infinity infinity) {
  constexpr uint16_t kSign = 0x8000, kSmallestNormal = 0x0400, kInfinity = 0x7c00, kNaN = 0x7e00, kLargest = 0x7bfe;
  const uint16_t sign = bits & kSign;
  const uint16_t size = bits & ~kSign;
  if (size < kSmallestNormal || size > kInfinity) {
    return bits;
  }
  if (size == kInfinity) {
    return infinity == Infinity::kStays ? bits : kNaN;
  }
  return sign | std::min<uint16_t>((size + 1) & ~1, kLargest);
}

template <class T, class F>
void change_each(const at::Tensor& host, F&& change) {
  const bool plain = host.is_non_overlapping_and_dense();
  auto dense = plain ? host : host.contiguous();
  auto* data = static_cast<T*>(dense.data_ptr());
  for (int64_t i = 0; i < dense.numel(); ++i) {
    data[i] = change(data[i]);
  }
  if (!plain && at::has_internal_overlap(host) != at::MemOverlap::Yes) {
    host.copy_(dense);
  }
}

// Make the elements of memory those that the device has: DL16 numbers, and integers of 32 bits.
void settle(const at::Tensor& host, Infinity infinity, const std::string& where) {
  const auto on_narrowed = narrowed_integer.load(std::memory_order_relaxed);
  if (on_narrowed == nullptr || host.numel() == 0 || host.layout() != c10::kStrided) {
    return;
  }
  if (host.scalar_type() == c10::kHalf) {
    change_each<uint16_t>(host, [&](uint16_t bits) { return to_dl16(bits, infinity); });
  } else if (host.scalar_type() == c10::kLong) {
    bool changed = false;
    change_each<int64_t>(host, [&](int64_t number) {
      const auto kept = static_cast<int64_t>(static_cast<int32_t>(number));
      changed |= kept != number;
      return kept;
    });
    if (changed) {
      on_narrowed(where);
    }
  }
}

// ---- aliases ----

// Bits that change how the bytes are read.
DispatchKeySet reading_keys(const at::Tensor& tensor) {
  return tensor.key_set() & DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
}

at::Tensor same_view(const at::Tensor& like, c10::Storage storage, DispatchKey key) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(key) | reading_keys(like), like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return result;
}

void check_dense(const at::Tensor& tensor, const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested(), op,
      ": the spyre device holds dense tensors only, not ", tensor.is_quantized() ? "quantized" : "",
      tensor.is_nested() ? "nested" : "", tensor.is_quantized() || tensor.is_nested() ? "" : c10::str(tensor.layout()),
      " ones");
}

// The host's view of the device tensors of one call: equal tensors stay equal, shared storages stay shared.
class HostView {
 public:
  HostView(const OpRecord& record, c10::DeviceIndex index) : record_(record), index_(index) {}

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!is_spyre(tensor)) {
      if (tensor.defined()) {
        note_host_tensor(tensor);
      }
      return tensor;
    }
    saw_device_ = true;
    for (const auto& pair : tensors_) {
      if (pair.device.is_same(tensor)) {
        return pair.host;
      }
    }
    check_dense(tensor, record_.name);
    auto host = same_view(tensor, host_storage(tensor.storage()), DispatchKey::CPU);
    tensors_.push_back({tensor, host});
    return host;
  }

  at::Tensor to_device(const at::Tensor& tensor) {
    if (!tensor.defined() || is_spyre(tensor)) {
      return tensor;
    }
    for (const auto& pair : tensors_) {
      if (pair.host.is_same(tensor)) {
        return pair.device;
      }
    }
    for (const auto& given : host_tensors_) {
      if (given.is_same(tensor) || (given.has_storage() && given.storage().is_alias_of(tensor.storage()))) {
        return tensor;
      }
    }
    check_dense(tensor, record_.name);
    const auto& host = record_.contiguous_results && !tensor.is_contiguous() ? tensor.contiguous() : tensor;
    return same_view(host, device_storage(host.storage()), kKey);
  }

  // A device tensor beside a CPU tensor is an error, as on every accelerator; zero-dimensional CPU tensors are numbers.
  void check_devices() const {
    if (!saw_device_ || record_.mixes_devices) {
      return;
    }
    for (const auto& tensor : host_tensors_) {
      TORCH_CHECK(
          tensor.dim() == 0, "Expected all tensors to be on the same device, but found at least two devices, spyre:",
          static_cast<int>(index_), " and ", tensor.device(), "! (when running ", record_.name, ")");
    }
  }

  // Carry what the kernel did to the metadata and the storage of its arguments over to the device tensors.
  void write_back() {
    for (const auto& pair : tensors_) {
      settle(pair.host, Infinity::kStays, record_.name);
      auto* host = pair.host.unsafeGetTensorImpl();
      auto* device = pair.device.unsafeGetTensorImpl();
      auto storage = device_storage(pair.host.storage());
      if (storage.unsafeGetStorageImpl() != device->unsafe_storage().unsafeGetStorageImpl()) {
        device->set_storage_keep_dtype(storage);
      }
      if (host->sizes() != device->sizes() || host->strides() != device->strides() ||
          host->storage_offset() != device->storage_offset()) {
        device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
      }
    }
    for (const auto& pair : storages_) {
      move_back(pair.host, pair.device);
    }
  }

 private:
  struct TensorPair {
    at::Tensor device, host;
  };
  struct StoragePair {
    c10::Storage device, host;
  };

  void note_host_tensor(const at::Tensor& tensor) {
    host_tensors_.push_back(tensor);
  }

  c10::Storage host_storage(const c10::Storage& device) {
    for (const auto& pair : storages_) {
      if (pair.device.unsafeGetStorageImpl() == device.unsafeGetStorageImpl()) {
        return pair.host;
      }
    }
    storages_.push_back({device, host_alias(device)});
    return storages_.back().host;
  }

  c10::Storage device_storage(const c10::Storage& host) {
    for (const auto& pair : storages_) {
      if (pair.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) {
        return pair.device;
      }
    }
    storages_.push_back({adopt_host(host, index_), host});
    return storages_.back().device;
  }

  const OpRecord& record_;
  c10::DeviceIndex index_;
  bool saw_device_ = false;
  c10::SmallVector<TensorPair, 6> tensors_;
  c10::SmallVector<StoragePair, 6> storages_;
  c10::SmallVector<at::Tensor, 2> host_tensors_;
};

template <class F>
IValue map_tensors(const IValue& value, F&& convert) {
  if (value.isTensor()) {
    return convert(value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto list = value.toList();
    c10::impl::GenericList result(list.elementType());
    result.reserve(list.size());
    for (const IValue& element : list) {
      result.push_back(element.isTensor() ? IValue(convert(element.toTensor())) : element);
    }
    return result;
  }
  return value;
}

// ---- random numbers ----

// Kernels that draw from the CPU's default generator draw from the device's inside this scope.
class LendDefaultGenerator {
 public:
  explicit LendDefaultGenerator(bool active) : active_(active) {
    if (active_) {
      exchange();
    }
  }
  ~LendDefaultGenerator() {
    if (active_) {
      exchange();
    }
  }
  LendDefaultGenerator(const LendDefaultGenerator&) = delete;
  LendDefaultGenerator& operator=(const LendDefaultGenerator&) = delete;

 private:
  static void exchange() {
    auto* cpu = at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
    auto* ours = host_generator(default_generator(-1)).get<at::CPUGeneratorImpl>();
    std::scoped_lock lock(cpu->mutex_, ours->mutex_);
    const auto engine = cpu->engine();
    const auto next_float = cpu->next_float_normal_sample();
    const auto next_double = cpu->next_double_normal_sample();
    cpu->set_engine(ours->engine());
    cpu->set_next_float_normal_sample(ours->next_float_normal_sample());
    cpu->set_next_double_normal_sample(ours->next_double_normal_sample());
    ours->set_engine(engine);
    ours->set_next_float_normal_sample(next_float);
    ours->set_next_double_normal_sample(next_double);
  }
  bool active_;
};

// ---- the fallback ----

// Kernels run on plain CPU tensors below us: neither autograd nor autocast has any business there.
struct HostScope {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

void host_fallback(const OperatorHandle& op, Stack* stack) {
  auto& record = record_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      record.has_cpu_kernel || op.hasComputedKernelForDispatchKey(DispatchKey::CPU), record.name,
      " has neither a spyre kernel nor a CPU kernel to fall back on");
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  HostView view(record, 0);
  DispatchKeySet keys(DispatchKey::CPU);
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[first + i];
    if (value.isDevice()) {
      if (value.toDevice().type() == kSpyre) {
        value = c10::Device(c10::DeviceType::CPU);
      }
    } else if (value.isGenerator()) {
      value = host_generator(value.toGenerator());
    } else if (value.isNone()) {
      if (*arguments[i].real_type() == *c10::OptionalType::create(c10::GeneratorType::get())) {
        value = host_generator(default_generator(-1));
      }
    } else {
      value = map_tensors(value, [&](const at::Tensor& tensor) {
        auto host = view.to_host(tensor);
        if (host.defined() && host.layout() != c10::kStrided) {
          keys = keys | (host.key_set() & DispatchKeySet({DispatchKey::SparseCPU, DispatchKey::SparseCsrCPU}));
        }
        return host;
      });
    }
  }
  view.check_devices();
  count(record);
  {
    HostScope scope;
    LendDefaultGenerator lend(record.hidden_randomness);
    op.redispatchBoxed(keys, stack);
  }
  const size_t results = op.schema().returns().size();
  if (record.counted) {
    HostScope scope;
    for (size_t i = stack->size() - results; i < stack->size(); ++i) {
      map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
        if (tensor.defined()) {
          settle(tensor, Infinity::kStays, record.name);
        }
        return tensor;
      });
    }
  }
  if (record.mutates) {
    view.write_back();
  }
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const at::Tensor& tensor) { return view.to_device(tensor); });
  }
}

void refuse(const OperatorHandle& op, Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(), ": the spyre device holds dense tensors only, not sparse, quantized or nested ones");
}

// ---- transfers ----

struct AtomicTransfers {
  std::atomic<int64_t> counts[3], bytes[3];
};
AtomicTransfers transfers;
enum Direction { kHostToDevice, kDeviceToHost, kDeviceToDevice };

void count_transfer(Direction direction, size_t nbytes) {
  transfers.counts[direction].fetch_add(1, std::memory_order_relaxed);
  transfers.bytes[direction].fetch_add(static_cast<int64_t>(nbytes), std::memory_order_relaxed);
}

at::Tensor either_as_cpu(const at::Tensor& tensor) {
  return is_spyre(tensor) ? as_cpu(tensor) : tensor;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool /*non_blocking*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      (self.is_cpu() || is_spyre(self)) && (destination.is_cpu() || is_spyre(destination)), "spyre: no copy from ",
      self.device(), " to ", destination.device());
  count_transfer(
      !is_spyre(self)              ? kHostToDevice
          : !is_spyre(destination) ? kDeviceToHost
                                   : kDeviceToDevice,
      self.nbytes());
  HostScope scope;
  const auto target = either_as_cpu(destination);
  target.copy_(either_as_cpu(self));
  if (is_spyre(destination)) {
    settle(target, is_spyre(self) ? Infinity::kStays : Infinity::kBecomesNaN, "a copy to the device");
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  count_transfer(kDeviceToHost, self.element_size());
  return at::native::_local_scalar_dense_cpu(as_cpu(self));
}

// Filling memory is the work of a transfer engine, not of a kernel: any device does it itself.
at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  const auto host = as_cpu(self);
  host.fill_(value);
  settle(host, Infinity::kStays, "aten::fill_.Scalar");
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  as_cpu(self).zero_();
  return self;
}

// ---- storage and metadata ----

void check_empty_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::layout_or_default(layout) == c10::kStrided, "the spyre device holds dense tensors only, not ",
      c10::layout_or_default(layout), " ones");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

c10::ScalarType check_dtype(std::optional<c10::ScalarType> dtype) {
  const auto type = c10::dtype_or_default(dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(type), "the spyre device holds no quantized tensors (", type, ")");
  return type;
}

at::Tensor filled_if_deterministic(at::Tensor tensor) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    auto host = as_cpu(tensor);
    at::native::fill_empty_deterministic_(host);
  }
  return tensor;
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> /*device*/, std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> memory_format) {
  check_empty_options(layout, pin_memory);
  return filled_if_deterministic(
      at::detail::empty_generic(size, allocator(), DispatchKeySet(kKey), check_dtype(dtype), memory_format));
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> /*device*/, std::optional<bool> pin_memory) {
  check_empty_options(layout, pin_memory);
  return filled_if_deterministic(
      at::detail::empty_strided_generic(size, stride, allocator(), DispatchKeySet(kKey), check_dtype(dtype)));
}

at::Tensor& set_empty(at::Tensor& self) {
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()), allocator(), true));
  return at::native::set_storage_cpu_(self, storage, 0, {0}, {});
}

void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}  // work is ordered

// ---- operators that torch expects of an accelerator and the CPU does not have ----

// 0 is `math`: attention decomposes into matrix products and a softmax, which are what the device has.
int64_t fused_sdp_choice(
    const at::Tensor& /*query*/, const at::Tensor& /*key*/, const at::Tensor& /*value*/,
    const std::optional<at::Tensor>& /*mask*/, double /*dropout_p*/, bool /*is_causal*/,
    std::optional<double> /*scale*/, bool /*enable_gqa*/) {
  return 0;
}

// torch calls this one on accelerators where the CPU multiplies by a scaled mask. The same draws and the same
// roundings, so that dropout is bit for bit the CPU's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  static auto& record = record_of(find_op("aten::native_dropout"));
  count(record);
  HostScope scope;
  const auto host = as_cpu(input);
  at::Tensor output;
  at::Tensor mask;
  if (!train.value_or(true) || p == 0 || input.numel() == 0) {
    output = host.clone();
    mask = at::ones_like(host, host.options().dtype(c10::kBool));
  } else {
    auto noise = at::empty_like(host).bernoulli_(1 - p, host_generator(default_generator(-1)));
    mask = noise.to(c10::kBool);
    output = p == 1 ? host.mul(noise) : host.mul(noise.div_(1 - p));
  }
  HostView view(record, 0);
  return {view.to_device(output), view.to_device(mask)};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  static auto& record = record_of(find_op("aten::native_dropout_backward"));
  count(record);
  HostScope scope;
  if (!grad.is_floating_point()) {
    return HostView(record, 0).to_device(as_cpu(grad).mul(as_cpu(mask)).mul(scale));
  }
  auto noise = as_cpu(mask).to(grad.scalar_type());
  const auto output = as_cpu(grad).mul(scale == 0 ? noise.zero_() : noise.div_(1 / scale));
  return HostView(record, 0).to_device(output);
}

// On accelerators histc takes whole numbers as well, which models count the tokens of an expert with. They are exact in
// double up to 2^53.
at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  static auto& record = record_of(find_op("aten::histc"));
  count(record);
  HostScope scope;
  const auto host = as_cpu(self);
  const bool whole = c10::isIntegralType(host.scalar_type(), false);
  const auto counts = at::histc(whole ? host.to(c10::kDouble) : host, bins, min, max).to(host.scalar_type());
  return HostView(record, 0).to_device(counts);
}

void convolution_overrideable(const OperatorHandle& /*op*/, Stack* stack) {
  static const auto convolution = find_op("aten::convolution");
  host_fallback(convolution, stack);
}

void convolution_backward_overrideable(const OperatorHandle& /*op*/, Stack* stack) {
  static const auto backward = find_op("aten::convolution_backward");
  // (grad, input, weight, stride, ..., output_mask): the other operator takes the bias' sizes after the weight.
  const size_t first = stack->size() - 10;
  const bool wants_bias = (*stack)[first + 9].toBoolList()[2];
  IValue bias_sizes;
  if (wants_bias) {
    bias_sizes = std::vector<int64_t>{(*stack)[first].toTensor().size(1)};
  }
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + 3, bias_sizes);
  host_fallback(backward, stack);
}

// Recurrent cells are fused operators on accelerators. Ours is a composition that autograd differentiates by itself.
at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates.add(*bias) : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const auto gates = with_bias(hidden_gates, hidden_bias).add(with_bias(input_gates, input_bias));
  const auto parts = gates.chunk(4, 1);
  const auto cy = parts[1].sigmoid().mul(cx).add(parts[0].sigmoid().mul(parts[2].tanh()));
  return {parts[3].sigmoid().mul(cy.tanh()), cy, gates.detach()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias);
  const auto x = from_input.chunk(3, 1);
  const auto h = from_hidden.chunk(3, 1);
  const auto reset = h[0].add(x[0]).sigmoid();
  const auto update = h[1].add(x[1]).sigmoid();
  const auto candidate = x[2].add(h[2].mul(reset)).tanh();
  return {hx.sub(candidate).mul(update).add(candidate), from_input.detach()};
}

// ---- registration ----

// Registered by a function and not by a static object, so that a conflict is an exception and not an abort at load.
torch::Library& library(const char* ns, DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);  // lives as long as the process
}

void register_native(torch::Library& m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("fill_.Scalar", TORCH_FN(fill));
  m.impl("zero_", TORCH_FN(zero));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
  m.impl("histc", TORCH_FN(histc));
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_overrideable>());
  m.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunction<&convolution_backward_overrideable>());
}

// Where the CPU has a kernel of its own and torch would compose the operator for us, take the CPU's: the results, their
// strides and the name that is counted are then those of the operator that was called.
void register_cpu_kernels(torch::Library& m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.compare(0, 6, "aten::") != 0) {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(kKey)) {
      continue;
    }
    const bool composed = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    const bool is_convolution = name.overload_name.empty() && listed(kContiguousResults, name.name);
    if (is_convolution || (composed && op->hasKernelForDispatchKey(DispatchKey::CPU))) {
      const auto full = c10::toString(name);
      m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
    }
  }
}

}  // namespace

at::Tensor as_cpu(const at::Tensor& tensor) {
  TORCH_CHECK(is_spyre(tensor), "expected a spyre tensor, got one on ", tensor.device());
  check_dense(tensor, "as_cpu");
  return same_view(tensor, host_alias(tensor.storage()), DispatchKey::CPU);
}

TransferCounts transfer_counts() {
  return {transfers.counts[kHostToDevice], transfers.counts[kDeviceToHost], transfers.counts[kDeviceToDevice],
          transfers.bytes[kHostToDevice],  transfers.bytes[kDeviceToHost],  transfers.bytes[kDeviceToDevice]};
}

void reset_transfer_counts() {
  for (int i = 0; i < 3; ++i) {
    transfers.counts[i] = 0;
    transfers.bytes[i] = 0;
  }
}

std::map<std::string, int64_t> fallback_counts() {
  std::map<std::string, int64_t> result;
  auto& all = records();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [name, record] : all.by_name) {
    if (const int64_t n = record.count; n > 0) {
      result.emplace(record.name, n);
    }
  }
  return result;
}

void reset_fallback_counts() {
  auto& all = records();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [name, record] : all.by_name) {
    record.count = 0;
  }
}

void reset_fallback_warnings() {
  auto& all = records();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [name, record] : all.by_name) {
    record.warned = false;
  }
}

void use_dl16(NarrowedInteger callback) {
  narrowed_integer = callback;
}

void set_first_fallback(FirstFallback callback) {
  first_fallback = callback;
}

void register_ops() {
  auto& aten = library("aten", kKey);
  register_native(aten);
  register_cpu_kernels(aten);
  library("_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
  for (const auto key :
       {DispatchKey::SparsePrivateUse1, DispatchKey::SparseCsrPrivateUse1, DispatchKey::QuantizedPrivateUse1,
        DispatchKey::NestedTensorPrivateUse1}) {
    library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
  auto& autograd = library("aten", DispatchKey::AutogradPrivateUse1);
  autograd.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  autograd.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  // A copy reads through conjugate and negative views itself; torch's generic handling would copy again, for ever.
  for (const auto key : {DispatchKey::Conjugate, DispatchKey::Negative}) {
    library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
}

}  // namespace spyre
