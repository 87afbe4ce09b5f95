// One phase of products: rows of float32, normalised on the way where the layer asks for it, times
// a packed matrix (or each expert's own), with what follows applied while the sums are at hand.
//
// The items are panels of 32 columns, times chunks of rows that fit a core's cache. Threads that
// need the same rows each prepare a copy, which is cheaper than one more barrier.
//
// And a mixture of experts: which rows each expert computes, and how the results are summed.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "model.h"
#include "team.h"

// Memory that grows, never shrinks, and starts as zeros.
template <class T>
class Buffer {
 public:
  T *need(size_t size) {
    if (size > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<T *>(operator new(size * sizeof(T) + kSlack, kAlign)));
      std::memset(static_cast<void *>(data_.get()), 0, size * sizeof(T) + kSlack);
      size_ = size;
    }
    return data_.get();
  }
  T *get() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlign{4096};
  static constexpr size_t kSlack = 8192;  // prefetches read past the end
  struct Free {
    void operator()(T *memory) const { operator delete(memory, kAlign); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

inline int64_t padded(int64_t width) { return (width + 31) / 32 * 32; }
// Rows at a distance of a power of two would share the cache's sets.
inline int64_t stride_of(int64_t width) { return padded(width) + 32; }

enum Ending { kStore, kAdd, kGate, kActivate, kLogits };

// Runs of `width` numbers, each to a root mean square of one, times the gates of its row. A stride of
// 0: all rows have the same.
struct GatedHeads {
  int64_t width;
  float eps;
  const float *gates;
  int64_t stride;
};

// What adapters add to the sums of a product of all rows: row i's shrunk row, times its expand.
struct AddedRows {
  const Matrix *expands;    // by place
  const int32_t *adapters;  // the place of each row, or a negative number
  const float *shrunk;
  int64_t stride;
};

struct Product {
  const Matrix *matrices;  // one, its columns in parts that are packed differently, or each expert's
  const float *rows;
  int64_t row_stride;
  const int64_t *sources;  // which of `rows` is row i; null: the i-th
  const Norm *norm;        // of the rows, or null
  Ending ending;
  float *to;
  int64_t to_stride;
  const int64_t *targets = nullptr;  // which row of `to` is row i; null: the i-th
  const float *add = nullptr;        // kAdd: what the scaled sums are added to, laid out as `to`
  float scale = 1;
  float softcap = 0;
  int64_t activation = 0, width = 0;  // kLogits: the columns that there are
  const GatedHeads *heads = nullptr;  // instead of a norm
  const AddedRows *added = nullptr;   // to the sums, before the ending
  int num_parts = 1;                  // of `matrices`, unless they are experts'
};

struct Chunk {
  int64_t matrix, first, end;  // rows [first, end)
  int64_t first_panel;         // of the matrix, in the row of sums
  int64_t end_item;            // items are the panels of all chunks, one chunk after the other
};

// A chunk's rows stay in a core's cache.
inline int64_t max_chunk_tiles(const Matrix &m) {
  constexpr int64_t kUnits = 100 * 1024;
  return std::max<int64_t>(1, kUnits / prepared_units(m, tile_rows(m)));
}

// Cuts rows into chunks of whole tiles; where there are several, into as many for each thread.
inline void cut_chunks(const Matrix &m, int64_t matrix, int64_t first, int64_t end, int num_threads,
                       std::vector<Chunk> &chunks, int64_t first_panel = 0) {
  const int64_t tiles = num_tiles_of(m, end - first), most = max_chunk_tiles(m);
  int64_t count = (tiles + most - 1) / most;
  if (count > 1) count = std::min(tiles, (count + num_threads - 1) / num_threads * num_threads);
  for (int64_t c = 0; c < count; ++c) {
    const int64_t first_item = chunks.empty() ? 0 : chunks.back().end_item;
    chunks.push_back({matrix, first + tiles * c / count * tile_rows(m),
                      std::min(end, first + tiles * (c + 1) / count * tile_rows(m)), first_panel,
                      first_item + m.num_panels()});
  }
}

// A thread's own copy of the rows that it works on.
struct PreparedRows {
  Buffer<uint32_t> units;
  Buffer<float> scales, lines;
  std::vector<RowTile> tiles;

  void reserve(const Matrix &m) {
    const int64_t num_rows = max_chunk_tiles(m) * tile_rows(m);
    units.need(prepared_units(m, num_rows));
    scales.need(num_rows);
    lines.need(tile_rows(m) * stride_of(m.k));
    tiles.reserve(max_chunk_tiles(m));
  }
};

// So few rows are read one beside the other; more of them interleaved, as one stream.
constexpr int64_t kFewRows = kVectorRows < 4 ? kVectorRows : 4;

class ProductRunner {
 public:
  ProductRunner(Worker &worker, Late late, PreparedRows &rows, std::vector<Chunk> &chunks)
      : worker_(worker), late_(late), rows_(rows), chunks_(chunks) {}

  // Rows [0, num_rows) times all parts of one matrix.
  void run(const Product &p, int64_t num_rows) {
    chunks_.clear();
    int64_t first_panel = 0;
    for (int part = 0; part < p.num_parts; ++part) {
      const Matrix &m = p.matrices[part];
      cut_chunks(m, part, 0, num_rows, worker_.num_threads(), chunks_, first_panel);
      first_panel += m.num_panels();
    }
    run_chunks(p, chunks_);
  }

  // All matrices are of one k.
  void run_chunks(const Product &p, const std::vector<Chunk> &chunks) {
    const Chunk *prepared = nullptr;
    worker_.each(chunks.empty() ? 0 : chunks.back().end_item, late_, [&](int64_t item) {
      const Chunk &chunk = *std::upper_bound(
          chunks.begin(), chunks.end(), item,
          [](int64_t number, const Chunk &each) { return number < each.end_item; });
      const Matrix &m = p.matrices[chunk.matrix];
      const int64_t num_rows = chunk.end - chunk.first;
      const int64_t panel = item - (chunk.end_item - m.num_panels());
      if (&chunk != prepared) prepare(p, chunk);
      prepared = &chunk;
      multiply_panel(m, panel, rows_.tiles.data(), rows_.tiles.size(), registers_,
                     [&](int64_t t, float *sums) {
                       const int64_t row = chunk.first + tile_start(m, num_rows, t);
                       const int64_t count = rows_.tiles[t].num_rows;
                       const int64_t to = chunk.first_panel + panel;
                       if (p.added != nullptr) add_rows(*p.added, to, row, count, sums);
                       finish(p, to, row, count, sums);
                     });
    });
  }

 private:
  void prepare(const Product &p, const Chunk &chunk) {
    const Matrix &m = p.matrices[chunk.matrix];
    const int64_t num_rows = chunk.end - chunk.first, num_tiles = num_tiles_of(m, num_rows);
    rows_.tiles.clear();
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t first = tile_start(m, num_rows, t);
      const int64_t count = tile_start(m, num_rows, t + 1) - first;
      const float *rows = p.rows + (chunk.first + first) * p.row_stride;
      int64_t stride = p.row_stride;
      if (p.sources != nullptr || p.norm != nullptr || p.heads != nullptr) {
        stride = stride_of(m.k);
        rows = take_lines(p, m.k, stride, chunk.first + first, count);
      }
      rows_.tiles.push_back(prepare_rows(
          m, rows, stride, static_cast<int>(count), num_rows > kFewRows,
          rows_.units.get() + prepared_units(m, first), rows_.scales.get() + first));
    }
  }

  // Rows from wherever they are, normalised.
  const float *take_lines(const Product &p, int64_t k, int64_t stride, int64_t first,
                          int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t source = p.sources ? p.sources[first + r] : first + r;
      const float *row = p.rows + source * p.row_stride;
      float *line = rows_.lines.get() + r * stride;
      if (p.heads != nullptr)
        gate_heads(*p.heads, row, source, k, line);
      else if (p.norm != nullptr && p.norm->kind != kNoNorm)
        normalise(*p.norm, row, k, line);
      else
        std::memcpy(line, row, k * sizeof(float));
    }
    return rows_.lines.get();
  }

  static void gate_heads(const GatedHeads &heads, const float *row, int64_t source, int64_t k,
                         float *line) {
    const float *gates = heads.gates + source * heads.stride;
    for (int64_t head = 0; head < k; head += heads.width) {
      const float squares = sum_over(row + head, heads.width, [](auto v) { return v * v; });
      const float factor = 1.f / std::sqrt(squares / heads.width + heads.eps);
      for (int64_t i = head; i < head + heads.width; i += 16)
        store(line + i, load(row + i) * factor * load(gates + i));
    }
  }

  // Neighbours of one adapter are one tile, which no row's bits depend on.
  static void add_rows(const AddedRows &added, int64_t panel, int64_t row, int64_t count,
                       float *sums) {
    alignas(64) float more[kVectorRows * kColumns];
    for (int64_t r = 0, end; r < count; r = end) {
      const int32_t place = added.adapters[row + r];
      end = r + 1;
      while (end < count && end - r < kVectorRows && added.adapters[row + end] == place) ++end;
      if (place < 0 || added.expands[place].packed == nullptr) continue;
      const Matrix &expand = added.expands[place];
      const auto *rows = reinterpret_cast<const uint32_t *>(added.shrunk + (row + r) * added.stride);
      const RowTile tile{rows, nullptr, added.stride, static_cast<int>(end - r)};
      multiply_function<false, 0>(expand.format, tile.num_rows)(expand, panel, tile, {},
                                                                    more);
      for (int64_t i = 0; i < (end - r) * kColumns; i += 16)
        store(sums + r * kColumns + i, load(sums + r * kColumns + i) + load(more + i));
    }
  }

  void finish(const Product &p, int64_t panel, int64_t row, int64_t count, const float *sums) {
    const int64_t column = panel * kColumns;
    for (int64_t r = 0; r < count; ++r) {
      const Floats low = load(sums + r * kColumns), high = load(sums + r * kColumns + 16);
      const int64_t target = p.targets ? p.targets[row + r] : row + r;
      float *to = p.to + target * p.to_stride;
      switch (p.ending) {
        case kStore:
          store(to + column, low);
          store(to + column + 16, high);
          break;
        case kAdd: {
          const float *add = p.add + target * p.to_stride + column;
          store(to + column, load(add) + low * p.scale);
          store(to + column + 16, load(add + 16) + high * p.scale);
          break;
        }
        case kGate:
          store(to + column / 2, gated(p.activation, low, high));
          break;
        case kActivate:
          store(to + column, activate(p.activation, low));
          store(to + column + 16, activate(p.activation, high));
          break;
        case kLogits:
          store_logits(p, to, column, low);
          store_logits(p, to, column + 16, high);
      }
    }
  }

  // The row of logits has no padding: what lies past it is another row's.
  static void store_logits(const Product &p, float *to, int64_t column, Floats sums) {
    const Floats logits = softcapped(sums * p.scale, p.softcap);
    if (column + 16 <= p.width) {
      store(to + column, logits);
    } else if (column < p.width) {
      float lanes[16];
      store(lanes, logits);
      std::memcpy(to + column, lanes, (p.width - column) * sizeof(float));
    }
  }

  Worker &worker_;
  const Late late_;
  PreparedRows &rows_;
  std::vector<Chunk> &chunks_;
  Registers registers_;
};

// ---- Experts

// Where a layer's experts leave what they compute, in a step's memory.
struct ExpertBuffers {
  float *logits;   // [num_tokens][stride_of(experts + shared gate)], of the router
  int32_t *chosen;  // [num_tokens][top_k]
  float *weights;  // [num_tokens][top_k]
  float *inner;    // [num_tokens * top_k][inner_stride], rows grouped by expert
  float *outs;     // [num_tokens][top_k][x_stride]
};

// A thread's list of the rows of each expert, or of each adapter, of which a row may have none.
// Every thread makes its own, which is cheaper than a phase.
struct ExpertRows {
  std::vector<int64_t> tokens, slots;  // of each row, grouped by expert; slot = token * top_k + n
  std::vector<int64_t> ends;           // of each expert's rows

  void group(const int32_t *chosen, int64_t num_experts, int64_t num_tokens, int64_t top_k) {
    const int64_t num_rows = num_tokens * top_k;
    tokens.resize(num_rows);
    slots.resize(num_rows);
    ends.assign(num_experts + 1, 0);
    for (int64_t slot = 0; slot < num_rows; ++slot)
      if (chosen[slot] >= 0) ++ends[chosen[slot] + 1];
    for (int64_t e = 0; e < num_experts; ++e) ends[e + 1] += ends[e];
    for (int64_t slot = 0; slot < num_rows; ++slot) {
      if (chosen[slot] < 0) continue;
      const int64_t row = ends[chosen[slot]]++;
      tokens[row] = slot / top_k;
      slots[row] = slot;
    }
  }
  void cut(const Matrix *matrices, int64_t num_experts, int num_threads,
           std::vector<Chunk> &chunks) const {
    chunks.clear();
    for (int64_t e = 0; e < num_experts; ++e)
      if (matrices[e].packed != nullptr)
        cut_chunks(matrices[e], e, e == 0 ? 0 : ends[e - 1], ends[e], num_threads, chunks);
  }
};

// Chooses the experts of a token, and weighs them. Every thread has its own.
class Router {
 public:
  void reserve(int64_t num_experts) {
    for (std::vector<float> *each : {&scores_, &ranks_, &group_, &best_})
      each->reserve(padded(num_experts));
  }

  // The lower number first where ranks are equal. The scores are a softmax over all experts, or the
  // sigmoid of each; normed: over those of the chosen ones. Each weight is stored once, finished:
  // another thread that routes the same token again may be reading already.
  // logits: [padded(num_experts)]
  // handed: [top_k], in place of the best; null: the best
  void route(const Experts &experts, const float *logits, const int32_t *handed, int32_t *chosen,
             float *weights) {
    const int64_t n = experts.num_experts, top_k = experts.top_k;
    scores_.resize(padded(n));
    const Floats largest = broadcast(*std::max_element(logits, logits + n));
    for (int64_t e = 0; e < n; e += 16) {
      const Floats x = load(logits + e);
      store(scores_.data() + e, experts.is_sigmoid ? sigmoid_of(x) : exp_of(x - largest));
    }
    float total = 1;
    if (!experts.is_sigmoid) total = std::accumulate(scores_.begin(), scores_.begin() + n, 0.f);
    rank(experts, logits, total);
    for (int64_t k = 0; k < top_k; ++k)
      chosen[k] = handed ? handed[k] : static_cast<int32_t>(take_largest(ranks_));
    if (experts.is_normed) {
      total = 0;
      for (int64_t k = 0; k < top_k; ++k) total += scores_[chosen[k]];
    }
    const auto scale = static_cast<float>(experts.scale);
    for (int64_t k = 0; k < top_k; ++k) weights[k] = scores_[chosen[k]] / total * scale;
  }

 private:
  static constexpr float kTaken = -std::numeric_limits<float>::infinity();

  void rank(const Experts &experts, const float *logits, float total) {
    ranks_.assign(logits, logits + experts.num_experts);
    // Logits are in the order of their scores, and equal less often.
    if (experts.correction == nullptr && experts.num_groups == 0) return;
    for (int64_t e = 0; e < experts.num_experts; ++e)
      ranks_[e] = scores_[e] / total + (experts.correction ? experts.correction[e] : 0.f);
    if (experts.num_groups > 0) leave_groups(experts);
  }

  // Takes away the experts of all groups but the best.
  void leave_groups(const Experts &experts) {
    const int64_t len = experts.num_experts / experts.num_groups;
    group_.clear();
    for (auto own = ranks_.begin(); own != ranks_.end(); own += len) {
      best_.resize(experts.num_best);
      std::partial_sort_copy(own, own + len, best_.begin(), best_.end(), std::greater<float>());
      group_.push_back(std::accumulate(best_.begin(), best_.end(), 0.f));
    }
    for (int64_t k = 0; k < experts.top_groups; ++k) take_largest(group_);
    for (int64_t g = 0; g < experts.num_groups; ++g)
      if (group_[g] != kTaken) std::fill_n(ranks_.begin() + g * len, len, kTaken);
  }

  static int64_t take_largest(std::vector<float> &from) {
    const auto place = std::max_element(from.begin(), from.end());
    *place = kTaken;
    return place - from.begin();
  }

  std::vector<float> scores_, ranks_, group_, best_;
};

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
