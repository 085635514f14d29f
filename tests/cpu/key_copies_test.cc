// How the heads of a batch share the memory of their copies: every head is in one wave, and inside
// a wave no two places overlap or pass the end, for dense and packed batches and any wave size.
#include "cpu/key_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tilewise::cpu {
namespace {

Settings small_blocks(const Problem& problem, bool copy_keys) {
  Settings settings = settings_of(problem);
  settings.copy_keys = copy_keys;
  settings.block_keys = 8;
  settings.key_row = problem.head_dim;
  settings.value_row = problem.value_dim;
  return settings;
}

void expect_apart(const Problem& problem, const Tensors& tensors, bool copy_keys,
                  int64_t wave_heads) {
  SCOPED_TRACE(testing::Message() << wave_heads << " heads a wave, keys " << copy_keys);
  const Settings settings = small_blocks(problem, copy_keys);
  const Addresses addresses(problem, tensors);
  const KeyCopies copies(problem, settings, wave_heads);
  std::vector<float> memory(static_cast<size_t>(copies.floats()));
  int64_t heads = 0;
  for (Wave wave = copies.first_wave(addresses); wave.begin < wave.end;
       wave = copies.next_wave(addresses, wave)) {
    ASSERT_EQ(wave.begin, heads);
    heads = wave.end;
    int64_t past = 0;
    for (int64_t head = wave.begin; head < wave.end; ++head) {
      const KeyCopies::Place place = copies.place(addresses, wave, head, memory.data());
      const int64_t kv_len = addresses.sequence(head / problem.kv_heads).band.kv_len;
      const int64_t rows = (kv_len + 7) / 8 * 8;
      EXPECT_EQ(place.keys == nullptr, !copy_keys);
      int64_t begin = place.values - memory.data();
      if (copy_keys) {
        EXPECT_EQ(place.values - place.keys, rows * settings.key_row);
        begin = place.keys - memory.data();
      }
      EXPECT_GE(begin, past);
      past = place.values - memory.data() + rows * settings.value_row;
      EXPECT_LE(past, copies.floats());
    }
  }
  EXPECT_EQ(heads, problem.batch * problem.kv_heads);
}

TEST(KeyCopies, OfADenseBatchLieApart) {
  Tensors tensors;
  tensors.q = Tensor::bshd(nullptr, DType::f32, 3, 20, 6, 5);
  tensors.k = Tensor::bshd(nullptr, DType::f32, 3, 33, 2, 5);
  tensors.v = Tensor::bshd(nullptr, DType::f32, 3, 33, 2, 7);
  tensors.out = Tensor::bshd(nullptr, DType::f32, 3, 20, 6, 7);
  const Problem problem = make_problem(Direction::forward, tensors, {});
  for (int64_t wave_heads : {0, 1, 2, 4, 6, 100}) {
    expect_apart(problem, tensors, true, wave_heads);
    expect_apart(problem, tensors, false, wave_heads);
  }
}

TEST(KeyCopies, OfAPackedBatchLieApart) {
  std::vector<int32_t> offsets = {0, 5, 5, 21, 22, 60, 61};
  const auto sequences = static_cast<int64_t>(offsets.size()) - 1;
  Tensors tensors;
  tensors.q = Tensor::contiguous(nullptr, DType::f32, {61, 4, 5});
  tensors.k = tensors.v = Tensor::contiguous(nullptr, DType::f32, {61, 2, 5});
  tensors.out = tensors.q;
  tensors.cu_seqlens_q = tensors.cu_seqlens_kv =
      Tensor::contiguous(offsets.data(), DType::i32, {sequences + 1});
  const Problem problem = make_problem(Direction::forward, tensors, {});
  for (int64_t wave_heads : {1, 2, 3, 100}) expect_apart(problem, tensors, true, wave_heads);
}

}  // namespace
}  // namespace tilewise::cpu
