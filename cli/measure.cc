// Clocks, /proc/self, and counting.
#include "cli/measure.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "backend.h"

namespace tilewise::cli {

namespace {

constexpr std::align_val_t kAlignment{size_t{2} << 20};  // of a large page
constexpr size_t kPageBytes = 4096;
constexpr double kMinSampleSeconds = 5e-3;  // shorter calls are repeated within a sample

// A "VmHWM:  1234 kB" line of /proc/self/status; -1 = not there.
int64_t status_bytes(const char* key) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return -1;
  char line[256];
  long long kib = -1;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, key, std::strlen(key)) == 0) {
      std::sscanf(line + std::strlen(key), ": %lld", &kib);
      break;
    }
  }
  std::fclose(file);
  return kib < 0 ? -1 : kib * 1024;
}

// Sets the peak back to the present size (Linux 4.0 and later; refused in some sandboxes).
void reset_peak() {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "we");
  if (file == nullptr) return;
  std::fputs("5", file);
  std::fclose(file);
}

}  // namespace

double seconds_now(Clock clock) {
  timespec now = {};
  ::clock_gettime(clock == Clock::wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

MemoryMeter::MemoryMeter() {
  reset_peak();
  start_bytes_ = status_bytes("VmRSS");
}

int64_t MemoryMeter::peak_growth_bytes() const {
  const int64_t peak = status_bytes("VmHWM");
  if (peak < 0 || start_bytes_ < 0) return -1;
  return std::max<int64_t>(0, peak - start_bytes_);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = position - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

Timing time_calls(const std::function<void()>& call, int repetitions, Clock clock) {
  double start = seconds_now(clock);
  call();
  const double first = std::max(seconds_now(clock) - start, 1e-7);
  const int inner = std::max(1, static_cast<int>(kMinSampleSeconds / first));
  std::vector<double> samples;
  for (int r = 0; r < repetitions; ++r) {
    start = seconds_now(clock);
    for (int i = 0; i < inner; ++i) call();
    samples.push_back((seconds_now(clock) - start) / inner);
  }
  return {quantile(samples, 0.5), quantile(samples, 0.1), quantile(samples, 0.9), repetitions};
}

int64_t visible_pairs(const Problem& problem, const Tensors& tensors) {
  const auto pairs_of = [&](int64_t q_len, int64_t kv_len) {
    const semantics::Band band = semantics::make_band(problem.mask_rule(), q_len, kv_len);
    int64_t pairs = 0;
    for (int64_t i = 0; i < q_len; ++i) pairs += band.keys_of_row(i).count();
    return pairs;
  };
  if (!problem.packed) return problem.batch * pairs_of(problem.q_len, problem.kv_len);
  const auto* q_offsets = static_cast<const int32_t*>(tensors.cu_seqlens_q.data);
  const auto* kv_offsets = static_cast<const int32_t*>(tensors.cu_seqlens_kv.data);
  int64_t pairs = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    pairs += pairs_of(q_offsets[b + 1] - q_offsets[b], kv_offsets[b + 1] - kv_offsets[b]);
  }
  return pairs;
}

double useful_flops(const Problem& problem, const Tensors& tensors) {
  const int64_t d = problem.head_dim;
  const int64_t dv = problem.value_dim;
  const int64_t each =
      problem.direction == Direction::forward ? 2 * (d + dv) : 2 * (3 * d + 2 * dv);
  return static_cast<double>(visible_pairs(problem, tensors)) *
         static_cast<double>(problem.q_heads) * static_cast<double>(each);
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : bytes < 100 ? 1 : 0, units[unit]);
}

std::string seconds_text(double seconds) {
  double shown = seconds;
  const char* unit = "s";
  if (seconds < 1e-3) {
    shown = seconds * 1e6;
    unit = "us";
  } else if (seconds < 1) {
    shown = seconds * 1e3;
    unit = "ms";
  }
  return fmt::format("{:.{}f} {}", shown, shown < 10 ? 2 : shown < 100 ? 1 : 0, unit);
}

void PreparedCall::Free::operator()(void* data) const { ::operator delete(data, kAlignment); }

namespace {

bool runs_on_device(const Options& options) { return takes_device_memory(wanted_backend(options)); }

}  // namespace

PreparedCall::PreparedCall(Direction direction, const Tensors& tensors, const Options& options)
    : plan_(make_plan(direction, runs_on_device(options) ? as_device_tensors(tensors) : tensors,
                      options)),
      tensors_(tensors) {
  const size_t bytes = plan_.workspace_bytes();
  if (runs_on_device(options)) {
    mirror_ = std::make_unique<DeviceMirror>(spans_of(tensors));
    mirror_->upload();
    tensors_ = mirror_->on_device(tensors);
    device_workspace_ = DeviceBuffer(bytes, plan_.problem().device.id);
    return;
  }
  if (bytes == 0) return;
  workspace_.reset(::operator new(bytes, kAlignment));
  // Large pages where the system gives them: the matrix of standard attention would otherwise be
  // slowed by address translation, which has nothing to do with tiling.
  ::madvise(workspace_.get(), bytes, MADV_HUGEPAGE);
  auto* const first = static_cast<volatile char*>(workspace_.get());
  for (size_t at = 0; at < bytes; at += kPageBytes) first[at] = 0;
}

void PreparedCall::enqueue() const {
  void* const workspace = on_device() ? device_workspace_.data() : workspace_.get();
  plan_.run(tensors_, workspace, plan_.workspace_bytes());
}

void PreparedCall::run() const {
  enqueue();
  if (on_device()) synchronize(plan_.problem().device.id);
}

void PreparedCall::fetch() const {
  if (!on_device()) return;
  const std::string overrun = mirror_->download();
  if (!overrun.empty()) throw Error(Status::internal, overrun);
}

Timing PreparedCall::time(int repetitions, Clock clock) const {
  if (!on_device()) return time_calls([this] { run(); }, repetitions, clock);
  const int device = plan_.problem().device.id;
  run();
  const auto seconds = [&](int calls) {
    return seconds_on_device(device, calls, [this] { enqueue(); });
  };
  const int inner = std::max(1, static_cast<int>(kMinSampleSeconds / std::max(seconds(1), 1e-7)));
  std::vector<double> samples;
  for (int r = 0; r < repetitions; ++r) samples.push_back(seconds(inner));
  return {quantile(samples, 0.5), quantile(samples, 0.1), quantile(samples, 0.9), repetitions};
}

}  // namespace tilewise::cli
