// tilewise run FILE: attention on tensors from a file, forward and on request backward.
//
//   q [b, s, h, d]  k [b, t, g, d]  v [b, t, g, dv]   (or bhsd; a missing b or h counts as 1)
//   -> out, lse [b, h, s], and with --backward d_q, d_k, d_v (d_sink)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "cli/measure.h"
#include "cli/tensor_file.h"
#include "cli/verbs.h"
#include "device.h"
#include "element.h"
#include "semantics/philox.h"

namespace tilewise::cli {

namespace {

struct Job {
  HostTensor q, k, v, d_out, sink, alibi_slopes;  // inputs; the last three may be empty
  HostTensor out, lse, d_q, d_k, d_v, d_sink;     // results
  Tensors forward;
  Tensors backward;
  Options options;
  Case described;  // the same problem as Case text
};

HostTensor read_optional(const TensorFile& file, std::string_view name) {
  return file.find(name) == nullptr ? HostTensor() : file.read(name);
}

void read_inputs(const RunOptions& options, Job& job) {
  if (format_of(options.files[0]) == FileFormat::safetensors) {
    if (options.files.size() != 1) throw InputError("run: expected one .safetensors file");
    const TensorFile file(options.files[0]);
    job.q = file.read("q");
    job.k = file.read("k");
    job.v = file.read("v");
    job.sink = read_optional(file, "sink");
    job.alibi_slopes = read_optional(file, "alibi_slopes");
    if (options.backward && options.d_out.empty()) job.d_out = read_optional(file, "d_out");
    return;
  }
  if (options.files.size() != 3) {
    throw InputError("run: expected three .npy files: q.npy k.npy v.npy");
  }
  HostTensor* const into[] = {&job.q, &job.k, &job.v};
  const char* const names[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    const TensorFile file(options.files[i]);
    *into[i] = file.read(names[i]);
    if (into[i]->dtype() == DType::bf16) {
      fmt::print(stderr, "tilewise: note: {}: '<u2' is read as the bits of bf16\n",
                 options.files[i]);
    }
  }
}

// [len, dim] and [len, heads, dim] gain the dimensions that they leave out.
Tensor view_of(const HostTensor& tensor, bool bhsd) {
  const std::vector<int64_t>& s = tensor.shape();
  if (s.size() < 2 || s.size() > 4) {
    throw InputError(fmt::format("run: {} has shape {}, expected 2, 3 or 4 dimensions",
                                 tensor.name(), tensor.shape_text()));
  }
  const int64_t batch = s.size() == 4 ? s[0] : 1;
  const int64_t first = s.size() >= 3 ? s[s.size() - 3] : (bhsd ? 1 : s[0]);
  const int64_t second = s.size() >= 3 ? s[s.size() - 2] : (bhsd ? s[0] : 1);
  const int64_t dim = s.back();
  return bhsd ? Tensor::bhsd(tensor.data(), tensor.dtype(), batch, second, first, dim)
              : Tensor::bshd(tensor.data(), tensor.dtype(), batch, first, second, dim);
}

Tensor vector_view(const HostTensor& tensor) {
  const std::vector<int64_t>& s = tensor.shape();
  if (tensor.dtype() == DType::none) return {};
  if (s.size() == 1) return Tensor::contiguous(tensor.data(), tensor.dtype(), {s[0]});
  if (s.size() == 2) return Tensor::contiguous(tensor.data(), tensor.dtype(), {s[0], s[1]});
  throw InputError(fmt::format("run: {} has shape {}, expected 1 or 2 dimensions", tensor.name(),
                               tensor.shape_text()));
}

// Standard normal values by Box-Muller over Philox words: the same on every machine.
void fill_random(const HostTensor& tensor, uint64_t seed) {
  const int64_t count = static_cast<int64_t>(tensor.bytes()) / size_of(tensor.dtype());
  for (int64_t i = 0; i < count; ++i) {
    const auto words = semantics::philox4x32_10(static_cast<uint32_t>(i),
                                                static_cast<uint32_t>(i >> 32), 0, 1, seed);
    const double radius = std::sqrt(-2 * std::log((words.word[0] + 1.0) * 0x1p-32));
    const double angle = 2 * std::numbers::pi * words.word[1] * 0x1p-32;
    store_element(tensor.data(), tensor.dtype(), i, static_cast<float>(radius * std::cos(angle)));
  }
}

void make_d_out(const RunOptions& options, Job& job) {
  if (job.d_out.dtype() != DType::none) return;
  job.d_out = HostTensor("d_out", job.out.dtype(), job.out.shape());
  if (options.d_out == "random") return fill_random(job.d_out, options.seed);
  const int64_t count = static_cast<int64_t>(job.d_out.bytes()) / size_of(job.d_out.dtype());
  for (int64_t i = 0; i < count; ++i) store_element(job.d_out.data(), job.d_out.dtype(), i, 1);
}

void make_outputs(const RunOptions& options, Job& job) {
  const bool bhsd = options.layout == "bhsd";
  const Tensor& q = job.forward.q;
  std::vector<int64_t> shape = job.q.shape();
  shape.back() = job.v.shape().back();
  job.out = HostTensor("out", job.q.dtype(), shape);
  job.lse = HostTensor("lse", DType::f32, {q.size[0], q.size[2], q.size[1]});
  job.forward.out = view_of(job.out, bhsd);
  job.forward.lse =
      Tensor::contiguous(job.lse.data(), DType::f32, {q.size[0], q.size[2], q.size[1]});
  if (!options.backward) return;
  make_d_out(options, job);
  job.d_q = HostTensor("d_q", job.q.dtype(), job.q.shape());
  job.d_k = HostTensor("d_k", job.k.dtype(), job.k.shape());
  job.d_v = HostTensor("d_v", job.v.dtype(), job.v.shape());
  job.backward = job.forward;
  job.backward.d_out = view_of(job.d_out, bhsd);
  job.backward.d_q = view_of(job.d_q, bhsd);
  job.backward.d_k = view_of(job.d_k, bhsd);
  job.backward.d_v = view_of(job.d_v, bhsd);
  if (!job.forward.sink.given()) return;
  job.d_sink = HostTensor("d_sink", DType::f32, job.sink.shape());
  job.backward.d_sink = vector_view(job.d_sink);
}

void describe(const RunOptions& options, Job& job) {
  Case& c = job.described;
  const Tensors& t = job.forward;
  c.b = t.q.size[0];
  c.q = t.q.size[1];
  c.hq = t.q.size[2];
  c.d = t.q.size[3];
  c.kv = t.k.size[1];
  c.hkv = t.k.size[2];
  c.dv = t.v.size[3];
  c.mask = job.options.mask;
  c.dtype = t.q.dtype;
  c.dir = options.backward ? Direction::backward : Direction::forward;
  c.scale = options.scale.value_or(0);
  c.softcap = options.softcap;
  c.dropout = options.dropout;
  c.seed = options.seed;
  c.alibi = static_cast<CaseSlopes>(t.alibi_slopes.ndim);  // none, [h], [b, h]
  c.sink = t.sink.given();
  c.layout = options.layout == "bhsd" ? CaseLayout::bhsd : CaseLayout::bshd;
  // The file as data of the Case, where `check` and `bench` could read it too.
  const std::string& file = options.files[0];
  const bool readable = options.files.size() == 1 && job.q.shape().size() == 4 &&
                        file.find_first_of(" \t\n") == std::string::npos;
  if (readable && c.layout == CaseLayout::bshd) {
    c.data = CaseData::file;
    c.file = file;
  }
}

Job make_job(const RunOptions& options) {
  Job job;
  job.options.mask = parse_case("q=1 d=1 mask=" + options.mask).mask;
  job.options.scale = options.scale;
  job.options.softcap = options.softcap;
  job.options.dropout = options.dropout;
  job.options.seed = options.seed;
  job.options.backend = options.backend;
  read_inputs(options, job);
  const bool bhsd = options.layout == "bhsd";
  job.forward.q = view_of(job.q, bhsd);
  job.forward.k = view_of(job.k, bhsd);
  job.forward.v = view_of(job.v, bhsd);
  job.forward.sink = vector_view(job.sink);
  job.forward.alibi_slopes = vector_view(job.alibi_slopes);
  make_outputs(options, job);
  describe(options, job);
  return job;
}

struct Measured {
  double seconds = 0;
  double gflops = 0;
  int64_t workspace_bytes = 0;
  int64_t peak_growth_bytes = -1;
  std::string device;  // "": host memory
  std::string plan;
};

Measured run_once(Direction direction, const Tensors& tensors, const Options& options) {
  Measured measured;
  const MemoryMeter memory;
  const PreparedCall call(direction, tensors, options);
  const double start = seconds_now(Clock::wall);
  call.run();
  measured.seconds = seconds_now(Clock::wall) - start;
  if (call.on_device()) measured.device = device_name(call.plan().problem().device.id);
  call.fetch();
  measured.peak_growth_bytes = memory.peak_growth_bytes();
  measured.gflops =
      useful_flops(call.plan().problem(), tensors) / std::max(measured.seconds, 1e-9) * 1e-9;
  measured.workspace_bytes = static_cast<int64_t>(call.plan().workspace_bytes());
  measured.plan = call.plan().describe();
  return measured;
}

void print_text(const std::string& name, const Measured& measured) {
  std::string plan = "  " + measured.plan;
  while (!plan.empty() && plan.back() == '\n') plan.pop_back();
  for (size_t at = plan.find('\n'); at != std::string::npos; at = plan.find('\n', at + 1)) {
    plan.insert(at + 1, "  ");
  }
  if (!measured.device.empty()) {
    plan += fmt::format("\n  device: {}; tensors copied there and back, untimed", measured.device);
  }
  const std::string growth = measured.peak_growth_bytes < 0
                                 ? "not known"
                                 : bytes_text(static_cast<double>(measured.peak_growth_bytes));
  fmt::print(
      "{}\n{}\n  time: {} ({:.1f} GFLOP/s)\n  peak extra memory: {} of workspace, process "
      "grew by {}\n",
      name, plan, seconds_text(measured.seconds), measured.gflops,
      bytes_text(static_cast<double>(measured.workspace_bytes)), growth);
}

Row row_of(const Job& job, const char* direction, const Measured& measured) {
  Row row;
  const std::string backend = measured.plan.substr(9, measured.plan.find('\n') - 9);
  row.add("case", print_case(job.described)).add("direction", std::string(direction));
  row.add("backend", backend).add("ms", measured.seconds * 1e3).add("gflops", measured.gflops);
  row.add("workspace_bytes", measured.workspace_bytes);
  if (!measured.device.empty()) row.add("device", measured.device);
  if (measured.peak_growth_bytes >= 0) row.add("peak_growth_bytes", measured.peak_growth_bytes);
  return row.add("plan", measured.plan);
}

std::string output_of(const RunOptions& options) {
  if (!options.output.empty()) {
    format_of(options.output);
    return options.output;
  }
  std::string name = options.files[0].substr(options.files[0].rfind('/') + 1);
  return name.substr(0, name.rfind('.')) + ".out.safetensors";
}

std::vector<const HostTensor*> results_of(const Job& job) {
  std::vector<const HostTensor*> results;
  for (const HostTensor* tensor : {&job.out, &job.lse, &job.d_q, &job.d_k, &job.d_v, &job.d_sink}) {
    if (tensor->dtype() != DType::none) results.push_back(tensor);
  }
  return results;
}

// -o x.npy writes x.npy for out and x.lse.npy, x.d_q.npy, ... for the others.
std::string npy_path(const std::string& output, const std::string& name) {
  return name == "out" ? output : output.substr(0, output.size() - 3) + name + ".npy";
}

void check_outputs(const RunOptions& options, const Job& job, const std::string& output) {
  const bool npy = format_of(output) == FileFormat::npy;
  for (const HostTensor* tensor : results_of(job)) {
    const std::string path = npy ? npy_path(output, tensor->name()) : output;
    for (const std::string& input : options.files) {
      if (path == input) throw InputError(path + ": is an input, it would be overwritten");
    }
    check_writable(path);
  }
}

void write_outputs(const RunOptions& options, const Job& job, const std::string& output) {
  const std::vector<const HostTensor*> results = results_of(job);
  if (format_of(output) == FileFormat::npy) {
    for (const HostTensor* tensor : results) write_npy(npy_path(output, tensor->name()), *tensor);
  } else {
    write_safetensors(
        output, results,
        {{"case", print_case(job.described)}, {"program", "tilewise " + std::string(version())}});
  }
  if (options.shared.format != Format::text) return;
  fmt::print("wrote {}:", output);
  for (const HostTensor* tensor : results)
    fmt::print(" {} {}", tensor->name(), tensor->shape_text());
  fmt::print("\n");
}

}  // namespace

int run(const RunOptions& options) {
  check_backend(options.backend);
  const std::string output = output_of(options);
  const Job job = make_job(options);
  check_outputs(options, job, output);
  Progress progress(options.shared.progress, "calls", options.backward ? 2 : 1);
  std::vector<Row> rows;
  const bool text = options.shared.format == Format::text;
  if (text) fmt::print("{}\n", print_case(job.described));
  const auto run_direction = [&](Direction direction, const char* name, const Tensors& tensors) {
    progress.begin(name);
    const Measured measured = run_once(direction, tensors, job.options);
    progress.clear();
    rows.push_back(row_of(job, name, measured));
    if (text) print_text(name, measured);
  };
  run_direction(Direction::forward, "forward", job.forward);
  if (options.backward) run_direction(Direction::backward, "backward", job.backward);
  write_outputs(options, job, output);
  if (options.shared.format == Format::json) print_json(options.shared.command, rows);
  if (options.shared.format == Format::csv) print_csv(rows);
  return 0;
}

}  // namespace tilewise::cli
