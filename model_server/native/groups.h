// Products with weights in groups along k: whole numbers of 4 or 8 bits, and for each group of a
// column a scale and a minimum.
//
//     weight = number * scale + minimum
//
// Rows are whole numbers too, of 16 bits or of 8, with a scale for each group: a few numbers of a row
// are often far larger than all others. Within a group the sum of products is a whole number, and
// exact; groups join a column's sum in their order, in one register. So a row's result has the same
// bits whatever the number of rows, and for every instruction set that rounds once where it multiplies
// and adds.
//
// A word holds 8 numbers of 4 bits, of consecutive k: four in the low halves of its bytes, then four
// in the high ones. Or it holds 4 numbers of 8 bits.
#pragma once

#include "vectors.h"

// Number i of a word lies so many bits up.
constexpr uint32_t grouped_shift(uint32_t i) { return 8 * (i % 4) + 4 * (i / 4); }

// `split` makes parts of 16 columns' words, `join` multiplies them by a row's units for the same k and
// adds. Int4Dot is for rows of 8 bits, the others for rows of 16.

#if defined(__AVX2__) || defined(__aarch64__)

// Adds the sums of pairs of 16 bits.
ALWAYS_INLINE Ints add_pairs(Ints sums, Words x, Words pairs) {
  return each<int32_t>([&](int i) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    return (Ints::Register)_mm512_dpwssd_epi32((__m512i)sums.part[i], (__m512i)x.part[i],
                                               (__m512i)pairs.part[i]);
#elif defined(__AVX512BW__)
    return sums.part[i] +
           (Ints::Register)_mm512_madd_epi16((__m512i)x.part[i], (__m512i)pairs.part[i]);
#elif defined(__AVX2__)
    return sums.part[i] +
           (Ints::Register)_mm256_madd_epi16((__m256i)x.part[i], (__m256i)pairs.part[i]);
#else
    const auto left = (int16x8_t)x.part[i], right = (int16x8_t)pairs.part[i];
    return sums.part[i] +
           (Ints::Register)vpaddq_s32(vmull_s16(vget_low_s16(left), vget_low_s16(right)),
                                      vmull_s16(vget_high_s16(left), vget_high_s16(right)));
#endif
  });
}

// Pairs of numbers 0 and 2 of four, then of 1 and 3.
struct Int4WideDot {
  static constexpr int kPack = 8, kUnits = 4;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    constexpr uint32_t kShifts[] = {0, 8, 4, 12};
    for (int u = 0; u < kUnits; ++u) parts[u] = (words >> kShifts[u]) & 0x000f000fu;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    for (int u = 0; u < kUnits; ++u) sums = add_pairs(sums, x[u], parts[u]);
    return sums;
  }
};

struct GroupedInt8Dot {
  static constexpr int kPack = 4, kUnits = 2;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    for (uint32_t u = 0; u < kUnits; ++u) parts[u] = (words >> (8 * u)) & 0x00ff00ffu;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    for (int u = 0; u < kUnits; ++u) sums = add_pairs(sums, x[u], parts[u]);
    return sums;
  }
};

#else

// Units are numbers.
template <int kNumbers, uint32_t kMask>
struct NumbersDot {
  static constexpr int kPack = kNumbers, kUnits = kNumbers;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    for (uint32_t u = 0; u < kUnits; ++u) parts[u] = (words >> grouped_shift(u)) & kMask;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
    for (int u = 0; u < kUnits; ++u) sums = sums + bits_as<int32_t>(x[u]) * bits_as<int32_t>(parts[u]);
    return sums;
  }
};
using Int4WideDot = NumbersDot<8, 15>;
using GroupedInt8Dot = NumbersDot<4, 255>;

#endif

#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)

struct Int4Dot {
  static constexpr int kPack = 8, kUnits = 2;

  static ALWAYS_INLINE void split(Words words, Words (&parts)[kUnits]) {
    parts[0] = words & 0x0f0f0f0fu;
    parts[1] = (words >> 4u) & 0x0f0f0f0fu;
  }
  static ALWAYS_INLINE Ints join(Ints sums, const Words (&x)[kUnits], const Words (&parts)[kUnits]) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    for (int u = 0; u < kUnits; ++u)
      sums = {(Ints::Register)_mm512_dpbusd_epi32(
          (__m512i)sums.part[0], (__m512i)parts[u].part[0], (__m512i)x[u].part[0])};
    return sums;
#elif defined(__AVX2__)
    // Four products of 15 by 127 fit 16 bits.
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
#else
    for (int u = 0; u < kUnits; ++u)
      sums = each<int32_t>([&](int i) {
        return (Ints::Register)vdotq_s32((int32x4_t)sums.part[i], (int8x16_t)x[u].part[i],
                                         (int8x16_t)parts[u].part[i]);
      });
    return sums;
#endif
  }
};

#else

using Int4Dot = Int4WideDot;  // it multiplies numbers of 8 bits as well

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
      const Floats value = multiply_add(exact, scales[n], row_sum * minimums[n]);
      total[r][n] = multiply_add(value, row_scale, total[r][n]);
    }
  }
}
