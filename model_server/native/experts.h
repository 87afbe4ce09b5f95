// A mixture of experts: which rows each expert computes, and how the results are summed.
#pragma once

#include <cmath>
#include <vector>

#include "product.h"

// Where a layer's experts leave what they compute, in a step's memory.
struct ExpertBuffers {
  float *logits;   // [num_tokens][stride_of(experts + shared gate)], of the router
  int32_t *chosen;  // [num_tokens][top_k]
  float *weights;  // [num_tokens][top_k]
  float *inner;    // [num_tokens * top_k][inner_stride], rows grouped by expert
  float *outs;     // [num_tokens][top_k][x_stride]
};

// A thread's list of the rows of each expert. Every thread makes its own, which is cheaper than a
// phase.
struct ExpertRows {
  std::vector<int64_t> tokens, slots;  // of each row, grouped by expert; slot = token * top_k + n
  std::vector<int64_t> ends;           // of each expert's rows

  void group(const int32_t *chosen, int64_t num_experts, int64_t num_tokens, int64_t top_k) {
    const int64_t num_rows = num_tokens * top_k;
    tokens.resize(num_rows);
    slots.resize(num_rows);
    ends.assign(num_experts + 1, 0);
    for (int64_t slot = 0; slot < num_rows; ++slot) ++ends[chosen[slot] + 1];
    for (int64_t e = 0; e < num_experts; ++e) ends[e + 1] += ends[e];
    for (int64_t slot = 0; slot < num_rows; ++slot) {
      const int64_t row = ends[chosen[slot]]++;
      tokens[row] = slot / top_k;
      slots[row] = slot;
    }
  }
  void cut(const Matrix *matrices, int64_t num_experts, int num_threads,
           std::vector<Chunk> &chunks) const {
    chunks.clear();
    for (int64_t e = 0; e < num_experts; ++e)
      cut_chunks(matrices[e], e, e == 0 ? 0 : ends[e - 1], ends[e], num_threads, chunks);
  }
};

// A token's experts, by their scores, the lower number first where scores are equal. The scores are
// a softmax over all of them; normed: over the chosen ones. Each is stored once, finished: another
// thread that routes the same token again may be reading already.
inline void route(const Experts &experts, const float *logits, int32_t *chosen, float *weights) {
  const int64_t n = experts.num_experts, top_k = experts.top_k;
  for (int64_t k = 0; k < top_k; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < n; ++e) {
      const bool is_taken = std::find(chosen, chosen + k, e) != chosen + k;
      if (!is_taken && (best < 0 || logits[e] > logits[best])) best = e;
    }
    chosen[k] = best;
  }
  const float largest = logits[chosen[0]];
  float sum = 0;
  if (experts.is_normed)
    for (int64_t k = 0; k < top_k; ++k) sum += std::exp(logits[chosen[k]] - largest);
  else
    for (int64_t e = 0; e < n; ++e) sum += std::exp(logits[e] - largest);
  for (int64_t k = 0; k < top_k; ++k) weights[k] = std::exp(logits[chosen[k]] - largest) / sum;
}

// Sums a token's experts in the order of their slots, and adds the shared one.
inline void combine(const Experts &experts, const float *outs, int64_t stride, const float *weights,
                    const float *shared, float gate, int64_t n, float *to) {
  for (int64_t i = 0; i < n; ++i) to[i] = outs[i] * weights[0];
  for (int64_t k = 1; k < experts.top_k; ++k)
    for (int64_t i = 0; i < n; ++i) to[i] += outs[k * stride + i] * weights[k];
  if (!experts.has_shared) return;
  const float share = experts.has_shared_gate ? 1.f / (1.f + std::exp(-gate)) : 1.f;
  for (int64_t i = 0; i < n; ++i) to[i] += shared[i] * share;
}
