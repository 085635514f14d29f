// The C ABI: the C++ API with errors turned into status codes and a thread-local message. Structs
// arrive with the size their caller knew; fields beyond it take their defaults.
#include <cstring>
#include <new>

#include "problem.h"
#include "tilewise/tilewise.h"
#include "tilewise/version.h"

struct tw_plan {
  tilewise::Plan plan;
};

namespace tilewise {

namespace {

thread_local std::string last_error;

tw_status fail(Status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return static_cast<tw_status>(status);
}

// Runs body; whatever it throws becomes a status and a message.
template <class Body>
tw_status guarded(Body&& body) noexcept {
  try {
    body();
    return TW_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Status::out_of_memory, "tilewise: out of memory");
  } catch (const std::exception& error) {
    return fail(Status::internal, error.what());
  } catch (...) {
    return fail(Status::internal, "tilewise: unknown exception");
  }
}

[[noreturn]] void throw_argument(const std::string& text) {
  throw Error(Status::invalid_argument, text);
}

// A copy of a sized struct. Bytes the caller does not know keep `defaults`; bytes this library does
// not know must be zero, or an option would be ignored silently.
template <class Sized>
Sized read_sized(const Sized* given, const Sized& defaults, const char* name) {
  if (given == nullptr) throw_argument(std::string("tilewise: ") + name + " is NULL");
  const size_t bytes = given->struct_bytes;
  if (bytes < sizeof(size_t)) {
    throw_argument(std::string("tilewise: ") + name +
                   ".struct_bytes is too small, expected sizeof the struct (use the _INIT macro)");
  }
  const auto* extra = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Sized); i < bytes; ++i) {
    if (extra[i] != 0) {
      throw_argument(std::string("tilewise: ") + name +
                     " sets a field that this version of the library does not know");
    }
  }
  Sized copy = defaults;
  std::memcpy(&copy, given, bytes < sizeof(Sized) ? bytes : sizeof(Sized));
  return copy;
}

Tensor tensor_from(const tw_tensor& given) {
  Tensor tensor;
  tensor.data = given.data;
  tensor.dtype = static_cast<DType>(given.dtype);
  // All zero means not given, so 0 stands for the CPU.
  tensor.device.type =
      given.device_type == 0 ? DeviceType::cpu : static_cast<DeviceType>(given.device_type);
  tensor.device.id = given.device_id;
  tensor.ndim = given.ndim;
  if (given.ndim < 0 || given.ndim > kMaxDims) {
    throw_argument("tilewise: tensor.ndim is " + std::to_string(given.ndim) + ", expected 0..4");
  }
  for (size_t d = 0; d < static_cast<size_t>(given.ndim); ++d) {
    tensor.size[d] = given.size[d];
    tensor.stride[d] = given.stride[d];
  }
  return tensor;
}

// In the order of Arg.
constexpr tw_tensor tw_tensors::*kFields[kArgCount] = {&tw_tensors::q,
                                                       &tw_tensors::k,
                                                       &tw_tensors::v,
                                                       &tw_tensors::out,
                                                       &tw_tensors::lse,
                                                       &tw_tensors::d_out,
                                                       &tw_tensors::d_lse,
                                                       &tw_tensors::d_q,
                                                       &tw_tensors::d_k,
                                                       &tw_tensors::d_v,
                                                       &tw_tensors::d_sink,
                                                       &tw_tensors::alibi_slopes,
                                                       &tw_tensors::sink,
                                                       &tw_tensors::cu_seqlens_q,
                                                       &tw_tensors::cu_seqlens_kv};

Tensors tensors_from(const tw_tensors* given) {
  const tw_tensors copy = read_sized(given, tw_tensors TW_TENSORS_INIT, "tensors");
  Tensors tensors;
  for (int i = 0; i < kArgCount; ++i) {
    tensor_of(tensors, static_cast<Arg>(i)) = tensor_from(copy.*(kFields[i]));
  }
  return tensors;
}

Options options_from(const tw_options* given) {
  if (given == nullptr) return {};
  const tw_options copy = read_sized(given, tw_options TW_OPTIONS_INIT, "options");
  Options options;
  options.mask = {copy.mask_left, copy.mask_right, static_cast<Alignment>(copy.mask_alignment),
                  copy.mask_offset};
  if (copy.has_scale != 0) options.scale = copy.scale;
  options.softcap = copy.softcap;
  options.dropout = copy.dropout;
  options.seed = copy.seed;
  options.dropout_offset = copy.dropout_offset;
  options.determinism = static_cast<Determinism>(copy.determinism);
  options.max_q_len = copy.max_q_len;
  options.max_kv_len = copy.max_kv_len;
  if (copy.backend != nullptr) options.backend = copy.backend;
  return options;
}

void copy_text(const std::string& from, char* text, size_t capacity, size_t* needed) {
  if (needed != nullptr) *needed = from.size() + 1;
  if (text == nullptr || capacity == 0) return;
  const size_t count = from.size() < capacity - 1 ? from.size() : capacity - 1;
  std::memcpy(text, from.data(), count);
  text[count] = '\0';
}

Direction direction_from(tw_direction direction) {
  if (direction != TW_FORWARD && direction != TW_BACKWARD) {
    throw_argument("tilewise: direction is " + std::to_string(static_cast<int>(direction)) +
                   ", expected TW_FORWARD or TW_BACKWARD");
  }
  return static_cast<Direction>(direction);
}

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw_argument(std::string("tilewise: ") + name + " is NULL");
}

}  // namespace

}  // namespace tilewise

using tilewise::guarded;

tw_status tw_plan_create(tw_direction direction, const tw_tensors* tensors,
                         const tw_options* options, tw_plan** plan) {
  return guarded([&] {
    tilewise::require(plan, "plan");
    *plan = nullptr;
    *plan = new tw_plan{tilewise::make_plan(tilewise::direction_from(direction),
                                            tilewise::tensors_from(tensors),
                                            tilewise::options_from(options))};
  });
}

void tw_plan_destroy(tw_plan* plan) { delete plan; }

tw_status tw_plan_workspace_bytes(const tw_plan* plan, size_t* bytes) {
  return guarded([&] {
    tilewise::require(plan, "plan");
    tilewise::require(bytes, "bytes");
    *bytes = plan->plan.workspace_bytes();
  });
}

tw_status tw_plan_run(const tw_plan* plan, const tw_tensors* tensors, void* workspace,
                      size_t workspace_bytes, void* stream) {
  return guarded([&] {
    tilewise::require(plan, "plan");
    plan->plan.run(tilewise::tensors_from(tensors), workspace, workspace_bytes, stream);
  });
}

tw_status tw_plan_describe(const tw_plan* plan, char* text, size_t capacity, size_t* needed) {
  return guarded([&] {
    tilewise::require(plan, "plan");
    tilewise::copy_text(plan->plan.describe(), text, capacity, needed);
  });
}

tw_status tw_why_not(tw_direction direction, const tw_tensors* tensors, const tw_options* options,
                     char* text, size_t capacity, size_t* needed) {
  return guarded([&] {
    std::string lines;
    for (const tilewise::BackendAnswer& answer :
         tilewise::why_not(tilewise::direction_from(direction), tilewise::tensors_from(tensors),
                           tilewise::options_from(options))) {
      lines.append(answer.backend).append(": ");
      if (answer.reasons.empty()) lines.append("available");
      for (size_t i = 0; i < answer.reasons.size(); ++i) {
        lines.append(i > 0 ? "; " : "").append(answer.reasons[i]);
      }
      lines.append("\n");
    }
    tilewise::copy_text(lines, text, capacity, needed);
  });
}

tw_status tw_forward(const tw_tensors* tensors, const tw_options* options, void* stream) {
  return guarded([&] {
    tilewise::forward(tilewise::tensors_from(tensors), tilewise::options_from(options), stream);
  });
}

tw_status tw_backward(const tw_tensors* tensors, const tw_options* options, void* stream) {
  return guarded([&] {
    tilewise::backward(tilewise::tensors_from(tensors), tilewise::options_from(options), stream);
  });
}

tw_status tw_merge(const tw_partial* parts, size_t count, const tw_tensor* out,
                   const tw_tensor* lse) {
  return guarded([&] {
    if (count > 0) tilewise::require(parts, "parts");
    tilewise::require(out, "out");
    std::vector<tilewise::Partial> list;
    for (size_t i = 0; i < count; ++i) {
      list.push_back({tilewise::tensor_from(parts[i].out), tilewise::tensor_from(parts[i].lse)});
    }
    tilewise::merge(list, tilewise::tensor_from(*out),
                    lse == nullptr ? tilewise::Tensor{} : tilewise::tensor_from(*lse));
  });
}

tw_status tw_set_num_threads(int threads) {
  return guarded([&] { tilewise::set_num_threads(threads); });
}

int tw_num_threads(void) { return tilewise::num_threads(); }

tw_status tw_set_executor(void (*run)(void*, int, void (*)(void*, int), void*), void* context) {
  return guarded([&] { tilewise::set_executor({context, run}); });
}

const char* tw_last_error(void) { return tilewise::last_error.c_str(); }

const char* tw_status_string(tw_status status) {
  // The names are literals, so data() is terminated.
  return tilewise::name_of(static_cast<tilewise::Status>(status)).data();
}

const char* tw_version(void) { return TILEWISE_VERSION_STRING; }
