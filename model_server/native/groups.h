// Products with weights in groups along k: whole numbers of 4, 5, 6 or 8 bits, and for each group of
// a column a scale and a minimum.
//
//     weight = number * scale + minimum
//
// Without minimums a weight is (number - zero) * scale, and what zero takes off a group's sum of
// products is a whole number too, which the sum begins with.
//
// Rows are whole numbers too, of 16 bits or of 8, with a scale for each group: a few numbers of a row
// are often far larger than all others. Within a group the sum of products is a whole number, and
// exact; groups join a column's sum in their order, in one register. So a row's result has the same
// bits whatever the number of rows, and for every instruction set that rounds once where it multiplies
// and adds.
//
// A word holds 8 numbers of 4 bits, of consecutive k: four in the low halves of its bytes, then four
// in the high ones. Or it holds 4 numbers of 8 bits. Of numbers of 5 or 6 bits it holds the lowest 4;
// behind four or two such words is one with what lies above.
#pragma once

#include "vectors.h"

// Number i of a word lies so many bits up.
constexpr uint32_t grouped_shift(uint32_t i) { return 8 * (i % 4) + 4 * (i / 4); }
// What lies above, of `num_high` bits, of number i of word w, in the word behind: in the same byte.
constexpr uint32_t high_shift(uint32_t num_high, uint32_t w, uint32_t i) {
  return 8 * (i % 4) + num_high * (2 * w + i / 4);
}

#if defined(__AVX2__) || defined(__aarch64__)

// Adds the sums of pairs of 16 bits.
ALWAYS_INLINE Ints add_pairs(Ints sums, Words x, Words pairs) {
  return each<int32_t>([&](int i) {
#if defined(__AVX512BW__)
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

#endif

// Rows of 16 bits: `join` multiplies four bytes of each column by a row's units for the same k.
constexpr float kWideMost = 127 * 256 + 127;  // the largest that two signed bytes make up
#if defined(__AVX512VNNI__) && defined(__AVX512F__)

ALWAYS_INLINE Ints add_bytes(Ints sums, Words x, Words bytes) {
  return {(Ints::Register)_mm512_dpbusd_epi32((__m512i)sums.part[0], (__m512i)bytes.part[0],
                                              (__m512i)x.part[0])};
}

// Units are four high bytes, then what is left, as four signed bytes; each have a sum of their own.
struct WideRows {
  static constexpr int kUnits = 2, kSums = 2;

  static ALWAYS_INLINE void join(Ints (&sums)[kSums], const Words *x, Words bytes) {
    for (int u = 0; u < kUnits; ++u) sums[u] = add_bytes(sums[u], x[u], bytes);
  }
  static ALWAYS_INLINE Ints whole(const Ints (&sums)[kSums]) { return (sums[0] << 8) + sums[1]; }
};

#elif defined(__AVX2__) || defined(__aarch64__)

// Units are the pairs (0, 2) and (1, 3).
struct WideRows {
  static constexpr int kUnits = 2, kSums = 1;

  static ALWAYS_INLINE void join(Ints (&sums)[kSums], const Words *x, Words bytes) {
    sums[0] = add_pairs(sums[0], x[0], bytes & 0x00ff00ffu);
    sums[0] = add_pairs(sums[0], x[1], (bytes >> 8u) & 0x00ff00ffu);
  }
  static ALWAYS_INLINE Ints whole(const Ints (&sums)[kSums]) { return sums[0]; }
};

#else

// Units are numbers.
struct WideRows {
  static constexpr int kUnits = 4, kSums = 1;

  static ALWAYS_INLINE void join(Ints (&sums)[kSums], const Words *x, Words bytes) {
    for (uint32_t u = 0; u < kUnits; ++u)
      sums[0] = sums[0] + bits_as<int32_t>(x[u]) * bits_as<int32_t>((bytes >> (8 * u)) & 255u);
  }
  static ALWAYS_INLINE Ints whole(const Ints (&sums)[kSums]) { return sums[0]; }
};

#endif

// `split` makes words of four bytes of 16 columns' words, of which each is the w-th before `high`.
// kHigh: bits of a number in the word behind, which comes after kWords.
template <int kBits>
struct WideGroupDot {
  static constexpr int kPack = kBits == 8 ? 4 : 8, kParts = kPack / 4;
  static constexpr int kHigh = kBits == 8 ? 0 : kBits - 4, kWords = kHigh == 0 ? 1 : 4 / kHigh;
  static constexpr int kUnits = kParts * WideRows::kUnits, kSums = WideRows::kSums;

  static ALWAYS_INLINE void split(Words words, Words high, uint32_t w, Words (&parts)[kParts]) {
    if constexpr (kBits == 8) {
      parts[0] = words;
    } else {
#pragma GCC unroll 2
      for (uint32_t p = 0; p < kParts; ++p) {
        parts[p] = (words >> (4 * p)) & 0x0f0f0f0fu;
        if constexpr (kHigh > 0) {
          constexpr uint32_t kMask = ((1u << kHigh) - 1u) * 0x10101010u;
          const uint32_t from = high_shift(kHigh, w, 4 * p);
          parts[p] = parts[p] | ((from < 4 ? high << (4 - from) : high >> (from - 4)) & kMask);
        }
      }
    }
  }
  static ALWAYS_INLINE void join(Ints (&sums)[kSums], const Words (&x)[kUnits],
                                 const Words (&parts)[kParts]) {
    for (int p = 0; p < kParts; ++p) WideRows::join(sums, x + p * WideRows::kUnits, parts[p]);
  }
  static ALWAYS_INLINE Ints whole(const Ints (&sums)[kSums]) { return WideRows::whole(sums); }
};
using Int4WideDot = WideGroupDot<4>;
using Int5WideDot = WideGroupDot<5>;
using Int6WideDot = WideGroupDot<6>;
using GroupedInt8WideDot = WideGroupDot<8>;

// Rows of 8 bits; kWords and what `split` does as above.
#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)

template <int kBits>
struct ByteGroupDot {
  using Wide = WideGroupDot<kBits>;
  static constexpr int kPack = Wide::kPack, kParts = Wide::kParts, kHigh = Wide::kHigh;
  static constexpr int kWords = Wide::kWords, kUnits = kParts, kSums = 1;

  static ALWAYS_INLINE void split(Words words, Words high, uint32_t w, Words (&parts)[kParts]) {
    Wide::split(words, high, w, parts);
  }
  static ALWAYS_INLINE Ints whole(const Ints (&sums)[kSums]) { return sums[0]; }
  static ALWAYS_INLINE void join(Ints (&sums)[kSums], const Words (&x)[kUnits],
                                 const Words (&parts)[kParts]) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    for (int u = 0; u < kUnits; ++u) sums[0] = add_bytes(sums[0], x[u], parts[u]);
#elif defined(__AVX2__)
    // Four products of 63 by 127 fit 16 bits.
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
    sums[0] = add_pairs(sums[0], pairs, broadcast(0x00010001u));
#else
    for (int u = 0; u < kUnits; ++u)
      sums[0] = each<int32_t>([&](int i) {
        return (Ints::Register)vdotq_s32((int32x4_t)sums[0].part[i], (int8x16_t)x[u].part[i],
                                         (int8x16_t)parts[u].part[i]);
      });
#endif
  }
};
using Int4Dot = ByteGroupDot<4>;
using Int5Dot = ByteGroupDot<5>;
using Int6Dot = ByteGroupDot<6>;

#else

using Int4Dot = Int4WideDot;  // it multiplies numbers of 8 bits as well
using Int5Dot = Int5WideDot;
using Int6Dot = Int6WideDot;

#endif

// Of weights of 8 bits without a sign, only this instruction makes whole products.
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
using GroupedInt8Dot = ByteGroupDot<8>;
#else
using GroupedInt8Dot = GroupedInt8WideDot;
#endif

// Scales or minimums of groups, in the order of their columns: floats, halves, or bytes that are
// multiplied by the factor of 256 numbers.
enum GroupStorage : int64_t { kFloats, kHalves, kBytes };
constexpr int64_t bytes_of(int64_t storage) { return 4 >> storage; }  // of one
constexpr int64_t kFactorLen = 256;

// Of halves that are finite.
ALWAYS_INLINE Floats floats_of_halves(const uint16_t *from) {
#if defined(__AVX512F__)
  return {(Floats::Register)_mm512_cvtph_ps(
      _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)))};
#elif defined(__F16C__) && defined(__AVX__)
  return each<float>([&](int i) {
    return (Floats::Register)_mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * kLanes)));
  });
#else
  typedef uint16_t Narrow __attribute__((vector_size(2 * kLanes)));
  const Words bits = each<uint32_t>([&](int i) {
    Narrow part;
    std::memcpy(&part, from + i * kLanes, sizeof part);
    return __builtin_convertvector(part, Words::Register);
  });
  // An exponent is 112 less than that of the same float.
  const Floats magnitude = bits_as<float>((bits & 0x7fffu) << 13u) * 0x1p112f;
  return bits_as<float>(bits_as<uint32_t>(magnitude) | ((bits & 0x8000u) << 16u));
#endif
}
ALWAYS_INLINE Floats floats_of_bytes(const int8_t *from) {
  return floats_of(each<int32_t>([&](int i) {
#if defined(__AVX512F__)
    return (Ints::Register)_mm512_cvtepi8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * kLanes)));
#elif defined(__AVX2__)
    return (Ints::Register)_mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + i * kLanes)));
#else
    typedef int8_t Bytes __attribute__((vector_size(kLanes)));
    Bytes part;
    std::memcpy(&part, from + i * kLanes, sizeof part);
    return __builtin_convertvector(part, Ints::Register);
#endif
  }));
}

// What a group adds to the total of a tile of R rows. `sums`: of numbers times a row's, less what the
// zero takes off; `row_scales`: of the rows, `stride` apart.
template <class Dot, int R, int N>
ALWAYS_INLINE void join_group(Floats (&total)[R][N], const Ints (&sums)[R][N][Dot::kSums],
                              const float *row_scales, int64_t stride, const Floats (&scales)[N]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Floats row_scale = broadcast(row_scales[r * stride]);
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      const Floats exact = floats_of(Dot::whole(sums[r][n]));
      total[r][n] = multiply_add(exact * scales[n], row_scale, total[r][n]);
    }
  }
}

// As above, where groups have minimums. `row_sums`: of the rows' numbers.
template <class Dot, int R, int N>
ALWAYS_INLINE void join_group(Floats (&total)[R][N], const Ints (&sums)[R][N][Dot::kSums],
                              const float *row_sums, const float *row_scales, int64_t stride,
                              const Floats (&scales)[N], const Floats (&minimums)[N]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Floats row_sum = broadcast(row_sums[r * stride]);
    const Floats row_scale = broadcast(row_scales[r * stride]);
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      const Floats exact = floats_of(Dot::whole(sums[r][n]));
      const Floats value = multiply_add(exact, scales[n], row_sum * minimums[n]);
      total[r][n] = multiply_add(value, row_scale, total[r][n]);
    }
  }
}
