// Makes the data of a ForwardCase, runs it, and compares every owned output with float64 rows
// computed here from the formula; checks that nothing else was written.
#include "forward_case.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <thread>

#include "device_buffers.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::gpu::testing {
namespace {

std::vector<int> starts_of(const std::vector<int>& lens) {
  std::vector<int> starts = {0};
  for (const int len : lens) starts.push_back(starts.back() + len);
  return starts;
}

// A case with its defaults filled in and its data made.
struct Setup {
  ForwardCase c;
  bool packed;
  std::vector<int> q_starts, kv_starts;
  Buffer q, k, v, out;
  std::vector<float> slopes, sink;
  ForwardProblem problem;

  static ForwardCase complete(ForwardCase c) {
    if (c.kv_heads == 0) c.kv_heads = c.q_heads;
    if (c.kv < 0) c.kv = c.q;
    if (c.dv == 0) c.dv = c.d;
    if (!c.q_lens.empty()) {
      if (c.kv_lens.empty()) c.kv_lens = c.q_lens;
      c.batch = static_cast<int>(c.q_lens.size());
      c.q = *std::max_element(c.q_lens.begin(), c.q_lens.end());
      c.kv = *std::max_element(c.kv_lens.begin(), c.kv_lens.end());
    }
    return c;
  }
  int64_t slabs() const { return packed ? 1 : c.batch; }
  int64_t q_rows() const { return packed ? q_starts.back() + 5 : c.q; }
  int64_t kv_rows() const { return packed ? kv_starts.back() + 5 : c.kv; }
  Layout kv_layout() const { return c.layout; }
  Layout q_layout() const { return c.layout == Layout::kBroadcast ? Layout::kBshd : c.layout; }

  Setup(const ForwardCase& given, uint64_t seed, bool with_data = true)
      : c(complete(given)),
        packed(!c.q_lens.empty()),
        q_starts(starts_of(c.q_lens)),
        kv_starts(starts_of(c.kv_lens)),
        q(slabs(), q_rows(), c.q_heads, c.d, q_layout(), c.element),
        k(slabs(), kv_rows(), c.kv_heads, c.d, kv_layout(), c.element),
        v(slabs(), kv_rows(), c.kv_heads, c.dv, kv_layout(), c.element),
        out(slabs(), q_rows(), c.q_heads, c.dv, q_layout(), c.element) {
    if (with_data) fill(seed);
    ForwardProblem& p = problem;
    p.element = c.element;
    p.batch = c.batch;
    p.q_heads = c.q_heads;
    p.kv_heads = c.kv_heads;
    p.q_len = c.q;
    p.kv_len = c.kv;
    p.total_q = q_rows();
    p.total_kv = kv_rows();
    p.head_dim = c.d;
    p.value_dim = c.dv;
    p.packed = packed;
    p.mask = {c.left, c.right, c.alignment, c.offset};
    p.scale = 1.0 / std::sqrt(static_cast<double>(c.d));
    p.softcap = c.softcap;
    p.alibi = c.alibi;
    p.sink = c.sink;
    p.lse = c.lse;
    if (c.dropout > 0) p.dropout = semantics::make_dropout(c.dropout, 0x1234567ull + seed, 7);
    p.q = q.strides;
    p.k = k.strides;
    p.v = v.strides;
    p.out = out.strides;
    p.aligned = c.layout != Layout::kOdd;
  }

  int64_t owned_q() const { return packed ? q_starts.back() : c.q; }
  int64_t owned_kv() const { return packed ? kv_starts.back() : c.kv; }

  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const float q_gain = c.data == Data::kLarge ? 6.0f : 1.0f;
    const auto fill_one = [&](Buffer& t, int64_t owned, auto&& value) {
      for (int64_t b = 0; b < t.batch; ++b) {
        for (int64_t s = 0; s < owned; ++s) {
          for (int64_t h = 0; h < t.heads; ++h) {
            for (int64_t d = 0; d < t.dim; ++d) t.set(b, s, h, d, value(s, d));
          }
        }
      }
    };
    fill_one(q, owned_q(), [&](int64_t s, int64_t) {
      if (c.data == Data::kZeros) return 0.0f;
      if (c.data == Data::kVeryNegative) return 2000.0f;
      const bool calm = c.data == Data::kLarge && s > owned_q() / 2;
      return normal(random) * (calm ? 0.05f : q_gain);
    });
    fill_one(k, owned_kv(), [&](int64_t s, int64_t) {
      if (c.data == Data::kZeros || c.data == Data::kIndexCoded) return 0.0f;
      if (c.data == Data::kVeryNegative) {
        return -300.0f / std::sqrt(static_cast<float>(c.d)) - (s % 3 == 0 ? 0.5f : 0.0f);
      }
      const bool outlier = c.data == Data::kLateOutlier && s % 97 == 5 && s < owned_kv() / 2;
      return normal(random) * (c.data == Data::kLarge ? 6.0f : (outlier ? 60.0f : 1.0f));
    });
    fill_one(v, owned_kv(), [&](int64_t s, int64_t d) {
      if (c.data == Data::kIndexCoded) return static_cast<float>(s % 32) + d / 256.0f;
      return normal(random);
    });
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    if (c.data == Data::kNanKey) k.set(0, owned_kv() / 3, 0, c.d / 2, nan);
    if (c.data == Data::kNanValue) v.set(0, owned_kv() / 3, 0, c.dv / 2, nan);
    if (c.data == Data::kInfQuery) q.set(0, owned_q() / 3, 0, c.d / 2, inf);
    std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
    for (int h = 0; h < c.q_heads; ++h) {
      slopes.push_back(0.01f + 0.3f * uniform(random));
      sink.push_back(h % 3 == 2 ? -inf : 3.0f * uniform(random));
    }
  }
};

struct RowReference {
  std::vector<double> out;
  std::vector<double> magnitude;  // sum of p |v|
  double lse = 0;
  double largest = 0;     // G: largest scale * sum |q k|
  int64_t only_key = -1;  // the key of a row that sees one
};

RowReference reference_row(const Setup& s, int batch, int head, int64_t i) {
  const ForwardCase& c = s.c;
  const int64_t q0 = s.packed ? s.q_starts[batch] : 0;
  const int64_t k0 = s.packed ? s.kv_starts[batch] : 0;
  const int64_t q_len = s.packed ? c.q_lens[batch] : c.q;
  const int64_t kv_len = s.packed ? c.kv_lens[batch] : c.kv;
  const int b = s.packed ? 0 : batch;
  const int kv_head = head / (c.q_heads / c.kv_heads);
  const semantics::Band band = semantics::make_band(s.problem.mask, q_len, kv_len);
  RowReference r;
  r.out.assign(c.dv, 0.0);
  r.magnitude.assign(c.dv, 0.0);
  std::vector<double> scores;
  std::vector<int64_t> keys;
  double top = -std::numeric_limits<double>::infinity();
  std::vector<double> query(c.d);
  for (int d = 0; d < c.d; ++d) query[d] = s.q.at(b, q0 + i, head, d);
  for (int64_t j = 0; j < kv_len; ++j) {
    if (!band.visible(i, j)) continue;
    double dot = 0;
    double size = 0;
    for (int d = 0; d < c.d; ++d) {
      const double product = query[d] * s.k.at(b, k0 + j, kv_head, d);
      dot += product;
      size += std::fabs(product);
    }
    double score = dot * s.problem.scale;
    if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
    if (c.alibi) score -= double{s.slopes[head]} * static_cast<double>(band.distance(i, j));
    r.largest = std::max(r.largest, size * s.problem.scale);
    if (c.alibi) r.largest = std::max(r.largest, std::fabs(score));
    scores.push_back(score);
    keys.push_back(j);
    top = std::isnan(score) ? score : std::max(top, score);
  }
  if (keys.size() == 1 && std::isfinite(top)) r.only_key = k0 + keys[0];
  const double sink = c.sink ? s.sink[head] : -std::numeric_limits<double>::infinity();
  top = std::max(top, sink);
  double sum = c.sink && !std::isinf(sink) ? std::exp(sink - top) : 0.0;
  for (double& score : scores) sum += std::exp(score - top);
  for (size_t n = 0; n < scores.size(); ++n) {
    double p = std::exp(scores[n] - top) / sum;
    if (c.dropout > 0) {
      const uint64_t which = static_cast<uint64_t>(batch) * c.q_heads + head;
      p = s.problem.dropout.keeps(which, i, keys[n]) ? p / (1 - c.dropout) : 0.0;
    }
    for (int d = 0; d < c.dv; ++d) {
      const double value = s.v.at(b, k0 + keys[n], kv_head, d);
      r.out[d] += p * value;
      r.magnitude[d] += p * std::fabs(value);
    }
  }
  r.lse =
      sum > 0 || std::isnan(sum) ? top + std::log(sum) : -std::numeric_limits<double>::infinity();
  return r;
}

struct RowId {
  int batch;
  int head;
  int64_t row;
};

// All rows of small problems, the ends and a random sample of large ones.
std::vector<RowId> rows_to_check(const Setup& s, uint64_t seed) {
  const ForwardCase& c = s.c;
  std::mt19937_64 random(seed ^ 0x5eed);
  std::vector<RowId> rows;
  for (int b = 0; b < c.batch; ++b) {
    const int64_t q_len = s.packed ? c.q_lens[b] : c.q;
    for (int h = 0; h < c.q_heads; ++h) {
      for (int64_t i = 0; i < q_len; ++i) rows.push_back({b, h, i});
    }
  }
  const double cost = static_cast<double>(c.kv + 1) * (c.d + c.dv);
  const size_t limit = static_cast<size_t>(std::max(64.0, 6e8 / cost));
  if (rows.size() > limit) {
    std::shuffle(rows.begin() + 1, rows.end() - 1, random);
    std::swap(rows[limit - 1], rows.back());
    rows.resize(limit);
  }
  return rows;
}

struct Comparison {
  double worst = 0;
  double worst_lse = 0;
  std::string first;

  void fail(const std::string& text) {
    if (first.empty()) first = text;
  }
};

std::string place(const RowId& id, int d) {
  std::ostringstream text;
  text << "b=" << id.batch << " h=" << id.head << " row=" << id.row << " d=" << d;
  return text.str();
}

double roundoff(Element element) {
  if (element == Element::kFp32) return std::ldexp(1.0, -24);
  return std::ldexp(1.0, element == Element::kBf16 ? -8 : -11);
}

// Half of the distance between zero and the next output: fp16 has no smaller numbers.
double smallest(Element element) {
  return element == Element::kFp16 ? std::ldexp(1.0, -25) : 1e-30;
}

void compare_row(const Setup& s, const RowId& id, const std::vector<float>& lse,
                 Comparison& worst) {
  const ForwardCase& c = s.c;
  const RowReference r = reference_row(s, id.batch, id.head, id.row);
  const double u_out = roundoff(c.element);
  const double u32 = std::ldexp(1.0, -24);
  const double terms = c.d + std::log2(c.kv + 2.0);
  const double keep = c.dropout > 0 ? 1 / (1 - c.dropout) : 1;
  for (int d = 0; d < c.dv; ++d) {
    const int64_t row = id.row + (s.packed ? s.q_starts[id.batch] : 0);
    const double got = s.out.at(s.packed ? 0 : id.batch, row, id.head, d);
    const double want = r.out[d];
    if (std::isnan(want) != std::isnan(got)) {
      // Rows that hide a NaN value may turn NaN inside a partly masked tile (contracts: NaN).
      if (std::isnan(got) && c.data == Data::kNanValue && d == c.dv / 2) continue;
      worst.fail(place(id, d) + ": got " + std::to_string(got) + ", want " + std::to_string(want));
      worst.worst = std::numeric_limits<double>::infinity();
      return;
    }
    if (std::isnan(want)) continue;
    if (r.only_key >= 0 && !c.sink && c.dropout == 0 && got != want) {
      worst.fail(place(id, d) + ": one key, but out is not v: " + std::to_string(got) + ", " +
                 std::to_string(want));
    }
    // A weight's relative error through its score: 4 u32 (D + log2) G, as the contract words it.
    const double allowed = u_out * std::fabs(want) + u_out * r.magnitude[d] * keep +
                           4 * u32 * terms * std::max(1.0, r.largest) * r.magnitude[d] +
                           smallest(c.element);
    const double error = std::fabs(got - want) / allowed;
    if (error > 1) {
      worst.fail(place(id, d) + ": got " + std::to_string(got) + ", want " + std::to_string(want));
    }
    worst.worst = std::max(worst.worst, error);
  }
  if (!c.lse) return;
  const int64_t total = s.packed ? s.q_rows() : c.q;
  const size_t at = s.packed ? id.head * total + s.q_starts[id.batch] + id.row
                             : (int64_t{id.batch} * c.q_heads + id.head) * total + id.row;
  const double got = lse[at];
  if (std::isnan(r.lse) != std::isnan(got) || std::isinf(r.lse) != std::isinf(got)) {
    worst.fail("lse of " + place(id, 0) + ": got " + std::to_string(got) + ", want " +
               std::to_string(r.lse));
    worst.worst_lse = std::numeric_limits<double>::infinity();
    return;
  }
  if (!std::isfinite(r.lse)) return;
  const double allowed = 4 * u32 * (c.d * std::max(1.0, r.largest) + std::log2(c.kv + 2.0));
  const double error = std::fabs(got - r.lse) / allowed;
  if (error > 1) {
    worst.fail("lse of " + place(id, 0) + ": got " + std::to_string(got) + ", want " +
               std::to_string(r.lse));
  }
  worst.worst_lse = std::max(worst.worst_lse, error);
}

Comparison compare(const Setup& s, const std::vector<float>& lse, uint64_t seed) {
  const std::vector<RowId> rows = rows_to_check(s, seed);
  const unsigned count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<Comparison> results(count);
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = next++; i < rows.size(); i = next++) {
        compare_row(s, rows[i], lse, results[t]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Comparison all;
  for (const Comparison& result : results) {
    all.worst = std::max(all.worst, result.worst);
    all.worst_lse = std::max(all.worst_lse, result.worst_lse);
    if (!result.first.empty()) all.fail(result.first);
  }
  return all;
}

// Elements of out that the problem does not own must still be poison.
bool canaries_alive(const Buffer& out, int64_t owned_rows) {
  std::vector<bool> owned(out.bits.size(), false);
  for (int64_t b = 0; b < out.batch; ++b) {
    for (int64_t s = 0; s < owned_rows; ++s) {
      for (int64_t h = 0; h < out.heads; ++h) {
        for (int64_t d = 0; d < out.dim; ++d) owned[out.index(b, s, h, d)] = true;
      }
    }
  }
  for (size_t i = 0; i < owned.size(); ++i) {
    if (!owned[i] && out.bits[i] != poison(out.element)) return false;
  }
  return true;
}

void set_field(int& field, int value) { field = value; }
template <class Enum>
void set_field(Enum& field, int value) {
  field = static_cast<Enum>(value);
}

ForwardPlan plan_setup(const Setup& s, const DeviceFacts& facts) {
  const bool named = s.c.spec.find("family=1") != std::string::npos;
  ForwardPlan plan =
      named ? plan_family(s.problem, facts, Family::kForwardMma) : plan_forward(s.problem, facts);
  const int section = change_spec(plan.spec, s.c.spec);
  return plan_with_spec(s.problem, facts, plan.spec, section > 0 ? section : plan.section_heads);
}

}  // namespace

ForwardPlan plan_case(const ForwardCase& c) {
  return plan_setup(Setup(c, 1, false), DeviceFacts{});
}

int change_spec(KernelSpec& spec, const std::string& changes) {
  int section = -1;
  std::istringstream words(changes);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t equal = word.find('=');
    const std::string name = word.substr(0, equal);
    const int value = std::atoi(word.c_str() + equal + 1);
    if (name == "section") section = value;
    for_each_field(spec, [&](const char* field, auto& slot) {
      if (name == field) set_field(slot, value);
    });
  }
  return section;
}

std::string describe(const ForwardCase& given) {
  const ForwardCase c = Setup::complete(given);
  std::ostringstream text;
  text << "b=" << c.batch << " hq=" << c.q_heads << " hkv=" << c.kv_heads << " q=" << c.q
       << " kv=" << c.kv << " d=" << c.d << " dv=" << c.dv;
  if (c.left >= 0 || c.right >= 0) text << " window:" << c.left << ":" << c.right;
  if (c.alignment != 0) text << " alignment=" << c.alignment << " offset=" << c.offset;
  if (c.element != Element::kBf16) text << (c.element == Element::kFp16 ? " fp16" : " fp32");
  if (c.layout != Layout::kBshd) text << " layout=" << static_cast<int>(c.layout);
  if (c.data != Data::kNormal) text << " data=" << static_cast<int>(c.data);
  if (!c.q_lens.empty()) text << " packed";
  if (c.softcap > 0) text << " softcap=" << c.softcap;
  if (c.dropout > 0) text << " dropout=" << c.dropout;
  if (c.alibi) text << " alibi";
  if (c.sink) text << " sink";
  if (!c.spec.empty()) text << " [" << c.spec << "]";
  return text.str();
}

Outcome run_case(const ForwardCase& given, uint64_t seed) {
  Setup s(given, seed);
  const ForwardCase& c = s.c;
  for (Buffer* buffer : {&s.q, &s.k, &s.v, &s.out}) buffer->upload();
  const size_t lse_count = static_cast<size_t>(s.slabs() * c.q_heads * s.q_rows());
  const DeviceArray<float> lse(std::vector<float>(lse_count, 12345.0f));
  const DeviceArray<float> slopes(s.slopes);
  const DeviceArray<float> sink(s.sink);
  const DeviceArray<int> q_starts(s.q_starts);
  const DeviceArray<int> kv_starts(s.kv_starts);
  const DeviceArray<unsigned> workspace(std::vector<unsigned>(16, 0xdeadbeef));

  const ForwardPlan plan = plan_setup(s, facts_of(0));
  const Kernel& kernel = load_kernel(plan.spec, 0);
  ForwardViews views;
  views.q = s.q.data();
  views.k = s.k.data();
  views.v = s.v.data();
  views.out = s.out.data();
  views.lse = c.lse ? lse.data() : nullptr;
  views.lse_head = s.q_rows();
  views.lse_batch = s.q_rows() * c.q_heads;
  views.q_starts = q_starts.data();
  views.kv_starts = kv_starts.data();
  views.slopes = slopes.data();
  views.sink = sink.data();

  Outcome outcome;
  const std::vector<uint32_t> poisoned = s.out.bits;
  std::vector<uint32_t> first;
  for (int repeat = 0; repeat < c.repeats; ++repeat) {
    s.out.bits = poisoned;
    s.out.upload();
    run_forward(plan, kernel, views, workspace.data(), nullptr);
    check_cuda(driver().cuCtxSynchronize(), "cuCtxSynchronize");
    s.out.download();
    if (repeat == 0) first = s.out.bits;
    if (s.out.bits != first) {
      outcome.message = "run " + std::to_string(repeat) + " differs bitwise from run 0";
      return outcome;
    }
  }
  const Comparison result = compare(s, lse.download(), seed);
  outcome.worst = result.worst;
  outcome.worst_lse = result.worst_lse;
  outcome.message = result.first;
  if (!canaries_alive(s.out, s.owned_q())) outcome.message = "wrote outside the output";
  outcome.passed = outcome.message.empty();
  return outcome;
}

}  // namespace tilewise::gpu::testing
