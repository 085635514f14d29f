// A Case planned on the GPU through the public API, its tensors mirrored once, to be enqueued many
// times on any stream: what tests of streams, graphs and repeats are made of.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "case/case_tensors.h"
#include "case/device_mirror.h"
#include "device.h"
#include "driver.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::gpu::testing {

class Stream {
 public:
  Stream() {
    constexpr unsigned kNonBlocking = 1;
    const ScopedDevice scope(0);
    check_cuda(driver().cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate");
  }
  ~Stream() {
    const ScopedDevice scope(0);
    driver().cuStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }
  void wait() const {
    const ScopedDevice scope(0);
    check_cuda(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

 private:
  CUstream stream_ = nullptr;
};

class DeviceCall {
 public:
  explicit DeviceCall(const std::string& text, Options options = {})
      : tensors_(parse_case(text)),
        plan_(make_plan(Direction::forward, as_device_tensors(tensors_.forward()),
                        options_of_call(options))),
        mirror_(tensors_.memory()),
        workspace_(plan_.workspace_bytes(), 0) {
    mirror_.upload();
  }

  void enqueue(const Stream& stream) const {
    plan_.run(on_device(), workspace_.data(), workspace_.bytes(), stream.get());
  }
  // The outputs as they are on the device now, gaps included; throws Error when one was not written
  // or anything else was.
  std::vector<std::byte> results() {
    const std::string overrun = mirror_.download();
    if (!overrun.empty()) throw Error(Status::internal, overrun);
    const std::vector<std::string> violations = tensors_.violations(Direction::forward);
    if (!violations.empty()) throw Error(Status::internal, violations.front());
    return tensors_.output_bytes();
  }
  Tensors on_device() const { return mirror_.on_device(tensors_.forward()); }
  CaseTensors& tensors() { return tensors_; }
  const Plan& plan() const { return plan_; }
  DeviceMirror& mirror() { return mirror_; }

 private:
  Options options_of_call(Options options) const {
    const Options own = tensors_.options();
    const int64_t q_len = options.max_q_len, kv_len = options.max_kv_len;
    options = own;
    options.backend = "gpu";
    if (q_len > 0) options.max_q_len = q_len;
    if (kv_len > 0) options.max_kv_len = kv_len;
    return options;
  }
  CaseTensors tensors_;
  Plan plan_;
  DeviceMirror mirror_;
  DeviceBuffer workspace_;
};

}  // namespace tilewise::gpu::testing
