// Where the demo's tensors come from, and the comparison of results with the float64 reference.
#include "cli/demo_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "cli/recorded.h"
#include "problem.h"
#include "reference/element.h"
#include "semantics/philox.h"

namespace tilewise::cli {

namespace {

constexpr const char* kPrefix = "smollm2-layer";
constexpr int64_t kSamples = 32;  // rows and keys of the long problem that are compared
constexpr uint64_t kSeed = 2026;

std::vector<std::string> recorded_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) && name.ends_with(".safetensors")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> find_recorded(const std::string& folder) {
  std::vector<std::string> folders = {folder};
  if (folder.empty()) folders = recording_folders();
  std::string looked;
  for (const std::string& candidate : folders) {
    std::vector<std::string> files = recorded_files(candidate);
    if (!files.empty()) return files;
    looked += (looked.empty() ? "" : ", ") + candidate;
  }
  throw InputError(std::string("demo: no ") + kPrefix + "*.safetensors in " + looked +
                   "; name their folder with --data");
}

// Values of unit variance; what they are does not matter, that they are the same every time does.
void fill_gradient(const HostTensor& tensor) {
  const int64_t count = static_cast<int64_t>(tensor.bytes()) / size_of(tensor.dtype());
  for (int64_t i = 0; i < count; ++i) {
    const auto words = semantics::philox4x32_10(static_cast<uint32_t>(i), 0, 0, 0, kSeed);
    const double uniform = (words.word[0] + 0.5) * 0x1p-32;
    reference::write_element(tensor.data(), tensor.dtype(), i, (uniform - 0.5) * std::sqrt(12.0));
  }
}

Tensor view_of(const HostTensor& tensor) {
  const std::vector<int64_t>& s = tensor.shape();
  if (s.size() != 4) {
    throw InputError("demo: " + tensor.name() + " has shape " + tensor.shape_text() +
                     ", expected 4 dimensions");
  }
  return Tensor::bshd(tensor.data(), tensor.dtype(), s[0], s[1], s[2], s[3]);
}

DemoProblem recorded_problem(const std::string& path) {
  DemoProblem demo;
  const TensorFile file(path);
  demo.owned.reserve(9);
  const auto own = [&](HostTensor tensor) {
    demo.owned.push_back(std::move(tensor));
    return view_of(demo.owned.back());
  };
  const auto like = [&](const char* name, const Tensor& tensor) {
    return own(HostTensor(name, tensor.dtype, {tensor.size.begin(), tensor.size.end()}));
  };
  Tensors& t = demo.forward;
  t.q = own(file.read("q"));
  t.k = own(file.read("k"));
  t.v = own(file.read("v"));
  const int64_t b = t.q.size[0], s = t.q.size[1], h = t.q.size[2];
  t.out = own(HostTensor("out", t.q.dtype, {b, s, h, t.v.size[3]}));
  demo.owned.push_back(HostTensor("lse", DType::f32, {b, h, s}));
  t.lse = Tensor::contiguous(demo.owned.back().data(), DType::f32, {b, h, s});
  demo.backward = t;
  demo.backward.d_out = like("d_out", t.out);
  fill_gradient(demo.owned.back());
  demo.backward.d_q = like("d_q", t.q);
  demo.backward.d_k = like("d_k", t.k);
  demo.backward.d_v = like("d_v", t.v);
  demo.options.mask = Mask::causal();
  return demo;
}

// kSamples positions from the first to the last.
std::vector<int64_t> spread_over(int64_t length) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t position = i * (length - 1) / (kSamples - 1);
    if (positions.empty() || positions.back() != position) positions.push_back(position);
  }
  return positions;
}

// `values` [positions, heads, dim] beside `tensor` [b, s, h, dim].
double error_of(const Tensor& tensor, const std::vector<reference::Position>& positions,
                const reference::Values& values) {
  const int64_t heads = tensor.size[2];
  const int64_t dim = tensor.size[3];
  double largest = 0;
  double scale = 0;
  size_t at = 0;
  for (const reference::Position& position : positions) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = position.sequence * tensor.stride[0] + position.index * tensor.stride[1] +
                          h * tensor.stride[2];
      for (int64_t c = 0; c < dim; ++c, ++at) {
        const double got = reference::read_element(tensor.data, tensor.dtype, row + c);
        const double error = std::abs(got - values.value[at]);
        largest = std::isnan(error) ? INFINITY : std::max(largest, error);
        scale = std::max(scale, std::abs(values.value[at]));
      }
    }
  }
  return scale > 0 ? largest / scale : largest;
}

}  // namespace

std::vector<DemoProblem> recorded_problems(const std::string& folder) {
  std::vector<DemoProblem> problems;
  for (const std::string& path : find_recorded(folder)) problems.push_back(recorded_problem(path));
  return problems;
}

DemoProblem long_problem(int64_t length) {
  Case c;
  c.q = c.kv = length;
  c.d = c.dv = 64;
  c.dir = Direction::backward;
  DemoProblem demo;
  demo.generated = std::make_unique<CaseTensors>(c, Poison::off);
  demo.forward = demo.generated->forward();
  demo.backward = demo.generated->backward();
  demo.options = demo.generated->options();
  demo.selection = {false, false, spread_over(length), spread_over(length)};
  demo.sums = reference::RowSums::given;
  return demo;
}

void compute_float64(std::vector<DemoProblem>& problems) {
  std::vector<std::jthread> running;
  for (DemoProblem& demo : problems) {
    if (demo.sums != reference::RowSums::computed) continue;
    running.emplace_back(
        [&demo, forward = make_problem(Direction::forward, demo.forward, demo.options),
         backward = make_problem(Direction::backward, demo.backward, demo.options)] {
          demo.result = reference::forward(forward, demo.forward, demo.selection);
          demo.gradients = reference::backward(backward, demo.backward, demo.selection, demo.sums);
        });
  }
}

double largest_error(DemoProblem& demo, const Problem& problem) {
  const bool given = demo.sums == reference::RowSums::given;
  if (problem.direction == Direction::forward) {
    if (!demo.result) demo.result = reference::forward(problem, demo.forward, demo.selection);
    return error_of(demo.forward.out, demo.result->rows, demo.result->out);
  }
  if (given || !demo.gradients) {
    demo.gradients = reference::backward(problem, demo.backward, demo.selection, demo.sums);
  }
  const reference::Gradients64& g = *demo.gradients;
  return std::max({error_of(demo.backward.d_q, g.rows, g.d_q),
                   error_of(demo.backward.d_k, g.keys, g.d_k),
                   error_of(demo.backward.d_v, g.keys, g.d_v)});
}

}  // namespace tilewise::cli
