// What explain and profile share: a Case as a shape of the cost model, which schedules apply, and
// how sizes are written.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cli/explain.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr int64_t kDecodeRows = 16;  // rows of a sequence up to which a call is decode

bool few_rows(const AttentionShape& shape) {
  int64_t rows = shape.q_len;
  int64_t keys = shape.kv_len;
  for (const SequenceLengths& lengths : shape.sequences) {
    rows = std::max(rows, lengths.q_len);
    keys = std::max(keys, lengths.kv_len);
  }
  return rows <= kDecodeRows && rows < keys;
}

}  // namespace

AttentionShape shape_of(const Case& c) {
  AttentionShape shape;
  shape.batch = c.b;
  shape.q_heads = c.hq;
  shape.kv_heads = c.hkv;
  shape.q_len = c.packed() ? 0 : c.q;
  shape.kv_len = c.packed() ? 0 : c.kv;
  shape.head_dim = c.d;
  shape.value_dim = c.dv;
  shape.dtype = c.dtype;
  shape.mask = c.mask;
  for (size_t i = 0; i < c.qlens.size(); ++i) {
    shape.sequences.push_back({c.qlens[i], c.kvlens.empty() ? c.qlens[i] : c.kvlens[i]});
  }
  return shape;
}

std::vector<Schedule> schedules_for(const AttentionShape& shape, bool backward) {
  if (backward) return {Schedule::standard_backward, Schedule::recompute_backward};
  std::vector<Schedule> schedules = {Schedule::standard, Schedule::tiled_kv_outside,
                                     Schedule::tiled_q_outside};
  if (few_rows(shape)) schedules.push_back(Schedule::decode);
  return schedules;
}

Schedule tiled_schedule(const AttentionShape& shape, bool backward, Accounting accounting) {
  if (backward) return Schedule::recompute_backward;
  if (few_rows(shape)) return Schedule::decode;
  return accounting == Accounting::simple ? Schedule::tiled_kv_outside : Schedule::tiled_q_outside;
}

std::string decimal_bytes_text(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 999.95 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string grouped(double whole) {
  std::string text = fmt::format("{:.0f}", whole);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

double parse_bytes(const std::string& text, const std::string& flag) {
  char* end = nullptr;
  double bytes = std::strtod(text.c_str(), &end);
  std::string unit(end);
  if (unit == "K" || unit == "KiB" || unit == "KB") {
    bytes *= 1024;
  } else if (unit == "M" || unit == "MiB" || unit == "MB") {
    bytes *= 1024 * 1024;
  } else if (!unit.empty() && unit != "B") {
    end = nullptr;
  }
  if (end == nullptr || end == text.c_str() || !std::isfinite(bytes) || bytes < 1) {
    throw InputError(
        fmt::format("{}: \"{}\" is no size, expected bytes such as 65536, 192K or 1M", flag, text));
  }
  return bytes;
}

}  // namespace tilewise::cli
