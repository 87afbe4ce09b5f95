// Paged attention on CPUs, for bfloat16 and float32: one layer of one step per call, by a plain C
// ABI that cpu_op.py mirrors. tile.h has the layout, the words, and why a row's bits are its own.
#include <omp.h>

#include <memory>
#include <new>

#include "tile.h"

namespace {

struct Free {
  void operator()(void *memory) const { operator delete(memory, std::align_val_t(64)); }
};
using Memory = std::unique_ptr<float, Free>;

Memory allocate(int64_t num_floats) {
  return Memory(static_cast<float *>(operator new(num_floats * 4, std::align_val_t(64))));
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

template <class T>
void write_output(const Call &call, const Tile &tile, const Partial &total) {
  auto *output = static_cast<typename T::Element *>(call.output);
  for (int64_t row = 0; row < tile.num_rows; ++row) {
    const float factor = output_factor(call, tile, total, row);
    const int64_t place = tile.token(call, row) * call.num_heads + tile.head(call, row);
    auto *to = output + place * call.value_dim;
    const float *from = total.values + row * call.value_dim;
    for (int64_t d = 0; d < call.value_dim; d += 16)
      T::store_elements(to + d, load(from + d) * factor);
  }
}

template <class T>
void attend_step(const Call &call) {
  const Work work = plan(call);
  const int64_t num_writes = call.num_seqs * call.num_kv_heads;
  const int64_t num_items = work.items.size(), num_splits = work.splits.size();
  const int num_threads = std::min(call.num_threads, std::max(num_writes, num_items));
  const int64_t scratch_size = (Scratch<T>::num_floats(call) + 15) / 16 * 16;
  const Memory scratches = allocate(num_threads * scratch_size);
  const Memory partials = allocate(work.num_partial_floats);
  const auto gather = [&call](const Tile &tile, typename T::Operand *to) {
    gather_queries<T>(call, tile, to);
  };
  const auto write = [&call](const Tile &tile, const Partial &total) {
    write_output<T>(call, tile, total);
  };
#pragma omp parallel num_threads(num_threads)
  {
    const Scratch<T> scratch(call, scratches.get() + omp_get_thread_num() * scratch_size);
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_writes; ++index)
      write_tokens<T>(call, index / call.num_kv_heads, index % call.num_kv_heads);
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_items; ++index)
      attend_item<T>(call, work, index, partials.get(), scratch, gather, write);
    if (num_splits > 0) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t index = 0; index < num_splits; ++index)
        merge_split<T>(call, work, work.splits[index], partials.get(), scratch, write);
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
