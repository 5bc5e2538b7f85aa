// Which precision each operator takes under torch.autocast("spyre"): the lists that torch keeps for its accelerators.
//
// The lists are torch's own, so they follow the installed version. The kernels are boxed, one for each policy: torch's
// templates would be instantiated once for each operator and take most of the build.
#include "spyre.h"

#include <ATen/autocast_mode.h>

namespace spyre {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// The arguments of one call, which lie at the end of the stack.
c10::ArrayRef<IValue> arguments(const OperatorHandle& op, const Stack& stack) {
  const size_t count = op.schema().arguments().size();
  return c10::ArrayRef<IValue>(stack.data() + (stack.size() - count), count);  // in braces it would be a list of two
}

IValue cast(const IValue& value, at::ScalarType type) {
  if (value.isTensor()) {
    return at::autocast::cached_cast(type, value.toTensor(), kSpyre);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto list = value.toList();
    c10::impl::GenericList result(list.elementType());
    result.reserve(list.size());
    for (const IValue& element : list) {
      result.push_back(cast(element, type));
    }
    return result;
  }
  return value;
}

void call_below(const OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  op.callBoxed(stack);
}

void call_in(at::ScalarType type, const OperatorHandle& op, Stack* stack) {
  {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    const size_t count = op.schema().arguments().size();
    for (size_t i = stack->size() - count; i < stack->size(); ++i) {
      (*stack)[i] = cast((*stack)[i], type);
    }
  }
  call_below(op, stack);
}

void lower_precision(const OperatorHandle& op, Stack* stack) {
  call_in(at::autocast::get_autocast_dtype(kSpyre), op, stack);
}

void fp32(const OperatorHandle& op, Stack* stack) {
  call_in(at::kFloat, op, stack);
}

// Operators with a `dtype` argument compute in float32 if nothing else is asked for.
void fp32_set_opt_dtype(const OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema().arguments();
  const size_t first = stack->size() - schema.size();
  const auto& input = (*stack)[first];
  if (input.isTensor() && at::autocast::is_eligible(input.toTensor(), kSpyre)) {
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].name() == "dtype" && (*stack)[first + i].isNone()) {
        (*stack)[first + i] = at::kFloat;
      }
    }
  }
  call_below(op, stack);
}

// The widest floating-point type among the arguments.
void promote(const OperatorHandle& op, Stack* stack) {
  auto type = at::autocast::get_autocast_dtype(kSpyre);
  for (const auto& value : arguments(op, *stack)) {
    if (value.isTensor()) {
      type = at::autocast::prioritize(type, value.toTensor(), kSpyre);
    } else if (value.isTensorList()) {
      type = at::autocast::prioritize(type, at::TensorList(value.toTensorVector()), kSpyre);
    }
  }
  call_in(type, op, stack);
}

#define SPYRE_NAME_1(OP) "aten::" #OP
#define SPYRE_NAME_2(OP, OVERLOAD) "aten::" #OP "." #OVERLOAD
#define SPYRE_PICK(_1, _2, NAME, ...) NAME
#define SPYRE_NAME(...) SPYRE_PICK(__VA_ARGS__, SPYRE_NAME_2, SPYRE_NAME_1, )(__VA_ARGS__),

constexpr const char* kLowerPrecision[] = {AT_FORALL_LOWER_PRECISION_FP(SPYRE_NAME)};
constexpr const char* kFp32[] = {AT_FORALL_FP32(SPYRE_NAME)};
constexpr const char* kFp32SetOptDtype[] = {AT_FORALL_FP32_SET_OPT_DTYPE(SPYRE_NAME)};
constexpr const char* kPromote[] = {AT_FORALL_PROMOTE(SPYRE_NAME)};

template <c10::BoxedKernel::BoxedKernelFunction* kernel>
void register_policy(torch::Library& m, c10::ArrayRef<const char*> names) {
  for (const auto* name : names) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
  }
}

// The two whose kernel redispatches to another signature are few enough for torch's template.
void register_norms(torch::Library& m) {
  using at::IntArrayRef;
  using at::Scalar;
  using at::ScalarType;
  using at::Tensor;
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
}

}  // namespace

void register_autocast() {
  constexpr auto key = c10::DispatchKey::AutocastPrivateUse1;
  auto& fallback = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFallthrough());
  auto& m = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  register_policy<&lower_precision>(m, kLowerPrecision);
  register_policy<&fp32>(m, kFp32);
  register_policy<&fp32_set_opt_dtype>(m, kFp32SetOptDtype);
  register_policy<&promote>(m, kPromote);
  register_norms(m);
}

}  // namespace spyre
