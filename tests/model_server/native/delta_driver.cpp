// delta.h behind a plain C ABI, for test_delta.py, which compiles it beside that header.
//
// build: avx512 avx2 neon -ffp-contract=fast
#include "delta.h"

extern "C" {
int64_t row_floats(const Delta *delta) { return stride_of(DeltaRow(*delta).mixed_width); }
int64_t slot_floats(const Delta *delta) { return delta->slot_floats(); }

// All rows are row_floats() apart; `mixed` begin with queries, keys, values and gates.
void run_delta(const Delta *delta, const Step *step, int32_t num_threads, const float *product,
               float *mixed, float *answers) {
  const int64_t stride = row_floats(delta);
  std::vector<DeltaScratch> scratch(num_threads);
  for (auto &each : scratch) each.reserve(*delta);
  Team team(num_threads);
  team.run([&](Worker &worker) {
    DeltaRunner(worker, Late::kHelp, scratch[worker.index()], *step, *delta,
                {product, mixed, answers, stride, stride, stride})
        .run();
  });
}
}
