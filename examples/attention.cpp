// Causal attention in C++: forward, then the gradients of q, k and v. Grouped heads: four query
// heads share two key heads. Every Tensor is a view of memory you own.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <tilewise/tilewise.hpp>
#include <vector>

using tilewise::DType;
using tilewise::Tensor;

constexpr int64_t kBatch = 1, kLen = 1000, kQueryHeads = 4, kKeyHeads = 2, kDim = 64;

std::vector<float> waves(int64_t heads, double step) {
  std::vector<float> values(static_cast<size_t>(kBatch * kLen * heads * kDim));
  double phase = 0;
  for (float& value : values) value = static_cast<float>(std::sin(phase += step));
  return values;
}

Tensor view(std::vector<float>& memory, int64_t heads) {  // [b, s, h, d]
  return Tensor::bshd(memory.data(), DType::f32, kBatch, kLen, heads, kDim);
}

int main() {
  std::vector<float> q = waves(kQueryHeads, 0.37), k = waves(kKeyHeads, 0.71);
  std::vector<float> v = waves(kKeyHeads, 1.13), d_out = waves(kQueryHeads, 0.19);
  std::vector<float> out(q.size()), d_q(q.size()), d_k(k.size()), d_v(v.size());
  std::vector<float> lse(kBatch * kQueryHeads * kLen);

  tilewise::Tensors tensors;
  tensors.q = view(q, kQueryHeads);
  tensors.k = view(k, kKeyHeads);
  tensors.v = view(v, kKeyHeads);
  tensors.out = view(out, kQueryHeads);
  tensors.lse = Tensor::contiguous(lse.data(), DType::f32, {kBatch, kQueryHeads, kLen});
  const tilewise::Options options{.mask = tilewise::Mask::causal()};
  try {
    tilewise::forward(tensors, options);

    tensors.d_out = view(d_out, kQueryHeads);
    tensors.d_q = view(d_q, kQueryHeads);
    tensors.d_k = view(d_k, kKeyHeads);
    tensors.d_v = view(d_v, kKeyHeads);
    tilewise::backward(tensors, options);
  } catch (const tilewise::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  // Row 0 of a causal mask sees key 0 alone, so its output is the first row of v.
  std::printf("tilewise %s: out[0] = %g, v[0] = %g, d_q[last] = %g\n",
              std::string(tilewise::version()).c_str(), out[0], v[0], d_q.back());
  return out[0] == v[0] ? 0 : 1;
}
