// Stress for team.h, run by test_team.py: prints nothing and exits with 0, or says what was wrong.
//
//     team_driver MILLISECONDS SEED fork|-
//
// Each run is a random number of phases, each a random number of items, waiting and helping phases
// mixed, on teams of 1 to 8 threads; items now and then leave the core. Every item's value depends
// on three items of the phase before, and is compared with what one thread computes.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>

#include "../../../model_server/native/team.h"

namespace {

#define CHECK(condition)                                              \
  do {                                                                \
    if (condition) break;                                             \
    std::printf("line %d: not so: %s\n", __LINE__, #condition);       \
    std::exit(1);                                                     \
  } while (false)

// What one phase writes. Where each item runs once its store is plain, so that a thread sanitizer
// sees whether readers come after it.
struct Values {
  std::vector<std::atomic<uint32_t>> shared;
  std::vector<uint32_t> plain;
  Late late = Late::kWait;

  Values() = default;
  Values(Late l, int64_t size) : shared(size), plain(size), late(l) {}
  size_t size() const { return plain.size(); }
  void set(int64_t item, uint32_t value) {
    if (late == Late::kWait)
      plain[item] = value;
    else
      shared[item].store(value, std::memory_order_relaxed);
  }
  uint32_t get(int64_t item) const {
    return late == Late::kWait ? plain[item] : shared[item].load(std::memory_order_relaxed);
  }
};

struct Plan {
  Late late;
  int64_t num_items;
};

uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

uint32_t value_of(const Values &before, int64_t item) {
  const auto seed = static_cast<uint32_t>(item);
  uint32_t sum = seed;
  for (uint32_t i = 0; i < 3 && before.size() > 0; ++i)
    sum = mixed(sum + before.get(mixed(seed + i) % before.size()));
  return sum;
}

// What the system does to a thread sometimes: it takes the core, shortly or for long.
void leave_core() {
  thread_local std::minstd_rand random(std::random_device{}());
  const auto lot = random() % 400;
  if (lot < 20) std::this_thread::yield();
  if (lot == 20) {
    const timespec time = {0, 100000};
    nanosleep(&time, nullptr);
  }
}

std::vector<Plan> random_plans(std::mt19937 &random) {
  std::vector<Plan> plans(1 + random() % 12);
  for (Plan &plan : plans) {
    plan.late = random() % 2 ? Late::kHelp : Late::kWait;
    plan.num_items = random() % (random() % 4 ? 20 : 300);
  }
  return plans;
}

void run_and_compare(Team &team, std::mt19937 &random) {
  const std::vector<Plan> plans = random_plans(random);
  std::vector<Values> values, expected;
  std::vector<std::vector<std::atomic<int>>> num_times;
  for (const Plan &plan : plans) {
    values.emplace_back(plan.late, plan.num_items);
    expected.emplace_back(Late::kWait, plan.num_items);
    num_times.emplace_back(plan.num_items);
  }
  const Values nothing;
  for (size_t p = 0; p < plans.size(); ++p)
    for (int64_t i = 0; i < plans[p].num_items; ++i)
      expected[p].set(i, value_of(p ? expected[p - 1] : nothing, i));

  team.run([&](Worker &worker) {
    CHECK(worker.index() >= 0 && worker.index() < worker.num_threads());
    for (size_t p = 0; p < plans.size(); ++p) {
      worker.each(plans[p].num_items, plans[p].late, [&](int64_t i) {
        const uint32_t value = value_of(p ? values[p - 1] : nothing, i);
        leave_core();
        values[p].set(i, value);
        num_times[p][i].fetch_add(1, std::memory_order_relaxed);
      });
      for (int64_t i = 0; i < plans[p].num_items; ++i) CHECK(values[p].get(i) == expected[p].get(i));
    }
  });
  for (size_t p = 0; p < plans.size(); ++p)
    for (int64_t i = 0; i < plans[p].num_items; ++i)
      CHECK(plans[p].late == Late::kWait ? num_times[p][i] == 1 : num_times[p][i] >= 1);
}

// One item fails: `run` raises that error, every thread leaves, and the next run is whole.
void fail_once(Team &team, std::mt19937 &random) {
  const std::vector<Plan> plans = random_plans(random);
  const size_t phase = random() % plans.size();
  const int64_t item = plans[phase].num_items ? random() % plans[phase].num_items : -1;
  bool has_failed = false;
  try {
    team.run([&](Worker &worker) {
      for (size_t p = 0; p < plans.size(); ++p)
        worker.each(plans[p].num_items, plans[p].late, [&](int64_t i) {
          leave_core();
          if (p == phase && i == item) throw std::bad_alloc();
        });
    });
  } catch (const std::bad_alloc &) {
    has_failed = true;
  }
  CHECK(has_failed == (item >= 0));
}

// An item that sleeps in the one thread that has it is done by another meanwhile.
void help_a_sleeper() {
  Team team(2);
  int num_helped = 0;
  for (int n = 0; n < 5; ++n) {
    std::atomic<int> num_begun{0}, num_gone_on{0};
    std::atomic<bool> has_slept{false};
    team.run([&](Worker &worker) {
      worker.each(8, Late::kHelp, [&](int64_t item) {
        if (item != 3 || num_begun.fetch_add(1) > 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        has_slept = true;
      });
      if (!has_slept) ++num_gone_on;
    });
    CHECK(has_slept);  // the run has waited for it
    num_helped += num_gone_on > 0 && num_begun > 1;
  }
  CHECK(num_helped > 0);  // not always: the other thread may come too late to help
}

void fork_a_child(Team &team) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      team.run([](Worker &) {});
    } catch (const std::logic_error &) {
      Team own(2);
      own.run([](Worker &worker) { worker.each(3, Late::kWait, [](int64_t) {}); });
      team.~Team();
      _exit(0);
    }
    _exit(1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

}  // namespace

int main(int argc, char **argv) {
  CHECK(argc == 4);
  std::mt19937 random(std::stoul(argv[2]));
  const auto end = Clock::now() + std::chrono::milliseconds(std::stol(argv[1]));
  help_a_sleeper();
  while (Clock::now() < end) {
    Team team(1 + random() % 8);
    const int num_runs = random() % 40;
    for (int n = 0; n < num_runs && Clock::now() < end; ++n) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      if (random() % 8 == 0) fail_once(team, random);
      run_and_compare(team, random);
    }
    if (std::string(argv[3]) == "fork") fork_a_child(team);
  }
  return 0;
}
