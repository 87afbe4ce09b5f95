// Products of rows with a packed matrix, in tiles of a few rows by 32 columns.
//
// Every sum runs over k from zero in one register, whatever the number of rows, the tile or the
// thread: so a row's result has the same bits alone and in a batch, in decode and in prefill.
//
// A matrix is packed by 32 columns, its outputs: [n / 32][words of k][32 words]. A panel is 32
// columns, one contiguous read.
//
//     dots      how a word of weights, times a word of a row, joins a sum; of groups: groups.h
//     products  Matrix, RowTile, multiply_panel
//     packing   makes weights (pack) and rows (prepare_rows) ready
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "groups.h"
#include "vectors.h"

// ---- Dots, per format and instruction set: how a word of weights, times one of a row, joins a sum.
//
// A word has 32 bits: 1 float, 2 bfloat16s or 4 bytes, of consecutive k. `part` is what one step
// multiplies of 16 columns' words, `join` multiplies it by one unit of a row and adds. A row's word
// is kUnits units of 32 bits, encoded for the instruction that reads them. The parts of a word join
// in order, the words of a row in order: so every sum runs in one order, in one register.
//
// With AMX bfloat16s and bytes are multiplied by tiles instead (amx.h), whatever the number of rows:
// it sums even and odd numbers of a word apart, so a format cannot use both.

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define NATIVE_AMX 1
#else
#define NATIVE_AMX 0
#endif

struct F32Dot {
  using Sums = Floats;
  static constexpr int kPack = 1, kUnits = 1;

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return words;
  }
  static ALWAYS_INLINE Floats join(Floats sums, Words x, Words part) {
    return multiply_add(bits_as<float>(part), bits_as<float>(x), sums);
  }
};

// bfloat16s times floats, which are a row's units: widened by a shift and a mask, joined as floats
// are. So sums have the bits that those of weights widened in memory have.
struct WideDot {
  using Sums = Floats;
  static constexpr int kPack = 2, kUnits = 2;

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return U == 0 ? words << 16u : words & 0xffff0000u;
  }
  static ALWAYS_INLINE Floats join(Floats sums, Words x, Words part) {
    return F32Dot::join(sums, x, part);
  }
};

#if NATIVE_BF16

struct Bf16Dot {
  using Sums = Floats;
  static constexpr int kPack = 2, kUnits = 1;

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return words;
  }
  static ALWAYS_INLINE Floats join(Floats sums, Words x, Words part) {
    return {(Floats::Register)_mm512_dpbf16_ps((__m512)sums.part[0], (__m512bh)x.part[0],
                                               (__m512bh)part.part[0])};
  }
};

#else

using Bf16Dot = WideDot;  // a row's units are rounded floats

#endif

// Bytes: sums of integers are exact, so these differ in speed alone. kOffset is what a row's bytes
// have been raised by, to be taken off again as kOffset * (the column's sum).

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

struct Int8Dot {
  using Sums = Ints;
  // It multiplies unsigned by signed; AMX knows signed by signed.
  static constexpr int kPack = 4, kUnits = 1, kOffset = NATIVE_AMX ? 0 : 128;

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return words;
  }
  static ALWAYS_INLINE Ints join(Ints sums, Words x, Words part) {
    return {(Ints::Register)_mm512_dpbusd_epi32((__m512i)sums.part[0], (__m512i)x.part[0],
                                                (__m512i)part.part[0])};
  }
};

#elif defined(__AVX512BW__) || defined(__AVX2__)

// Even and odd bytes, widened to 16 bits: `maddubs` would saturate. A row's units are the pairs
// (0, 2) and (1, 3) of a word, of 16 bits each.
struct Int8Dot {
  using Sums = Ints;
  static constexpr int kPack = 4, kUnits = 2, kOffset = 0;

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return each<uint32_t>([&](int i) {
#if defined(__AVX512BW__)
      const __m512i even = _mm512_slli_epi16((__m512i)words.part[i], 8);
      return (Words::Register)_mm512_srai_epi16(U == 0 ? even : (__m512i)words.part[i], 8);
#else
      const __m256i even = _mm256_slli_epi16((__m256i)words.part[i], 8);
      return (Words::Register)_mm256_srai_epi16(U == 0 ? even : (__m256i)words.part[i], 8);
#endif
    });
  }
  static ALWAYS_INLINE Ints join(Ints sums, Words x, Words part) {
    return sums + each<int32_t>([&](int i) {
#if defined(__AVX512BW__)
      return (Ints::Register)_mm512_madd_epi16((__m512i)x.part[i], (__m512i)part.part[i]);
#else
      return (Ints::Register)_mm256_madd_epi16((__m256i)x.part[i], (__m256i)part.part[i]);
#endif
    });
  }
};

#elif defined(__ARM_FEATURE_DOTPROD)

struct Int8Dot {
  using Sums = Ints;
  static constexpr int kPack = 4, kUnits = 1, kOffset = 0;

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return words;
  }
  static ALWAYS_INLINE Ints join(Ints sums, Words x, Words part) {
    return each<int32_t>([&](int i) {
      return (Ints::Register)vdotq_s32((int32x4_t)sums.part[i], (int8x16_t)x.part[i],
                                       (int8x16_t)part.part[i]);
    });
  }
};

#else

struct Int8Dot {
  using Sums = Ints;
  static constexpr int kPack = 4, kUnits = 4, kOffset = 0;  // a row's units are numbers

  template <int U>
  static ALWAYS_INLINE Words part(Words words) {
    return bits_as<uint32_t>((bits_as<int32_t>(words) << (24 - 8 * U)) >> 24);
  }
  static ALWAYS_INLINE Ints join(Ints sums, Words x, Words part) {
    return sums + bits_as<int32_t>(x) * bits_as<int32_t>(part);
  }
};

#endif

// ---- Products

// What a thread holds while it multiplies: of AMX, the shape of its tiles.
#if NATIVE_AMX
#include "amx.h"
using Registers = amx::Tiles;
#else
struct Registers {};
#endif

constexpr int kColumns = 32;  // of a panel

// Of weights; rows are of the same. But kWide is bfloat16 weights for rows of floats: half of what
// kF32 reads, to the same results. Of those from kInt4 on see groups.h: rows have 8 bits, or 16 from
// kInt4Wide on.
enum Format : int64_t {
  kF32,
  kBf16,
  kInt8,
  kWide,
  kInt4,
  kInt5,
  kInt6,
  kGroupedInt8,
  kInt4Wide,
  kInt5Wide,
  kInt6Wide,
  kGroupedInt8Wide
};

// Of groups, [n / 32][num_groups()][32]; with the factors of bytes, [n / 32][k / 256][32].
struct GroupValues {
  const void *values;
  const uint16_t *factors;  // halves
};

// Mirrored field by field by whoever packs it. Arrays of columns are padded to whole panels; `k` may
// be any number, the last words are filled up with zeros.
struct Matrix {
  const void *packed;   // packed_bytes(), at a multiple of 64
  const float *scales;  // int8: per column; or null
  const int32_t *sums;  // int8: each column's sum of weights; or null
  const float *bias;    // per column, or null
  int64_t n, k;         // columns, and length of a row; k at most 2^17 in int8
  int64_t format;
  // In groups: k of each, 16, 32, 64 or 128, which divides k. A null minimum is -zero of the scale.
  int64_t group_len, zero, storage;
  GroupValues group_scales, group_minimums;

  bool in_groups() const { return format >= kInt4; }
  bool has_minimums() const { return group_minimums.values != nullptr; }
  int64_t num_groups() const { return in_groups() ? k / group_len : 0; }
  int64_t pack() const {  // numbers of a word, or of the lowest bits of which
    constexpr int8_t kPack[] = {1, 2, 4, 2, 8, 8, 8, 4, 8, 8, 8, 4};
    return kPack[format];
  }
  int64_t num_high() const {
    constexpr int8_t kHigh[] = {0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 2, 0};
    return kHigh[format];
  }
  int64_t run_len() const { return num_high() == 0 ? 1 : 4 / num_high(); }  // see groups.h
  bool in_tiles() const { return NATIVE_AMX && (format == kBf16 || format == kInt8); }  // of AMX
  int64_t num_words() const {  // of a column; of a row, too, if not in groups
    const int64_t words = (k + pack() - 1) / pack() + k * num_high() / 32;
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
// Each row of a matrix in groups has sums of two kinds: with more rows these would go to memory.
constexpr int kGroupRows = kVectorRows < 8 ? kVectorRows : 8;
inline int tile_rows(const Matrix &matrix) {
  return matrix.in_tiles() ? kTileRows : matrix.in_groups() ? kGroupRows : kVectorRows;
}

// Up to tile_rows() rows, ready for products with matrices of one format and k. Unit u of row r:
// units[u * num_rows + r] where row_step is 0, else units[r * row_step + u]; for AMX see amx.h.
struct RowTile {
  const uint32_t *units;
  // Of bytes: per row; for groups: [num_groups()][num_rows] where row_step is 0, else the other way
  // round.
  const float *scales;
  int64_t row_step;
  int num_rows;
  // For groups, laid out as `scales`, of a row's numbers; without minimums the bits of whole numbers,
  // those sums times -zero.
  const float *sums = nullptr;

  int32_t taken_off(int64_t i) const {
    int32_t number;
    std::memcpy(&number, sums + i, sizeof number);
    return number;
  }
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
    x = floats_of(exact) * row_scale;
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

// What a tile brings into the cache on the way: at each word of the panel two lines, or one.
struct Fetch {
  const char *from;
  int64_t step;  // from word to word
};
template <bool kPacked>
ALWAYS_INLINE void fetch_line(const char *line) {
  if constexpr (kPacked)
    fetch_far(line);
  else
    __builtin_prefetch(line);
}

// The sums of a tile of R rows over one panel, as [R][32] floats: scaled, and with the bias. kLines:
// see Fetch.
template <class Dot, int R, bool kPacked, int kLines>
void multiply_tile(const Matrix &matrix, int64_t panel, const RowTile &tile, Fetch fetch,
                   float *to) {
  constexpr int kWide = R <= kWideRows ? 2 : 1;
  const int64_t num_words = matrix.num_words(), row_step = tile.row_step;
  const int64_t step = kLines == 2 ? 128 : fetch.step * kWide / 2;
  const char *next = fetch.from;
  const char *packed = static_cast<const char *>(matrix.packed) + panel * matrix.panel_bytes();
  for (int half = 0; half < 2; half += kWide) {
    const uint32_t *weights = reinterpret_cast<const uint32_t *>(packed) + half * 16;
    const uint32_t *units = tile.units;
    if constexpr (kLines == 2) next = fetch.from + half * 64;
    typename Dot::Sums total[R][kWide] = {};
    for (int64_t word = 0; word < num_words; ++word, weights += kColumns, next += step) {
      Words words[kWide];
#pragma GCC unroll 2
      for (int n = 0; n < kWide; ++n) words[n] = load(weights + n * 16);
#pragma GCC unroll 2
      for (int n = 0; n < (kLines == 2 ? kWide : kLines); ++n) fetch_line<kPacked>(next + n * 64);
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

// A panel's scales or minimums.
class PanelValues {
 public:
  PanelValues(const Matrix &matrix, const GroupValues &of, int64_t panel)
      : values_(of.values), storage_(matrix.storage),
        shift_(__builtin_ctzll(kFactorLen / matrix.group_len)),
        first_(panel * matrix.num_groups() * kColumns),
        factors_(of.factors + panel * (matrix.k / kFactorLen) * kColumns) {}

  // Of a group, for 16 of the columns, from `lane` on. kFetches: brings those of later groups into the
  // cache.
  template <bool kFetches = false>
  ALWAYS_INLINE Floats at(int64_t group, int64_t lane) const {
    const int64_t place = first_ + group * kColumns + lane;
    if constexpr (kFetches) {
      const int64_t later = (place + kAheadGroups * kColumns) * num_bytes_;
      __builtin_prefetch(static_cast<const char *>(values_) + later);
      if (storage_ == kBytes)
        __builtin_prefetch(factors_ + ((group + kAheadGroups) >> shift_) * kColumns + lane);
    }
    if (storage_ == kFloats) return load(static_cast<const float *>(values_) + place);
    if (storage_ == kHalves)
      return floats_of_halves(static_cast<const uint16_t *>(values_) + place);
    return floats_of_bytes(static_cast<const int8_t *>(values_) + place) *
           floats_of_halves(factors_ + (group >> shift_) * kColumns + lane);
  }

 private:
  static constexpr int64_t kAheadGroups = 16;
  const void *values_;
  const int64_t storage_, num_bytes_ = bytes_of(storage_), shift_, first_;
  const uint16_t *factors_;
};

// As multiply_tile, of weights in groups.
template <class Dot, int R, bool kPacked, int kLines>
void multiply_groups(const Matrix &matrix, int64_t panel, const RowTile &tile, Fetch fetch,
                     float *to) {
  constexpr int kWide = R * Dot::kSums <= kWideRows ? 2 : 1, kUnits = Dot::kUnits;
  constexpr int kWords = Dot::kWords;
  const int64_t num_groups = matrix.num_groups();
  const int64_t num_blocks = matrix.group_len / (kWords * Dot::kPack);
  const int64_t row_step = kPacked ? 1 : tile.row_step;
  const int64_t next_row = kPacked ? 1 : num_groups, next_group = kPacked ? R : 1;  // of scales
  const bool has_minimums = matrix.has_minimums();
  const int64_t step = kLines == 2 ? 128 : fetch.step * kWide / 2;
  const char *next = fetch.from;
  const PanelValues all_scales(matrix, matrix.group_scales, panel);
  const PanelValues all_minimums(matrix, matrix.group_minimums, panel);
  const char *packed = static_cast<const char *>(matrix.packed) + panel * matrix.panel_bytes();
  for (int half = 0; half < 2; half += kWide) {
    const uint32_t *weights = reinterpret_cast<const uint32_t *>(packed) + half * 16;
    const uint32_t *units = tile.units;
    if constexpr (kLines == 2) next = fetch.from + half * 64;
    Floats total[R][kWide] = {};
    for (int64_t group = 0; group < num_groups; ++group) {
      Ints sums[R][kWide][Dot::kSums] = {};
      if (!has_minimums) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Ints begin = broadcast(tile.taken_off(r * next_row + group * next_group));
#pragma GCC unroll 2
          for (int n = 0; n < kWide; ++n) sums[r][n][Dot::kSums - 1] = begin;
        }
      }
      for (int64_t block = 0; block < num_blocks; ++block) {
        Words high[kWide] = {};
        if constexpr (Dot::kHigh > 0)
#pragma GCC unroll 2
          for (int n = 0; n < kWide; ++n) high[n] = load(weights + kWords * kColumns + n * 16);
#pragma GCC unroll 4
        for (uint32_t w = 0; w < kWords; ++w, weights += kColumns, next += step) {
          Words parts[kWide][Dot::kParts];
#pragma GCC unroll 2
          for (int n = 0; n < kWide; ++n) {
            Dot::split(load(weights + n * 16), high[n], w, parts[n]);
            if (n < kLines) fetch_line<kPacked>(next + n * 64);
          }
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            Words x[kUnits];
#pragma GCC unroll 8
            for (int u = 0; u < kUnits; ++u)
              x[u] = broadcast(units[kPacked ? u * R + r : r * row_step + u]);
#pragma GCC unroll 2
            for (int n = 0; n < kWide; ++n) Dot::join(sums[r][n], x, parts[n]);
          }
          units += kPacked ? R * kUnits : kUnits;
        }
        if constexpr (Dot::kHigh > 0) {
#pragma GCC unroll 2
          for (int n = 0; n < (kLines == 2 ? kWide : kLines); ++n) fetch_line<kPacked>(next + n * 64);
          weights += kColumns;
          next += step;
        }
      }
      Floats scales[kWide];
#pragma GCC unroll 2
      for (int n = 0; n < kWide; ++n)
        scales[n] = all_scales.template at<!kPacked>(group, (half + n) * 16);
      if (!has_minimums) {
        join_group<Dot>(total, sums, tile.scales + group * next_group, next_row, scales);
        continue;
      }
      Floats minimums[kWide];
#pragma GCC unroll 2
      for (int n = 0; n < kWide; ++n)
        minimums[n] = all_minimums.template at<!kPacked>(group, (half + n) * 16);
      join_group<Dot>(total, sums, tile.sums + group * next_group,
                      tile.scales + group * next_group, next_row, scales, minimums);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int n = 0; n < kWide; ++n) {
        const int64_t place = (half + n) * 16;
        Floats x = total[r][n];
        if (matrix.bias) x = x + load(matrix.bias + panel * kColumns + place);
        store(to + r * kColumns + place, x);
      }
  }
}

// Unnamed, since a table inside of a template with external linkage would be one for all libraries
// of a process, whatever instruction set each was compiled for.
namespace {

using Multiply = void (*)(const Matrix &, int64_t, const RowTile &, Fetch, float *);

template <class Dot, bool kPacked, int kLines, int... R>
constexpr auto multiply_functions(std::integer_sequence<int, R...>) {
  return std::array<Multiply, sizeof...(R)>{&multiply_tile<Dot, R + 1, kPacked, kLines>...};
}

template <class Dot, bool kPacked, int kLines, int... R>
constexpr auto group_functions(std::integer_sequence<int, R...>) {
  return std::array<Multiply, sizeof...(R)>{&multiply_groups<Dot, R + 1, kPacked, kLines>...};
}

template <bool kPacked, int kLines>
Multiply multiply_function(int64_t format, int num_rows) {
  using Rows = std::make_integer_sequence<int, kVectorRows>;
  using Groups = std::make_integer_sequence<int, kGroupRows>;
  static constexpr std::array kFunctions = {
      multiply_functions<F32Dot, kPacked, kLines>(Rows{}),
      multiply_functions<Bf16Dot, kPacked, kLines>(Rows{}),
      multiply_functions<Int8Dot, kPacked, kLines>(Rows{}),
      multiply_functions<WideDot, kPacked, kLines>(Rows{}),
  };
  static constexpr std::array kOfGroups = {
      group_functions<Int4Dot, kPacked, kLines>(Groups{}),
      group_functions<Int5Dot, kPacked, kLines>(Groups{}),
      group_functions<Int6Dot, kPacked, kLines>(Groups{}),
      group_functions<GroupedInt8Dot, kPacked, kLines>(Groups{}),
      group_functions<Int4WideDot, kPacked, kLines>(Groups{}),
      group_functions<Int5WideDot, kPacked, kLines>(Groups{}),
      group_functions<Int6WideDot, kPacked, kLines>(Groups{}),
      group_functions<GroupedInt8WideDot, kPacked, kLines>(Groups{}),
  };
  if (format >= kInt4) return kOfGroups[format - kInt4][num_rows - 1];
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
// complete (scaled, with the bias), and finish's own. All tiles are packed, or none is.
template <class F>
void multiply_panel(const Matrix &matrix, int64_t panel, const RowTile *tiles, int64_t num_tiles,
                    [[maybe_unused]] Registers &registers, F finish) {
  // One tile fetches its own panel some way ahead: packed rows take longer for a line, and fetch from
  // further. Several share the next panel, so that memory is read all the time.
  const bool is_alone = num_tiles == 1;
  const int64_t step = is_alone ? 2 * 64 : (2 * 64 + num_tiles - 1) / num_tiles;
  const char *next = static_cast<const char *>(matrix.packed) + (panel + 1) * matrix.panel_bytes();
  alignas(64) float sums[kTileRows * kColumns];
  for (int64_t t = 0; t < num_tiles; ++t) {
    const RowTile &tile = tiles[t];
#if NATIVE_AMX
    if (matrix.in_tiles()) {
      // The first fetches its own, the second the next.
      const char *ahead = t == 0 ? next - matrix.panel_bytes() + 8192 : next;
      registers.shape(tile.num_rows);
      multiply_amx(matrix, panel, tile, t < 2, ahead, sums);
      finish(t, sums);
      continue;
    }
#endif
    const bool is_packed = tile.row_step == 0;
    // Weights in groups are fewer bytes for as many sums: of one row they wait longest for memory. Of
    // a small panel far ahead is behind its end, which may be another thread's.
    const int64_t of_groups = std::clamp<int64_t>(matrix.panel_bytes() / 4, 3072, 8192);
    const int64_t ahead = is_packed ? 8192 : matrix.in_groups() ? of_groups : 3072;
    const char *from = is_alone ? next - matrix.panel_bytes() + ahead
                                : next + t * step * matrix.num_words();
    const auto multiply = !is_packed ? multiply_function<false, 2>(matrix.format, tile.num_rows)
                          : is_alone ? multiply_function<true, 2>(matrix.format, tile.num_rows)
                                     : multiply_function<true, 1>(matrix.format, tile.num_rows);
    multiply(matrix, panel, tile, {from, step}, sums);
    finish(t, sums);
  }
}

// ---- Packing: weights and rows, encoded and laid out in the order that products read them.
//
// Both are the same work: up to 16 rows of elements become words (weights) or units (rows) of 32
// bits, and the block of rows is transposed.

// Elements in memory: float, or the bits of a bfloat16.
using Bits16 = uint16_t;

ALWAYS_INLINE Floats load_floats(const float *from) { return load(from); }
ALWAYS_INLINE Floats load_floats(const Bits16 *from) {
  typedef Bits16 Narrow __attribute__((vector_size(2 * kLanes)));
  return bits_as<float>(each<uint32_t>([&](int i) {
    Narrow part;
    std::memcpy(&part, from + i * kLanes, sizeof part);
    return __builtin_convertvector(part, Words::Register) << 16u;
  }));
}

// Rows are encoded by chunks of 16 units; each encoder makes one chunk of kElements elements.

struct F32Encoder {
  static constexpr int64_t kElements = 16;
  template <class E>
  static ALWAYS_INLINE void encode(const E *x, float, uint32_t *to) {
    store(reinterpret_cast<float *>(to), load_floats(x));
  }
};

struct Bf16Encoder {
  static constexpr int64_t kElements = 32;
  static ALWAYS_INLINE void encode(const Bits16 *x, float, uint32_t *to) {
    store(to, load(reinterpret_cast<const uint32_t *>(x)));
  }
  static ALWAYS_INLINE void encode(const float *x, float, uint32_t *to) {
    Bits16 rounded[32];
    Bf16::store_elements(rounded, load(x));
    Bf16::store_elements(rounded + 16, load(x + 16));
    std::memcpy(to, rounded, 64);
  }
};

// What a row's bfloat16s are where they have to be widened: rounded, but floats.
struct WidenedEncoder {
  static constexpr int64_t kElements = 16;
  static ALWAYS_INLINE void encode(const Bits16 *x, float, uint32_t *to) {
    store(to, bits_as<uint32_t>(load_floats(x)));
  }
  static ALWAYS_INLINE void encode(const float *x, float, uint32_t *to) {
    Bits16 rounded[16];
    Bf16::store_elements(rounded, load(x));
    encode(rounded, 0.f, to);
  }
};

// 16 numbers, times the row's inverse scale, to the nearest integer.
template <class E>
ALWAYS_INLINE Ints quantised(const E *x, float inverse_scale) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
  const Floats shifted = multiply_add(load_floats(x), broadcast(inverse_scale), broadcast(kRound));
  return bits_as<int32_t>(shifted) - bits_as<int32_t>(broadcast(kRound));
}

// Bytes, `kOffset` above the integers.
template <int kOffset>
struct ByteEncoder {
  static constexpr int64_t kElements = 64;
  template <class E>
  static ALWAYS_INLINE void encode(const E *x, float inverse_scale, uint32_t *to) {
    typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
    auto *bytes = reinterpret_cast<char *>(to);
    for (int i = 0; i < 64; i += 16) {
      const Ints numbers = quantised(x + i, inverse_scale) + broadcast(kOffset);
      for (int n = 0; n < Ints::kRegisters; ++n) {
        const Bytes part = __builtin_convertvector(numbers.part[n], Bytes);
        std::memcpy(bytes + i + n * kLanes, &part, sizeof part);
      }
    }
  }
};

// 16-bit pairs of a word's even and odd elements.
struct PairEncoder {
  static constexpr int64_t kElements = 32;
  template <class E>
  static ALWAYS_INLINE void encode(const E *x, float inverse_scale, uint32_t *to) {
    int32_t numbers[32];
    store(numbers, quantised(x, inverse_scale));
    store(numbers + 16, quantised(x + 16, inverse_scale));
    for (int i = 0; i < 32; i += 4)
      for (int odd = 0; odd < 2; ++odd)
        to[i / 2 + odd] = (static_cast<uint32_t>(numbers[i + odd]) & 0xffffu) |
                          static_cast<uint32_t>(numbers[i + odd + 2]) << 16;
  }
};

// Words of the high bytes of four numbers, and of what is left of them, as signed bytes.
struct TwoBytesEncoder {
  static constexpr int64_t kElements = 32;
  template <class E>
  static ALWAYS_INLINE void encode(const E *x, float inverse_scale, uint32_t *to) {
    for (int i = 0; i < 32; i += 16) {
      const Ints numbers = quantised(x + i, inverse_scale);
      const Ints low = (numbers << 24) >> 24;
      uint32_t highs[4], lows[4];
      store_bytes((numbers - low) >> 8, highs);
      store_bytes(low, lows);
      for (int word = 0; word < 4; ++word, to += 2) {
        to[0] = highs[word];
        to[1] = lows[word];
      }
    }
  }

 private:
  static ALWAYS_INLINE void store_bytes(Ints numbers, void *to) {
    typedef int8_t Bytes __attribute__((vector_size(kLanes)));
    for (int n = 0; n < Ints::kRegisters; ++n) {
      const Bytes part = __builtin_convertvector(numbers.part[n], Bytes);
      std::memcpy(static_cast<char *>(to) + n * kLanes, &part, sizeof part);
    }
  }
};

struct NumberEncoder {
  static constexpr int64_t kElements = 16;
  template <class E>
  static ALWAYS_INLINE void encode(const E *x, float inverse_scale, uint32_t *to) {
    store(to, bits_as<uint32_t>(quantised(x, inverse_scale)));
  }
};

// Of rows; weights are always encoded as words.
using Bf16RowEncoder = std::conditional_t<Bf16Dot::kUnits == 1, Bf16Encoder, WidenedEncoder>;
using Int8RowEncoder =
    std::conditional_t<Int8Dot::kUnits == 1, ByteEncoder<Int8Dot::kOffset>,
                       std::conditional_t<Int8Dot::kUnits == 2, PairEncoder, NumberEncoder>>;
using WideRowEncoder =
    std::conditional_t<WideRows::kSums == 2, TwoBytesEncoder,
                       std::conditional_t<WideRows::kUnits == 2, PairEncoder, NumberEncoder>>;

// A row's last chunk, of `count` elements and zeros. Not inlined, so that it costs the others
// nothing.
template <class Encoder, class E>
__attribute__((noinline)) void encode_end(const E *x, int64_t count, float inverse_scale,
                                          uint32_t *to) {
  E last[Encoder::kElements];
  for (int64_t i = 0; i < Encoder::kElements; ++i) last[i] = i < count ? x[i] : E{0};
  Encoder::encode(last, inverse_scale, to);
}

// The chunk of the row that begins at `first`; beyond the row's end it encodes zeros.
template <class Encoder, class E>
ALWAYS_INLINE void encode_chunk(const E *row, int64_t k, int64_t first, float inverse_scale,
                                uint32_t *to) {
  if (first + Encoder::kElements <= k)
    Encoder::encode(row + first, inverse_scale, to);
  else
    encode_end<Encoder>(row + first, k - first, inverse_scale, to);
}

inline float inverse_of(float scale) {
  return scale >= FLT_MIN ? 1.f / scale : 0.f;  // NaN, too, is written as zeros
}

// The scale of a row in whole numbers: its largest magnitude is `most`, 127 in 8 bits. A row with
// infinity or NaN has NaN for a scale, and so for results.
template <class E>
ALWAYS_INLINE float scale_of(const E *row, int64_t k, float most = 127.f) {
  constexpr int32_t kMagnitude = 0x7fffffff, kInfiniteBits = 0x7f800000;
  // Of the bits of magnitudes, which are in the same order. Two chains, to be quicker.
  Ints largest[2] = {broadcast(int32_t{0}), broadcast(int32_t{0})};
  const auto join = [&](Ints &to, Floats x) {
    to = larger(to, bits_as<int32_t>(x) & broadcast(kMagnitude));
  };
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    join(largest[0], load_floats(row + i));
    join(largest[1], load_floats(row + i + 16));
  }
  for (; i < k; i += 16) {
    uint32_t chunk[16];
    encode_chunk<F32Encoder>(row, k, i, 0.f, chunk);
    join(largest[0], bits_as<float>(load(chunk)));
  }
  join(largest[0], bits_as<float>(largest[1]));
  const int32_t top = largest_of(largest[0]);
  float magnitude;
  std::memcpy(&magnitude, &top, sizeof magnitude);
  return (top >= kInfiniteBits ? __builtin_nanf("") : magnitude) / most;
}

// Lanes of two rows that are `S` apart change places, so that their squares of S x S are transposed.
template <int S, int... I>
ALWAYS_INLINE void exchange(Words::Register &a, Words::Register &b,
                            std::integer_sequence<int, I...>) {
  const Words::Register upper = a, lower = b;
#if defined(__clang__)
  a = __builtin_shufflevector(upper, lower, (I & S ? kLanes + I - S : I)...);
  b = __builtin_shufflevector(upper, lower, (I & S ? kLanes + I : I + S)...);
#else
  a = __builtin_shuffle(upper, lower, Words::Register{(I & S ? kLanes + I - S : I)...});
  b = __builtin_shuffle(upper, lower, Words::Register{(I & S ? kLanes + I : I + S)...});
#endif
}

template <int S>
ALWAYS_INLINE void exchange_all(Words::Register (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & S) == 0) exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, kLanes>{});
}

ALWAYS_INLINE void transpose(Words::Register (&rows)[kLanes]) {
  exchange_all<1>(rows);
  exchange_all<2>(rows);
  if constexpr (kLanes > 4) exchange_all<4>(rows);
  if constexpr (kLanes > 8) exchange_all<8>(rows);
}

// The first `count` lanes; all of them where there is no instruction for fewer.
ALWAYS_INLINE void store_lanes(uint32_t *to, Words::Register lanes, [[maybe_unused]] int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << count) - 1u), (__m512i)lanes);
#else
  std::memcpy(to, &lanes, sizeof lanes);
#endif
}

// Writes to[i * stride + r] = block[r][i] for the first `num_units` of 16 units.
inline void write_transposed(const uint32_t (&block)[16][16], int num_rows, int64_t num_units,
                             int64_t stride, uint32_t *to) {
  constexpr bool kCanStoreFewer = kLanes == 16;
  for (int row = 0; row < num_rows; row += kLanes)
    for (int64_t unit = 0; unit < num_units; unit += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, num_units - unit);
      const int num_lanes = std::min(kLanes, num_rows - row);
      uint32_t *corner = to + unit * stride + row;
      if (count == kLanes && (kCanStoreFewer || num_lanes == kLanes)) {
        Words::Register square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) std::memcpy(&square[i], &block[row + i][unit], 4 * kLanes);
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store_lanes(corner + i * stride, square[i], num_lanes);
      } else {
        for (int64_t i = 0; i < count; ++i)
          for (int r = 0; r < num_lanes; ++r) corner[i * stride + r] = block[row + r][unit + i];
      }
    }
}

// [unit][stride] of up to 16 rows. A null row is zeros.
template <class Encoder, class E>
void encode_rows(const E *const *rows, int num_rows, int64_t k, int64_t num_units,
                 const float *inverse_scales, int64_t stride, uint32_t *to) {
  alignas(64) uint32_t block[16][16] = {};
  for (int64_t unit = 0; unit < num_units; unit += 16) {
    for (int r = 0; r < num_rows; ++r)
      if (rows[r] != nullptr)
        encode_chunk<Encoder>(rows[r], k, unit / 16 * Encoder::kElements,
                              inverse_scales ? inverse_scales[r] : 0.f, block[r]);
    write_transposed(block, num_rows, std::min<int64_t>(16, num_units - unit), stride,
                     to + unit * stride);
  }
}

// Packs panels [first, end) of a matrix. `rows`: the address of each column's k weights, null for a
// column of zeros; merged matrices and permuted outputs are orders of addresses. In int8 `scales`
// and `sums` are filled in, else they may be null. The thread that packs a panel is the one that
// first touches its memory.
template <class E>
void pack_panels(const Matrix &shape, const E *const *rows, int64_t first, int64_t end,
                 void *packed, float *scales, int32_t *sums) {
  const int64_t k = shape.k, num_words = shape.num_words();
  for (int64_t half = 2 * first; half < 2 * end; ++half) {
    const E *own[16];
    float inverse_scales[16];
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t column = half * 16 + r;
      own[r] = column < shape.n ? rows[column] : nullptr;
      if (shape.format != kInt8) continue;
      scales[column] = own[r] ? scale_of(own[r], k) : 0.f;
      inverse_scales[r] = inverse_of(scales[column]);
    }
    auto *to = static_cast<uint32_t *>(packed) + half / 2 * num_words * kColumns + half % 2 * 16;
    if (shape.format == kF32)
      encode_rows<F32Encoder>(own, 16, k, num_words, nullptr, kColumns, to);
    else if (shape.format == kBf16 || shape.format == kWide)
      encode_rows<Bf16Encoder>(own, 16, k, num_words, nullptr, kColumns, to);
    else
      encode_rows<ByteEncoder<0>>(own, 16, k, num_words, inverse_scales, kColumns, to);
    if (shape.format != kInt8) continue;
    for (int r = 0; r < 16; ++r) {
      int32_t sum = 0;
      for (int64_t word = 0; word < num_words; ++word) {
        int8_t bytes[4];
        std::memcpy(bytes, to + word * kColumns + r, 4);
        sum += bytes[0] + bytes[1] + bytes[2] + bytes[3];
      }
      sums[half * 16 + r] = sum;
    }
  }
}

// Number i of a column in groups, whose first word is `column`.
inline uint32_t grouped_number(const Matrix &matrix, const uint32_t *column, int64_t i) {
  const int64_t pack = matrix.pack(), num_high = matrix.num_high(), run = matrix.run_len();
  const int64_t word = i / pack, first = word / run * (run + (num_high > 0));
  const uint32_t low = column[(first + word % run) * kColumns] >> grouped_shift(i % pack);
  if (num_high == 0) return low & (pack == 8 ? 15 : 255);
  const uint32_t high = column[(first + run) * kColumns] >> high_shift(num_high, word % run, i % pack);
  return (low & 15) | (high & ((1u << num_high) - 1u)) << 4;
}

// Floats, halves or bytes of a column's groups, to their places.
inline void pack_values(const void *from, int64_t count, int64_t num_bytes, int64_t panel,
                        int64_t lane, const void *to) {
  auto *bytes = static_cast<char *>(const_cast<void *>(to));
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(bytes + ((panel * count + i) * kColumns + lane) * num_bytes,
                static_cast<const char *>(from) + i * num_bytes, num_bytes);
}

// Of each column, where its own numbers and groups lie; no numbers: it is zeros.
struct GroupSources {
  const uint8_t *const *numbers;
  struct {
    const void *const *values, *const *factors;
  } scales, minimums;
};

// Packs panels [first, end) of a matrix in groups, into memory that is zeros.
inline void pack_groups(const Matrix &matrix, const GroupSources &from, int64_t first, int64_t end) {
  const int64_t num_words = matrix.num_words(), num_bytes = bytes_of(matrix.storage);
  const int64_t pack = matrix.pack(), num_high = matrix.num_high(), run_len = matrix.run_len();
  for (int64_t column = first * kColumns; column < end * kColumns; ++column) {
    const int64_t panel = column / kColumns, lane = column % kColumns;
    if (column >= matrix.n || from.numbers[column] == nullptr) continue;
    auto *words = static_cast<uint32_t *>(const_cast<void *>(matrix.packed)) +
                  panel * num_words * kColumns + lane;
    const uint8_t *number = from.numbers[column];
    for (int64_t run = 0; run < num_words; run += run_len + (num_high > 0)) {
      uint32_t high = 0;
      for (int64_t w = 0; w < run_len; ++w) {
        uint32_t low = 0;
        for (int64_t i = 0; i < pack; ++i, ++number) {
          low |= static_cast<uint32_t>(num_high > 0 ? *number & 15 : *number) << grouped_shift(i);
          high |= static_cast<uint32_t>(*number >> 4) << high_shift(num_high, w, i);
        }
        words[(run + w) * kColumns] = low;
      }
      if (num_high > 0) words[(run + run_len) * kColumns] = high;
    }
    const auto pack_of_groups = [&](const GroupValues &to, const auto &source) {
      if (to.values == nullptr) return;
      pack_values(source.values[column], matrix.num_groups(), num_bytes, panel, lane, to.values);
      if (to.factors != nullptr)
        pack_values(source.factors[column], matrix.k / kFactorLen, 2, panel, lane, to.factors);
    };
    pack_of_groups(matrix.group_scales, from.scales);
    pack_of_groups(matrix.group_minimums, from.minimums);
  }
}

// Of a row.
inline int64_t num_units(const Matrix &matrix) {
  constexpr int8_t kUnits[] = {
      F32Dot::kUnits,      Bf16Dot::kUnits,     Int8Dot::kUnits,     WideDot::kUnits,
      Int4Dot::kUnits,     Int5Dot::kUnits,     Int6Dot::kUnits,     GroupedInt8Dot::kUnits,
      Int4WideDot::kUnits, Int5WideDot::kUnits, Int6WideDot::kUnits, GroupedInt8WideDot::kUnits};
  return (matrix.in_groups() ? matrix.k / matrix.pack() : matrix.num_words()) *
         kUnits[matrix.format];
}

// What `prepare_rows` needs for `num_rows` rows, in 32-bit units.
inline int64_t prepared_units(const Matrix &matrix, int64_t num_rows) {
  return num_rows * (num_units(matrix) + 2 * matrix.num_groups());
}

// Interleaved where row_step is 0: see RowTile.
template <class Encoder, class E>
void encode_tile(const E *const *rows, int num_rows, int64_t k, int64_t num_units,
                 const float *inverse_scales, int64_t row_step, uint32_t *to) {
  if (row_step == 0)
    return encode_rows<Encoder>(rows, num_rows, k, num_units, inverse_scales, num_rows, to);
  for (int r = 0; r < num_rows; ++r, to += row_step) {
    int64_t unit = 0, first = 0;
    for (; unit + 16 <= num_units; unit += 16, first += Encoder::kElements)
      encode_chunk<Encoder>(rows[r], k, first, inverse_scales[r], to + unit);
    if (unit == num_units) continue;
    uint32_t last[16];
    encode_chunk<Encoder>(rows[r], k, first, inverse_scales[r], last);
    for (int i = 0; i < 16 && unit + i < num_units; ++i) to[unit + i] = last[i];
  }
}

// As amx.h wants it.
template <class Encoder, class E>
void encode_steps(const E *const *rows, int num_rows, int64_t k, int64_t num_units,
                  const float *inverse_scales, uint32_t *to) {
  for (int64_t unit = 0, first = 0; unit < num_units; unit += 16, first += Encoder::kElements)
    for (int r = 0; r < num_rows; ++r, to += 16)
      encode_chunk<Encoder>(rows[r], k, first, inverse_scales[r], to);
}

// `count` numbers of a row as whole numbers, whose groups' scales and sums (see RowTile) lie `step`
// apart.
template <class E>
void quantise_groups(const Matrix &matrix, const E *row, int64_t count, float *scales, float *sums,
                     int64_t step, float *numbers) {
  const float most = matrix.format < kInt4Wide ? 127.f : kWideMost;
  const int64_t len = matrix.group_len;
  const bool has_minimums = matrix.has_minimums();
  const auto zero = static_cast<int32_t>(matrix.zero);
  for (int64_t first = 0; first < count; first += len, scales += step, sums += step) {
    const float scale = scale_of(row + first, len, most), inverse = inverse_of(scale);
    Ints lanes = broadcast(int32_t{0});
    for (int64_t i = first; i < first + len; i += 16) {
      const Ints whole = quantised(row + i, inverse);
      store(numbers + i, floats_of(whole));
      lanes = lanes + whole;
    }
    const int32_t sum = fold(lanes, [](auto a, auto b) { return a + b; }), taken_off = -zero * sum;
    *scales = scale;
    if (has_minimums)
      *sums = static_cast<float>(sum);
    else
      std::memcpy(sums, &taken_off, sizeof taken_off);
  }
}

// As prepare_rows, for groups.
template <class E>
RowTile prepare_groups(const Matrix &matrix, const E *rows, int64_t row_stride, int num_rows,
                       bool many, uint32_t *to) {
  constexpr int64_t kMost = 512;  // at a time: a multiple of every group's length
  const int64_t k = matrix.k, num_units = ::num_units(matrix), num_groups = matrix.num_groups();
  const int64_t row_step = many ? 0 : num_units;
  const int64_t next_row = many ? 1 : num_groups, next_group = many ? num_rows : 1;  // of scales
  auto *scales = reinterpret_cast<float *>(to + num_rows * num_units);
  float *sums = scales + num_rows * num_groups;
  alignas(64) float numbers[kGroupRows][kMost];
  const float *own[kGroupRows];
  float ones[kGroupRows];
  for (int64_t first = 0; first < k; first += kMost) {
    const int64_t count = std::min(kMost, k - first), unit = first * num_units / k;
    for (int r = 0; r < num_rows; ++r) {
      const int64_t scale = r * next_row + first / matrix.group_len * next_group;
      quantise_groups(matrix, rows + r * row_stride + first, count, scales + scale, sums + scale,
                      next_group, numbers[r]);
      own[r] = numbers[r];
      ones[r] = 1.f;
    }
    uint32_t *units = to + (many ? unit * num_rows : unit);
    if (4 * num_units == k)
      encode_tile<ByteEncoder<0>>(own, num_rows, count, count / 4, ones, row_step, units);
    else
      encode_tile<WideRowEncoder>(own, num_rows, count, count * num_units / k, ones, row_step, units);
  }
  return {to, scales, row_step, num_rows, sums};
}

// Makes up to tile_rows() rows of E, `row_stride` elements apart, ready for `matrix`. `many`: the rows
// meet many tiles or panels, so that interleaving them pays; else they are read where they lie, if
// they can be. `to` has prepared_units(matrix, num_rows) units, `scales` num_rows floats (of bytes;
// else null). What the tile reads must outlive it.
template <class E>
RowTile prepare_rows(const Matrix &matrix, const E *rows, int64_t row_stride, int num_rows,
                     bool many, uint32_t *to, float *scales) {
  constexpr bool kIsFloat = std::is_same_v<E, float>;
  const int64_t k = matrix.k, format = matrix.format;
  const int64_t num_units = ::num_units(matrix), row_step = many ? 0 : num_units;
  const bool as_it_lies = format == kF32    ? kIsFloat
                          : format == kWide ? kIsFloat && k % 2 == 0
                          : format == kBf16 ? !kIsFloat && Bf16Dot::kUnits == 1 && k % 2 == 0 &&
                                                  row_stride % 2 == 0
                                            : false;
  if (!many && as_it_lies && !matrix.in_tiles())
    return {reinterpret_cast<const uint32_t *>(rows), nullptr,
            row_stride / static_cast<int64_t>(4 / sizeof(E)), num_rows};
  if (matrix.in_groups()) return prepare_groups(matrix, rows, row_stride, num_rows, many, to);
  const E *own[kTileRows];
  float inverse_scales[kTileRows] = {};
  for (int r = 0; r < num_rows; ++r) {
    own[r] = rows + r * row_stride;
    if (format != kInt8) continue;
    scales[r] = scale_of(own[r], k);
    inverse_scales[r] = inverse_of(scales[r]);
  }
  if (matrix.in_tiles()) {
    if (format == kBf16)
      encode_steps<Bf16Encoder>(own, num_rows, k, num_units, inverse_scales, to);
    else
      encode_steps<ByteEncoder<0>>(own, num_rows, k, num_units, inverse_scales, to);
  } else if (format == kF32 || format == kWide)
    encode_tile<F32Encoder>(own, num_rows, k, num_units, inverse_scales, row_step, to);
  else if (format == kBf16)
    encode_tile<Bf16RowEncoder>(own, num_rows, k, num_units, inverse_scales, row_step, to);
  else
    encode_tile<Int8RowEncoder>(own, num_rows, k, num_units, inverse_scales, row_step, to);
  return {to, format == kInt8 ? scales : nullptr, row_step, num_rows};
}
