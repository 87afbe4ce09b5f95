// The attention phases of one layer: queries and keys normalised and rotated on the way from the
// rows of the qkv product, keys and values written into the cache, the tiles computed, and what they
// give gated.
#pragma once

#include "product.h"
#include "tile.h"

// Consecutive tokens of a sequence whose slots lie in one block.
struct Run {
  int64_t first, end;
};

inline std::vector<Run> cut_runs(const Step &s) {
  std::vector<Run> runs;
  for (int64_t seq = 0; seq < s.num_seqs; ++seq)
    for (int64_t first = s.cu_query_lens[seq]; first < s.cu_query_lens[seq + 1];) {
      const int64_t room = kBlock - s.slots[first] % kBlock;
      const int64_t end = std::min<int64_t>(s.cu_query_lens[seq + 1], first + room);
      runs.push_back({first, end});
      first = end;
    }
  return runs;
}

inline Call call_of(const Layer &layer, const Step &s, int num_threads) {
  Call call = {};
  call.num_seqs = s.num_seqs;
  call.num_heads = layer.num_heads;
  call.num_kv_heads = layer.num_kv_heads;
  call.head_dim = call.value_dim = layer.head_dim;
  call.max_blocks = s.max_blocks;
  call.window_len = layer.window_len;
  call.chunk_len = layer.chunk_len;
  call.num_threads = num_threads;
  call.scale = layer.scale;
  call.softcap = layer.softcap;
  call.keys = layer.keys;
  call.values = layer.values;
  call.cu_query_lens = s.cu_query_lens;
  call.context_lens = s.context_lens;
  call.block_tables = s.block_tables;
  call.sinks = layer.sinks;
  call.key_ends = s.key_ends;
  return call;
}

// How a step's attention is cut, for the layers that are alike in this.
struct AttentionPlan {
  int64_t num_heads, num_kv_heads, head_dim, window_len, chunk_len;
  Work work;
  bool writes_within;  // an item writes its own key: no other item reads it

  explicit AttentionPlan(const Layer &layer)
      : num_heads(layer.num_heads), num_kv_heads(layer.num_kv_heads), head_dim(layer.head_dim),
        window_len(layer.window_len), chunk_len(layer.chunk_len) {}
  bool serves(const Layer &layer) const {
    return num_heads == layer.num_heads && num_kv_heads == layer.num_kv_heads &&
           head_dim == layer.head_dim && window_len == layer.window_len &&
           chunk_len == layer.chunk_len;
  }
  void make(const Layer &layer, const Step &s, int num_threads) {
    const Call call = call_of(layer, s, num_threads);
    work = plan(call);
    writes_within = s.num_tokens == s.num_seqs && call.group() <= kMaxRows && work.splits.empty();
  }
};

struct AttentionBuffers {
  const float *qkv;
  float *attended;
  int64_t qkv_stride, attended_stride;
  float *partials;
};

// A thread's memory for attention.
struct AttentionScratch {
  Buffer<float> tile, head;
  void reserve(const Layer &layer) {
    const Call call = call_of(layer, Step{}, 1);
    tile.need(std::max(Scratch<F32>::num_floats(call), Scratch<Bf16>::num_floats(call)));
    head.need(2 * layer.head_dim);
  }
};

template <class T>
class AttentionRunner {
 public:
  AttentionRunner(Worker &worker, Late late, AttentionScratch &scratch, const Step &step,
                  const Layer &layer, const Rope *rope, const AttentionBuffers &buffers)
      : worker_(worker), late_(late), s_(step), layer_(layer), rope_(rope), buffers_(buffers),
        call_(call_of(layer, step, worker.num_threads())), scratch_(call_, scratch.tile.get()),
        head_(scratch.head.get()), elements_(reinterpret_cast<E *>(head_ + layer.head_dim)) {}

  void run(const AttentionPlan &plan, const std::vector<Run> &runs) {
    const Work &work = plan.work;
    const int64_t kv_heads = layer_.num_kv_heads;
    if (!plan.writes_within) {
      worker_.each(static_cast<int64_t>(runs.size()) * kv_heads, late_,
                   [&](int64_t i) { write_run(runs[i / kv_heads], i % kv_heads); });
    }
    const auto gather = [this](const Tile &tile, Operand *to) { gather_queries(tile, to); };
    const auto write = [this](const Tile &tile, const Partial &total) { write_rows(tile, total); };
    worker_.each(work.items.size(), late_, [&](int64_t i) {
      const Tile &tile = work.tiles[work.items[i].tile];
      if (plan.writes_within) write_run({tile.first_token, tile.first_token + 1}, tile.kv_head);
      attend_item<T>(call_, work, i, buffers_.partials, scratch_, gather, write);
    });
    if (work.splits.empty()) return;
    worker_.each(work.splits.size(), late_, [&](int64_t i) {
      merge_split<T>(call_, work, work.splits[i], buffers_.partials, scratch_, write);
    });
  }

 private:
  using E = typename T::Element;
  using Operand = typename T::Operand;
  static constexpr int64_t kPack = T::kPack;

  // Head `index` of a row, normalised and rotated, as elements.
  const E *take_head(const Norm &norm, const float *row, int64_t index, int64_t position) {
    const int64_t dim = layer_.head_dim, column = index * dim;
    const float *from = row + column;
    if (norm.kind != kNoNorm && !layer_.norm_after_rope)
      apply(norm, moments(norm, norm.width == dim ? from : row, norm.width), from, column, dim,
            head_);
    else
      std::memcpy(head_, from, dim * sizeof(float));
    if (rope_ != nullptr) rotate(*rope_, position, head_);
    if (norm.kind != kNoNorm && layer_.norm_after_rope)
      apply(norm, moments(norm, head_, dim), head_, column, dim, head_);
    for (int64_t d = 0; d < dim; d += 16) T::store_elements(elements_ + d, load(head_ + d));
    return elements_;
  }

  // Writes one key head's keys and values of a run. Entering a block clears the rest of its values:
  // slots that are not written yet are read with the weight zero, and zero times what a broken
  // sequence may have left there, NaN, would not be zero. Each byte is written once, with what it
  // is to hold: another thread that does the same item again may be reading already.
  void write_run(Run run, int64_t kv_head) {
    const int64_t dim = layer_.head_dim, heads = layer_.num_heads, kv_heads = layer_.num_kv_heads;
    const int64_t block = s_.slots[run.first] / kBlock * kv_heads + kv_head;
    E *keys = static_cast<E *>(layer_.keys) + block * kBlock * dim;
    E *values = static_cast<E *>(layer_.values) + block * kBlock * dim;
    for (int64_t token = run.first; token < run.end; ++token) {
      const int64_t offset = s_.slots[token] % kBlock;
      const float *row = buffers_.qkv + token * buffers_.qkv_stride;
      const E *key =
          take_head(layer_.key_norm, row + heads * dim, kv_head, s_.positions[token]);
      for (int64_t d = 0; d < dim; d += kPack)
        std::memcpy(keys + d * kBlock + offset * kPack, key + d, kPack * sizeof(E));
      write_value(row + (heads + kv_heads + kv_head) * dim, values, offset);
    }
    if (s_.slots[run.first] % kBlock == 0)
      for (int64_t offset = run.end - run.first; offset < kBlock; ++offset)
        for (int64_t d = 0; d < dim; ++d) values[place(offset) + d * kPack] = 0;
  }

  int64_t place(int64_t offset) const {
    return offset / kPack * kPack * layer_.head_dim + offset % kPack;
  }
  void write_value(const float *from, E *values, int64_t offset) {
    const int64_t dim = layer_.head_dim;
    for (int64_t d = 0; d < dim; d += 16) T::store_elements(elements_ + d, load(from + d));
    E *to = values + place(offset);
    for (int64_t d = 0; d < dim; ++d) to[d * kPack] = elements_[d];
  }

  void gather_queries(const Tile &tile, Operand *queries) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      const int64_t token = tile.token(call_, row);
      const E *query = take_head(layer_.query_norm, buffers_.qkv + token * buffers_.qkv_stride,
                                 tile.head(call_, row), s_.positions[token]);
      for (int64_t d = 0; d < layer_.head_dim / kPack; ++d)
        queries[d * tile.num_rows + row] = T::operand(query + d * kPack);
    }
  }

  void write_rows(const Tile &tile, const Partial &total) {
    const int64_t dim = layer_.head_dim;
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      const float factor = output_factor(call_, tile, total, row);
      const int64_t token = tile.token(call_, row), column = tile.head(call_, row) * dim;
      float *to = buffers_.attended + token * buffers_.attended_stride + column;
      const float *gates = buffers_.qkv + token * buffers_.qkv_stride + column +
                           (layer_.num_heads + 2 * layer_.num_kv_heads) * dim;
      for (int64_t d = 0; d < dim; d += 16) {
        const Floats answer = load(total.values + row * dim + d) * factor;
        store(to + d, layer_.is_gated ? answer * sigmoid_of(load(gates + d)) : answer);
      }
    }
  }

  Worker &worker_;
  const Late late_;
  const Step &s_;
  const Layer &layer_;
  const Rope *rope_;
  const AttentionBuffers buffers_;
  const Call call_;
  const Scratch<T> scratch_;
  float *head_;
  E *elements_;
};
