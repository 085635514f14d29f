// The CPU backend's threads: a persistent pool of our own, or the caller's Executor.
//
// parallel_for() hands out tasks in order from one counter, so a task may wait for an earlier one:
// earlier tasks are finished or being worked on. Concurrent callers are legal; while the pool is
// busy a second caller runs its tasks itself. Nothing is allocated once the threads exist.
#pragma once

#include <cstdint>

namespace tilewise::cpu {

// body(context, task, worker) for every task in [0, tasks), on at most `workers` threads; worker is
// below `workers`, and no two threads share one at a time. body must not throw.
void parallel_for(int64_t tasks, int workers, void (*body)(void* context, int64_t task, int worker),
                  void* context);

// The same for a callable.
template <class Body>
void parallel_for(int64_t tasks, int workers, const Body& body) {
  parallel_for(
      tasks, workers,
      [](void* context, int64_t task, int worker) {
        (*static_cast<const Body*>(context))(task, worker);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// One step of a busy wait; yields the core now and then.
void pause_thread(int round);

}  // namespace tilewise::cpu
