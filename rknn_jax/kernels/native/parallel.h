// Tasks that the threads of an XLA program share.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

template <typename Task>
struct Shared {
  const Task* task;
  long count;
  std::atomic<long> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable finished;

  void work() {
    for (long i; (i = next++) < count;) {
      (*task)(i);
      if (++done == count) {
        std::lock_guard<std::mutex> lock(mutex);
        finished.notify_one();
      }
    }
  }
};

// Run task(0), ..., task(count - 1), in this thread and those of the pool that are free.
//
// This thread never waits for a task that has not started. A thread that comes late finds no task,
// and what it looks at lives until then.
template <typename Pool, typename Task>
void in_parallel(Pool& pool, long count, const Task& task) {
  const long helpers = std::min<long>(pool.num_threads(), count) - 1;
  if (helpers < 1) {
    for (long i = 0; i < count; i++) task(i);
    return;
  }
  auto shared = std::make_shared<Shared<Task>>();
  shared->task = &task;
  shared->count = count;
  for (long i = 0; i < helpers; i++) pool.Schedule([shared] { shared->work(); });
  shared->work();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->finished.wait(lock, [&] { return shared->done == count; });
}
