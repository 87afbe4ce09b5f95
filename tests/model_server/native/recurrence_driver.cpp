// recurrence.h behind a plain C ABI, for test_recurrence.py, which compiles it beside that header.
//
// build: avx512 avx2 neon -ffp-contract=fast
#include "recurrence.h"

extern "C" {
int64_t row_floats(const Recurrence *recurrence) {
  return stride_of(RecurrenceRow(*recurrence).mixed_width);
}
int64_t slot_floats(const Recurrence *recurrence) { return recurrence->slot_floats(); }

// All rows are row_floats() apart; `mixed` begin with queries, keys, values and gates.
void run_recurrence(const Recurrence *recurrence, const Step *step, int32_t num_threads,
                    const float *product, float *mixed, float *answers) {
  const int64_t stride = row_floats(recurrence);
  std::vector<RecurrenceScratch> scratch(num_threads);
  for (auto &each : scratch) each.reserve(*recurrence);
  Team team(num_threads);
  team.run([&](Worker &worker) {
    RecurrenceRunner(worker, Late::kHelp, scratch[worker.index()], *step, *recurrence,
                     {product, mixed, answers, stride, stride, stride})
        .run();
  });
}
}
