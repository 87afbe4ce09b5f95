// A decoder as the forward reads it, one step of it, and the small pieces of its layers on rows of
// float32: norms, rotation, activations.
//
// The structs are mirrored field by field in executor/weights.py; a null pointer or a zero is
// absence. A gated MLP's `ins` have panels of 16 columns of the gate and 16 of what it multiplies.
#pragma once

#include <cmath>

#include "gemm.h"

enum NormKind : int64_t { kNoNorm, kRms, kLayerNorm };
enum Activation : int64_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kClampedSwiglu };

struct Norm {
  int64_t kind, width;
  double eps;
  const float *weights, *biases;  // of a whole row; biases may be null
};

struct Rope {
  const float *cos, *sin;  // [num_positions][half]
  int64_t half;            // numbers 0..half-1 of a head turn with half..2*half-1
  // [num_turned][half] of a step, of tokens whose angles turn by unlike positions: -1 is the first.
  const float *turned_cos, *turned_sin;
};

struct Mlp {
  Matrix ins, out;
  int64_t inner, activation, is_gated;
};

struct Experts {
  int64_t num_experts, top_k, is_sigmoid, is_normed, has_shared, has_shared_gate;
  // Groups of neighbours, how many of them a token chooses among, and how many experts of a group
  // are summed to rank it. No groups: 0.
  int64_t num_groups, top_groups, num_best;
  double scale;
  const float *correction;  // [num_experts], added to the scores for the choice; may be null
  Matrix router;            // float32; a shared expert's gate is its last column
  const Matrix *ins, *outs;  // [num_experts]
  Mlp each;                  // of every expert, but for the matrices
  Mlp shared;
};

// A gated delta rule, or a selective state space: rows of the layer's `qkv` are what recurrence.h says.
struct Recurrence {
  int64_t num_key_heads, num_heads, key_dim, value_dim, num_taps;
  int64_t is_gate_first;              // of a state space: what is gated is normalised, not the reverse
  double beta_scale;                  // of a delta rule
  double min_step, max_step;          // of a state space
  Norm norm;                          // of neighbouring heads; weights of all
  const float *taps, *conv_bias;      // [num_taps][channels], and [channels] or null
  const float *rates, *dt_bias;       // [num_heads]
  const float *skip;                  // as well, of a state space; null: it is a delta rule
  float *states;                      // the pool, [slots][slot_floats()]

  int64_t panel_vectors() const { return value_dim % 32 == 0 ? 2 : 1; }
  int64_t num_panels() const { return value_dim / (16 * panel_vectors()); }
  int64_t panel_floats() const { return key_dim * 16 * panel_vectors(); }
  int64_t matrix_floats() const { return num_heads * key_dim * value_dim; }
  int64_t slot_floats() const {
    const int64_t num_channels = 2 * num_key_heads * key_dim + num_heads * value_dim;
    return matrix_floats() + (num_taps - 1) * num_channels;
  }
};

// A short convolution between two gates: rows of the layer's `qkv` are what short_conv.h says.
struct ShortConv {
  int64_t num_channels, num_taps;
  const float *taps, *bias;  // [num_taps][channels], and [channels] or null
  float *states;             // the pool, [slots][slot_floats()]

  int64_t slot_floats() const { return (num_taps - 1) * num_channels; }
};

struct Layer {
  Norm attention_norm, query_norm, key_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  Matrix qkv[2];  // the second: the last columns, if they are packed differently
  Matrix output;
  int64_t num_heads, num_kv_heads, head_dim, window_len, chunk_len;
  int64_t rope, norm_after_rope, is_parallel;  // rope: 1 + its index, or 0
  double scale, softcap, residual_scale;
  const float *sinks;
  Mlp mlp;                 // without matrices: there is none
  const Experts *experts;  // instead of mlp
  void *keys, *values;
  const Recurrence *recurrence;  // instead of attention
  const ShortConv *conv;         // as well
  int64_t is_gated;    // rows of `qkv` end in gates of what attention gives
};

// The products of a layer that adapters add to: of its mixer, and of its MLP or shared expert.
enum Part : int64_t { kMixerIn, kMixerOut, kMlpIn, kMlpOut, kNumParts };

// Low-rank adapters in their places: a row x of one gets expand(shrink(x)) on top of a product's
// sums. Where `packed` is null it adds nothing. The matrices are kF32 or kWide, whatever those of the
// model are, so that no row is rounded for them.
struct Adapters {
  int64_t num_places, width;  // width: of the longest shrunk row, in whole panels
  const Matrix *matrices;     // [layer][part][shrink, expand][place]

  const Matrix *shrinks(int64_t layer, Part part) const {
    return matrices + (layer * kNumParts + part) * 2 * num_places;
  }
  const Matrix *expands(int64_t layer, Part part) const {
    return shrinks(layer, part) + num_places;
  }
};

struct Model {
  int64_t element, embedding_element;  // kF32 or kBf16: of keys and values, of the embedding
  int64_t num_layers, hidden, vocab, num_positions;
  const Layer *layers;
  const Rope *ropes;
  const void *embedding;  // [vocab][hidden]; null: the head's panels serve
  double embed_scale, logit_scale, softcap;
  Norm final_norm;
  Matrix head;
  Adapters adapters;  // no places: there are none
};

struct Step {
  int64_t num_tokens, num_seqs, max_blocks, num_logits;
  const int64_t *token_ids, *positions, *slots;
  const int32_t *block_tables, *cu_query_lens, *context_lens;
  const int64_t *logits_rows;
  float *logits;  // [num_logits][vocab]
  // Of models with states: the slot that each sequence begins with, negative for zeros; and the
  // slots that it writes, the w-th of the step behind so many of its tokens, in their order.
  const int32_t *state_reads, *cu_state_writes, *state_write_lens, *state_write_slots;
  // [num_tokens] the place of each row's adapter, negative: none; null: no row has one.
  const int32_t *adapters;
  // What images show: the token vocab + i is embedded as rows[0][i], and rows[1 + l][i] is added to it
  // behind layer l.
  int64_t num_rows, num_deep, num_turned;
  const float *rows;  // [1 + num_deep][num_rows][hidden]
  const int32_t *key_ends;  // see Call; null: all of them are of text
  const int32_t *experts;   // [num_layers][num_tokens][the largest top_k], null: the best
};

// ---- Pieces of a layer. Each computes a row by itself and in one order: its bits are the row's own.

// The sum of f(x) over a row; f takes vectors and numbers alike.
template <class F>
ALWAYS_INLINE float sum_over(const float *x, int64_t n, F f) {
  Floats sums[4] = {};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int j = 0; j < 4; ++j) sums[j] = sums[j] + f(load(x + i + 16 * j));
  for (; i + 16 <= n; i += 16) sums[0] = sums[0] + f(load(x + i));
  float sum = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) sum += f(x[i]);
  return sum;
}

struct Moments {
  float mean, factor;
};
inline Moments moments(const Norm &norm, const float *x, int64_t n) {
  float mean = 0;
  if (norm.kind == kLayerNorm) mean = sum_over(x, n, [](auto v) { return v; }) / n;
  const float squares = sum_over(x, n, [mean](auto v) { return (v - mean) * (v - mean); });
  return {mean, 1.f / std::sqrt(squares / n + static_cast<float>(norm.eps))};
}

// Applies moments to x[0..n), which are the numbers from `column` on of their row.
inline void apply(const Norm &norm, Moments m, const float *x, int64_t column, int64_t n,
                  float *to) {
  const float *weights = norm.weights + column;
  if (norm.biases == nullptr) {
    for (int64_t i = 0; i < n; ++i) to[i] = (x[i] - m.mean) * m.factor * weights[i];
  } else {
    const float *biases = norm.biases + column;
    for (int64_t i = 0; i < n; ++i) to[i] = (x[i] - m.mean) * m.factor * weights[i] + biases[i];
  }
}

inline void normalise(const Norm &norm, const float *x, int64_t n, float *to) {
  apply(norm, moments(norm, x, n), x, 0, n, to);
}

inline void rotate(const Rope &rope, int64_t position, float *head) {
  const int64_t half = rope.half, row = position < 0 ? -1 - position : position;
  const float *cos = (position < 0 ? rope.turned_cos : rope.cos) + row * half;
  const float *sin = (position < 0 ? rope.turned_sin : rope.sin) + row * half;
  float *first = head, *second = head + half;
  for (int64_t i = 0; i < half; ++i) {
    const float u = first[i], v = second[i];
    first[i] = u * cos[i] - v * sin[i];
    second[i] = v * cos[i] + u * sin[i];
  }
}

ALWAYS_INLINE Floats absolute(Floats x) { return select(x < broadcast(0.f), x * -1.f, x); }

ALWAYS_INLINE Floats sigmoid_of(Floats x) {
  const Floats decay = exp_of(absolute(x) * -1.f);
  return select(x < broadcast(0.f), decay, broadcast(1.f)) / (decay + 1.f);
}

// Abramowitz and Stegun 7.1.26, to 1.5e-7.
ALWAYS_INLINE Floats erf_of(Floats x) {
  const Floats size = absolute(x);
  const Floats t = broadcast(1.f) / (size * 0.3275911f + 1.f);
  Floats p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Floats value = broadcast(1.f) - p * t * exp_of(size * size * -1.f);
  return select(x < broadcast(0.f), value * -1.f, value);
}

ALWAYS_INLINE Floats activate(int64_t activation, Floats x) {
  switch (activation) {
    case kGelu:
      return x * 0.5f * (erf_of(x * 0.70710678f) + 1.f);
    case kGeluTanh:
      return x * 0.5f * (tanh_of((x + x * x * x * 0.044715f) * 0.79788456f) + 1.f);
    case kRelu:
      return larger(x, broadcast(0.f));
    case kRelu2:
      return larger(x, broadcast(0.f)) * larger(x, broadcast(0.f));
    default:
      return x * sigmoid_of(x);
  }
}

// What a gated MLP makes of the two halves of its inner row.
ALWAYS_INLINE Floats gated(int64_t activation, Floats gate, Floats up) {
  if (activation != kClampedSwiglu) return activate(activation, gate) * up;
  const Floats limit = broadcast(7.f), lowest = broadcast(-7.f);
  gate = select(gate < limit, gate, limit);
  up = larger(select(up < limit, up, limit), lowest);
  return (up + 1.f) * gate * sigmoid_of(gate * 1.702f);
}

ALWAYS_INLINE Floats softcapped(Floats x, float softcap) {
  return softcap > 0.f ? tanh_of(x / softcap) * softcap : x;
}

ALWAYS_INLINE float widened(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Row `index` of [rows][n] elements.
inline void take_row(int64_t format, const void *rows, int64_t index, int64_t n, float *to) {
  if (format == kF32) {
    std::memcpy(to, static_cast<const float *>(rows) + index * n, n * sizeof(float));
    return;
  }
  const auto *from = static_cast<const uint16_t *>(rows) + index * n;
  for (int64_t i = 0; i < n; ++i) to[i] = widened(from[i]);
}

// The weights of one column of a packed matrix, which is of floats, of bfloat16s or in groups.
inline void take_column(const Matrix &m, int64_t column, float *to) {
  const char *panel = static_cast<const char *>(m.packed) + column / kColumns * m.panel_bytes();
  const auto *from = reinterpret_cast<const uint32_t *>(panel) + column % kColumns;
  if (m.in_groups()) {
    const int64_t first_lane = column % kColumns / 16 * 16;
    const PanelValues all_scales(m, m.group_scales, column / kColumns);
    const PanelValues all_minimums(m, m.group_minimums, column / kColumns);
    for (int64_t group = 0; group < m.num_groups(); ++group) {
      const Floats of_group = all_scales.at(group, first_lane);
      float scales[16], minimums[16];
      store(scales, of_group);
      store(minimums, m.group_minimums.values ? all_minimums.at(group, first_lane)
                                              : of_group * -static_cast<float>(m.zero));
      const float scale = scales[column % 16], minimum = minimums[column % 16];
      for (int64_t i = group * m.group_len; i < (group + 1) * m.group_len; ++i)
        to[i] = static_cast<float>(grouped_number(m, from, i)) * scale + minimum;
    }
    return;
  }
  for (int64_t i = 0; i < m.k; ++i) {
    const uint32_t word = from[i / m.pack() * kColumns];
    const uint32_t bits = m.format == kF32 ? word : i % 2 ? word & 0xffff0000u : word << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}
