// Two threads route the same token at once, as where one was stopped inside of the item: what a later
// phase may read is what one thread alone writes. Prints how often it was not.
#include <atomic>
#include <cstdio>
#include <thread>

#include "product.h"

int main() {
  Experts experts = {};
  experts.num_experts = 60;
  experts.top_k = 4;
  experts.is_normed = 1;
  float logits[64], expected[4], weights[4], seen[4];
  int32_t chosen[4];
  for (int i = 0; i < 64; ++i) logits[i] = std::sin(i * 1.7f) * 3;
  experts.scale = 1;
  Router router;
  router.route(experts, logits, nullptr, chosen, expected);

  constexpr int kRuns = 60000;
  std::atomic<int> started{0}, ended{0};
  std::thread other([&] {
    Router its_own;
    for (int run = 1; run <= kRuns; ++run) {
      while (started.load() < run) std::this_thread::yield();
      its_own.route(experts, logits, nullptr, chosen, weights);
      ended.fetch_add(1);
    }
  });
  int num_wrong = 0;
  for (int run = 1; run <= kRuns; ++run) {
    for (float &weight : weights) weight = 0;
    started.store(run);
    router.route(experts, logits, nullptr, chosen, weights);
    std::memcpy(seen, weights, sizeof seen);
    while (ended.load() < run) std::this_thread::yield();
    num_wrong += std::memcmp(seen, expected, sizeof seen) != 0 ||
                 std::memcmp(weights, expected, sizeof weights) != 0;
  }
  other.join();
  std::printf("%d\n", num_wrong);
}
