// How a word of weights, times a word of a row, joins a sum: per format and instruction set.
//
// A word has 32 bits: 1 float, 2 bfloat16s or 4 bytes, of consecutive k. `part` is what one step
// multiplies of 16 columns' words, `join` multiplies it by one unit of a row and adds. A row's word
// is kUnits units of 32 bits, encoded for the instruction that reads them. The parts of a word join
// in order, the words of a row in order: so every sum runs in one order, in one register.
//
// With AMX bfloat16s and bytes are multiplied by tiles instead (amx.h), whatever the number of rows:
// it sums even and odd numbers of a word apart, so a format cannot use both.
#pragma once

#include "elements.h"

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
