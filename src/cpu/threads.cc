// The pool: workers spin for a short while after each job, then sleep. A job is published under a
// mutex; each thread that joins claims a worker number; the caller is worker 0, and when it has run
// out of tasks it closes the job and waits for those that joined. A sleeping worker that wakes too
// late finds the job closed, so nobody ever waits for a thread to wake.
#include "cpu/threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "error.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {
namespace cpu {

namespace {

constexpr int kSpinRounds = 4000;  // some tens of microseconds
constexpr int kMaxThreads = 1024;

// One parallel_for, shared by its workers.
struct Job {
  std::atomic<int64_t> next{0};
  int64_t tasks = 0;
  void (*body)(void*, int64_t, int) = nullptr;
  void* context = nullptr;

  void work(int worker) {
    for (int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
         task = next.fetch_add(1, std::memory_order_relaxed)) {
      body(context, task, worker);
    }
  }
};

class Pool {
 public:
  // False: the pool is busy, nothing was done.
  bool run(Job& job, int workers) {
    std::unique_lock<std::mutex> busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) return false;
    start_threads(workers - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      next_worker_ = 1;
      workers_ = workers;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work(0);
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // nobody joins any more
    for (int round = 0; active_ > 0 && round < kSpinRounds; ++round) {
      lock.unlock();
      pause_thread(round);
      lock.lock();
    }
    done_.wait(lock, [&] { return active_ == 0; });
    return true;
  }

 private:
  void start_threads(int wanted) {
    while (threads_ < std::min(wanted, kMaxThreads - 1)) {
      try {
        std::thread(&Pool::serve, this).detach();
      } catch (const std::system_error&) {
        return;  // fewer threads do the work
      }
      ++threads_;
    }
  }

  void serve() {
    uint64_t seen = 0;
    while (true) {
      for (int round = 0; round < kSpinRounds; ++round) {
        if (generation_.load(std::memory_order_acquire) != seen) break;
        pause_thread(round);
      }
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (job_ == nullptr || next_worker_ >= workers_) continue;
      Job* const job = job_;
      const int worker = next_worker_++;
      ++active_;
      lock.unlock();
      job->work(worker);
      lock.lock();
      if (--active_ == 0) done_.notify_all();
    }
  }

  std::mutex busy_;  // held by the caller whose job runs
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<uint64_t> generation_{0};
  Job* job_ = nullptr;
  int workers_ = 0;
  int next_worker_ = 0;
  int active_ = 0;   // threads inside the job, besides the caller
  int threads_ = 0;  // guarded by busy_
};

std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};  // 0: the default
std::mutex g_executor_mutex;
Executor g_executor;

// The child of a fork has no workers, and locks in any state: it starts a pool of its own.
void forget_pool() { g_pool.store(nullptr, std::memory_order_relaxed); }

// Never destroyed: its threads may outlive static objects.
Pool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, &forget_pool);
  static_cast<void>(registered);
  Pool* current = g_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  Pool* const made = new Pool;
  if (g_pool.compare_exchange_strong(current, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *current;
}

Executor current_executor() {
  const std::lock_guard<std::mutex> lock(g_executor_mutex);
  return g_executor;
}

}  // namespace

void pause_thread(int round) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
  if (round % 64 == 63) std::this_thread::yield();
}

void parallel_for(int64_t tasks, int workers, void (*body)(void*, int64_t, int), void* context) {
  if (tasks <= 0) return;
  workers = static_cast<int>(std::clamp<int64_t>(tasks, 1, std::max(workers, 1)));
  Job job;
  job.tasks = tasks;
  job.body = body;
  job.context = context;
  if (workers == 1) return job.work(0);
  const Executor executor = current_executor();
  if (executor.run != nullptr) {
    executor.run(
        executor.context, workers,
        [](void* argument, int worker) { static_cast<Job*>(argument)->work(worker); }, &job);
    return;
  }
  if (!pool().run(job, workers)) job.work(0);
}

}  // namespace cpu

void set_num_threads(int threads) {
  if (threads < 0) {
    throw_invalid("tilewise::set_num_threads", "threads", std::to_string(threads), "0 or more", "");
  }
  cpu::g_threads.store(std::clamp(threads, 0, cpu::kMaxThreads), std::memory_order_relaxed);
}

int num_threads() {
  const int chosen = cpu::g_threads.load(std::memory_order_relaxed);
  if (chosen > 0) return chosen;
  static const int available =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, cpu::kMaxThreads);
  return available;
}

void set_executor(const Executor& executor) {
  const std::lock_guard<std::mutex> lock(cpu::g_executor_mutex);
  cpu::g_executor = executor;
}

}  // namespace tilewise
