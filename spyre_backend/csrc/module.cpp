// The Python module. Plain C API: it builds in a second and a call costs a fraction of a microsecond.
#include "spyre.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>

#include <chrono>
#include <thread>

namespace {

// The warning category and the conflict error belong to the Python side, which hands them over.
PyObject* warning_category = nullptr;
PyObject* narrowed_callback = nullptr;  // what Python calls with the name of what narrowed an integer

void warn_first_fallback(const std::string& op) {
  if (!Py_IsInitialized() || warning_category == nullptr) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  const auto message = op + " ran on the host: the spyre device has no kernel for it (this is said once for each operator)";
  if (PyErr_WarnEx(warning_category, message.c_str(), 1) != 0) {
    throw python_error();
  }
}

void tell_narrowed(const std::string& where) {
  if (!Py_IsInitialized() || narrowed_callback == nullptr) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  auto* result = PyObject_CallFunction(narrowed_callback, "s", where.c_str());
  if (result == nullptr) {
    throw python_error();
  }
  Py_DECREF(result);
}

PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

bool set_item(PyObject* dict, const char* key, int64_t value) {
  auto* number = PyLong_FromLongLong(value);
  const bool ok = number != nullptr && PyDict_SetItemString(dict, key, number) == 0;
  Py_XDECREF(number);
  return ok;
}

PyObject* register_device(PyObject* /*self*/, PyObject* category) {
  HANDLE_TH_ERRORS
  spyre::register_runtime();
  spyre::register_ops();
  spyre::register_autocast();
  Py_INCREF(category);
  warning_category = category;
  spyre::set_first_fallback(&warn_first_fallback);
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* use_dl16(PyObject* /*self*/, PyObject* callback) {
  HANDLE_TH_ERRORS
  Py_XDECREF(narrowed_callback);
  narrowed_callback = callback == Py_None ? nullptr : callback;
  Py_XINCREF(narrowed_callback);
  spyre::use_dl16(narrowed_callback != nullptr ? &tell_narrowed : nullptr);
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* as_cpu(PyObject* /*self*/, PyObject* tensor) {
  HANDLE_TH_ERRORS
  if (!THPVariable_Check(tensor)) {
    PyErr_SetString(PyExc_TypeError, "as_cpu expects a tensor");
    return nullptr;
  }
  return THPVariable_Wrap(spyre::as_cpu(THPVariable_Unpack(tensor)));
  END_HANDLE_TH_ERRORS
}

PyObject* default_generator(PyObject* /*self*/, PyObject* index) {
  HANDLE_TH_ERRORS
  const auto i = PyLong_AsLong(index);
  if (i == -1 && PyErr_Occurred()) {
    return nullptr;
  }
  return THPGenerator_initDefaultGenerator(spyre::default_generator(static_cast<c10::DeviceIndex>(i)));
  END_HANDLE_TH_ERRORS
}

Py_ssize_t count_thread_states() {
  Py_ssize_t count = 0;
  for (auto* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); state; state = PyThreadState_Next(state)) {
    ++count;
  }
  return count;
}

// torch runs the backward pass of an accelerator on a thread of its own. If that thread ends after the interpreter has
// begun to finalise, Python before 3.12 ends it inside a destructor, and the process aborts. So end it while we can.
PyObject* stop_backward_threads(PyObject* /*self*/, PyObject* python_threads) {
  HANDLE_TH_ERRORS
  const auto expected = PyLong_AsSsize_t(python_threads);
  if (expected == -1 && PyErr_Occurred()) {
    return nullptr;
  }
  if (count_thread_states() > expected) {
    {
      pybind11::gil_scoped_release no_gil;
      torch::autograd::Engine::get_default_engine().stop();
    }
    for (int i = 0; i < 100 && count_thread_states() > expected; ++i) {
      pybind11::gil_scoped_release no_gil;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* fallback_counts(PyObject* /*self*/, PyObject* /*unused*/) {
  auto* dict = PyDict_New();
  for (const auto& [name, count] : spyre::fallback_counts()) {
    if (dict == nullptr || !set_item(dict, name.c_str(), count)) {
      return nullptr;
    }
  }
  return dict;
}

PyObject* transfer_counts(PyObject* /*self*/, PyObject* /*unused*/) {
  const auto counts = spyre::transfer_counts();
  auto* dict = PyDict_New();
  if (dict == nullptr) {
    return nullptr;
  }
  set_item(dict, "host_to_device", counts.host_to_device);
  set_item(dict, "device_to_host", counts.device_to_host);
  set_item(dict, "device_to_device", counts.device_to_device);
  set_item(dict, "host_to_device_bytes", counts.host_to_device_bytes);
  set_item(dict, "device_to_host_bytes", counts.device_to_host_bytes);
  set_item(dict, "device_to_device_bytes", counts.device_to_device_bytes);
  return dict;
}

PyObject* reset_fallback_counts(PyObject* /*self*/, PyObject* /*unused*/) {
  spyre::reset_fallback_counts();
  return none();
}

PyObject* reset_fallback_warnings(PyObject* /*self*/, PyObject* /*unused*/) {
  spyre::reset_fallback_warnings();
  return none();
}

PyObject* reset_transfer_counts(PyObject* /*self*/, PyObject* /*unused*/) {
  spyre::reset_transfer_counts();
  return none();
}

PyObject* clock_now(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyLong_FromLongLong(spyre::clock_now());
}

PyObject* clock_advance(PyObject* /*self*/, PyObject* picoseconds) {
  const auto span = PyLong_AsLongLong(picoseconds);
  if (span == -1 && PyErr_Occurred()) {
    return nullptr;
  }
  spyre::clock_advance(span);
  return none();
}

PyObject* clock_reset(PyObject* /*self*/, PyObject* /*unused*/) {
  spyre::clock_reset();
  return none();
}

PyObject* set_fill_byte(PyObject* /*self*/, PyObject* value) {
  const auto byte = PyLong_AsLong(value);
  if (byte == -1 && PyErr_Occurred()) {
    return nullptr;
  }
  const int previous = spyre::fill_byte();
  spyre::set_fill_byte(static_cast<int>(byte));
  return PyLong_FromLong(previous);
}

PyObject* set_memory_limit(PyObject* /*self*/, PyObject* value) {
  const auto nbytes = PyLong_AsSize_t(value);
  if (nbytes == static_cast<size_t>(-1) && PyErr_Occurred()) {
    return nullptr;
  }
  const auto previous = spyre::memory_limit();
  spyre::set_memory_limit(nbytes);
  return PyLong_FromSize_t(previous);
}

PyMethodDef methods[] = {
    {"register", register_device, METH_O, "Register the device with torch; takes the category of fallback warnings."},
    {"use_dl16", use_dl16, METH_O, "Hold float16 as DL16; takes what to call when an int64 is narrowed, None for IEEE."},
    {"as_cpu", as_cpu, METH_O, "A CPU tensor over the bytes of a spyre tensor."},
    {"default_generator", default_generator, METH_O, "The default generator of a device index."},
    {"stop_backward_threads", stop_backward_threads, METH_O, "End torch's backward threads; takes the others' number."},
    {"fallback_counts", fallback_counts, METH_NOARGS, "Host fallbacks by operator."},
    {"reset_fallback_counts", reset_fallback_counts, METH_NOARGS, "Start counting from zero."},
    {"reset_fallback_warnings", reset_fallback_warnings, METH_NOARGS, "Warn again."},
    {"transfer_counts", transfer_counts, METH_NOARGS, "Copies and bytes by direction."},
    {"reset_transfer_counts", reset_transfer_counts, METH_NOARGS, "Start counting from zero."},
    {"clock_now", clock_now, METH_NOARGS, "Simulated time in picoseconds."},
    {"clock_advance", clock_advance, METH_O, "Advance simulated time by picoseconds."},
    {"clock_reset", clock_reset, METH_NOARGS, "Simulated time back to zero."},
    {"set_fill_byte", set_fill_byte, METH_O, "Fill fresh memory with a byte, -1 for not; the previous one."},
    {"set_memory_limit", set_memory_limit, METH_O, "Bytes that may be allocated; the previous limit."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_C", "The simulated Spyre device.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  return PyModule_Create(&definition);
}
