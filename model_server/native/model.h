// A decoder as the forward reads it, and one step of it. Mirrored field by field in
// executor/structs.py; a null pointer or a zero is absence.
//
// A gated MLP's `ins` have panels of 16 columns of the gate and 16 of what it multiplies.
#pragma once

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
};

struct Mlp {
  Matrix ins, out;
  int64_t inner, activation, is_gated;
};

struct Experts {
  int64_t num_experts, top_k, is_normed, has_shared, has_shared_gate;
  Matrix router;            // float32; a shared expert's gate is its last column
  const Matrix *ins, *outs;  // [num_experts]
  Mlp each;                  // of every expert, but for the matrices
  Mlp shared;
};

struct Layer {
  Norm attention_norm, query_norm, key_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  Matrix qkv, output;
  int64_t num_heads, num_kv_heads, head_dim, window_len, chunk_len;
  int64_t rope, norm_after_rope, is_parallel;  // rope: 1 + its index, or 0
  double scale, softcap, residual_scale;
  const float *sinks;
  Mlp mlp;
  const Experts *experts;  // instead of mlp
  void *keys, *values;
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
};

struct Step {
  int64_t num_tokens, num_seqs, max_blocks, num_logits;
  const int64_t *token_ids, *positions, *slots;
  const int32_t *block_tables, *cu_query_lens, *context_lens;
  const int64_t *logits_rows;
  float *logits;  // [num_logits][vocab]
};
