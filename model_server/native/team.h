// A fixed team of threads that runs one function together, phase after phase.
//
// A phase is a number of items in any order. It ends for a thread when all of its items are done,
// not when all threads have come: one that wakes up late, or that the system took off its core,
// delays the others by the one item at most that it is inside of. Each thread takes its own share
// first, in order, then what is left of the others'.
//
// What a thread waits for, it waits for spinning, then asleep, so that a neighbour gets the core.
//
// Memory on machines with several nodes: item i of n belongs to the same thread in every run, so
// what an item reads lies near it if the item of an equal phase wrote it first. Threads are not
// bound to cores.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#elif !defined(__cpp_lib_atomic_wait)
#error "team.h needs futexes, or std::atomic::wait of C++20"
#endif

constexpr int kMaxThreads = 64;
constexpr int kMaxPhases = 8192;  // of a run

// How a phase treats an item whose thread was taken off its core.
enum class Late {
  kWait,  // every item runs once
  // The others run it once more, and go on. An item must then give the same bytes however often it
  // runs, and must write nothing that it, or a later phase's item, reads as input: its thread may
  // finish at any time until the run ends.
  //
  // Two threads then write the same bytes to the same place at once. The language calls that a data
  // race; items do it with plain stores all the same, since relaxed atomics would forbid vectors.
  // It is sound on every machine that we compile for: a store leaves each byte as one of the values
  // stored to it, and these are equal. An item must store finished values only, each once (no sum
  // that grows in memory), and readers come after a release and acquire of the item's flag.
  kHelp,
};

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kIdleSpin{50};   // between runs
constexpr std::chrono::microseconds kPhaseSpin{20};  // for the end of a phase or a run
constexpr std::chrono::microseconds kHelpAfter{20};

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A number that threads wait for to change. A sleeper announces itself, so that a change without
// sleepers costs no system call.
class alignas(64) Gate {
 public:
  uint32_t seen() const { return value_.load(); }
  void open() {
    value_.fetch_add(1);
    if (num_sleepers_.load() == 0) return;
#if defined(__linux__)
    syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    value_.notify_all();
#endif
  }
  // Returns once the value is no longer `seen`.
  void wait(uint32_t seen, Clock::duration spin) {
    const auto end = Clock::now() + spin;
    do {
      for (int i = 0; i < 16; ++i) {
        if (value_.load() != seen) return;
        pause_core();
      }
    } while (Clock::now() < end);
    num_sleepers_.fetch_add(1);
    while (value_.load() == seen) {
#if defined(__linux__)
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
      value_.wait(seen);
#endif
    }
    num_sleepers_.fetch_sub(1);
  }

 private:
  std::atomic<uint32_t> value_{0}, num_sleepers_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex is 32 bits");
};

// Thrown out of a phase on every thread when an item of any thread has failed.
struct RunStopped {};

// One phase's books. A thread that was taken off its core may come back to a phase long over, so
// each phase of a run has its own. They are clear when a run begins.
class Phase {
 public:
  explicit Phase(int num_threads) : claimed_(num_threads) {}

  // Every thread, before its first item. Raises std::bad_alloc.
  void enter(int64_t num_items) {
    if (capacity_.load(std::memory_order_acquire) < num_items) grow(num_items);
    num_items_.store(num_items, std::memory_order_relaxed);
  }

  // When no thread is inside any more.
  void clear() {
    const int64_t num_items = num_items_.load(std::memory_order_relaxed);
    if (num_items == 0) return;
    for (int64_t i = 0; i < num_items; ++i) done_[i].store(0, std::memory_order_relaxed);
    for (auto &claimed : claimed_) claimed.next.store(0, std::memory_order_relaxed);
    exhausted_.store(0, std::memory_order_relaxed);
    num_done_.store(0, std::memory_order_relaxed);
    num_items_.store(0, std::memory_order_relaxed);
  }

  // The next item of a thread's share [first, end), or `end`. A share once found empty is not
  // touched again, so that many threads do not fight for the counters of all.
  int64_t claim(int owner, int64_t first, int64_t end) {
    const uint64_t bit = uint64_t{1} << owner;
    if (exhausted_.load(std::memory_order_relaxed) & bit) return end;
    const int64_t item = first + claimed_[owner].next.fetch_add(1, std::memory_order_relaxed);
    if (item < end) return item;
    exhausted_.fetch_or(bit, std::memory_order_relaxed);
    return end;
  }

  // Late::kHelp: item by item.
  void mark_done(int64_t item) { done_[item].store(1, std::memory_order_release); }
  bool is_done(int64_t item) const { return done_[item].load(std::memory_order_acquire) != 0; }

  // Late::kWait: by number. True for who does the last.
  bool add_done(int64_t count, int64_t num_items) {
    return num_done_.fetch_add(count, std::memory_order_acq_rel) + count == num_items;
  }
  bool all_done(int64_t num_items) const {
    return num_done_.load(std::memory_order_acquire) == num_items;
  }

 private:
  // The first thread to come makes room; the others have used nothing yet.
  void grow(int64_t num_items) {
    const std::lock_guard lock(growing_);
    if (capacity_.load() >= num_items) return;
    done_.reset(new std::atomic<uint8_t>[num_items]());
    capacity_.store(num_items);
  }

  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };
  std::vector<Counter> claimed_;
  std::unique_ptr<std::atomic<uint8_t>[]> done_;
  std::mutex growing_;
  std::atomic<int64_t> capacity_{0}, num_items_{0};
  alignas(64) std::atomic<uint64_t> exhausted_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};
};

class Worker;

// Not to be used by a forked child, which has none of the threads.
class Team {
 public:
  // The caller of `run` is one of the threads. Raises std::invalid_argument, std::system_error.
  explicit Team(int num_threads) : num_threads_(num_threads), process_(getpid()) {
    if (num_threads < 1 || num_threads > kMaxThreads)
      throw std::invalid_argument("a team has 1 to 64 threads");
    phases_ = std::make_unique<std::atomic<Phase *>[]>(kMaxPhases);
    threads_ = new std::vector<std::thread>;
    try {
      for (int index = 1; index < num_threads; ++index)
        threads_->emplace_back([this, index] { serve(index); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Team() {
    stop();
    for (int i = 0; i < kMaxPhases; ++i) delete phases_[i].load();
  }
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  int num_threads() const { return num_threads_; }

  // Runs body(Worker &) on every thread; every thread must pass the same phases in the same order.
  // A thread may come too late to take part, and may come in the middle. Raises what the first item
  // or body raised, after every thread has left; std::logic_error in a forked child.
  template <class Body>
  void run(const Body &body);

 private:
  friend class Worker;
  using Job = void (*)(const void *body, Worker &worker);

  void run_job(Job job, const void *body);
  void take_part(int index) noexcept;
  void serve(int index);

  // Without waiting for threads that a forked child does not have; nor may it destroy their handles.
  void stop() {
    if (getpid() != process_) return;
    stopping_.store(true);
    start_gate_.open();
    for (auto &thread : *threads_) thread.join();
    delete threads_;
  }
  Phase &phase(int number) {
    if (number >= kMaxPhases) throw std::length_error("a run has too many phases");
    Phase *known = phases_[number].load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    const std::lock_guard lock(growing_);
    if (phases_[number].load() == nullptr) phases_[number].store(new Phase(num_threads_));
    return *phases_[number].load();
  }
  void fail(std::exception_ptr error) {
    {
      const std::lock_guard lock(growing_);
      if (error_ == nullptr) error_ = error;
    }
    failed_.store(true);
    phase_gate_.open();
  }

  const int num_threads_;
  const pid_t process_;
  std::vector<std::thread> *threads_ = nullptr;
  std::unique_ptr<std::atomic<Phase *>[]> phases_;
  std::mutex running_, growing_;
  Gate start_gate_, phase_gate_, exit_gate_;
  std::atomic<bool> stopping_{false}, leaving_{false}, failed_{false};
  std::exception_ptr error_;
  Job job_ = nullptr;
  const void *body_ = nullptr;
  uint64_t num_runs_ = 0;
  // The run that is open to who wakes up; 0: none. So a thread that was woken for a run and comes
  // after its end does not touch what that run left behind.
  alignas(64) std::atomic<uint64_t> open_run_{0};
  alignas(64) std::atomic<int> num_inside_{0};  // threads but the caller
};

// One thread's part in one run.
class Worker {
 public:
  Worker(Team &team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }
  int num_threads() const { return team_.num_threads_; }

  // One phase: item(i) for every i of [0, num_items). All that the items wrote is visible when it
  // returns. Raises RunStopped when another thread's item has failed, and what an item raises.
  template <class F>
  void each(int64_t num_items, Late late, F item) {
    Phase &phase = team_.phase(next_phase_++);
    if (num_items <= 0) return;
    phase.enter(num_items);
    const auto start = Clock::now();
    int64_t num_own = 0;
    const int count = team_.num_threads_;
    for (int v = 0; v < count; ++v) {
      const int owner = (index_ + v) % count;
      const int64_t first = num_items * owner / count, end = num_items * (owner + 1) / count;
      for (int64_t i; (i = phase.claim(owner, first, end)) < end; ++num_own) {
        check();
        item(i);
        if (late == Late::kHelp) phase.mark_done(i);
      }
    }
    if (late == Late::kWait)
      wait(phase, num_items, num_own);
    else
      help(phase, num_items, start, num_own, item);
  }

 private:
  void check() const {
    if (team_.failed_.load(std::memory_order_relaxed)) throw RunStopped{};
  }

  void wait(Phase &phase, int64_t num_items, int64_t num_own) {
    if (num_own > 0 && phase.add_done(num_own, num_items)) return team_.phase_gate_.open();
    for (;;) {
      const uint32_t seen = team_.phase_gate_.seen();
      if (phase.all_done(num_items)) return;
      check();
      team_.phase_gate_.wait(seen, kPhaseSpin);
    }
  }

  // Others may be inside of long items with every right: what took this thread long is long.
  template <class F>
  void help(Phase &phase, int64_t num_items, Clock::time_point start, int64_t num_own, F &item) {
    int64_t first = 0;  // all before it are done
    const auto all_done = [&] {
      while (first < num_items && phase.is_done(first)) ++first;
      return first == num_items;
    };
    if (all_done()) return;
    const auto arrived = Clock::now();
    const Clock::duration patience =
        std::max<Clock::duration>(kHelpAfter, 2 * (arrived - start) / std::max<int64_t>(num_own, 1));
    for (;;) {
      for (int i = 0; i < 16; ++i) {
        if (all_done()) return;
        pause_core();
      }
      check();
      if (Clock::now() - arrived < patience) continue;
      const int64_t left = num_items - first, offset = first;
      for (int64_t n = 0; n < left; ++n) {
        const int64_t i = offset + (n + index_) % left;  // helpers begin at different items
        if (phase.is_done(i)) continue;
        item(i);
        phase.mark_done(i);
      }
    }
  }

  Team &team_;
  const int index_;
  int next_phase_ = 0;
};

template <class Body>
void Team::run(const Body &body) {
  run_job([](const void *b, Worker &worker) { (*static_cast<const Body *>(b))(worker); }, &body);
}

inline void Team::run_job(Job job, const void *body) {
  if (getpid() != process_) throw std::logic_error("a forked child has no threads of its parent");
  const std::lock_guard lock(running_);
  job_ = job;
  body_ = body;
  open_run_.store(++num_runs_);
  start_gate_.open();
  take_part(0);
  // Threads may be inside of items yet: nothing that they write may be used otherwise before they
  // have left.
  open_run_.store(0);
  leaving_.store(true);
  for (;;) {
    const uint32_t seen = exit_gate_.seen();
    if (num_inside_.load() == 0) break;
    exit_gate_.wait(seen, kPhaseSpin);
  }
  leaving_.store(false);
  failed_.store(false);
  for (int i = 0; i < kMaxPhases && phases_[i].load(std::memory_order_relaxed); ++i)
    phases_[i].load(std::memory_order_relaxed)->clear();
  if (error_ == nullptr) return;
  const std::exception_ptr error = error_;
  error_ = nullptr;
  std::rethrow_exception(error);
}

inline void Team::take_part(int index) noexcept {
  try {
    Worker worker(*this, index);
    job_(body_, worker);
  } catch (const RunStopped &) {
  } catch (...) {
    fail(std::current_exception());
  }
}

inline void Team::serve(int index) {
  uint32_t seen = 0;
  uint64_t last = 0;
  for (;;) {
    start_gate_.wait(seen, kIdleSpin);
    seen = start_gate_.seen();
    if (stopping_.load()) return;
    // Inside first, then look: either `run` sees this thread inside, or this thread sees no run.
    num_inside_.fetch_add(1);
    const uint64_t run = open_run_.load();
    if (run != 0 && run != last) {
      last = run;
      take_part(index);
    }
    if (num_inside_.fetch_sub(1) == 1 && leaving_.load()) exit_gate_.open();
  }
}
