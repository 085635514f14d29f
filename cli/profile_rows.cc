// A profile as rows, and back: the roofs; standard attention and Tilewise at the Case, then at
// shorter lengths; the layer with the advice. What the model says is computed again when they are
// read.
#include <fmt/format.h>

#include <algorithm>

#include "cli/profile.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

Row path_row(const Profile& p, const ProfiledCase& c, const ProfiledPath& path) {
  Row row;
  row.add("case", print_case(c.text)).add("backend", path.backend);
  row.add("threads", int64_t{p.threads});
  if (path.ran()) {
    row.add("ms", path.timing.median_s * 1e3).add("ms_p10", path.timing.p10_s * 1e3);
    row.add("ms_p90", path.timing.p90_s * 1e3);
    row.add("repetitions", int64_t{path.timing.samples}).add("tflops", path.gflops() * 1e-3);
    row.add("share_of_peak", path.gflops() * 1e9 / p.roofs.machine.flops_per_s);
    row.add("share_of_roof", path.roof_share());
  } else {
    row.add("not_run", path.why_not);
  }
  row.add("workspace_bytes", path.workspace_bytes);
  row.add("bound", std::string(name_of(path.model.bound)));
  row.add("model_schedule", std::string(name_of(path.schedule)));
  row.add("model_bytes", path.model.bytes()).add("model_cached_bytes", path.model.cached_bytes);
  row.add("model_intensity", path.model.intensity);
  row.add("model_executed_flops", path.model.executed_flops);
  row.add("model_memory_ms", path.model.memory_s * 1e3);
  row.add("model_compute_ms", path.model.compute_s * 1e3);
  row.add("model_exp_ms", path.model.exp_s * 1e3);
  return row.add("model_ms", path.model.passes_s * 1e3);
}

Row roofs_row(const Profile& p) {
  const MachineRoofs& m = p.roofs.machine;
  Row row;
  row.add("roofs", m.name).add("threads", int64_t{p.threads});
  row.add("cores", m.cores).add("flops_per_s", m.flops_per_s).add("exps_per_s", m.exps_per_s);
  row.add("bytes_per_s", m.bytes_per_s);
  row.add("l1_bytes_per_s", p.roofs.l1_bytes_per_s).add("l2_bytes_per_s", p.roofs.l2_bytes_per_s);
  row.add("l3_bytes_per_s", p.roofs.l3_bytes_per_s);
  row.add("read_bytes_per_s", p.roofs.read_bytes_per_s);
  row.add("copy_bytes_per_s", p.roofs.copy_bytes_per_s).add("balance", m.balance());
  row.add("other_processes_cores", p.others_cores);
  return row.add("fast_bytes", m.fast_bytes).add("cache_bytes", m.cache_bytes);
}

}  // namespace

std::vector<Row> profile_rows(const Profile& p) {
  std::vector<Row> rows = {roofs_row(p), path_row(p, p.main, p.main.standard),
                           path_row(p, p.main, p.main.tiled)};
  for (const ProfiledCase& c : p.lengths) {
    if (c.text == p.main.text) continue;
    rows.push_back(path_row(p, c, c.standard));
    rows.push_back(path_row(p, c, c.tiled));
  }
  Row layer;
  layer.add("layer_hidden", p.layer.hidden).add("layer_ffn", p.layer.ffn);
  layer.add("layer_rest_ms", p.layer.rest_s * 1e3);
  if (p.main.standard.ran()) {
    layer.add("standard_share_of_layer", p.layer.share(p.main.standard.timing.median_s));
  }
  layer.add("tiled_share_of_layer", p.layer.share(p.main.tiled.timing.median_s));
  layer.add("verdict", std::string(name_of(p.advice.verdict)));
  rows.push_back(layer.add("advice", p.advice.text));
  return rows;
}

namespace {

class Reader {
 public:
  Reader(const Row& row, const std::string& source) : row_(row), source_(source) {}

  bool has(const char* key) const { return row_.find(key) != nullptr; }
  // 0 where a profile leaves it out.
  double number(const char* key) const {
    const Value* const value = row_.find(key);
    if (value == nullptr) return 0;
    if (const auto* const whole = std::get_if<int64_t>(value)) return static_cast<double>(*whole);
    if (const auto* const real = std::get_if<double>(value)) return *real;
    throw InputError(fmt::format("{}: {} is no number", source_, key));
  }
  int64_t whole(const char* key) const { return static_cast<int64_t>(number(key)); }
  std::string text(const char* key) const {
    const Value* const value = row_.find(key);
    const auto* const text = value == nullptr ? nullptr : std::get_if<std::string>(value);
    if (text == nullptr) throw InputError(fmt::format("{}: a row has no {}", source_, key));
    return *text;
  }

 private:
  const Row& row_;
  const std::string& source_;
};

void read_roofs(const Reader& row, Profile& p) {
  MachineRoofs& m = p.roofs.machine;
  m.name = row.text("roofs");
  p.threads = static_cast<int>(row.whole("threads"));
  m.cores = std::max<int64_t>(1, row.whole("cores"));
  m.flops_per_s = row.number("flops_per_s");
  m.exps_per_s = row.number("exps_per_s");
  m.bytes_per_s = row.number("bytes_per_s");
  m.fast_bytes = row.number("fast_bytes");
  m.cache_bytes = row.number("cache_bytes");
  p.roofs.l1_bytes_per_s = row.number("l1_bytes_per_s");
  p.roofs.l2_bytes_per_s = m.fast_bytes_per_s = row.number("l2_bytes_per_s");
  p.roofs.l3_bytes_per_s = row.number("l3_bytes_per_s");
  p.roofs.read_bytes_per_s = row.number("read_bytes_per_s");
  p.roofs.copy_bytes_per_s = row.number("copy_bytes_per_s");
  p.others_cores = row.number("other_processes_cores");
}

void read_path(const Reader& row, ProfiledPath& path) {
  path.backend = row.text("backend");
  if (row.has("not_run")) path.why_not = row.text("not_run");
  path.workspace_bytes = row.whole("workspace_bytes");
  path.timing = {row.number("ms") * 1e-3, row.number("ms_p10") * 1e-3, row.number("ms_p90") * 1e-3,
                 static_cast<int>(row.whole("repetitions"))};
  path.useful_flops = row.number("tflops") * 1e12 * path.timing.median_s;
}

void read_layer(const Reader& row, Profile& p) {
  p.layer = {row.whole("layer_hidden"), row.whole("layer_ffn"), row.number("layer_rest_ms") * 1e-3};
  p.advice.text = row.text("advice");
  for (const Verdict verdict : {Verdict::worth_it, Verdict::little_to_gain}) {
    if (name_of(verdict) == row.text("verdict")) p.advice.verdict = verdict;
  }
}

ProfiledCase read_case(const Row& standard, const Row& tiled, const Profile& p,
                       const std::string& source) {
  ProfiledCase c;
  c.text = parse_case(Reader(standard, source).text("case"));
  c.shape = shape_of(c.text);
  read_path(Reader(standard, source), c.standard);
  read_path(Reader(tiled, source), c.tiled);
  add_models(c, p.roofs.machine, p.on_device());
  return c;
}

}  // namespace

Profile read_profile(const std::vector<Row>& rows, const std::string& source) {
  if (rows.size() < 4 || rows.size() % 2 != 0 || rows[0].find("roofs") == nullptr ||
      rows.back().find("advice") == nullptr) {
    throw InputError(source + ": is no profile, expected what tilewise profile --json prints");
  }
  Profile p;
  read_roofs(Reader(rows[0], source), p);
  p.main = read_case(rows[1], rows[2], p, source);
  for (size_t i = 3; i + 1 < rows.size(); i += 2) {
    p.lengths.push_back(read_case(rows[i], rows[i + 1], p, source));
  }
  p.lengths.push_back(p.main);
  read_layer(Reader(rows.back(), source), p);
  return p;
}

}  // namespace tilewise::cli
