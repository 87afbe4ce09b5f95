// Attention in tiles: one tile over one span of keys, and a step cut into tiles and merged.
//
// Layout. A block holds 16 tokens of every key head, head by head, and is read as 32-bit words of
// `pack` elements, 1 float or 2 bfloat16s:
//
//     keys    [block][kv_head][head_dim / pack][16 keys][pack]
//     values  [block][kv_head][16 keys / pack][value_dim][pack]
//
// A vector of words so holds one dimension of 16 keys, or 16 dimensions of one key: neither product
// needs a sum across lanes, and a head's part of a block is one contiguous read.
//
// A row is one query of one head. A tile is up to kMaxRows rows of one sequence that share a key
// head, so that a word, once loaded, serves them all. A span is kSpan keys.
//
// A row gives the same bits whatever surrounds it. Its scores add up dimension by dimension; its
// weights add up per lane (key modulo 16), block by block, and then across lanes; spans begin at
// multiples of kSpan, are computed from nothing and are merged in order. Tiles and threads only
// choose which of these are done together, and a key that a row does not see weighs zero, which
// changes no bit as long as its value is finite (see write_tokens).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "vectors.h"

// Mirrored field by field in cpu_op.py. Strides count elements; the last axis has stride 1.
struct Call {
  int64_t num_seqs, num_heads, num_kv_heads, head_dim, value_dim;
  int64_t max_blocks;             // columns of block_tables
  int64_t window_len, chunk_len;  // 0: no such bound
  int64_t num_threads;
  int64_t query_token_stride, query_head_stride;
  int64_t key_token_stride, key_head_stride;
  int64_t value_token_stride, value_head_stride;
  double scale, softcap;  // softcap 0: none
  const void *query, *key, *value;
  void *output;         // [num_tokens, num_heads, value_dim]
  void *keys, *values;  // the cache
  const int64_t *slots;
  const int32_t *cu_query_lens, *context_lens, *block_tables;
  const float *sinks;  // [num_heads] or null
  // [num_tokens] up to which key each query sees, within its context; null: to its own.
  const int32_t *key_ends;

  int64_t group() const { return num_heads / num_kv_heads; }
};

constexpr int64_t kBlock = 16;  // tokens; as many as a vector has lanes
constexpr int64_t kSpan = 256;
constexpr int64_t kSpanBlocks = kSpan / kBlock;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How many vectors of sums the registers hold beside what is multiplied.
#if defined(__AVX512F__)
constexpr int kAccumulators = 24, kMaxRows = 12;
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int kAccumulators = 6, kMaxRows = 6;
#else
constexpr int kAccumulators = 3, kMaxRows = 3;
#endif

struct Interval {
  int64_t first, end;
};

// The keys that the query at `position` sees.
inline Interval seen_keys(const Call &call, int64_t position) {
  int64_t first = 0;
  if (call.window_len > 0) first = std::max<int64_t>(0, position - call.window_len + 1);
  if (call.chunk_len > 0) first = std::max(first, position / call.chunk_len * call.chunk_len);
  return {first, position + 1};
}

struct Tile {
  int64_t seq, kv_head;
  int64_t first_token, first_position;  // of the sequence's first query, in the step and in it
  int64_t first_row, num_rows;          // of query_len * group rows, a token's group together

  int64_t query(const Call &call, int64_t row) const { return (first_row + row) / call.group(); }
  int64_t token(const Call &call, int64_t row) const { return first_token + query(call, row); }
  int64_t head(const Call &call, int64_t row) const {
    return kv_head * call.group() + (first_row + row) % call.group();
  }
  Interval seen(const Call &call, int64_t row) const {
    Interval keys = seen_keys(call, first_position + query(call, row));
    if (call.key_ends != nullptr) keys.end = call.key_ends[token(call, row)];
    return keys;
  }
  // The keys that any row sees, and the spans that they lie in.
  Interval keys(const Call &call) const {
    return {seen(call, 0).first, seen(call, num_rows - 1).end};
  }
  Interval spans(const Call &call) const {
    const Interval all = keys(call);
    return {all.first / kSpan, (all.end + kSpan - 1) / kSpan};
  }
};

// A tile's rows over some keys: each row's largest score, the sum of weights relative to it, and
// the weighted sum of values.
struct Partial {
  float *largest, *sums, *values;  // [rows], [rows], [rows][value_dim]

  Partial(float *memory, int64_t num_rows)
      : largest(memory), sums(memory + num_rows), values(memory + 2 * num_rows) {}
  static int64_t num_floats(const Call &call, int64_t num_rows) {
    return num_rows * (2 + call.value_dim);
  }
};

// What a thread needs to work on one tile. An operand takes up kPack floats at most.
template <class T>
struct Scratch {
  float *scores;                 // [kMaxRows][kSpan]
  typename T::Operand *weights;  // [kMaxRows][kSpan / kPack]
  typename T::Operand *queries;  // [head_dim / kPack][num_rows]
  float *part, *total;           // Partials

  Scratch(const Call &call, float *memory)
      : scores(memory),
        weights(reinterpret_cast<typename T::Operand *>(scores + kMaxRows * kSpan)),
        queries(reinterpret_cast<typename T::Operand *>(scores + 2 * kMaxRows * kSpan)),
        part(scores + 2 * kMaxRows * kSpan + kMaxRows * call.head_dim),
        total(part + Partial::num_floats(call, kMaxRows)) {}
  static int64_t num_floats(const Call &call) {
    const int64_t partials = 2 * Partial::num_floats(call, kMaxRows);
    return 2 * kMaxRows * kSpan + kMaxRows * call.head_dim + partials;
  }
};

// One key head's part of a sequence's blocks, in the cache's keys or values.
struct Blocks {
  const uint32_t *pool;
  const int32_t *block_table;
  int64_t stride;  // words

  Blocks(const Call &call, const Tile &tile, const void *cache, int64_t num_words)
      : pool(static_cast<const uint32_t *>(cache) + tile.kv_head * num_words),
        block_table(call.block_tables + tile.seq * call.max_blocks),
        stride(call.num_kv_heads * num_words) {}
  const uint32_t *operator[](int64_t block) const { return pool + block_table[block] * stride; }
};

// So many blocks ahead of a product, keys and values are brought into the cache: a sequence's blocks
// lie anywhere, and memory takes longer to answer than a block takes.
constexpr int64_t kFetched = 8;

// Scores of B blocks of 16 keys; `keys` has their beginnings, and those of kFetched blocks that are
// read behind each.
template <class T, int R, int B>
ALWAYS_INLINE void score_blocks(const typename T::Operand *queries, const uint32_t *const *keys,
                                int64_t num_words, float *scores) {
  Floats sums[R][B] = {};
  for (int64_t d = 0; d < num_words; ++d) {
    Words words[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; ++b) {
      words[b] = load(keys[b] + d * kBlock);
      fetch_far(keys[b + kFetched] + d * kBlock);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int b = 0; b < B; ++b) sums[r][b] = T::dot(sums[r][b], queries[d * R + r], words[b]);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int b = 0; b < B; ++b) store(scores + r * kSpan + b * kBlock, sums[r][b]);
}

// Scores of the keys of blocks, two blocks at a time where registers allow: with few rows, one
// block's sums would wait for themselves.
template <class T, int R>
ALWAYS_INLINE void score_span(const typename T::Operand *queries, const uint32_t *const *keys,
                              int64_t num_blocks, int64_t num_words, float *scores) {
  constexpr int kTogether = 2 * R <= kAccumulators ? 2 : 1;
  int64_t n = 0;
  for (; n + kTogether <= num_blocks; n += kTogether)
    score_blocks<T, R, kTogether>(queries, keys + n, num_words, scores + n * kBlock);
  for (; n < num_blocks; ++n)
    score_blocks<T, R, 1>(queries, keys + n, num_words, scores + n * kBlock);
}

// Turns a row's scores of whole blocks, from `first_key` on, into weights; those of keys that it
// does not see are zero. Answers the largest score and the sum of weights.
template <class T>
__attribute__((noinline)) std::pair<float, float> weigh(const Call &call, float *scores,
                                                        int64_t first_key, int64_t num_blocks,
                                                        Interval seen,
                                                        typename T::Operand *weights) {
  const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Ints lanes = load(numbers);
  const auto scale = static_cast<float>(call.scale), softcap = static_cast<float>(call.softcap);
  Floats largest = broadcast(-kInfinity);
  for (int64_t block = 0; block < num_blocks; ++block) {
    Floats score = load(scores + block * kBlock) * scale;
    if (softcap > 0.f) score = tanh_of(score / softcap) * softcap;
    const int64_t key = first_key + block * kBlock;
    const auto first = static_cast<int32_t>(std::clamp<int64_t>(seen.first - key, 0, kBlock));
    const auto end = static_cast<int32_t>(std::clamp<int64_t>(seen.end - key, 0, kBlock));
    if (first > 0 || end < kBlock) {
      const Ints is_seen = (lanes >= broadcast(first)) & (lanes < broadcast(end));
      score = select(is_seen, score, broadcast(-kInfinity));
    }
    store(scores + block * kBlock, score);
    largest = larger(largest, score);
  }
  const float top = largest_of(largest);
  const float base = top == -kInfinity ? 0.f : top;  // nothing seen: e^-inf, not e^NaN
  Floats sum = broadcast(0.f);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const Floats weight = exp_of(load(scores + block * kBlock) - base);
    sum = sum + weight;
    T::store_operands(weights + block * (kBlock / T::kPack), weight);
  }
  return {top, sum_of(sum)};
}

// Weighted sums of 16 * N columns of the values of blocks; `values` as `keys` of score_blocks.
template <class T, int R, int N>
ALWAYS_INLINE void sum_columns(const typename T::Operand *weights, const uint32_t *const *values,
                               int64_t num_blocks, int64_t column, int64_t value_dim, float *sums) {
  constexpr int64_t kWords = kBlock / T::kPack;
  Floats total[R][N] = {};
  for (int64_t block = 0; block < num_blocks; ++block, weights += kWords) {
    const uint32_t *row = values[block] + column, *next = values[block + kFetched] + column;
    for (int64_t k = 0; k < kWords; ++k, row += value_dim, next += value_dim) {
      Words words[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        words[n] = load(row + n * kBlock);
        fetch_far(next + n * kBlock);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const typename T::Operand weight = weights[r * (kSpan / T::kPack) + k];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) total[r][n] = T::dot(total[r][n], weight, words[n]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(sums + r * value_dim + column + n * kBlock, total[r][n]);
}

// As many groups of N * 16 columns as there are, if their sums fit the registers.
template <class T, int R, int N>
ALWAYS_INLINE int64_t sum_wide_columns(const typename T::Operand *weights,
                                       const uint32_t *const *values, int64_t num_blocks,
                                       int64_t column, int64_t value_dim, float *sums) {
  if constexpr (R * N <= kAccumulators || N == 1)
    for (; column + N * kBlock <= value_dim; column += N * kBlock)
      sum_columns<T, R, N>(weights, values, num_blocks, column, value_dim, sums);
  return column;
}

// A span of a tile.
struct TileSpan {
  const Tile &tile;
  int64_t span;

  // Those of 16 keys that any row sees.
  Interval blocks(const Call &call) const {
    const Interval all = tile.keys(call);
    return {std::max(span * kSpanBlocks, all.first / kBlock),
            std::min((span + 1) * kSpanBlocks, (all.end + kBlock - 1) / kBlock)};
  }
};

// One span of a tile of R rows, from nothing. `next`: what the thread computes behind it.
template <class T, int R>
void attend_span(const Call &call, const TileSpan &own, const TileSpan &next,
                 const Scratch<T> &scratch, Partial part) {
  const int64_t num_words = call.head_dim / T::kPack, value_dim = call.value_dim;
  const Blocks keys(call, own.tile, call.keys, num_words * kBlock);
  const Blocks values(call, own.tile, call.values, value_dim * (kBlock / T::kPack));
  const Blocks next_keys(call, next.tile, call.keys, num_words * kBlock);
  const Interval blocks = own.blocks(call), behind = next.blocks(call);
  const int64_t num_blocks = blocks.end - blocks.first;
  const uint32_t *starts[2 * kSpanBlocks + kFetched];  // in the order in which they are read
  for (int64_t n = 0; n < num_blocks; ++n) {
    starts[n] = keys[blocks.first + n];
    starts[num_blocks + n] = values[blocks.first + n];
  }
  for (int64_t n = 0; n < kFetched; ++n)
    starts[2 * num_blocks + n] = next_keys[std::min(behind.first + n, behind.end - 1)];

  score_span<T, R>(scratch.queries, starts, num_blocks, num_words, scratch.scores);
  for (int r = 0; r < R; ++r)
    std::tie(part.largest[r], part.sums[r]) =
        weigh<T>(call, scratch.scores + r * kSpan, blocks.first * kBlock, num_blocks,
                 own.tile.seen(call, r), scratch.weights + r * (kSpan / T::kPack));
  const auto *weights = scratch.weights;
  const uint32_t *const *read = starts + num_blocks;
  int64_t column = 0;
  column = sum_wide_columns<T, R, 4>(weights, read, num_blocks, column, value_dim, part.values);
  column = sum_wide_columns<T, R, 2>(weights, read, num_blocks, column, value_dim, part.values);
  sum_wide_columns<T, R, 1>(weights, read, num_blocks, column, value_dim, part.values);
}

template <class T, size_t... I>
constexpr auto span_functions(std::index_sequence<I...>) {
  return std::array{&attend_span<T, static_cast<int>(I) + 1>...};
}

// ---- A step, cut into items for threads, and merged from spans.
//
// An item is a tile with all of its spans, or some spans of a tile that is too long for one thread;
// those leave partials behind, which are merged when every item is done. Spans are merged in order
// either way, so the cut changes no bit.

struct Item {
  int64_t tile;
  Interval spans;
  int64_t partials;  // where the first span's partial begins, in floats; -1: the tile is whole
};
struct SplitTile {
  int64_t tile, partials;
};
struct Work {
  std::vector<Tile> tiles;
  std::vector<Item> items;
  std::vector<SplitTile> splits;
  int64_t num_partial_floats = 0;
};

// Tiles of about equal size, those that see most keys first, so that none of them ends up last.
inline std::vector<Tile> cut_tiles(const Call &call) {
  std::vector<Tile> tiles;
  for (int64_t seq = 0; seq < call.num_seqs; ++seq) {
    const int64_t first_token = call.cu_query_lens[seq];
    const int64_t query_len = call.cu_query_lens[seq + 1] - first_token;
    const int64_t num_rows = query_len * call.group();
    const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    for (int64_t index = num_tiles - 1; index >= 0; --index) {
      const int64_t first_row = num_rows * index / num_tiles;
      const int64_t end_row = num_rows * (index + 1) / num_tiles;
      for (int64_t kv_head = 0; kv_head < call.num_kv_heads; ++kv_head)
        tiles.push_back({seq, kv_head, first_token, call.context_lens[seq] - query_len, first_row,
                         end_row - first_row});
    }
  }
  return tiles;
}

inline Work plan(const Call &call) {
  Work work;
  work.tiles = cut_tiles(call);
  int64_t num_spans = 0;
  for (const Tile &tile : work.tiles) num_spans += tile.spans(call).end - tile.spans(call).first;
  const int64_t fair_share = std::max<int64_t>(1, num_spans / (4 * call.num_threads));
  for (int64_t index = 0; index < static_cast<int64_t>(work.tiles.size()); ++index) {
    const Interval spans = work.tiles[index].spans(call);
    if (call.num_threads == 1 || spans.end - spans.first <= fair_share) {
      work.items.push_back({index, spans, -1});
      continue;
    }
    const int64_t size = Partial::num_floats(call, work.tiles[index].num_rows);
    const int64_t partials = work.num_partial_floats;
    work.num_partial_floats += (spans.end - spans.first) * size;
    work.splits.push_back({index, partials});
    for (int64_t span = spans.first; span < spans.end; span += fair_share)
      work.items.push_back({index,
                            {span, std::min(span + fair_share, spans.end)},
                            partials + (span - spans.first) * size});
  }
  return work;
}

inline void clear(Partial &total, const Call &call, int64_t num_rows) {
  std::fill_n(total.largest, num_rows, -kInfinity);
  std::fill_n(total.sums, num_rows, 0.f);
  std::fill_n(total.values, num_rows * call.value_dim, 0.f);
}

// Adds a later span. Exact where one side saw no key: its factor is zero and the other's is one.
inline void merge(Partial &total, const Partial &part, const Call &call, int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const float largest = std::max(total.largest[row], part.largest[row]);
    const float base = largest == -kInfinity ? 0.f : largest;
    const float old_factor = std::exp(total.largest[row] - base);
    const float new_factor = std::exp(part.largest[row] - base);
    total.largest[row] = largest;
    total.sums[row] = total.sums[row] * old_factor + part.sums[row] * new_factor;
    float *to = total.values + row * call.value_dim;
    const float *from = part.values + row * call.value_dim;
    for (int64_t d = 0; d < call.value_dim; d += 16)
      store(to + d, load(to + d) * old_factor + load(from + d) * new_factor);
  }
}

// What a row's weighted sum is multiplied by in the end. Each head's sink, a score without a value,
// joins the softmax here.
inline float output_factor(const Call &call, const Tile &tile, const Partial &total, int64_t row) {
  if (call.sinks == nullptr) return 1.f / total.sums[row];
  const float sink = call.sinks[tile.head(call, row)];
  const float largest = std::max(total.largest[row], sink);
  const float factor = std::exp(total.largest[row] - largest);
  return factor / (total.sums[row] * factor + std::exp(sink - largest));
}

// One item. `gather(tile, queries)` fetches the tile's queries, dimension by dimension, so that one
// pointer walks over all rows; `write(tile, total)` takes a whole tile's result.
template <class T, class Gather, class Write>
void attend_item(const Call &call, const Work &work, int64_t index, float *partials,
                 const Scratch<T> &scratch, Gather gather, Write write) {
  static constexpr auto kFunctions = span_functions<T>(std::make_index_sequence<kMaxRows>{});
  const Item &item = work.items[index];
  const Item &next = work.items[std::min<int64_t>(index + 1, work.items.size() - 1)];
  const Tile &tile = work.tiles[item.tile];
  const auto attend = [&](int64_t span, Partial part) {
    const bool is_last = span + 1 == item.spans.end;
    kFunctions[tile.num_rows - 1](
        call, {tile, span},
        is_last ? TileSpan{work.tiles[next.tile], next.spans.first} : TileSpan{tile, span + 1}, scratch, part);
  };
  gather(tile, scratch.queries);
  if (item.partials >= 0) {
    float *to = partials + item.partials;
    for (int64_t span = item.spans.first; span < item.spans.end; ++span) {
      attend(span, Partial(to, tile.num_rows));
      to += Partial::num_floats(call, tile.num_rows);
    }
    return;
  }
  Partial total(scratch.total, tile.num_rows), part(scratch.part, tile.num_rows);
  clear(total, call, tile.num_rows);
  for (int64_t span = item.spans.first; span < item.spans.end; ++span) {
    attend(span, part);
    merge(total, part, call, tile.num_rows);
  }
  write(tile, total);
}

template <class T, class Write>
void merge_split(const Call &call, const Work &work, const SplitTile &split, float *partials,
                 const Scratch<T> &scratch, Write write) {
  const Tile &tile = work.tiles[split.tile];
  const Interval spans = tile.spans(call);
  Partial total(scratch.total, tile.num_rows);
  clear(total, call, tile.num_rows);
  float *from = partials + split.partials;
  for (int64_t span = spans.first; span < spans.end; ++span) {
    merge(total, Partial(from, tile.num_rows), call, tile.num_rows);
    from += Partial::num_floats(call, tile.num_rows);
  }
  write(tile, total);
}
