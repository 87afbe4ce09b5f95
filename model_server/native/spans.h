// Attention of a step, cut into items for threads, and merged from spans.
//
// An item is a tile with all of its spans, or some spans of a tile that is too long for one thread;
// those leave partials behind, which are merged when every item is done. Spans are merged in order
// either way, so the cut changes no bit.
#pragma once

#include <vector>

#include "tile.h"

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
void attend_item(const Call &call, const Work &work, const Item &item, float *partials,
                 const Scratch<T> &scratch, Gather gather, Write write) {
  static constexpr auto kFunctions = span_functions<T>(std::make_index_sequence<kMaxRows>{});
  const Tile &tile = work.tiles[item.tile];
  const auto attend = kFunctions[tile.num_rows - 1];
  gather(tile, scratch.queries);
  if (item.partials >= 0) {
    float *to = partials + item.partials;
    for (int64_t span = item.spans.first; span < item.spans.end; ++span) {
      attend(call, tile, span, scratch, Partial(to, tile.num_rows));
      to += Partial::num_floats(call, tile.num_rows);
    }
    return;
  }
  Partial total(scratch.total, tile.num_rows), part(scratch.part, tile.num_rows);
  clear(total, call, tile.num_rows);
  for (int64_t span = item.spans.first; span < item.spans.end; ++span) {
    attend(call, tile, span, scratch, part);
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
