// Times by events of loops that do one thing only, best of a few: nothing here may be slower than
// attention. Buffers are far larger than the L2 cache.
#include "device_roofs.h"

#include <algorithm>
#include <vector>

#include "cublas.h"
#include "device.h"
#include "driver.h"
#include "launch.h"
#include "module.h"

namespace tilewise {

namespace {

constexpr int kTries = 5;
constexpr int64_t kSide = 8192;              // of the matrices
constexpr size_t kBufferBytes = 1ull << 30;  // to read and to copy
constexpr int kThreads = 512;
constexpr int kExpChains = 8;
constexpr int kExpRounds = 4096;
constexpr int kAttributeSharedOfMultiprocessor = 81;

constexpr const char* kStub =
    "#include \"kernels/roofs.cuh\"\n"
    "using namespace tilewise::gpu;\n"
    "extern \"C\" __global__ void __launch_bounds__(512)\n"
    "read_kernel(const uint4* from, uint4* to, long long vectors) { read_all(from, to, vectors); "
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(512)\n"
    "copy_kernel(const uint4* from, uint4* to, long long vectors) { copy_all(from, to, vectors); "
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(512)\n"
    "exp_kernel(float* to, int rounds) { exponentiate(to, rounds); }\n";

double best_seconds(int device, const std::function<void()>& enqueue) {
  enqueue();
  double best = seconds_on_device(device, 1, enqueue);
  for (int i = 1; i < kTries; ++i) best = std::min(best, seconds_on_device(device, 4, enqueue));
  return best;
}

void launch(gpu::CUfunction kernel, int blocks, void** arguments) {
  gpu::check_cuda(gpu::driver().cuLaunchKernel(kernel, static_cast<unsigned>(blocks), 1, 1,
                                               kThreads, 1, 1, 0, nullptr, arguments, nullptr),
                  "cuLaunchKernel");
}

// Zeros and constants take less power and run faster than what attention multiplies.
void fill_with_random(const DeviceBuffer& buffer, DType dtype) {
  std::vector<uint16_t> numbers(1 << 22);
  uint32_t state = 1;
  for (uint16_t& number : numbers) {
    state = state * 1664525u + 1013904223u;
    const uint32_t sign_and_fraction = (state >> 16) & (dtype == DType::f16 ? 0x83ffu : 0x807fu);
    number = static_cast<uint16_t>(sign_and_fraction | (dtype == DType::f16 ? 0x3800u : 0x3f00u));
  }
  const size_t bytes = numbers.size() * sizeof(uint16_t);
  for (size_t at = 0; at + bytes <= buffer.bytes(); at += bytes) {
    buffer.upload(numbers.data(), bytes, at);
  }
}

double matrix_rate(int device, DType dtype) {
  const DeviceBuffer buffer(3 * kSide * kSide * 2, device);
  fill_with_random(buffer, dtype);
  const auto matrix = [&](int64_t index) {
    return gpu::Matrices{buffer.data() + index * kSide * kSide * 2, kSide, 0, index == 0};
  };
  gpu::Product product;
  product.element = dtype == DType::f16 ? gpu::Element::kFp16 : gpu::Element::kBf16;
  product.rows = product.columns = product.inner = kSide;
  product.factor = 1.0f / kSide;
  product.a = matrix(0);
  product.b = matrix(1);
  product.c = matrix(2);
  const gpu::ScopedDevice scope(device);
  const double seconds = best_seconds(device, [&] { gpu::multiply(product, device, nullptr); });
  return 2.0 * kSide * kSide * kSide / seconds;
}

}  // namespace

DeviceRoofs measure_device_roofs(int device, DType dtype) {
  const gpu::DeviceFacts facts = gpu::facts_of(device);
  DeviceRoofs roofs;
  roofs.multiprocessors = facts.multiprocessors;
  roofs.l2_bytes = facts.l2_bytes;
  int shared = 0;
  gpu::check_cuda(
      gpu::driver().cuDeviceGetAttribute(&shared, kAttributeSharedOfMultiprocessor, device),
      "cuDeviceGetAttribute");
  roofs.shared_bytes = shared;
  roofs.flops_per_s = matrix_rate(device, dtype);

  const gpu::ScopedDevice scope(device);
  const DeviceBuffer from(kBufferBytes, device);
  const DeviceBuffer to(kBufferBytes, device);
  from.fill(0x3f813f81);
  to.fill(0);
  const int blocks = 4 * facts.multiprocessors;
  const gpu::CUfunction read = gpu::load_stub(kStub, "read_kernel", device);
  const gpu::CUfunction copy = gpu::load_stub(kStub, "copy_kernel", device);
  const gpu::CUfunction exponentials = gpu::load_stub(kStub, "exp_kernel", device);
  std::byte* first = from.data();
  std::byte* second = to.data();
  auto vectors = static_cast<long long>(kBufferBytes / 16);
  void* moved[] = {&first, &second, &vectors};
  roofs.read_bytes_per_s = static_cast<double>(kBufferBytes) /
                           best_seconds(device, [&] { launch(read, blocks, moved); });
  roofs.copy_bytes_per_s = 2.0 * static_cast<double>(kBufferBytes) /
                           best_seconds(device, [&] { launch(copy, blocks, moved); });
  int rounds = kExpRounds;
  void* counted[] = {&second, &rounds};
  const double exps = 1.0 * kExpChains * kExpRounds * kThreads * blocks;
  roofs.exps_per_s = exps / best_seconds(device, [&] { launch(exponentials, blocks, counted); });
  return roofs;
}

}  // namespace tilewise
