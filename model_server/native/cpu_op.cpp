// Paged attention on CPUs, for bfloat16 and float32: one layer of one step per call, by a plain C
// ABI that cpu_op.py mirrors. tile.h has the layout, the words, and why a row's bits are its own.
#include <omp.h>

#include <memory>
#include <new>
#include <vector>

#include "tile.h"

namespace {

struct Free {
  void operator()(void *memory) const { operator delete(memory, std::align_val_t(64)); }
};
using Memory = std::unique_ptr<float, Free>;

Memory allocate(int64_t num_floats) {
  return Memory(static_cast<float *>(operator new(num_floats * 4, std::align_val_t(64))));
}

// A thread's share: a tile with all of its spans, or some spans of a tile that is too long for one
// thread. Those leave partials behind, which are merged when every item is done.
struct Item {
  int64_t tile;
  Interval spans;
  float *partials;  // of the first span; null when the tile is whole
};
struct Split {
  int64_t tile;
  Memory partials;
};
struct Work {
  std::vector<Tile> tiles;
  std::vector<Item> items;
  std::vector<Split> splits;
};

// Tiles of about equal size, those that see most keys first, so that none of them ends up last.
std::vector<Tile> cut_tiles(const Call &call) {
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

Work plan(const Call &call) {
  Work work;
  work.tiles = cut_tiles(call);
  int64_t num_spans = 0;
  for (const Tile &tile : work.tiles) num_spans += tile.spans(call).end - tile.spans(call).first;
  const int64_t fair_share = std::max<int64_t>(1, num_spans / (4 * call.num_threads));
  for (int64_t index = 0; index < static_cast<int64_t>(work.tiles.size()); ++index) {
    const Interval spans = work.tiles[index].spans(call);
    if (call.num_threads == 1 || spans.end - spans.first <= fair_share) {
      work.items.push_back({index, spans, nullptr});
      continue;
    }
    const int64_t size = Partial::num_floats(call, work.tiles[index].num_rows);
    work.splits.push_back({index, allocate((spans.end - spans.first) * size)});
    float *partials = work.splits.back().partials.get();
    for (int64_t span = spans.first; span < spans.end; span += fair_share)
      work.items.push_back({index,
                            {span, std::min(span + fair_share, spans.end)},
                            partials + (span - spans.first) * size});
  }
  return work;
}

// Writes a sequence's new keys and values of one head, token after token. Entering a block clears
// the values in it: slots that are not written yet are read with the weight zero, and zero times
// what a broken sequence may have left there, NaN, would not be zero.
template <class T>
void write_tokens(const Call &call, int64_t seq, int64_t kv_head) {
  using Element = typename T::Element;
  constexpr int64_t kPack = T::kPack;
  for (int64_t token = call.cu_query_lens[seq]; token < call.cu_query_lens[seq + 1]; ++token) {
    const int64_t slot = call.slots[token], offset = slot % kBlock;
    const int64_t part = slot / kBlock * call.num_kv_heads + kv_head;
    const auto *key = static_cast<const Element *>(call.key) + token * call.key_token_stride +
                      kv_head * call.key_head_stride;
    const auto *value = static_cast<const Element *>(call.value) +
                        token * call.value_token_stride + kv_head * call.value_head_stride;
    auto *keys = static_cast<Element *>(call.keys) + part * kBlock * call.head_dim;
    for (int64_t d = 0; d < call.head_dim; d += kPack)
      std::memcpy(keys + d * kBlock + offset * kPack, key + d, kPack * sizeof(Element));
    auto *values = static_cast<Element *>(call.values) + part * kBlock * call.value_dim;
    if (offset == 0) std::memset(values, 0, kBlock * call.value_dim * sizeof(Element));
    values += offset / kPack * kPack * call.value_dim + offset % kPack;
    for (int64_t d = 0; d < call.value_dim; ++d) values[d * kPack] = value[d];
  }
}

// The tile's queries, dimension by dimension, so that one pointer walks over all rows.
template <class T>
void gather_queries(const Call &call, const Tile &tile, typename T::Operand *queries) {
  const auto *query = static_cast<const typename T::Element *>(call.query);
  for (int64_t row = 0; row < tile.num_rows; ++row) {
    const auto *from = query + tile.token(call, row) * call.query_token_stride +
                       tile.head(call, row) * call.query_head_stride;
    for (int64_t d = 0; d < call.head_dim / T::kPack; ++d)
      queries[d * tile.num_rows + row] = T::operand(from + d * T::kPack);
  }
}

void clear(Partial &total, const Call &call, int64_t num_rows) {
  std::fill_n(total.largest, num_rows, -kInfinity);
  std::fill_n(total.sums, num_rows, 0.f);
  std::fill_n(total.values, num_rows * call.value_dim, 0.f);
}

// Adds a later span. Exact where one side saw no key: its factor is zero and the other's is one.
void merge(Partial &total, const Partial &part, const Call &call, int64_t num_rows) {
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

// Lets each head's sink, a score without a value, join the softmax, and writes the rows out.
template <class T>
void write_output(const Call &call, const Tile &tile, const Partial &total) {
  auto *output = static_cast<typename T::Element *>(call.output);
  for (int64_t row = 0; row < tile.num_rows; ++row) {
    const int64_t head = tile.head(call, row);
    float factor = 1.f, sum = total.sums[row];
    if (call.sinks != nullptr) {
      const float sink = call.sinks[head], largest = std::max(total.largest[row], sink);
      factor = std::exp(total.largest[row] - largest);
      sum = sum * factor + std::exp(sink - largest);
    }
    factor /= sum;
    auto *to = output + (tile.token(call, row) * call.num_heads + head) * call.value_dim;
    const float *from = total.values + row * call.value_dim;
    for (int64_t d = 0; d < call.value_dim; d += 16)
      T::store_elements(to + d, load(from + d) * factor);
  }
}

template <class T>
void attend_item(const Call &call, const Work &work, const Item &item, const Scratch<T> &scratch) {
  static constexpr auto kFunctions = span_functions<T>(std::make_index_sequence<kMaxRows>{});
  const Tile &tile = work.tiles[item.tile];
  const auto attend = kFunctions[tile.num_rows - 1];
  gather_queries<T>(call, tile, scratch.queries);
  if (item.partials != nullptr) {
    float *partials = item.partials;
    for (int64_t span = item.spans.first; span < item.spans.end; ++span) {
      attend(call, tile, span, scratch, Partial(partials, tile.num_rows));
      partials += Partial::num_floats(call, tile.num_rows);
    }
    return;
  }
  Partial total(scratch.total, tile.num_rows), part(scratch.part, tile.num_rows);
  clear(total, call, tile.num_rows);
  for (int64_t span = item.spans.first; span < item.spans.end; ++span) {
    attend(call, tile, span, scratch, part);
    merge(total, part, call, tile.num_rows);
  }
  write_output<T>(call, tile, total);
}

template <class T>
void merge_split(const Call &call, const Tile &tile, float *partials, const Scratch<T> &scratch) {
  const Interval spans = tile.spans(call);
  Partial total(scratch.total, tile.num_rows);
  clear(total, call, tile.num_rows);
  for (int64_t span = spans.first; span < spans.end; ++span) {
    merge(total, Partial(partials, tile.num_rows), call, tile.num_rows);
    partials += Partial::num_floats(call, tile.num_rows);
  }
  write_output<T>(call, tile, total);
}

template <class T>
void attend_step(const Call &call) {
  const Work work = plan(call);
  const int64_t num_writes = call.num_seqs * call.num_kv_heads;
  const int64_t num_items = work.items.size(), num_splits = work.splits.size();
  const int num_threads = std::min(call.num_threads, std::max(num_writes, num_items));
  const int64_t scratch_size = (Scratch<T>::num_floats(call) + 15) / 16 * 16;
  const Memory scratches = allocate(num_threads * scratch_size);
#pragma omp parallel num_threads(num_threads)
  {
    const Scratch<T> scratch(call, scratches.get() + omp_get_thread_num() * scratch_size);
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_writes; ++index)
      write_tokens<T>(call, index / call.num_kv_heads, index % call.num_kv_heads);
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_items; ++index)
      attend_item<T>(call, work, work.items[index], scratch);
    if (num_splits > 0) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t index = 0; index < num_splits; ++index) {
        const Split &split = work.splits[index];
        merge_split<T>(call, work.tiles[split.tile], split.partials.get(), scratch);
      }
    }
  }
}

// 0, or 1 when memory is short: an exception must not cross into C.
template <class T>
int32_t attend_guarded(const Call &call) noexcept {
  try {
    attend_step<T>(call);
    return 0;
  } catch (const std::bad_alloc &) {
    return 1;
  }
}

}  // namespace

extern "C" {
int64_t tandem_call_bytes() { return sizeof(Call); }
int32_t tandem_attend_bf16(const Call *call) { return attend_guarded<Bf16>(*call); }
int32_t tandem_attend_f32(const Call *call) { return attend_guarded<F32>(*call); }
}
