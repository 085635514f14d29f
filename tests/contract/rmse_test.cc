// contracts.md, "Accuracy": the root mean square error of a result, against that of a plain
// computation in the same precision: at most 1.25 of it forward, 1.5 for gradients. A bound for
// each element says that nothing is wrong; this says that the kernel is as good as it could be.
//
// Plain: the formulas of reference.h row by row with float32 sums, weights (P and dS) rounded to
// the element type before they are multiplied, as matrix units take them, and the result rounded to
// it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "problem.h"
#include "reference/reference.h"
#include "semantics/mask.h"
#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

using Numbers = std::vector<float>;

// A dense Case without options, in floats: [row][head][column].
class Plain {
 public:
  explicit Plain(const CaseTensors& tensors)
      : case_(tensors.text()),
        band_(semantics::make_band(
            make_problem(Direction::forward, tensors.forward(), tensors.options()).mask_rule(),
            case_.q, case_.kv)),
        scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(case_.d)))),
        q_(floats_of(tensors, Arg::q)),
        k_(floats_of(tensors, Arg::k)),
        v_(floats_of(tensors, Arg::v)),
        d_out_(floats_of(tensors, Arg::d_out)),
        out(static_cast<size_t>(case_.q * case_.hq * case_.dv)),
        d_q(q_.size()),
        d_k(k_.size()),
        d_v(v_.size()) {
    for (int64_t head = 0; head < case_.hq; ++head) {
      for (int64_t i = 0; i < case_.q; ++i) attend(i, head);
    }
    for (Numbers* numbers : {&out, &d_q, &d_k, &d_v}) {
      for (float& number : *numbers) number = rounded(number);
    }
  }

 private:
  static Numbers floats_of(const CaseTensors& tensors, Arg arg) {
    const std::vector<double> values = values_of(tensors, arg);
    return {values.begin(), values.end()};
  }
  float rounded(float x) const {
    return static_cast<float>(reference::round_to(case_.dtype, static_cast<double>(x)));
  }
  static float dot(const float* a, const float* b, int64_t count) {
    float sum = 0;
    for (int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
    return sum;
  }
  static void add(float factor, const float* x, int64_t count, float* sum) {
    for (int64_t d = 0; d < count; ++d) sum[d] += factor * x[d];
  }
  static float* row(Numbers& x, int64_t i, int64_t head, int64_t heads, int64_t dim) {
    return x.data() + (i * heads + head) * dim;
  }

  void attend(int64_t i, int64_t head) {
    const int64_t kv_head = head / (case_.hq / case_.hkv);
    const semantics::KeyRange keys = band_.keys_of_row(i);
    const float* const query = row(q_, i, head, case_.hq, case_.d);
    Numbers weights;
    float top = -HUGE_VALF;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      weights.push_back(scale_ * dot(query, row(k_, j, kv_head, case_.hkv, case_.d), case_.d));
      top = std::fmax(top, weights.back());
    }
    float sum = 0;
    for (float& weight : weights) sum += weight = std::exp(weight - top);
    for (float& weight : weights) weight /= sum;
    float* const result = row(out, i, head, case_.hq, case_.dv);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      add(rounded(weights[static_cast<size_t>(j - keys.begin)]),
          row(v_, j, kv_head, case_.hkv, case_.dv), case_.dv, result);
    }
    const float* const d_out = row(d_out_, i, head, case_.hq, case_.dv);
    float delta = 0;
    for (int64_t d = 0; d < case_.dv; ++d) delta += d_out[d] * rounded(result[d]);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const float weight = weights[static_cast<size_t>(j - keys.begin)];
      const float d_weight = dot(d_out, row(v_, j, kv_head, case_.hkv, case_.dv), case_.dv);
      const float d_score = scale_ * rounded(weight * (d_weight - delta));
      add(rounded(weight), d_out, case_.dv, row(d_v, j, kv_head, case_.hkv, case_.dv));
      add(d_score, query, case_.d, row(d_k, j, kv_head, case_.hkv, case_.d));
      add(d_score, row(k_, j, kv_head, case_.hkv, case_.d), case_.d,
          row(d_q, i, head, case_.hq, case_.d));
    }
  }

  Case case_;
  semantics::Band band_;
  float scale_;
  Numbers q_, k_, v_, d_out_;

 public:
  Numbers out, d_q, d_k, d_v;
};

template <class Values>
double rmse(const std::vector<double>& exact, const Values& got) {
  double squares = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = static_cast<double>(got.at(i)) - exact[i];
    squares += error * error;
  }
  return std::sqrt(squares / static_cast<double>(exact.size()));
}

void expect_as_good_as_plain(const std::string& text) {
  const CaseTensors tensors(parse_case(text));
  const Problem problem = make_problem(Direction::backward, tensors.backward(), tensors.options());
  const reference::Result64 forward = reference::forward(problem, tensors.forward());
  const reference::Gradients64 backward = reference::backward(problem, tensors.backward());
  const Plain plain(tensors);
  const auto expect = [&](const Target& target, Arg arg, const std::vector<double>& exact,
                          const Numbers& same, double most) {
    const double ratio = rmse(exact, values_of(tensors, arg)) / rmse(exact, same);
    EXPECT_LE(ratio, most) << text << " " << name_of(arg);
    ::testing::Test::RecordProperty(target.name() + " " + std::string(name_of(arg)) + " of " + text,
                                    std::to_string(ratio));
  };
  for_each_target([&](const Target& target) {
    run_case(tensors, target);
    expect(target, Arg::out, forward.out.value, plain.out, 1.25);
    if (!target.can_backward()) return;
    expect(target, Arg::d_q, backward.d_q.value, plain.d_q, 1.5);
    expect(target, Arg::d_k, backward.d_k.value, plain.d_k, 1.5);
    expect(target, Arg::d_v, backward.d_v.value, plain.d_v, 1.5);
  });
}

TEST(Rmse, IsNoWorseThanAPlainComputationInTheSamePrecision) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const char* sizes : {"hq=4 hkv=2 q=150 kv=150 d=64", "hq=2 q=70 kv=300 d=40 dv=24"}) {
      for (const char* mask : {"none", "causal"}) {
        expect_as_good_as_plain(std::string(sizes) + " dir=bwd dtype=" + dtype + " mask=" + mask);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::test
