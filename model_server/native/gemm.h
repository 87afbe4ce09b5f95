// Products of rows with a packed matrix, in tiles of a few rows by 32 columns.
//
// Every sum runs over k from zero in one register (dots.h), whatever the number of rows, the tile
// or the thread: so a row's result has the same bits alone and in a batch, in decode and in prefill.
//
// A matrix is packed by 32 columns, its outputs: [n / 32][words of k][32 words]. A panel is 32
// columns, one contiguous read. Rows are made ready by `prepare_rows` of packing.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "dots.h"

// What a thread holds while it multiplies: of AMX, the shape of its tiles.
#if NATIVE_AMX
#include "amx.h"
using Registers = amx::Tiles;
#else
struct Registers {};
#endif

constexpr int kColumns = 32;  // of a panel

// Of weights; rows are of the same. But kWide is bfloat16 weights for rows of floats: half of what
// kF32 reads, to the same results.
enum Format : int64_t { kF32 = 0, kBf16 = 1, kInt8 = 2, kWide = 3 };

// Mirrored field by field by whoever packs it. Arrays of columns are padded to whole panels; `k` may
// be any number, the last words are filled up with zeros.
struct Matrix {
  const void *packed;   // packed_bytes(), at a multiple of 64
  const float *scales;  // int8: per column; or null
  const int32_t *sums;  // int8: each column's sum of weights; or null
  const float *bias;    // per column, or null
  int64_t n, k;         // columns, and length of a row; k at most 2^17 in int8
  int64_t format;

  int64_t pack() const { return format == kF32 ? 1 : format == kInt8 ? 4 : 2; }
  bool in_tiles() const { return NATIVE_AMX && (format == kBf16 || format == kInt8); }  // of AMX
  int64_t num_words() const {  // of a row, or a column
    const int64_t words = (k + pack() - 1) / pack();
    return in_tiles() ? (words + 15) / 16 * 16 : words;
  }
  int64_t num_panels() const { return (n + kColumns - 1) / kColumns; }
  int64_t panel_bytes() const { return num_words() * kColumns * 4; }
  int64_t packed_bytes() const { return num_panels() * panel_bytes(); }
};

// The rows of a tile: as many as registers hold the sums of, beside what is multiplied. Up to
// kWideRows rows, sums of all 32 columns fit, and hide how long one takes.
#if defined(__AVX512F__)
constexpr int kVectorRows = 12, kWideRows = 12;
#elif defined(__AVX__)
constexpr int kVectorRows = 6, kWideRows = 2;
#elif defined(__aarch64__)
constexpr int kVectorRows = 6, kWideRows = 3;
#else
constexpr int kVectorRows = 3, kWideRows = 1;
#endif
constexpr int kTileRows = NATIVE_AMX ? 32 : kVectorRows;  // at most
inline int tile_rows(const Matrix &matrix) { return matrix.in_tiles() ? kTileRows : kVectorRows; }

// Up to tile_rows() rows, ready for products with matrices of one format and k. Unit u of row r:
// units[u * num_rows + r] where row_step is 0, else units[r * row_step + u]; for AMX see amx.h.
struct RowTile {
  const uint32_t *units;
  const float *scales;  // int8: per row
  int64_t row_step;
  int num_rows;
};

// Rows are cut into as many tiles as necessary: of about equal size, but for AMX, where 16 rows take
// as long as one.
inline int64_t num_tiles_of(const Matrix &matrix, int64_t num_rows) {
  return (num_rows + tile_rows(matrix) - 1) / tile_rows(matrix);
}
inline int64_t tile_start(const Matrix &matrix, int64_t num_rows, int64_t tile) {
  if (matrix.in_tiles()) return std::min<int64_t>(num_rows, tile * kTileRows);
  return num_rows * tile / num_tiles_of(matrix, num_rows);
}

template <class Sums>
ALWAYS_INLINE Floats finished(const Matrix &matrix, int64_t column, Sums sums, float row_scale) {
  Floats x;
  if constexpr (std::is_same_v<Sums, Ints>) {
    const Ints exact = sums - load(matrix.sums + column) * int32_t{Int8Dot::kOffset};
    x = each<float>([&](int i) {
          return __builtin_convertvector(exact.part[i], Floats::Register);
        }) * row_scale;
    const Floats scale = load(matrix.scales + column);
    return matrix.bias ? multiply_add(x, scale, load(matrix.bias + column)) : x * scale;
  } else {
    return matrix.bias ? sums + load(matrix.bias + column) : sums;
  }
}

// One step of k for part U of the words: each row's unit is loaded once for all columns.
template <class Dot, int U, bool kPacked, int R, int N>
ALWAYS_INLINE void join_part(typename Dot::Sums (&total)[R][N], const Words (&words)[N],
                             const uint32_t *units, int64_t row_step) {
  Words parts[N];
#pragma GCC unroll 2
  for (int n = 0; n < N; ++n) parts[n] = Dot::template part<U>(words[n]);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Words x = broadcast(kPacked ? units[U * R + r] : units[r * row_step + U]);
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) total[r][n] = Dot::join(total[r][n], x, parts[n]);
  }
}

template <class Dot, bool kPacked, int R, int N, int... U>
ALWAYS_INLINE void join_word(typename Dot::Sums (&total)[R][N], const Words (&words)[N],
                             const uint32_t *units, int64_t row_step,
                             std::integer_sequence<int, U...>) {
  (join_part<Dot, U, kPacked>(total, words, units, row_step), ...);
}

// The sums of a tile of R rows over one panel, as [R][32] floats: scaled, and with the bias. `ahead`
// is what to bring into the cache on the way, a panel's worth.
template <class Dot, int R, bool kPacked, bool kAhead>
void multiply_tile(const Matrix &matrix, int64_t panel, const RowTile &tile, const char *ahead,
                   float *to) {
  constexpr int kWide = R <= kWideRows ? 2 : 1;
  const int64_t num_words = matrix.num_words(), row_step = tile.row_step;
  const char *packed = static_cast<const char *>(matrix.packed) + panel * matrix.panel_bytes();
  for (int half = 0; half < 2; half += kWide) {
    const uint32_t *weights = reinterpret_cast<const uint32_t *>(packed) + half * 16;
    const uint32_t *units = tile.units;
    typename Dot::Sums total[R][kWide] = {};
    for (int64_t word = 0; word < num_words; ++word, weights += kColumns) {
      Words words[kWide];
#pragma GCC unroll 2
      for (int n = 0; n < kWide; ++n) words[n] = load(weights + n * 16);
      if constexpr (kAhead) {
#pragma GCC unroll 2
        for (int n = 0; n < kWide; ++n) __builtin_prefetch(ahead + word * 128 + (half + n) * 64);
      }
      join_word<Dot, kPacked>(total, words, units, row_step,
                              std::make_integer_sequence<int, Dot::kUnits>{});
      units += kPacked ? R * Dot::kUnits : Dot::kUnits;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int n = 0; n < kWide; ++n)
        store(to + r * kColumns + (half + n) * 16,
              finished(matrix, panel * kColumns + (half + n) * 16, total[r][n],
                       tile.scales ? tile.scales[r] : 1.f));
  }
}

// Unnamed, since a table inside of a template with external linkage would be one for all libraries
// of a process, whatever instruction set each was compiled for.
namespace {

using Multiply = void (*)(const Matrix &, int64_t, const RowTile &, const char *, float *);

template <class Dot, bool kPacked, bool kAhead, int... R>
constexpr auto multiply_functions(std::integer_sequence<int, R...>) {
  return std::array<Multiply, sizeof...(R)>{&multiply_tile<Dot, R + 1, kPacked, kAhead>...};
}

template <bool kPacked, bool kAhead>
Multiply multiply_function(int64_t format, int num_rows) {
  using Rows = std::make_integer_sequence<int, kVectorRows>;
  static constexpr std::array kFunctions = {
      multiply_functions<F32Dot, kPacked, kAhead>(Rows{}),
      multiply_functions<Bf16Dot, kPacked, kAhead>(Rows{}),
      multiply_functions<Int8Dot, kPacked, kAhead>(Rows{}),
      multiply_functions<WideDot, kPacked, kAhead>(Rows{}),
  };
  return kFunctions[format][num_rows - 1];
}

}  // namespace

#if NATIVE_AMX

// As multiply_tile, for matrices whose rows and weights lie in tiles of AMX.
inline void multiply_amx(const Matrix &matrix, int64_t panel, const RowTile &tile, bool fetches,
                         const char *ahead, float *to) {
  using Function = void (*)(const char *, int64_t, const uint32_t *, int, const char *, void *);
  static constexpr Function kFunctions[2][2][2] = {
      {{amx::multiply<false, false, false>, amx::multiply<false, false, true>},
       {amx::multiply<false, true, false>, amx::multiply<false, true, true>}},
      {{amx::multiply<true, false, false>, amx::multiply<true, false, true>},
       {amx::multiply<true, true, false>, amx::multiply<true, true, true>}}};
  const bool is_bytes = matrix.format == kInt8, is_tall = tile.num_rows > amx::kRows;
  const char *weights = static_cast<const char *>(matrix.packed) + panel * matrix.panel_bytes();
  kFunctions[is_bytes][is_tall][fetches](weights, matrix.num_words(), tile.units, tile.num_rows,
                                         ahead, to);
  if (!is_bytes && matrix.bias == nullptr) return;
  for (int r = 0; r < tile.num_rows; ++r)
    for (int n = 0; n < kColumns; n += 16) {
      float *sums = to + r * kColumns + n;
      const int64_t column = panel * kColumns + n;
      store(sums, is_bytes ? finished(matrix, column, load(reinterpret_cast<int32_t *>(sums)),
                                      tile.scales[r])
                           : finished(matrix, column, load(sums), 1.f));
    }
}

#endif

// Multiplies every tile by one panel: calls finish(tile number, [rows][32] floats), the floats being
// complete (scaled, with the bias). All tiles are packed, or none is.
template <class F>
void multiply_panel(const Matrix &matrix, int64_t panel, const RowTile *tiles, int64_t num_tiles,
                    [[maybe_unused]] Registers &registers, F finish) {
  // The first tile fetches its own panel some way ahead, the second one what follows it.
  constexpr int64_t kAhead = NATIVE_AMX ? 8192 : 3072;
  const char *next = static_cast<const char *>(matrix.packed) + (panel + 1) * matrix.panel_bytes();
  alignas(64) float sums[kTileRows * kColumns];
  for (int64_t t = 0; t < num_tiles; ++t) {
    const RowTile &tile = tiles[t];
    const bool packed = tile.row_step == 0;
    const char *ahead = t == 0 ? next - matrix.panel_bytes() + kAhead : next;
#if NATIVE_AMX
    if (matrix.in_tiles()) {
      registers.shape(tile.num_rows);
      multiply_amx(matrix, panel, tile, t < 2, ahead, sums);
      finish(t, static_cast<const float *>(sums));
      continue;
    }
#endif
    const auto multiply =
        packed ? t < 2 ? multiply_function<true, true>(matrix.format, tile.num_rows)
                       : multiply_function<true, false>(matrix.format, tile.num_rows)
               : multiply_function<false, true>(matrix.format, tile.num_rows);
    multiply(matrix, panel, tile, ahead, sums);
    finish(t, static_cast<const float *>(sums));
  }
}
