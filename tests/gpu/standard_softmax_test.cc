// kernels/standard_softmax.cuh on the host, thread by thread (host/kernels/ptx.cuh), against the
// softmax in double: masks, rows without keys, padding, one to four vectors a thread.
#include "kernels/standard_softmax.cuh"

#include <cstdio>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace tilewise;
using namespace tilewise::gpu;

struct Shape {
  int batch, heads, q_len, kv_len;
  semantics::MaskRule rule;
  int row_stride() const { return (kv_len + 7) / 8 * 8; }
  int rows() const { return batch * heads * q_len; }
};

float float_of_bf16(unsigned short bits) { return std::bit_cast<float>(unsigned{bits} << 16); }

template <int kThreads, int kVectors>
void run(const Shape& s, std::vector<unsigned short>& matrix, std::vector<float>& lse) {
  std::barrier all(kThreads);
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  for (int i = 0; i < kThreads / 32; ++i) {
    warps.push_back(std::make_unique<std::barrier<>>(32));
    host_block.warps[i] = warps.back().get();
  }
  host_block.all = &all;
  gridDim = {static_cast<unsigned>(s.q_len), static_cast<unsigned>(s.heads),
             static_cast<unsigned>(s.batch)};
  const auto work = [&](unsigned thread) {
    threadIdx = {thread};
    for (int row = 0; row < s.rows(); ++row) {
      const int head = row / s.q_len;
      if (thread == 0) {
        blockIdx = {static_cast<unsigned>(row % s.q_len), static_cast<unsigned>(head % s.heads),
                    static_cast<unsigned>(head / s.heads)};
      }
      all.arrive_and_wait();
      standard_softmax<Element::kBf16, kThreads, kVectors>(
          matrix.data(), lse.data(), int64_t{s.heads} * s.q_len, s.q_len, s.rule, s.q_len, s.kv_len,
          s.row_stride());
      all.arrive_and_wait();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
}

// Rounding of a weight to bf16 is 2^-9 of it.
bool near(double found, double expected) {
  return found == expected || std::fabs(found - expected) <= 0.004 * std::fabs(expected) + 1e-6;
}

template <int kThreads, int kVectors>
int wrong_numbers(const Shape& s) {
  const int stride = s.row_stride();
  std::vector<unsigned short> matrix(static_cast<size_t>(s.rows() * stride), 0x7fc0);  // NaN
  std::vector<float> lse(static_cast<size_t>(s.rows()), -7);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  for (int row = 0; row < s.rows(); ++row) {
    for (int key = 0; key < s.kv_len; ++key) {
      matrix[row * stride + key] = static_cast<unsigned short>(bf16_of(normal(random)));
    }
  }
  const std::vector<unsigned short> scores = matrix;
  run<kThreads, kVectors>(s, matrix, lse);
  const semantics::Band band = semantics::make_band(s.rule, s.q_len, s.kv_len);
  int wrong = 0;
  for (int row = 0; row < s.rows(); ++row) {
    const semantics::KeyRange keys = band.keys_of_row(row % s.q_len);
    double sum = 0;
    for (auto key = keys.begin; key < keys.end; ++key) {
      sum += std::exp(double{float_of_bf16(scores[row * stride + key])});
    }
    for (int key = 0; key < stride; ++key) {
      const bool visible = key >= keys.begin && key < keys.end;
      const double score = float_of_bf16(scores[row * stride + key]);
      const double expected = visible ? std::exp(score) / sum : 0;
      wrong += near(float_of_bf16(matrix[row * stride + key]), expected) ? 0 : 1;
    }
    wrong += near(lse[row], std::log(sum)) ? 0 : 1;
  }
  return wrong;
}

}  // namespace

int main() {
  const semantics::MaskRule everything{-1, -1, 0, 0};
  const semantics::MaskRule causal{-1, 0, 0, 0};
  int failed = 0;
  const auto expect_none = [&](const char* what, int wrong) {
    std::printf("%s %s: %d wrong\n", wrong == 0 ? "ok  " : "FAIL", what, wrong);
    failed += wrong == 0 ? 0 : 1;
  };
  expect_none("batch and heads", wrong_numbers<128, 1>({2, 3, 5, 70, everything}));
  expect_none("several vectors", wrong_numbers<128, 4>({1, 2, 9, 4000, causal}));
  expect_none("rows without keys", wrong_numbers<64, 2>({1, 1, 30, 9, causal}));
  expect_none("window", wrong_numbers<128, 1>({2, 2, 20, 33, {3, 2, 0, 0}}));
  std::printf("%d passed, %d failed\n", 4 - failed, failed);
  return failed == 0 ? 0 : 1;
}
