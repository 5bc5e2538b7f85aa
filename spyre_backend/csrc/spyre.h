// The parts of the simulated Spyre device that the translation units share.
//
// Device memory is host memory with another device tag. Every allocation is a reference-counted block, so that a CPU
// storage and a spyre storage can own the same bytes: that is what makes the host fallback and `as_cpu` free of copies.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace spyre {

inline constexpr c10::DeviceType kSpyre = c10::DeviceType::PrivateUse1;
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse1;
inline constexpr c10::DeviceIndex kDeviceCount = 1;  // one card a process
inline constexpr size_t kStick = 128;                // bytes: the unit of transfer and of alignment

inline bool is_spyre(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSpyre;
}

// ---- runtime.cpp: memory, generators, guard, hooks, the simulated clock ----

c10::DeviceAllocator* allocator();
void set_memory_limit(size_t nbytes);
size_t memory_limit();
// The byte that fresh device memory is filled with, or -1 to leave it as it comes.
void set_fill_byte(int value);
int fill_byte();

// A CPU storage over the bytes of a spyre storage, and the other way round. Both sides keep the bytes alive.
// A CPU storage made here allocates device memory when it is resized, so that `move_back` can hand it over.
c10::Storage host_alias(const c10::Storage& device);
c10::Storage adopt_host(const c10::Storage& host, c10::DeviceIndex index);
// After a host kernel may have resized `host`: let `device` own what `host` owns now.
void move_back(const c10::Storage& host, const c10::Storage& device);

const at::Generator& default_generator(c10::DeviceIndex index);
// The CPU generator behind a spyre generator.
at::Generator& host_generator(const at::Generator& generator);

int64_t clock_now();              // picoseconds
void clock_advance(int64_t picoseconds);
void clock_reset();

void register_runtime();

// ---- ops.cpp: native operators and the host fallback ----

at::Tensor as_cpu(const at::Tensor& tensor);

struct TransferCounts {
  int64_t host_to_device = 0, device_to_host = 0, device_to_device = 0;
  int64_t host_to_device_bytes = 0, device_to_host_bytes = 0, device_to_device_bytes = 0;
};
TransferCounts transfer_counts();
void reset_transfer_counts();

std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();
void reset_fallback_warnings();
// Called, with no lock held, the first time that an operator falls back to the host.
using FirstFallback = void (*)(const std::string& op);
void set_first_fallback(FirstFallback callback);

// Numbers of the device from now on: float16 is DL16, and an int64 keeps its lower 32 bits, in which case the callback
// is told what did it; null: as PyTorch has them.
using NarrowedInteger = void (*)(const std::string& where);
void use_dl16(NarrowedInteger callback);

void register_ops();

// ---- autocast.cpp ----

void register_autocast();

}  // namespace spyre
