// What only a GPU can show, through the public API on GPU 0: graph capture, streams, the current
// device, bits under contention, offsets beyond 2^32 elements, the cost of a planned call. That
// results are right is judged by tests/contract and tests/random with the gpu backend.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "device_call.h"
#include "reference/element.h"

namespace tilewise::gpu::testing {
namespace {

// One kernel of each tile, more units than the GPU has multiprocessors.
constexpr const char* kRepeated[] = {
    "b=2 hq=40 q=300 kv=350 d=64 mask=causal dtype=bf16",
    "b=2 hq=40 hkv=8 q=300 kv=350 d=96 mask=causal dtype=fp16 data=outlier",
    "b=2 hq=40 hkv=8 q=300 kv=350 d=128 dtype=bf16 data=large",
    "hq=40 hkv=8 qlens=100,0,257,64,1,500 d=128 mask=causal dtype=bf16 sink=1",
    "b=2 hq=40 q=200 kv=350 d=256 mask=window:70:3 dtype=bf16 softcap=20",
    "b=2 hq=40 q=200 d=64 dtype=fp16 dropout=0.2 alibi=1"};

TEST(Repeats, AThousandUnderContentionGiveTheSameBits) {
  const DeviceCall noise("b=4 hq=16 q=1024 d=128 dtype=bf16");
  const Stream own;
  const Stream other;
  for (const char* text : kRepeated) {
    DeviceCall call(text);
    call.enqueue(own);
    const std::vector<std::byte> first = call.results();
    for (int run = 1; run < 1000; ++run) {
      if (run % 3 == 0) noise.enqueue(other);
      call.enqueue(own);
      if (run % 50 != 0 && run < 995) continue;  // the copy takes longer than the call
      ASSERT_EQ(call.results(), first) << text << " run " << run;
    }
  }
}

TEST(Streams, TwoAtOnceGiveTheBitsOfOneAfterTheOther) {
  DeviceCall a("b=2 hq=16 q=700 d=128 mask=causal dtype=bf16 seed=1");
  DeviceCall b("b=2 hq=16 q=700 d=128 mask=causal dtype=bf16 seed=2");
  const Stream first;
  const Stream second;
  a.enqueue(first);
  const std::vector<std::byte> alone_a = a.results();
  b.enqueue(first);
  const std::vector<std::byte> alone_b = b.results();
  ASSERT_NE(alone_a, alone_b);
  for (int run = 0; run < 100; ++run) {
    a.enqueue(first);
    b.enqueue(second);
  }
  EXPECT_EQ(a.results(), alone_a);
  EXPECT_EQ(b.results(), alone_b);
}

TEST(Streams, ManyThreadsShareAPlan) {
  DeviceCall shared("b=2 hq=16 q=200 d=64 dtype=bf16");
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::byte>> results(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      DeviceCall own("b=2 hq=16 q=200 d=64 dtype=bf16");
      const Stream stream;
      const DeviceBuffer workspace(shared.plan().workspace_bytes(), 0);
      for (int run = 0; run < 50; ++run) {
        shared.plan().run(own.on_device(), workspace.data(), workspace.bytes(), stream.get());
      }
      stream.wait();
      results[static_cast<size_t>(t)] = own.results();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Stream stream;
  shared.enqueue(stream);
  for (const auto& result : results) EXPECT_EQ(result, shared.results());
}

// The graph of a call, made without running it.
class Graph {
 public:
  Graph(const DeviceCall& call, const Stream& stream) {
    const ScopedDevice scope(0);
    const Driver& d = driver();
    CUgraph graph = nullptr;
    check_cuda(d.cuStreamBeginCapture(stream.get(), kCaptureThreadLocal), "cuStreamBeginCapture");
    call.enqueue(stream);
    check_cuda(d.cuStreamEndCapture(stream.get(), &graph), "cuStreamEndCapture");
    check_cuda(d.cuGraphInstantiateWithFlags(&exec_, graph, 0), "cuGraphInstantiate");
    d.cuGraphDestroy(graph);
  }
  ~Graph() {
    const ScopedDevice scope(0);
    driver().cuGraphExecDestroy(exec_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(const Stream& stream) const {
    const ScopedDevice scope(0);
    check_cuda(driver().cuGraphLaunch(exec_, stream.get()), "cuGraphLaunch");
  }

 private:
  CUgraphExec exec_ = nullptr;
};

// The memory of another Case of the same sizes, as the tensors of `call`, on the device too.
void take_inputs(DeviceCall& call, const std::string& text) {
  CaseTensors& to = call.tensors();
  const CaseTensors from(parse_case(text));
  const std::vector<std::span<std::byte>> source = from.memory();
  const std::vector<std::span<std::byte>> target = to.memory();
  for (size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(source[i].size(), target[i].size());
    std::memcpy(target[i].data(), source[i].data(), source[i].size());
  }
  to.poison_outputs();
  to.seal_inputs();
  call.mirror().upload();
}

TEST(Graphs, ReplayReadsTheInputsAgain) {
  const std::string text = "b=2 hq=8 q=150 kv=200 d=64 mask=causal dtype=bf16";
  DeviceCall captured(text);
  const Stream stream;
  const Graph graph(captured, stream);
  std::vector<std::byte> before;
  for (const char* seed : {"", " seed=7"}) {
    DeviceCall fresh(text + seed);
    fresh.enqueue(stream);
    take_inputs(captured, text + seed);
    graph.launch(stream);
    const std::vector<std::byte> results = captured.results();
    EXPECT_EQ(results, fresh.results());
    EXPECT_NE(results, before);
    before = results;
  }
}

// Captured with some lengths, replayed with others: they are read on the device.
TEST(Graphs, ReplayReadsTheLengthsAgain) {
  const std::string rest = " hq=8 hkv=2 d=128 mask=causal dtype=bf16";
  Options bounds;
  bounds.max_q_len = bounds.max_kv_len = 300;
  const char* const lengths[] = {"qlens=100,150,50 kvlens=120,150,30",
                                 "qlens=0,300,0 kvlens=0,300,0", "qlens=1,16,283 kvlens=16,1,283",
                                 "qlens=100,100,100 kvlens=0,0,300"};
  DeviceCall captured(lengths[0] + rest, bounds);
  const Stream stream;
  const Graph graph(captured, stream);
  for (const char* text : lengths) {
    DeviceCall fresh(text + rest, bounds);
    fresh.enqueue(stream);
    const std::vector<std::byte> expected = fresh.results();
    take_inputs(captured, text + rest);
    graph.launch(stream);
    EXPECT_EQ(captured.results(), expected) << text;
  }
}

TEST(CurrentDevice, IsUnchanged) {
  const DeviceCall call("hq=2 q=64 d=64 dtype=bf16");
  const Stream stream;
  const auto current = [] {
    CUcontext context = nullptr;
    check_cuda(driver().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    return context;
  };
  EXPECT_EQ(current(), nullptr);
  call.enqueue(stream);
  EXPECT_EQ(current(), nullptr);
  const ScopedDevice scope(0);
  const CUcontext before = current();
  EXPECT_NE(before, nullptr);
  call.enqueue(stream);
  EXPECT_EQ(current(), before);
}

// forward() makes its plan and takes its workspace from the stream.
TEST(Forward, OnDeviceTensorsEqualsPlanAndRun) {
  DeviceCall call("b=2 hq=4 q=100 d=64 mask=causal dtype=fp16");
  const Stream stream;
  call.enqueue(stream);
  const std::vector<std::byte> expected = call.results();
  call.tensors().poison_outputs();
  call.mirror().upload();
  Options options = call.tensors().options();
  for (int i = 0; i < 3; ++i) forward(call.on_device(), options, stream.get());
  EXPECT_EQ(call.results(), expected);
}

TEST(Plans, RefuseAHostWorkspaceSizeThatIsTooSmall) {
  const DeviceCall call("hq=2 q=64 d=64 dtype=bf16");
  try {
    call.plan().run(call.on_device(), nullptr, 0);
    ADD_FAILURE() << "ran without a workspace";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::workspace_too_small);
    EXPECT_STREQ(error.what(),
                 "tilewise::forward: workspace is 0 bytes, expected at least 64 "
                 "(from Plan::workspace_bytes)");
  }
}

// A tensor [b, rows, heads, dim] of 2-byte elements moved to other batch and row strides.
class Spread {
 public:
  Spread(const Tensor& host, int64_t batch_stride, int64_t row_stride) : host_(host) {
    const int64_t last = (host.size[0] - 1) * batch_stride + (host.size[1] - 1) * row_stride;
    memory_ = DeviceBuffer(static_cast<size_t>(last * 2 + row_bytes()), 0);
    view_ = host;
    view_.device = {DeviceType::cuda, 0};
    view_.data = memory_.data();
    view_.stride[0] = batch_stride;
    view_.stride[1] = row_stride;
    for_each_row([&](int64_t from, int64_t to) {
      memory_.upload(bytes_of(host_) + from, static_cast<size_t>(row_bytes()),
                     static_cast<size_t>(to));
    });
  }
  const Tensor& view() const { return view_; }
  void copy_back() const {
    synchronize(0);
    for_each_row([&](int64_t from, int64_t to) {
      memory_.download(bytes_of(host_) + from, static_cast<size_t>(row_bytes()),
                       static_cast<size_t>(to));
    });
  }

 private:
  static std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }
  int64_t row_bytes() const { return 2 * host_.size[2] * host_.size[3]; }
  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t b = 0; b < host_.size[0]; ++b) {
      for (int64_t s = 0; s < host_.size[1]; ++s) {
        visit(2 * (b * host_.stride[0] + s * host_.stride[1]),
              2 * (b * view_.stride[0] + s * view_.stride[1]));
      }
    }
  }
  Tensor host_;
  Tensor view_;
  DeviceBuffer memory_;
};

TEST(BigOffsets, ByStrideInEveryTensor) {
  const std::string text = "b=2 hq=4 hkv=4 q=17 kv=17 d=64 mask=causal dtype=bf16";
  DeviceCall plain(text);
  const Stream stream;
  plain.enqueue(stream);
  const std::vector<std::byte> expected = plain.results();
  struct Strides {
    int64_t batch, row;
  };
  for (const Strides& strides :
       {Strides{(int64_t{1} << 32) + 64, 256}, Strides{256, (int64_t{1} << 28) + 512}}) {
    for (const Arg arg : {Arg::q, Arg::k, Arg::v, Arg::out}) {
      plain.tensors().poison_outputs();
      plain.mirror().upload();
      const Spread moved(tensor_of(plain.tensors().forward(), arg), strides.batch, strides.row);
      Tensors call = plain.on_device();
      tensor_of(call, arg) = moved.view();
      Options options = plain.tensors().options();
      options.backend = "gpu";
      const Plan plan = make_plan(Direction::forward, call, options);
      const DeviceBuffer workspace(plan.workspace_bytes(), 0);
      plan.run(call, workspace.data(), workspace.bytes(), stream.get());
      stream.wait();
      if (arg == Arg::out) {
        plain.mirror().download();
        moved.copy_back();
        plain.mirror().upload();
      }
      EXPECT_EQ(plain.results(), expected)
          << name_of(arg) << " strides " << strides.batch << " and " << strides.row;
    }
  }
}

Tensor device_view(const DeviceBuffer& memory, DType dtype, std::initializer_list<int64_t> sizes) {
  Tensor tensor = Tensor::contiguous(memory.data(), dtype, sizes);
  tensor.device = {DeviceType::cuda, 0};
  return tensor;
}

// One call on tensors of ones (k: zeros), every element of out is 1.
void expect_ones(int64_t rows, int64_t keys) {
  constexpr int64_t kDim = 64;
  constexpr uint32_t kOnes = 0x3f803f80;  // two of bf16
  SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(keys) + " keys");
  const DeviceBuffer q(static_cast<size_t>(2 * rows * kDim), 0);
  const DeviceBuffer out(static_cast<size_t>(2 * rows * kDim), 0);
  const DeviceBuffer k(static_cast<size_t>(2 * keys * kDim), 0);
  const DeviceBuffer v(static_cast<size_t>(2 * keys * kDim), 0);
  const DeviceBuffer lse(static_cast<size_t>(4 * rows), 0);
  q.fill(kOnes);
  k.fill(0);
  v.fill(kOnes);
  out.fill(0xFFFFFFFF);
  lse.fill(0xFFFFFFFF);
  Tensors call;
  call.q = device_view(q, DType::bf16, {1, rows, 1, kDim});
  call.k = device_view(k, DType::bf16, {1, keys, 1, kDim});
  call.v = device_view(v, DType::bf16, {1, keys, 1, kDim});
  call.out = device_view(out, DType::bf16, {1, rows, 1, kDim});
  call.lse = device_view(lse, DType::f32, {1, 1, rows});
  Options options;
  options.backend = "gpu";
  forward(call, options);
  synchronize(0);
  constexpr int64_t kChunk = int64_t{1} << 26;  // elements
  std::vector<uint16_t> chunk(static_cast<size_t>(std::min(kChunk, rows * kDim)));
  for (int64_t first = 0; first < rows * kDim; first += kChunk) {
    // Of large outputs the ends are enough, and what lies around 2^31 and 2^32.
    const bool looked_at = first == 0 || first + kChunk >= rows * kDim ||
                           (first >> 31) != ((first + kChunk) >> 31) ||
                           (first >> 31) != ((first - 1) >> 31);
    if (!looked_at) continue;
    const int64_t count = std::min(kChunk, rows * kDim - first);
    out.download(chunk.data(), static_cast<size_t>(2 * count), static_cast<size_t>(2 * first));
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) wrong += chunk[static_cast<size_t>(i)] != 0x3f80;
    EXPECT_EQ(wrong, 0) << "from element " << first;
  }
  float last = 0;
  lse.download(&last, 4, static_cast<size_t>(4 * (rows - 1)));
  EXPECT_NEAR(last, std::log(static_cast<double>(keys)), 1e-4);
}

TEST(BigOffsets, BySizeOfKeys) {
  expect_ones(1, (int64_t{1} << 25) + 3);
  expect_ones(1, (int64_t{1} << 26) + 3);
}

TEST(BigOffsets, BySizeOfRows) {
  expect_ones((int64_t{1} << 25) + 3, 1);
  expect_ones((int64_t{1} << 26) + 3, 1);
}

// Printed and recorded, not judged: tests do not time. The queue is emptied before it can fill.
TEST(HostCost, OfAPlannedCall) {
  using Clock = std::chrono::steady_clock;
  const DeviceCall call("hq=2 q=64 d=64 dtype=bf16");
  const Tensors tensors = call.on_device();
  const Stream stream;
  const DeviceBuffer workspace(call.plan().workspace_bytes(), 0);
  const ScopedDevice scope(0);  // as a caller who works on this device has it
  constexpr int kCalls = 100;
  double best = 1e9;
  for (int batch = 0; batch < 50; ++batch) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      call.plan().run(tensors, workspace.data(), workspace.bytes(), stream.get());
    }
    const std::chrono::duration<double, std::micro> spent = Clock::now() - start;
    stream.wait();
    best = std::min(best, spent.count() / kCalls);
  }
  std::printf("host cost of a planned call: %.2f us\n", best);
}

}  // namespace
}  // namespace tilewise::gpu::testing
