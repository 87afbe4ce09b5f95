// Makes weights and rows ready for gemm.h: encoded, and laid out in the order they are read.
//
// Both are the same work: up to 16 rows of elements become words (weights) or units (rows) of 32
// bits, and the block of rows is transposed.
#pragma once

#include <algorithm>
#include <cfloat>

#include "gemm.h"

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

// The scale of a row in 8 bits: its largest magnitude is 127. A row with infinity or NaN has NaN for
// a scale, and so for results.
template <class E>
float scale_of(const E *row, int64_t k) {
  constexpr int32_t kMagnitude = 0x7fffffff, kInfiniteBits = 0x7f800000;
  // Of the bits of magnitudes, which are in the same order. Two chains, to be quicker.
  Ints largest[2] = {broadcast(int32_t{0}), broadcast(int32_t{0})};
  const auto join = [&](Ints &to, Floats x) {
    const Ints bits = bits_as<int32_t>(x) & broadcast(kMagnitude);
    to = select(to < bits, bits, to);
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
  int32_t lanes[32];
  store(lanes, largest[0]);
  store(lanes + 16, largest[1]);
  const int32_t top = *std::max_element(lanes, lanes + 32);
  float magnitude;
  std::memcpy(&magnitude, &top, sizeof magnitude);
  return (top >= kInfiniteBits ? __builtin_nanf("") : magnitude) / 127.f;
}
inline float inverse_of(float scale) {
  return scale >= FLT_MIN ? 1.f / scale : 0.f;  // NaN, too, is written as zeros
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

inline int units_per_word(int64_t format) {
  switch (format) {
    case kF32:
      return F32Dot::kUnits;
    case kBf16:
      return Bf16Dot::kUnits;
    case kWide:
      return WideDot::kUnits;
    default:
      return Int8Dot::kUnits;
  }
}

// What `prepare_rows` needs for `num_rows` rows, in 32-bit units.
inline int64_t prepared_units(const Matrix &matrix, int64_t num_rows) {
  return num_rows * matrix.num_words() * units_per_word(matrix.format);
}

template <class Encoder, class E>
void encode_tile(const E *const *rows, int num_rows, int64_t k, int64_t num_units,
                 const float *inverse_scales, bool interleaved, uint32_t *to) {
  if (interleaved)
    return encode_rows<Encoder>(rows, num_rows, k, num_units, inverse_scales, num_rows, to);
  for (int r = 0; r < num_rows; ++r, to += num_units) {
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

// Makes up to tile_rows() rows of E, `row_stride` elements apart, ready for `matrix`. `many`: the rows
// meet many tiles or panels, so that interleaving them pays; else they are read where they lie, if
// they can be. `to` has prepared_units(matrix, num_rows) units, `scales` num_rows floats (int8; else
// null). What the tile reads must outlive it.
template <class E>
RowTile prepare_rows(const Matrix &matrix, const E *rows, int64_t row_stride, int num_rows,
                     bool many, uint32_t *to, float *scales) {
  constexpr bool kIsFloat = std::is_same_v<E, float>;
  const int64_t k = matrix.k, format = matrix.format;
  const int64_t num_units = matrix.num_words() * units_per_word(format);
  const bool as_it_lies = format == kF32    ? kIsFloat
                          : format == kWide ? kIsFloat && k % 2 == 0
                          : format == kBf16 ? !kIsFloat && Bf16Dot::kUnits == 1 && k % 2 == 0 &&
                                                  row_stride % 2 == 0
                                            : false;
  if (!many && as_it_lies && !matrix.in_tiles())
    return {reinterpret_cast<const uint32_t *>(rows), nullptr,
            row_stride / static_cast<int64_t>(4 / sizeof(E)), num_rows};
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
    encode_tile<F32Encoder>(own, num_rows, k, num_units, inverse_scales, many, to);
  else if (format == kBf16)
    encode_tile<Bf16RowEncoder>(own, num_rows, k, num_units, inverse_scales, many, to);
  else
    encode_tile<Int8RowEncoder>(own, num_rows, k, num_units, inverse_scales, many, to);
  return {to, format == kInt8 ? scales : nullptr, many ? 0 : num_units, num_rows};
}
