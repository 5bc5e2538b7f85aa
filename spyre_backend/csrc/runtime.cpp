// Memory, random numbers, streams, events and the hooks through which torch finds the device.
#include "spyre.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/RefcountedDeleter.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

namespace spyre {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;

constexpr size_t kAggregate = static_cast<size_t>(StatType::AGGREGATE);

size_t whole_sticks(size_t nbytes) {
  return (nbytes + kStick - 1) / kStick * kStick;
}

// ---- memory ----

struct Accounting {
  std::mutex mutex;
  DeviceStats stats;
  size_t limit = SIZE_MAX;
};

// Leaked: tensors may be freed after static destructors have run.
Accounting& accounting() {
  static auto* instance = new Accounting;
  return *instance;
}

std::atomic<int> fill{-1};

void account_allocation(size_t requested, bool enforce_limit) {
  auto& account = accounting();
  const size_t rounded = whole_sticks(requested);
  std::lock_guard<std::mutex> lock(account.mutex);
  auto& stats = account.stats;
  const auto used = static_cast<size_t>(stats.allocated_bytes[kAggregate].current);
  if (enforce_limit && (used > account.limit || rounded > account.limit - used)) {
    stats.num_ooms += 1;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "spyre is out of memory: tried to allocate ", rounded, " bytes with ", used, " of ",
        account.limit, " bytes in use");
  }
  stats.num_device_alloc += 1;
  stats.allocation[kAggregate].increase(1);
  stats.segment[kAggregate].increase(1);
  stats.active[kAggregate].increase(1);
  stats.requested_bytes[kAggregate].increase(requested);
  stats.allocated_bytes[kAggregate].increase(rounded);
  stats.reserved_bytes[kAggregate].increase(rounded);
  stats.active_bytes[kAggregate].increase(rounded);
}

void account_free(size_t requested) {
  auto& account = accounting();
  const size_t rounded = whole_sticks(requested);
  std::lock_guard<std::mutex> lock(account.mutex);
  auto& stats = account.stats;
  stats.num_device_free += 1;
  stats.allocation[kAggregate].decrease(1);
  stats.segment[kAggregate].decrease(1);
  stats.active[kAggregate].decrease(1);
  stats.requested_bytes[kAggregate].decrease(requested);
  stats.allocated_bytes[kAggregate].decrease(rounded);
  stats.reserved_bytes[kAggregate].decrease(rounded);
  stats.active_bytes[kAggregate].decrease(rounded);
}

// The bytes of one allocation: our own, or those that a host kernel allocated for its result.
struct Block {
  void* own = nullptr;
  c10::DataPtr host;
  size_t nbytes = 0;

  ~Block() {
    std::free(own);
    account_free(nbytes);
  }
  static void destroy(void* block) {
    delete static_cast<Block*>(block);
  }
};

// A DataPtr that shares ownership through torch's own refcounted context, so that torch's overlap checks see that two
// storages share their bytes.
c10::DataPtr share(const c10::DataPtr& data, c10::Device device) {
  auto* context = static_cast<c10::RefcountedDeleterContext*>(data.get_context());
  context->refcount.fetch_add(1);
  return {const_cast<void*>(data.get()), context, &c10::refcounted_deleter, device};
}

c10::DataPtr allocate_block(size_t nbytes, c10::Device device) {
  if (nbytes == 0) {
    return {nullptr, device};
  }
  account_allocation(nbytes, /*enforce_limit=*/true);
  auto block = std::make_unique<Block>();
  block->nbytes = nbytes;
  const size_t rounded = whole_sticks(nbytes);
  if (posix_memalign(&block->own, kStick, rounded) != 0) {
    block->own = nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "spyre: the host has no ", rounded, " bytes left to simulate with");
  }
  void* data = block->own;
  if (const int value = fill.load(std::memory_order_relaxed); value >= 0) {
    std::memset(data, value, rounded);
  }
  auto* context = new c10::RefcountedDeleterContext(block.release(), &Block::destroy);
  return {data, context, &c10::refcounted_deleter, device};
}

c10::DeviceIndex& current_index() {
  thread_local c10::DeviceIndex index = 0;
  return index;
}

class SpyreAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    return allocate_block(nbytes, {kSpyre, current_index()});
  }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t /*pool*/ = {0, 0}) override {}  // nothing is cached: reserved equals allocated
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}  // work is ordered
  DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override {
    auto& account = accounting();
    std::lock_guard<std::mutex> lock(account.mutex);
    return account.stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {
    for_each_stat([](Stat& stat) { stat.reset_accumulated(); });
    auto& account = accounting();
    std::lock_guard<std::mutex> lock(account.mutex);
    account.stats.num_ooms = account.stats.num_device_alloc = account.stats.num_device_free = 0;
  }
  void resetPeakStats(c10::DeviceIndex /*index*/) override {
    for_each_stat([](Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex /*index*/) override {
    auto& account = accounting();
    std::lock_guard<std::mutex> lock(account.mutex);
    const auto used = static_cast<size_t>(account.stats.allocated_bytes[kAggregate].current);
    return {account.limit > used ? account.limit - used : 0, account.limit};
  }

 private:
  template <class F>
  static void for_each_stat(F&& apply) {
    auto& account = accounting();
    std::lock_guard<std::mutex> lock(account.mutex);
    auto& stats = account.stats;
    for (auto* array :
         {&stats.allocation, &stats.segment, &stats.active, &stats.requested_bytes, &stats.allocated_bytes,
          &stats.reserved_bytes, &stats.active_bytes}) {
      apply((*array)[kAggregate]);
    }
  }
};

// Allocates device memory under a CPU tag: what a host kernel gets when it resizes an alias of device memory.
class HostAliasAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    return allocate_block(nbytes, c10::Device(c10::DeviceType::CPU));
  }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

HostAliasAllocator* host_alias_allocator() {
  static auto* instance = new HostAliasAllocator;
  return instance;
}

c10::Storage make_storage(size_t nbytes, c10::DataPtr data, c10::Allocator* owner, bool resizable) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data), owner, resizable);
}

// ---- random numbers ----

// Forwards to a CPU generator: the same seed gives the same numbers as on the CPU, bit for bit.
class SpyreGenerator final : public c10::GeneratorImpl {
 public:
  explicit SpyreGenerator(c10::DeviceIndex index, at::Generator host = at::detail::createCPUGenerator())
      : c10::GeneratorImpl({kSpyre, index}, c10::DispatchKeySet(kKey)), host(std::move(host)) {}

  void set_current_seed(uint64_t value) override {
    std::lock_guard<std::mutex> lock(host.mutex());
    host.set_current_seed(value);
  }
  void set_offset(uint64_t offset) override {
    host.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return host.get_offset();
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    std::lock_guard<std::mutex> lock(host.unsafeGetGeneratorImpl()->mutex_);
    return host.unsafeGetGeneratorImpl()->seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    std::lock_guard<std::mutex> lock(host.unsafeGetGeneratorImpl()->mutex_);
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    std::lock_guard<std::mutex> lock(host.unsafeGetGeneratorImpl()->mutex_);
    return host.unsafeGetGeneratorImpl()->get_state();
  }

  mutable at::Generator host;

 private:
  SpyreGenerator* clone_impl() const override {
    return new SpyreGenerator(device().index(), host.clone());
  }
};

// ---- devices, streams, events ----

void check_device(c10::Device device) {
  TORCH_CHECK(device.type() == kSpyre, "expected a spyre device, got ", device);
  TORCH_CHECK(
      device.index() >= -1 && device.index() < kDeviceCount, "there is no ", device, ": a process has ",
      static_cast<int>(kDeviceCount), " spyre device");
}

std::atomic<int64_t> picoseconds{0};
std::atomic<int64_t> next_stream{1};

c10::StreamId& current_stream_id() {
  thread_local c10::StreamId id = 0;
  return id;
}

struct Event {
  int64_t recorded_at;  // picoseconds on the simulated clock
};

// Work runs in program order on the calling thread: whatever was enqueued is done, on every stream.
class SpyreGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return kSpyre;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override {
    return {kSpyre, current_index()};
  }
  void setDevice(c10::Device device) const override {
    check_device(device);
    if (device.has_index()) {
      current_index() = device.index();
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      current_index() = device.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDeviceCount;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& types = capability.capability_data.supported_scalar_types;
    types.has_Byte = types.has_Char = types.has_Short = types.has_Int = types.has_Long = types.has_Bool = 1;
    types.has_Half = types.has_BFloat16 = types.has_Float = types.has_Double = 1;
    types.has_ComplexHalf = types.has_ComplexFloat = types.has_ComplexDouble = 1;
    types.has_Float8_e4m3fn = types.has_Float8_e5m2 = 1;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream(device, current_stream_id());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/ = false) const override {
    return stream(device, next_stream.fetch_add(1));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/ = 0) const override {
    return stream(device, next_stream.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto previous = stream(next.device(), current_stream_id());
    current_stream_id() = next.id();
    return previous;
  }
  bool queryStream(const c10::Stream& /*stream*/) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*index*/) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const c10::Stream& /*stream*/) const override {}

  void record(
      void** event, const c10::Stream& /*stream*/, const c10::DeviceIndex /*index*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->recorded_at = clock_now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  void synchronizeEvent(void* /*event*/) const override {}
  double elapsedTime(void* first, void* second, const c10::DeviceIndex /*index*/) const override {
    TORCH_CHECK(first && second, "both events must be recorded before their elapsed time is asked for");
    const auto span = static_cast<Event*>(second)->recorded_at - static_cast<Event*>(first)->recorded_at;
    return static_cast<double>(span) / 1e9;  // milliseconds
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    const auto index = device.has_index() ? device.index() : current_index();
    return c10::Stream(c10::Stream::UNSAFE, {kSpyre, index}, id);
  }
};

struct SpyreHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return kDeviceCount;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    check_device({kSpyre, index});
    current_index() = index;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_index();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto previous = current_index();
    setCurrentDevice(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_index() : exchangeDevice(index);
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override {
    return {kSpyre, current_index()};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    check_device({kSpyre, index});
    return at::make_generator<SpyreGenerator>(index < 0 ? current_index() : index);
  }
  // Asynchronous copies to the host ask for pinned memory; here all host memory is within reach.
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    auto data = allocate_block(nbytes, impl->device());
    if (const size_t kept = std::min(nbytes, impl->nbytes()); kept > 0) {
      std::memcpy(data.get(), impl->data(), kept);
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(nbytes);
  }
};

}  // namespace

c10::DeviceAllocator* allocator() {
  static auto* instance = new SpyreAllocator;
  return instance;
}

void set_memory_limit(size_t nbytes) {
  std::lock_guard<std::mutex> lock(accounting().mutex);
  accounting().limit = nbytes;
}

size_t memory_limit() {
  std::lock_guard<std::mutex> lock(accounting().mutex);
  return accounting().limit;
}

void set_fill_byte(int value) {
  fill = value;
}

int fill_byte() {
  return fill;
}

c10::Storage host_alias(const c10::Storage& device) {
  auto* impl = device.unsafeGetStorageImpl();
  const c10::Device cpu(c10::DeviceType::CPU);
  c10::DataPtr data(nullptr, cpu);
  if (impl->mutable_data() != nullptr) {  // materialises a lazy clone first
    c10::maybeApplyRefcountedDeleter(device);
    data = share(impl->data_ptr(), cpu);
  }
  return make_storage(impl->nbytes(), std::move(data), host_alias_allocator(), impl->resizable());
}

c10::Storage adopt_host(const c10::Storage& host, c10::DeviceIndex index) {
  auto* impl = host.unsafeGetStorageImpl();
  const c10::Device device(kSpyre, index);
  void* bytes = impl->mutable_data();
  if (bytes == nullptr) {
    return make_storage(impl->nbytes(), {nullptr, device}, allocator(), true);
  }
  if (impl->data_ptr().get_deleter() != &c10::refcounted_deleter) {
    auto block = std::make_unique<Block>();
    account_allocation(impl->nbytes(), /*enforce_limit=*/false);
    block->nbytes = impl->nbytes();
    // The host storage may have other owners (several results may share it), so it goes on as a co-owner.
    block->host = impl->set_data_ptr(c10::DataPtr(nullptr, impl->device()));
    auto* context = new c10::RefcountedDeleterContext(block.release(), &Block::destroy);
    impl->set_data_ptr_noswap({bytes, context, &c10::refcounted_deleter, impl->device()});
  }
  return make_storage(impl->nbytes(), share(impl->data_ptr(), device), allocator(), true);
}

void move_back(const c10::Storage& host, const c10::Storage& device) {
  auto* from = host.unsafeGetStorageImpl();
  auto* to = device.unsafeGetStorageImpl();
  if (from->data() == to->data() && from->nbytes() == to->nbytes()) {
    return;
  }
  const auto index = to->device().index();
  if (from->data() == nullptr) {
    to->set_data_ptr_noswap(c10::DataPtr(nullptr, to->device()));
  } else {
    const auto adopted = adopt_host(host, index);
    to->set_data_ptr_noswap(adopted.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, to->device())));
  }
  to->set_nbytes(from->nbytes());
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  check_device({kSpyre, index});
  static auto* generators = [] {
    auto* all = new std::array<at::Generator, kDeviceCount>;
    for (c10::DeviceIndex i = 0; i < kDeviceCount; ++i) {
      (*all)[i] = at::make_generator<SpyreGenerator>(i);
    }
    return all;
  }();
  return (*generators)[index < 0 ? current_index() : index];
}

at::Generator& host_generator(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == kSpyre, "Expected a 'spyre' device type for generator but found '",
      generator.device(), "'");
  return static_cast<SpyreGenerator*>(generator.unsafeGetGeneratorImpl())->host;
}

int64_t clock_now() {
  return picoseconds.load();
}

void clock_advance(int64_t span) {
  picoseconds.fetch_add(span);
}

void clock_reset() {
  picoseconds.store(0);
}

void register_runtime() {
  // Every check comes before the first registration: a refusal leaves torch as it was.
  TORCH_CHECK(
      !at::isPrivateUse1HooksRegistered() && !c10::impl::hasDeviceGuardImpl(kSpyre),
      "another package has already registered a PrivateUse1 device in this process");
  static const c10::impl::DeviceGuardImplRegistrar guard(kSpyre, new SpyreGuard);
  at::RegisterPrivateUse1HooksInterface(new SpyreHooks);
  c10::SetAllocator(kSpyre, allocator());
}

}  // namespace spyre
