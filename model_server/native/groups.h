// Products with weights in groups along k: whole numbers of 4 or 8 bits, and for each group of a
// column a scale and a minimum.
//
//     weight = number * scale + minimum
//
// Rows are bytes, with a scale for each group, too: a few numbers of a row are often far larger than
// all others. Within a group the sum of numbers times bytes is a whole number, and exact; groups
// join a column's sum in their order, in one register. So a row's result has the same bits whatever
// the number of rows, and for every instruction set that rounds once where it multiplies and adds.
//
// A word holds 8 numbers of 4 bits, of consecutive k: four in the low halves of its bytes, then four
// in the high ones. Or it holds 4 numbers of 8 bits.
#pragma once

#include "vectors.h"

// `split` makes parts of 16 columns' words, `join` multiplies them by a row's units for the same k
// and adds. kTaken: what each number is short of in the parts.

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

struct Int4Dot {
  static constexpr int kPack = 8, kUnits = 2, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    parts[0] = words & 0x0f0f0f0fu;
    parts[1] = (words >> 4u) & 0x0f0f0f0fu;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    for (int u = 0; u < kUnits; ++u)
      sums = {(Ints::Register)_mm512_dpbusd_epi32(
          (__m512i)sums.part[0], (__m512i)parts[u].part[0], (__m512i)x[u].part[0])};
    return sums;
  }
};

struct GroupedInt8Dot {
  static constexpr int kPack = 4, kUnits = 1, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) { parts[0] = words; }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    return {(Ints::Register)_mm512_dpbusd_epi32((__m512i)sums.part[0], (__m512i)parts[0].part[0],
                                                (__m512i)x[0].part[0])};
  }
};

#elif defined(__AVX512BW__) || defined(__AVX2__)

// Sums of pairs of 16 bits.
ALWAYS_INLINE Ints add_pairs(Ints sums, Words pairs, Words by) {
  return sums + each<int32_t>([&](int i) {
#if defined(__AVX512BW__)
    return (Ints::Register)_mm512_madd_epi16((__m512i)pairs.part[i], (__m512i)by.part[i]);
#else
    return (Ints::Register)_mm256_madd_epi16((__m256i)pairs.part[i], (__m256i)by.part[i]);
#endif
  });
}

struct Int4Dot {
  static constexpr int kPack = 8, kUnits = 2, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    parts[0] = words & 0x0f0f0f0fu;
    parts[1] = (words >> 4u) & 0x0f0f0f0fu;
  }
  // Four products of 15 by 127 fit 16 bits.
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    const Words pairs = each<uint32_t>([&](int i) {
#if defined(__AVX512BW__)
      return (Words::Register)_mm512_add_epi16(
          _mm512_maddubs_epi16((__m512i)parts[0].part[i], (__m512i)x[0].part[i]),
          _mm512_maddubs_epi16((__m512i)parts[1].part[i], (__m512i)x[1].part[i]));
#else
      return (Words::Register)_mm256_add_epi16(
          _mm256_maddubs_epi16((__m256i)parts[0].part[i], (__m256i)x[0].part[i]),
          _mm256_maddubs_epi16((__m256i)parts[1].part[i], (__m256i)x[1].part[i]));
#endif
    });
    return add_pairs(sums, pairs, broadcast(0x00010001u));
  }
};

// Even and odd bytes, widened to 16 bits: `maddubs` would saturate.
struct GroupedInt8Dot {
  static constexpr int kPack = 4, kUnits = 2, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    parts[0] = words & 0x00ff00ffu;
    parts[1] = (words >> 8u) & 0x00ff00ffu;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    return add_pairs(add_pairs(sums, x[0], parts[0]), x[1], parts[1]);
  }
};

#elif defined(__ARM_FEATURE_DOTPROD)

template <int U>
ALWAYS_INLINE Ints add_dots(Ints sums, const Words (&x)[U], const Words (&parts)[U]) {
  for (int u = 0; u < U; ++u)
    sums = each<int32_t>([&](int i) {
      return (Ints::Register)vdotq_s32((int32x4_t)sums.part[i], (int8x16_t)x[u].part[i],
                                       (int8x16_t)parts[u].part[i]);
    });
  return sums;
}

struct Int4Dot {
  static constexpr int kPack = 8, kUnits = 2, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    parts[0] = words & 0x0f0f0f0fu;
    parts[1] = (words >> 4u) & 0x0f0f0f0fu;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    return add_dots(sums, x, parts);
  }
};

// It multiplies signed by signed.
struct GroupedInt8Dot {
  static constexpr int kPack = 4, kUnits = 1, kTaken = 128;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    parts[0] = words ^ 0x80808080u;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    return add_dots(sums, x, parts);
  }
};

#else

// A row's units are numbers.
template <int U>
ALWAYS_INLINE Ints add_numbers(Ints sums, const Words (&x)[U], const Words (&parts)[U]) {
  for (int u = 0; u < U; ++u) sums = sums + bits_as<int32_t>(x[u]) * bits_as<int32_t>(parts[u]);
  return sums;
}

struct Int4Dot {
  static constexpr int kPack = 8, kUnits = 8, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    for (uint32_t u = 0; u < kUnits; ++u) parts[u] = (words >> (8 * (u % 4) + 4 * (u / 4))) & 15u;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    return add_numbers(sums, x, parts);
  }
};

struct GroupedInt8Dot {
  static constexpr int kPack = 4, kUnits = 4, kTaken = 0;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    for (uint32_t u = 0; u < kUnits; ++u) parts[u] = (words >> (8 * u)) & 255u;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    return add_numbers(sums, x, parts);
  }
};

#endif

// What a group adds to the total of a tile of R rows. `sums`: of numbers times bytes; `row_sums` and
// `row_scales`: of the rows' bytes, `stride` apart.
template <class Dot, int R, int N>
ALWAYS_INLINE void join_group(Floats (&total)[R][N], const Ints (&sums)[R][N],
                              const float *row_sums, const float *row_scales, int64_t stride,
                              const Floats (&scales)[N], const Floats (&minimums)[N]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Floats row_sum = broadcast(row_sums[r * stride]);
    const Floats row_scale = broadcast(row_scales[r * stride]);
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      Floats exact = floats_of(sums[r][n]);
      if constexpr (Dot::kTaken != 0) exact = exact + row_sum * static_cast<float>(Dot::kTaken);
      const Floats value = multiply_add(exact, scales[n], row_sum * minimums[n]);
      total[r][n] = multiply_add(value, row_scale, total[r][n]);
    }
  }
}
